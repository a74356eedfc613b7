#include <ATen/core/Tensor.h>

#include "worker/targets/aten/kernels/special_generated.h"

// nansum of complex numbers, which the CPU's kernel refuses.
namespace torch_remote::worker::aten {
namespace {

// (self, dim, keepdim, dtype) and, for the overload `out`, the result. Sums all elements that are not NaN, as CUDA's
// kernel does.
void run_nansum(const SpecialCall& call) {
  if (!call.results[0].defined() && call.args.size() < 5) return;  // the result is unused
  at::Tensor self = call.args[0].toTensor();
  const at::Tensor& result = call.results[0].defined() ? call.results[0] : call.args[4].toTensor();
  if (self.scalar_type() == at::kComplexHalf) self = self.to(at::kComplexFloat);
  if (!call.args[3].isNone()) self = self.to(result.scalar_type());
  const at::Tensor numbers = self.masked_fill(self.isnan(), 0);
  result.copy_(numbers.sum(call.args[1].toOptional<std::vector<int64_t>>().value_or(std::vector<int64_t>()),
                           call.args[2].toBool()));
}

}  // namespace

Special nansum_kernels::nansum(const ir::Node& node, const ir::Graph& graph) {
  if (node.args[0].tag != ir::ArgTag::kView || !ir::is_complex(graph.views[node.args[0].a].dtype)) return nullptr;
  return run_nansum;
}

}  // namespace torch_remote::worker::aten

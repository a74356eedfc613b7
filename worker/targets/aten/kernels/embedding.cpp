#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/aten/checks/schema.h"
#include "worker/targets/aten/kernels/special.h"
#include "worker/targets/aten/kernels/special_generated.h"

// Embedding bags whose results have the sizes that torch infers for devices other than the CPU, as programs of
// torch.compile expect them: offset2bag also where the CPU's kernel omits it, with one entry per index; other results
// with one entry per bag or offset.
namespace torch_remote::worker::aten {
namespace {

constexpr size_t kIndices = 1, kOffsets = 2;  // arguments
constexpr size_t kOffset2Bag = 1;             // index among the results output, offset2bag, bag_size, max_indices

// The bag of each index.
at::Tensor bags_of(const at::Tensor& indices, const at::Tensor& offsets) {
  at::Tensor bags = at::zeros({indices.size(0) + 1}, offsets.options());
  bags.index_add_(0, offsets, at::ones_like(offsets));
  bags[0] -= 1;
  return bags.cumsum(0).narrow(0, 0, indices.size(0));
}

// The CPU's tensor may have other sizes than the program's. Copies the common part and fills the rest, which is unused,
// with zeros.
void store(const at::Tensor& result, const at::Tensor& value) {
  if (result.sizes() == value.sizes()) {
    result.copy_(value);
    return;
  }
  result.zero_();
  if (result.dim() != 1 || value.dim() != 1) return;
  const int64_t count = std::min(result.size(0), value.size(0));
  result.narrow(0, 0, count).copy_(value.narrow(0, 0, count));
}

void run(const SpecialCall& call, const c10::OperatorHandle& op) {
  c10::Stack stack(call.args.begin(), call.args.end());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  const at::Tensor &indices = call.args[kIndices].toTensor(), &offsets = call.args[kOffsets].toTensor();
  for (size_t i = 0; i < call.results.size(); ++i) {
    const at::Tensor& result = call.results[i];
    if (!result.defined()) continue;
    const at::Tensor& value = stack[i].toTensor();
    const bool left_out = i == kOffset2Bag && value.numel() == 0 && result.numel() != 0;
    store(result, left_out ? bags_of(indices, offsets) : value);
  }
}

}  // namespace

void embedding_kernels::bag(const SpecialCall& call) {
  static const c10::OperatorHandle op = find_operator(ir::op_desc(ir::ops::aten__embedding_bag).name);
  run(call, op);
}

void embedding_kernels::bag_forward_only(const SpecialCall& call) {
  static const c10::OperatorHandle op = find_operator(ir::op_desc(ir::ops::aten__embedding_bag_forward_only).name);
  run(call, op);
}

}  // namespace torch_remote::worker::aten

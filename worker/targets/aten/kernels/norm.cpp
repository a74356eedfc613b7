#include <ATen/core/Tensor.h>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/aten/checks/schema.h"
#include "worker/targets/aten/kernels/special_generated.h"

// The backward pass of a half-precision norm whose statistics are float32. Torch infers that dtype for devices other
// than the CPU, in programs of torch.compile. Calls the CPU's kernel, which takes the statistics in the input's
// precision.
namespace torch_remote::worker::aten {
namespace {

// Positions of arguments.
struct Norm {
  ir::Opcode opcode;
  size_t input, weight;
  size_t statistics[2];
};

constexpr Norm kLayerNorm = {ir::ops::aten_native_layer_norm_backward, 1, 5, {3, 4}};
constexpr Norm kBatchNorm = {ir::ops::aten_native_batch_norm_backward, 1, 2, {5, 6}};

// The casts are exact: the CPU's forward pass computed these statistics in the input's precision.
template <const Norm& norm>
void run_norm(const SpecialCall& call) {
  static const c10::OperatorHandle op = find_operator(ir::op_desc(norm.opcode).name);
  c10::Stack stack(call.args.begin(), call.args.end());
  for (const size_t i : norm.statistics) {
    stack[i] = stack[i].toTensor().to(call.args[norm.input].toTensor().scalar_type());
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (size_t i = 0; i < call.results.size(); ++i) {
    if (call.results[i].defined()) call.results[i].copy_(stack[i].toTensor());
  }
}

template <const Norm& norm>
Special find_norm(const ir::Node& node, const ir::Graph& graph) {
  const auto dtype = [&](size_t i) {
    return node.args[i].tag == ir::ArgTag::kView ? std::optional(graph.views[node.args[i].a].dtype) : std::nullopt;
  };
  const auto input = dtype(norm.input), weight = dtype(norm.weight);
  const bool half = input == ir::DType::kFloat16 || input == ir::DType::kBFloat16;
  if (!half || (weight && weight != input)) return nullptr;
  for (const size_t i : norm.statistics) {
    if (dtype(i) != ir::DType::kFloat32) return nullptr;
  }
  return run_norm<norm>;
}

}  // namespace

Special norm_kernels::layer_norm_backward(const ir::Node& node, const ir::Graph& graph) {
  return find_norm<kLayerNorm>(node, graph);
}

Special norm_kernels::batch_norm_backward(const ir::Node& node, const ir::Graph& graph) {
  return find_norm<kBatchNorm>(node, graph);
}

}  // namespace torch_remote::worker::aten

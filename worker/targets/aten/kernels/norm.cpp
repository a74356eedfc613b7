#include "worker/targets/aten/kernels/norm.h"

#include <ATen/ATen.h>

#include "worker/targets/aten/checks/schema.h"

namespace torch_remote::worker::aten {
namespace {

struct Norm {
  std::string_view name;
  size_t input, weight;
  size_t statistics[2];  // arguments
  Special special;
};

template <size_t Index>
void run_norm(const SpecialCall& call);

constexpr Norm kNorms[] = {
    {"aten::native_layer_norm_backward", 1, 5, {3, 4}, run_norm<0>},
    {"aten::native_batch_norm_backward", 1, 2, {5, 6}, run_norm<1>},
};

// The casts are exact: the CPU's forward pass computed these statistics in the input's precision.
template <size_t Index>
void run_norm(const SpecialCall& call) {
  const Norm& norm = kNorms[Index];
  static const c10::OperatorHandle op = find_operator(norm.name);
  c10::Stack stack(call.args.begin(), call.args.end());
  for (const size_t i : norm.statistics) {
    stack[i] = stack[i].toTensor().to(call.args[norm.input].toTensor().scalar_type());
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (size_t i = 0; i < call.results.size(); ++i) {
    if (call.results[i].defined()) call.results[i].copy_(stack[i].toTensor());
  }
}

}  // namespace

Special find_norm(const ir::Node& node, const ir::Graph& graph) {
  const auto dtype = [&](size_t i) {
    return node.args[i].tag == ir::ArgTag::kView ? std::optional(graph.views[node.args[i].a].dtype) : std::nullopt;
  };
  for (const Norm& norm : kNorms) {
    if (ir::op_desc(node.opcode).name != norm.name) continue;
    const auto input = dtype(norm.input), weight = dtype(norm.weight);
    const bool half = input == ir::DType::kFloat16 || input == ir::DType::kBFloat16;
    if (!half || (weight && weight != input)) return nullptr;
    for (const size_t i : norm.statistics) {
      if (dtype(i) != ir::DType::kFloat32) return nullptr;
    }
    return norm.special;
  }
  return nullptr;
}

}  // namespace torch_remote::worker::aten

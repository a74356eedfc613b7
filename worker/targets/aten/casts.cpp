#include "worker/targets/aten/casts.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>

namespace torch_remote::worker::aten {
namespace {

using c10::ScalarType;
using ir::Arg;
using ir::ArgTag;

// One op in one dtype. Where CUDA computes in the narrow dtype itself, our result in the wider dtype has a smaller
// rounding error.
struct Rule {
  ir::Opcode opcode;
  ScalarType narrow, wide;
};

// The column `computes_in` of ir/ops/*.toml, sorted by opcode.
constexpr Rule kRules[] = {
#include "worker/targets/aten/casts_generated.inc"
};

template <typename F>
void for_each_dtype(const Arg& arg, const ir::Graph& graph, F&& f) {
  if (arg.tag == ArgTag::kView && !graph.views[arg.a].dynamic) f(static_cast<ScalarType>(graph.views[arg.a].dtype));
  for (const Arg& item : arg.items) for_each_dtype(item, graph, f);
}

bool has_dtype(const ir::Node& node, const ir::Graph& graph, ScalarType wanted) {
  bool found = false;
  const auto look = [&](ScalarType dtype) { found = found || dtype == wanted; };
  for (const Arg& arg : node.args) for_each_dtype(arg, graph, look);
  for (const Arg& result : node.results) for_each_dtype(result, graph, look);
  return found;
}

std::optional<ScalarType> result_dtype(const Arg& result, const ir::Graph& graph) {
  std::optional<ScalarType> dtype;
  for_each_dtype(result, graph, [&](ScalarType type) { dtype = type; });
  return dtype;
}

// Returns a list of the same type with `change` applied to each tensor.
template <typename F>
c10::IValue map_list(const c10::IValue& list, F&& change) {
  if (list.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : list.toTensorVector()) tensors.push_back(change(tensor));
    return tensors;
  }
  c10::List<std::optional<at::Tensor>> tensors;
  for (const c10::IValue& item : list.toListRef()) {
    tensors.push_back(item.isNone() ? std::nullopt : std::optional(change(item.toTensor())));
  }
  return tensors;
}

void write_back(const at::Tensor& own, const at::Tensor& copy) {
  if (own.defined() && !own.is_same(copy)) own.copy_(copy);
}

}  // namespace

std::optional<Casts> Casts::find(const ir::Node& node, const ir::Graph& graph) {
  const ir::OpDesc& desc = ir::op_desc(node.opcode);
  Casts found;
  // Torch's CPU kernels support little more than copies in complex32.
  if (has_dtype(node, graph, ScalarType::ComplexHalf)) {
    found.casts_ = {{ScalarType::ComplexHalf, ScalarType::ComplexFloat}, {ScalarType::Half, ScalarType::Float}};
  }
  for (const Rule& rule : std::ranges::equal_range(kRules, node.opcode, {}, &Rule::opcode)) {
    if (has_dtype(node, graph, rule.narrow)) found.casts_.push_back({rule.narrow, rule.wide});
  }
  if (found.casts_.empty()) return std::nullopt;
  for (uint32_t i = 0; i < node.args.size(); ++i) {
    const Arg& arg = node.args[i];
    if (arg.tag == ArgTag::kDType) found.dtypes_.push_back(i);
    bool tensors = false;
    for_each_dtype(arg, graph, [&](ScalarType) { tensors = true; });
    if (!tensors) continue;
    found.operands_.push_back(i);
    if (desc.args[i].writes) found.written_.push_back(i);
  }
  for (const Arg& result : node.results) {
    auto& dtypes = found.results_.emplace_back();
    if (result.tag == ArgTag::kView) dtypes.push_back(result_dtype(result, graph));
    for (const Arg& item : result.items) dtypes.push_back(result_dtype(item, graph));
  }
  return found;
}

ScalarType Casts::wide(ScalarType dtype) const {
  for (const Cast& cast : casts_) {
    if (cast.narrow == dtype) return cast.wide;
  }
  return dtype;
}

at::Tensor Casts::wide(const at::Tensor& tensor) const {
  return tensor.defined() ? tensor.to(wide(tensor.scalar_type())) : tensor;
}

void Casts::widen(c10::Stack& stack) const {
  const auto change = [&](const at::Tensor& tensor) { return wide(tensor); };
  for (const uint32_t i : operands_) {
    stack[i] = stack[i].isTensor() ? c10::IValue(wide(stack[i].toTensor())) : map_list(stack[i], change);
  }
  for (const uint32_t i : dtypes_) stack[i] = static_cast<int64_t>(wide(stack[i].toScalarType()));
}

at::Tensor Casts::narrow(at::Tensor tensor, const std::optional<ScalarType>& dtype) const {
  if (!tensor.defined()) return tensor;
  if (dtype) return tensor.to(*dtype);
  for (const Cast& cast : casts_) {
    if (cast.wide == tensor.scalar_type()) return tensor.to(cast.narrow);
  }
  return tensor;
}

void Casts::narrow(c10::Stack& stack, const std::vector<c10::IValue>& arguments, const c10::Stack& widened) const {
  for (const uint32_t i : written_) {
    if (arguments[i].isTensor()) {
      write_back(arguments[i].toTensor(), widened[i].toTensor());
      continue;
    }
    const auto own = arguments[i].toListRef(), copies = widened[i].toListRef();
    for (size_t j = 0; j < own.size(); ++j) {
      if (own[j].isTensor()) write_back(own[j].toTensor(), copies[j].toTensor());
    }
  }
  for (size_t i = 0; i < std::min(results_.size(), stack.size()); ++i) {
    const auto& dtypes = results_[i];
    if (dtypes.empty()) continue;  // the result is an argument or a number
    if (stack[i].isTensor()) {
      stack[i] = narrow(stack[i].toTensor(), dtypes[0]);
    } else if (stack[i].isTensorList()) {
      size_t item = 0;
      stack[i] = map_list(stack[i], [&](const at::Tensor& tensor) {
        return narrow(tensor, item < dtypes.size() ? dtypes[item++] : std::nullopt);
      });
    }
  }
}

}  // namespace torch_remote::worker::aten

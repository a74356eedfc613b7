#include "worker/targets/aten/casts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string_view>

namespace torch_remote::worker::aten {
namespace {

using c10::ScalarType;
using ir::Arg;
using ir::ArgTag;

// One op, with its in-place and out overloads, in one dtype. Where CUDA computes in the narrow dtype itself, our result
// in the wider dtype has a smaller rounding error.
struct Rule {
  std::string_view op;
  ScalarType narrow, wide;
};

constexpr Rule kRules[] = {
    {"aten::abs", ScalarType::Bool, ScalarType::Byte},
    {"aten::trace", ScalarType::Bool, ScalarType::Long},
    // Exact: edges and counts are integers of less than 53 bits.
    {"aten::histc", ScalarType::Byte, ScalarType::Double},
    {"aten::histc", ScalarType::Char, ScalarType::Double},
    {"aten::histc", ScalarType::Short, ScalarType::Double},
    {"aten::histc", ScalarType::Int, ScalarType::Double},
    {"aten::histc", ScalarType::Long, ScalarType::Double},
    {"aten::avg_pool3d", ScalarType::Half, ScalarType::Float},
    {"aten::avg_pool3d", ScalarType::BFloat16, ScalarType::Float},
    {"aten::avg_pool3d_backward", ScalarType::Half, ScalarType::Float},
    {"aten::avg_pool3d_backward", ScalarType::BFloat16, ScalarType::Float},
    {"aten::_upsample_bilinear2d_aa", ScalarType::Half, ScalarType::Float},
    {"aten::_upsample_bilinear2d_aa", ScalarType::BFloat16, ScalarType::Float},
    {"aten::_upsample_bilinear2d_aa_backward", ScalarType::Half, ScalarType::Float},
    {"aten::_upsample_bilinear2d_aa_backward", ScalarType::BFloat16, ScalarType::Float},
    {"aten::_upsample_bicubic2d_aa", ScalarType::Half, ScalarType::Float},
    {"aten::_upsample_bicubic2d_aa", ScalarType::BFloat16, ScalarType::Float},
    {"aten::_upsample_bicubic2d_aa_backward", ScalarType::Half, ScalarType::Float},
    {"aten::_upsample_bicubic2d_aa_backward", ScalarType::BFloat16, ScalarType::Float},
    {"aten::multi_margin_loss", ScalarType::Half, ScalarType::Float},
    {"aten::multi_margin_loss", ScalarType::BFloat16, ScalarType::Float},
    {"aten::multi_margin_loss_backward", ScalarType::Half, ScalarType::Float},
    {"aten::multi_margin_loss_backward", ScalarType::BFloat16, ScalarType::Float},
    {"aten::multilabel_margin_loss_forward", ScalarType::Half, ScalarType::Float},
    {"aten::multilabel_margin_loss_forward", ScalarType::BFloat16, ScalarType::Float},
    {"aten::multilabel_margin_loss_backward", ScalarType::Half, ScalarType::Float},
    {"aten::multilabel_margin_loss_backward", ScalarType::BFloat16, ScalarType::Float},
    {"aten::rrelu_with_noise", ScalarType::Half, ScalarType::Float},
    {"aten::_fft_r2c", ScalarType::Half, ScalarType::Float},
};

std::string_view base_name(std::string_view name) {
  name = name.substr(0, name.find('.'));
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

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
  for (const Rule& rule : kRules) {
    if (rule.op == base_name(desc.name) && has_dtype(node, graph, rule.narrow)) {
      found.casts_.push_back({rule.narrow, rule.wide});
    }
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

// (self, dim, keepdim, dtype) and, for the overload `out`, the result. Sums all elements that are not NaN, as CUDA's
// kernel does.
Special find_nansum(const ir::Node& node, const ir::Graph& graph) {
  if (base_name(ir::op_desc(node.opcode).name) != "aten::nansum" || node.args[0].tag != ArgTag::kView) return nullptr;
  if (!c10::isComplexType(static_cast<ScalarType>(graph.views[node.args[0].a].dtype))) return nullptr;
  return [](const SpecialCall& call) {
    at::Tensor self = call.args[0].toTensor();
    const at::Tensor& result = call.results[0].defined() ? call.results[0] : call.args[4].toTensor();
    if (self.scalar_type() == ScalarType::ComplexHalf) self = self.to(ScalarType::ComplexFloat);
    if (!call.args[3].isNone()) self = self.to(result.scalar_type());
    const at::Tensor numbers = self.masked_fill(self.isnan(), 0);
    result.copy_(numbers.sum(call.args[1].toOptional<std::vector<int64_t>>().value_or(std::vector<int64_t>()),
                             call.args[2].toBool()));
  };
}

}  // namespace torch_remote::worker::aten

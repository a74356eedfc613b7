#include "worker/targets/cuda/ops/plan/op_node.h"

#include <bit>

#include "ir/analysis.h"

namespace torch_remote::worker::cuda {

using ir::ArgTag;
using ir::DType;

const ir::Arg* OpNode::argument(std::string_view name) const {
  const ir::Arg* const found = ir::find_argument(node_, name);
  return found == nullptr || found->tag == ArgTag::kNone ? nullptr : found;
}

int64_t OpNode::value(ir::Sym symbol) {
  symbols_->push_back(symbol);
  return values_[symbol];
}

namespace {

// Whether a number argument is a float or complex number.
bool holds_float(const ir::Arg& arg) {
  return arg.tag == ArgTag::kFloat || arg.tag == ArgTag::kComplex ||
         (arg.tag == ArgTag::kScalarTensor && ir::is_float(static_cast<DType>(arg.b & 0xFF)));
}

}  // namespace

int64_t OpNode::integer(std::string_view name, int64_t otherwise) {
  const ir::Arg* const given = argument(name);
  if (given == nullptr) return otherwise;
  return holds_float(*given) ? static_cast<int64_t>(std::bit_cast<double>(value(given->a))) : value(given->a);
}

double OpNode::number(std::string_view name, double otherwise) {
  const ir::Arg* const given = argument(name);
  if (given == nullptr) return otherwise;
  return holds_float(*given) ? std::bit_cast<double>(value(given->a)) : static_cast<double>(value(given->a));
}

std::vector<int64_t> OpNode::integers(std::string_view name) {
  std::vector<int64_t> all;
  const ir::Arg* const given = argument(name);
  if (given == nullptr) return all;
  for (const ir::Arg& item : given->items) all.push_back(value(item.a));
  return all;
}

size_t OpNode::dim(int64_t given, size_t rank) {
  const auto count = static_cast<int64_t>(rank);
  const int64_t index = given < 0 ? given + count : given;
  const bool exists = index >= 0 && index < count;
  require(exists);
  return exists ? static_cast<size_t>(index) : 0;
}

uint64_t OpNode::bits(std::string_view name, DType dtype) {
  if (ir::is_float(dtype)) return float_bits(number(name), dtype);
  if (dtype == DType::kBool) return number(name) != 0 ? 1 : 0;
  return static_cast<uint64_t>(integer(name));
}

OpTensor OpNode::tensor_of(uint32_t number) const {
  const ir::View& view = graph_.views[number];
  OpTensor tensor;
  tensor.dtype = view.dtype;
  if (view.dynamic) return tensor;
  tensor.location = {view.buffer, static_cast<uint64_t>(values_[view.offset]) * ir::item_size(view.dtype)};
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    tensor.sizes.push_back(values_[view.sizes[d]]);
    tensor.strides.push_back(values_[view.strides[d]]);
  }
  return tensor;
}

std::optional<OpTensor> OpNode::tensor(std::string_view name) const {
  const ir::Arg* const given = argument(name);
  if (given == nullptr || given->tag != ArgTag::kView) return std::nullopt;
  return tensor_of(given->a);
}

std::optional<OpTensor> OpNode::result(size_t i) const {
  const ir::OpDesc& desc = ir::op_desc(node_.opcode);
  if (i >= node_.results.size() || i >= desc.results.size()) return std::nullopt;
  const ir::Arg& made = node_.results[i];
  if (made.tag == ArgTag::kView && !graph_.views[made.a].dynamic) return tensor_of(made.a);
  const int8_t alias = desc.results[i].alias;
  if (alias < 0 || node_.args[static_cast<size_t>(alias)].tag != ArgTag::kView) return std::nullopt;
  return tensor_of(node_.args[static_cast<size_t>(alias)].a);
}

std::optional<OpTensor> OpNode::listed_result(size_t list, size_t i) const {
  if (list >= node_.results.size() || node_.results[list].tag != ArgTag::kList) return std::nullopt;
  const std::vector<ir::Arg>& items = node_.results[list].items;
  if (i >= items.size() || items[i].tag != ArgTag::kView) return std::nullopt;
  return tensor_of(items[i].a);
}

std::optional<uint32_t> OpNode::dynamic_result(size_t i) const {
  if (i >= node_.results.size() || node_.results[i].tag != ArgTag::kView) return std::nullopt;
  return graph_.views[node_.results[i].a].dynamic ? std::optional(node_.results[i].a) : std::nullopt;
}

}  // namespace torch_remote::worker::cuda

#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "codegen/lower/expand.h"
#include "codegen/lower/indices.h"

// Ops that read or write at indices. If an index is out of bounds, the kernel fails. The runner that then executes the
// nodes one by one reports the error.
namespace torch_remote::codegen {
namespace {

using ir::Expansion;
using ir::ScalarOp;

bool embedding(NodeEmitter& node) {
  node.result(0, load_at_indices(node, "weight", std::array{node.args.find("indices")->a}));
  return true;
}

// Rows of the padding index add zero.
bool embedding_backward(NodeEmitter& node) {
  Emitter& e = node.e;
  const uint32_t indices = node.args.find("indices")->a;
  const V index = e.convert(node.element(indices), ir::DType::kInt64);
  const V grad = node.operand("grad_output");
  const V zero = e.constant(e.type(grad), 0);
  store_at_indices(node, std::array{indices},
                   e.where(e.op(ScalarOp::kEq, index, node.operand("padding_idx")), zero, grad), true);
  return true;
}

// index_select, gather
bool along_a_dim(NodeEmitter& node) {
  node.result(0, load_at_indices(node, "self", std::array{node.args.find("index")->a}));
  return true;
}

bool take(NodeEmitter& node) {
  node.result(0, load_at_linear_index(node, "self", node.args.find("index")->a));
  return true;
}

std::vector<uint32_t> views_of(const ir::Arg& list) {
  std::vector<uint32_t> views;
  for (const ir::Arg& item : list.items) {
    if (item.tag == ir::ArgTag::kView) views.push_back(item.a);
  }
  return views;
}

bool index(NodeEmitter& node) {
  node.result(0, load_at_indices(node, "self", views_of(node.node.args[1]), true));
  return true;
}

bool index_put(NodeEmitter& node) {
  store_at_indices(node, views_of(node.node.args[1]), node.operand("values"), node.args.bool_value("accumulate"), true);
  return true;
}

// self[.., index, ..] += alpha * source
bool index_add(NodeEmitter& node) {
  Emitter& e = node.e;
  V value = node.operand("source");
  if (node.args.float_value("alpha") != 1) value = e.mul(value, node.operand("alpha", e.type(value)));
  store_at_indices(node, std::array{node.args.find("index")->a}, value, true);
  return true;
}

// Whether torch converts the number to this dtype without an error. If not, the runner that executes the op decides.
bool fits(double number, ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kBool:
    case ir::DType::kFloat64:
      return true;
    case ir::DType::kUInt8:
      return number >= 0 && number <= 255;
    case ir::DType::kFloat32:
      return std::abs(number) <= 3e38 || !std::isfinite(number);
    case ir::DType::kFloat16:
    case ir::DType::kBFloat16:
      return std::abs(number) <= 65504 || !std::isfinite(number);
    default:
      return std::abs(number) <= (dtype == ir::DType::kInt8 ? 127 : 32767) && number == std::trunc(number);
  }
}

// index_copy_, scatter_, scatter_add_
bool write_along_a_dim(NodeEmitter& node, std::string_view source, bool adds) {
  if (source == "value" && !fits(node.args.float_value(source), node.args.view("self")->dtype)) return false;
  store_at_indices(node, std::array{node.args.find("index")->a}, node.operand(source), adds);
  return true;
}

}  // namespace

bool expand_indices(NodeEmitter& node) {
  switch (node.member.form.expansion) {
    case Expansion::kEmbedding:
      return embedding(node);
    case Expansion::kEmbeddingBackward:
      return embedding_backward(node);
    case Expansion::kTake:
      return take(node);
    case Expansion::kIndex:
      return index(node);
    case Expansion::kIndexPut:
      return index_put(node);
    case Expansion::kIndexAdd:
      return index_add(node);
    case Expansion::kIndexCopy:
      return write_along_a_dim(node, "source", false);
    case Expansion::kScatter:
      return write_along_a_dim(node, node.args.find("src") != nullptr ? "src" : "value", false);
    case Expansion::kScatterAdd:
      return write_along_a_dim(node, "src", true);
    default:
      return along_a_dim(node);
  }
}

}  // namespace torch_remote::codegen

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "worker/targets/cuda/ops/plan/op_tensor.h"

namespace torch_remote::worker::cuda {

// A node with the values of one run. Needs no GPU.
class OpNode {
 public:
  // `symbols`: gets each symbol whose value is read. The node is planned anew when one of these values changes.
  OpNode(const ir::Graph& graph, uint32_t index, std::span<const int64_t> values, std::vector<ir::Sym>* symbols)
      : graph_(graph), node_(graph.nodes[index]), index_(index), values_(values), symbols_(symbols) {}

  const ir::Graph& graph() const { return graph_; }
  uint32_t index() const { return index_; }
  const ir::Node& ir_node() const { return node_; }
  std::string_view op() const { return ir::op_desc(node_.opcode).name; }
  // The values of all symbols. A plan that depends on one must read it with `value`.
  std::span<const int64_t> values() const { return values_; }

  // Null: there is no such argument, or it was not given.
  const ir::Arg* argument(std::string_view name) const;
  bool has(std::string_view name) const { return argument(name) != nullptr; }
  int64_t value(ir::Sym symbol);
  int64_t integer(std::string_view name, int64_t otherwise = 0);
  double number(std::string_view name, double otherwise = 0);
  bool flag(std::string_view name, bool otherwise = false) { return integer(name, otherwise ? 1 : 0) != 0; }
  std::vector<int64_t> integers(std::string_view name);
  // The index of a dim of a tensor with this rank. A negative dim counts from the end. If there is no such dim, the
  // node has no plan, and the index is 0.
  size_t dim(int64_t given, size_t rank);
  // If a condition does not hold, the node has no plan: PlanBuilder::finish declines it.
  void require(bool condition) { fits_ &= condition; }
  bool fits() const { return fits_; }
  // A number argument as the bits of an element.
  uint64_t bits(std::string_view name, ir::DType dtype);

  std::optional<OpTensor> tensor(std::string_view name) const;
  OpTensor tensor_of(uint32_t view) const;
  // The i-th result, or the argument that it aliases. None: the result is not used.
  std::optional<OpTensor> result(size_t i) const;
  // The i-th tensor of a result that is a list.
  std::optional<OpTensor> listed_result(size_t list, size_t i) const;
  // The view of a result whose size depends on data.
  std::optional<uint32_t> dynamic_result(size_t i) const;

 private:
  const ir::Graph& graph_;
  const ir::Node& node_;
  const uint32_t index_;
  const std::span<const int64_t> values_;
  std::vector<ir::Sym>* const symbols_;
  bool fits_ = true;  // All conditions of `require` hold.
};

}  // namespace torch_remote::worker::cuda

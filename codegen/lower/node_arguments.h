#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ir/graph.h"

namespace torch_remote::codegen {

struct GroupEmitter;

// The arguments of a node, by their names in the op table. Emits no values.
class NodeArguments {
 public:
  // `item`: an op over lists (`_foreach_add`) computes item by item. Each list stands for its element with this index.
  NodeArguments(GroupEmitter& group, const ir::Node& node, uint32_t item) : group_(group), node_(node), item_(item) {}

  const ir::Arg& at(size_t index) const;
  const ir::Arg* find(std::string_view name) const;  // null if the op has no such argument
  bool has(std::string_view name) const;             // whether the argument is given

  const ir::View* view(std::string_view name) const;      // null if it is not a tensor
  ir::DType type(std::string_view name) const;            // the type in which kernels compute with a tensor's elements
  int64_t size(std::string_view name, size_t dim) const;  // of a tensor, in this run

  // Numbers of this run; 0 if not given. The launch then depends on them (Launch::depends).
  int64_t int_value(std::string_view name) const;
  double float_value(std::string_view name) const;  // of a float or an int
  bool bool_value(std::string_view name) const;
  std::optional<double> number(size_t index) const;  // empty if the argument is no number

 private:
  int64_t symbol(ir::Sym symbol) const;
  GroupEmitter& group_;
  const ir::Node& node_;
  const uint32_t item_;
};

}  // namespace torch_remote::codegen

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
  // `item`: for an op over lists (`_foreach_add`), which is computed item by item, the index of the item. Each list
  // argument then stands for its element with this index.
  NodeArguments(GroupEmitter& group, const ir::Node& node, uint32_t item) : group_(group), node_(node), item_(item) {}

  const ir::Arg& at(size_t index) const;
  const ir::Arg* find(std::string_view name) const;  // null if the op has no such argument
  bool has(std::string_view name) const;             // whether the argument is given

  const ir::View* view(std::string_view name) const;  // null if the argument is not a tensor
  // The next two functions require a tensor.
  ir::DType type(std::string_view name) const;            // the type in which kernels compute with a tensor's elements
  int64_t size(std::string_view name, size_t dim) const;  // of a tensor, in this run

  // The number's value in this run, or 0 if the argument is not given. The kernel may be specialized for the value, so
  // the number's symbol is added to Launch::depends.
  int64_t int_value(std::string_view name) const;
  double float_value(std::string_view name) const;  // of a float or an int
  bool bool_value(std::string_view name) const;
  std::optional<double> number(size_t index) const;  // empty if the argument is not a number

 private:
  int64_t symbol(ir::Sym symbol) const;
  GroupEmitter& group_;
  const ir::Node& node_;
  const uint32_t item_;
};

}  // namespace torch_remote::codegen

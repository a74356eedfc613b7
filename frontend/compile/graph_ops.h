#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <vector>

#include "ir/ops/op_table.h"

namespace torch_remote::frontend {

// How a node of an FX graph becomes part of an ir::Graph.
struct GraphOp {
  enum class How : uint8_t {
    kNot,     // it does not
    kRecord,  // a node of the op `desc`
    kView,    // no node: another view of its first argument
    kEmpty,   // no node: new memory
    kFill,    // new memory and `desc`, which fills it
    kOther,   // a node of `desc`, which makes its first results; the others are memory that nobody reads
  };
  How how = How::kNot;
  const ir::OpDesc* desc = nullptr;
  const char* why_not = "";
  // kFill, kOther: what `desc` takes (beside the memory), in order.
  struct Filling {
    std::optional<size_t> place;  // among the node's arguments
    pybind11::object fixed;       // instead: the same always
  };
  std::vector<Filling> filling;
  std::optional<size_t> zero;  // kOther: the place of an argument that must be 0
  struct Argument {
    pybind11::str name;
    pybind11::object otherwise;  // its default; null: there is none
  };
  std::vector<Argument> schema;  // of the node's own overload
  std::optional<c10::OperatorHandle> handle;

  // A call's arguments in the order of the schema; null for those that are neither given nor have a default.
  std::vector<pybind11::object> arguments(const pybind11::tuple& args, const pybind11::dict& kwargs) const;
};

// Whether a program can hold this operator (an OpOverload) as it is. With the GIL.
bool is_program_op(pybind11::handle target);

// Whether this operator (an OpOverload) is recorded as one op, in eager code too, and writes what its schema says. With
// the GIL.
bool is_whole_op(pybind11::handle target);

// Of an FX node's target; remembered. With the GIL.
const GraphOp& graph_op(pybind11::handle target);

}  // namespace torch_remote::frontend

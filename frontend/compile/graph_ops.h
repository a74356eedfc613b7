#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <vector>

#include "ir/ops/op_table.h"

namespace torch_remote::frontend {

// How a node of an FX graph becomes part of an ir::Graph.
struct GraphOp {
  enum class Kind : uint8_t {
    kUnsupported,  // not supported
    kRecord,       // a node of the op `desc`
    kView,         // no node: a view of its first argument
    kEmpty,        // no node: new memory
    kFill,         // new memory and `desc`, which fills it
    kReplaced,     // a node of `desc` computes the first results; the others are unused memory
  };
  Kind kind = Kind::kUnsupported;
  const ir::OpDesc* desc = nullptr;
  const char* why_not = "";  // kUnsupported: the reason, for messages
  bool custom = false;       // kRecord: not one of torch's ops, so a worker may lack it (worker_has_op)
  // kFill, kReplaced: the arguments of `desc` other than the memory, in order.
  struct MappedArgument {
    std::optional<size_t> index;  // index among the node's arguments
    pybind11::object constant;    // if not set, this constant
  };
  std::vector<MappedArgument> mapped_arguments;
  std::optional<size_t> zero;  // kReplaced: index of an argument that must be 0
  struct Argument {
    pybind11::str name;
    pybind11::object default_value;  // its default; null if there is none
  };
  std::vector<Argument> schema;           // of the node's overload
  std::optional<c10::OperatorName> name;  // none if the node's target is not an operator of the dispatcher

  // The dispatcher's operator, or none if it was removed. Do not store it: Python may destroy a custom op's library.
  std::optional<c10::OperatorHandle> handle() const;

  // A call's arguments in the order of the schema. Null for arguments that are neither given nor have a default.
  std::vector<pybind11::object> arguments(const pybind11::tuple& args, const pybind11::dict& kwargs) const;
};

// Whether a program of this device supports this operator (an OpOverload) as one node. Calls graph_op(), and
// worker_has_op() for an operator that is not torch's own. Requires the GIL.
bool is_program_op(pybind11::handle target, c10::DeviceIndex device);

// Whether this operator (an OpOverload) is recorded as one op in eager mode, too, and mutates only what its schema
// says. Calls graph_op(). Requires the GIL.
bool is_single_op(pybind11::handle target);

// The GraphOp of an FX node's target. It is cached, and lives as long as the process. Requires the GIL.
const GraphOp& graph_op(pybind11::handle target);

}  // namespace torch_remote::frontend

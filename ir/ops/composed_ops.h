#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ir/ops/op_table.h"

// Ops outside the op table (ir/ops/composed.toml): those that the client implements itself, and those that a
// torch.compile graph composes of memory and another op.
namespace torch_remote::ir {

// The translation of a node of an FX graph.
enum class ComposedKind : uint8_t {
  kNothing,  // cannot be in a program
  kRecord,   // a node of the same op, although eager mode does not record it as such
  kEmpty,    // new memory
  kView,     // another view of its first argument
  kFill,     // new memory and `op`, which fills it
  kOther,    // a node of `op`, which computes the first results; the other results are memory that is never read
};

// An argument of `op`: an argument of the composed op, or a constant. For kFill, the first argument of `op` is the new
// memory, which has no entry.
struct ComposedArgument {
  std::string_view name;  // empty if the argument is a constant
  ArgKind kind;           // kind of the constant: kBool, kInt or kFloat
  double constant;
};

struct ComposedOp {
  std::string_view name;       // schema name
  bool implemented_by_client;  // the client implements it, or torch composes it of ops that the client implements
  ComposedKind kind;
  Opcode op;  // for kFill and kOther: op of the table; otherwise kInvalidOpcode
  std::span<const ComposedArgument> arguments;
  std::string_view zero_argument;  // an argument that must be 0; empty if there is none
};

// Sorted by name.
std::span<const ComposedOp> composed_ops();
// Null if the op is not listed. A binary search over strings, meant for registration and compilation.
const ComposedOp* find_composed(std::string_view name);

}  // namespace torch_remote::ir

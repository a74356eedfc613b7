#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ir/ops/op_table.h"

// Ops beside the table (ir/ops/composed.toml): those that the client has a kernel of its own for, and those that a
// graph of torch.compile makes of memory and another op.
namespace torch_remote::ir {

// What a node of an FX graph becomes.
enum class ComposedAs : uint8_t {
  kNothing,  // no program holds it
  kRecord,   // a node of the same op, though eager code does not record it so
  kEmpty,    // new memory
  kView,     // another view of its first argument
  kFill,     // new memory and `by`, which fills it
  kOther,    // a node of `by`, which makes its first results; the others are memory that nobody reads
};

// What `by` takes (of kFill: beside the memory): an argument of the composed op, or a constant.
struct ComposedArgument {
  std::string_view name;  // empty: the constant
  ArgKind kind;           // of the constant: kBool, kInt or kFloat
  double constant;
};

struct ComposedOp {
  std::string_view name;  // schema name
  bool own_kernel;        // has a kernel of the client, or is left to torch's composite, which ends in one
  ComposedAs as;
  Opcode by;  // op of the table; kInvalidOpcode: none
  std::span<const ComposedArgument> with;
  std::string_view zero;  // an argument that must be 0; empty: none
};

// Sorted by name.
std::span<const ComposedOp> composed_ops();
// Null for another op. A binary search over strings: for registration and compiling.
const ComposedOp* find_composed(std::string_view name);

}  // namespace torch_remote::ir

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "codegen/lower/emitter.h"
#include "codegen/lower/node_arguments.h"
#include "ir/fusion/domain.h"

namespace torch_remote::codegen {

// Emits the values of one member of a domain. A *part* of the node is a view that it reads or writes (ir::Part). kNone
// stands for a value that does not exist.
class NodeEmitter {
 public:
  // `item`: for ops over lists, the index of the tensors in their lists; otherwise 0.
  NodeEmitter(GroupEmitter& group, const ir::IterationDomain::Member& member, uint32_t item);

  GroupEmitter& group;
  Emitter& e;
  const ir::Graph& graph;
  const ir::IterationDomain::Member& member;
  const ir::Node& node;
  const uint32_t item;
  const NodeArguments args;

  bool checks_divisors() const;  // whether the kernel reports an integer division by zero

  // The symbol's value as an argument of the kernel.
  V scalar_of(ir::DType type, ir::Sym symbol);
  // The value of an argument: the element of a tensor at the current point, or a number. An element has the type that
  // kernels compute in for its dtype. A number is an i64, f64 or bool. kNone: the op has no such argument, it is not
  // given, it is neither a tensor nor a real number, or the node reads it at indices.
  V operand(const ir::Arg& arg);
  V operand(std::string_view name);
  // The same value, converted to `type`. It must not be kNone.
  V operand(std::string_view name, ir::DType type);
  // The argument's value as memory would contain it: an element of a half type is rounded to that type. It is for
  // results that are indices, counts, integers or bools, in which rounding makes more than a rounding error.
  V stored_operand(const ir::Arg& arg);
  // The element of a view at the current point: loaded, or the value that an earlier node of the group wrote there.
  // kNone: the node does not read the view, or reads it at indices.
  V element(uint32_t view);
  bool has_part(std::string_view name) const;  // whether the argument is given and the kernel accesses its elements

  bool is_result_used(size_t result) const;
  // The dtype of a result; if it is not used, that of the first part that the node writes.
  ir::DType result_dtype(size_t result) const;
  // Sets a result, or does nothing if it is not used. Converts `value` to the type that kernels compute in for the
  // result's dtype. The same conversion applies to fill() and update().
  void result(size_t index, V value);
  // Writes `value` to every part that the node writes. For ops that fill their first argument or work in place.
  void fill(V value);
  // Writes `value` to an argument that the op updates in addition to its results, if it is given.
  void update(std::string_view name, V value);

  int64_t space_points() const;   // number of points that the node is computed at, in this run
  int64_t count_reduced() const;  // number of points that one element of the result reduces, in this run
  // count_reduced() as an argument of the kernel.
  V reduced_points(ir::DType type);
  // The sum of a value for a result that varies along fewer dims, such as the gradient of a norm's weight. It sums over
  // the dims along which the result does not vary, in `sum_type`. Rows in IterationDomain::unreduced_rows are not
  // summed. Returns kNone if LoopIR has no reduction over these dims, or if the result is not used.
  V sum_for(size_t result, V value);
  // The member's reduction of a value, in the value's type: over columns, rows, or both. If the member does not reduce,
  // this is the value itself.
  V reduce(Reduction reduction, V value);
  // The same reduction for sums and products, in `sum_type`.
  V accumulate(Reduction reduction, V value);
  // Whether the kernel has one column dim, and the member reduces over columns alone, not over rows.
  bool has_one_column() const;

 private:
  void write(uint32_t view, V value);
};

}  // namespace torch_remote::codegen

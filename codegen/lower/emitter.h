#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "codegen/lower/launch.h"
#include "ir/fusion/domain.h"

// What the parts of the lowering share: a kernel under construction.
namespace torch_remote::codegen {

using V = uint32_t;  // a value of the kernel, or kNone

// What sums and products of a type are accumulated in. Squares of f32 neither overflow nor vanish in f64.
constexpr ir::DType sum_type(ir::DType type) { return type == ir::DType::kFloat32 ? ir::DType::kFloat64 : type; }

// Adds values to a launch's kernel. What is there already is not made again.
class Emitter {
 public:
  explicit Emitter(Launch& launch) : launch_(launch) {}

  ir::DType type(V value) const { return value_at(value).type; }
  const Value& value_at(V value) const { return launch_.kernel.values[value]; }

  V constant(ir::DType type, double number);
  V constant_int(ir::DType type, int64_t number);
  // Arguments of the kernel.
  V scalar_float(double number);
  V scalar_int(int64_t number);
  V scalar_of(ir::DType type, ir::Sym symbol, int64_t value);  // f64, i64 or bool
  V index(uint32_t dim);
  V load(uint32_t operand, std::vector<V> indices = {});
  V convert(V value, ir::DType type);
  V truth(V value);  // a bool: whether it is not 0
  V op(ir::ScalarOp op, V a, V b = kNone, V c = kNone);
  V fma(V a, V b, V c);  // a * b + c, rounded once
  V bits(V value, ir::DType type);
  // An f32 as a half type has it.
  V rounded(V value, ir::DType half);
  V columns(Reduction reduction, V value);
  V sum_columns(V value) { return columns(Reduction::kSum, convert(value, sum_type(type(value)))); }
  // Over columns or lines, in `sum_type`: of f32 by short sums in f32 (`Order::narrow`), whose error is some units of
  // the largest of them. That is nothing where numbers have one sign.
  V wide_sum(V value, Over over = Over::kColumns);
  // Whether it is an absolute value or a square.
  bool has_no_sign(V value) const;
  V running(Reduction reduction, V value);
  V rows(Reduction reduction, V value);
  V random(V seed, V offset, V number);

  V add(V a, V b) { return op(ir::ScalarOp::kAdd, a, b); }
  V sub(V a, V b) { return op(ir::ScalarOp::kSub, a, b); }
  V mul(V a, V b) { return op(ir::ScalarOp::kMul, a, b); }
  V div(V a, V b) { return op(ir::ScalarOp::kDiv, a, b); }
  V eq(V a, V b) { return op(ir::ScalarOp::kEq, a, b); }
  V exp(V a) { return op(ir::ScalarOp::kExp, a); }
  V where(V condition, V a, V b) { return op(ir::ScalarOp::kWhere, condition, a, b); }

 private:
  V add_value(Value value);
  V add_scalar(ir::DType type, uint64_t bits, ir::Sym symbol);
  Launch& launch_;
};

// One member of a domain while its values are made.
class NodeEmitter {
 public:
  struct Group;  // what its neighbours made: group_emitter.h

  NodeEmitter(Group& group, const ir::Domain::Member& member, const ir::Node& node, uint32_t item);

  Emitter& e;
  const ir::Graph& graph;
  const ir::Domain::Member& member;
  const ir::Node& node;
  const ir::OpDesc& desc;

  // The symbol as an argument of the kernel.
  V scalar_of(ir::DType type, ir::Sym symbol);
  // The element or number of an argument, in its own type; kNone if it is not given, or no such argument.
  V operand(size_t arg);
  V operand(std::string_view name);
  // The same, converted.
  V operand(std::string_view name, ir::DType type);
  const ir::Arg& arg(size_t index) const { return ir::item_of(node.args[index], item_); }
  const ir::Arg* argument(std::string_view name) const;
  int64_t whole(std::string_view name) const;      // an int of this run
  double number(std::string_view name) const;      // a float of this run
  bool flag(std::string_view name) const;          // a bool of this run
  int64_t symbol(ir::Sym symbol) const;            // its value in this run
  int64_t space_points() const;                    // of the space that the node is computed over
  std::optional<double> number(size_t arg) const;  // of this run, if the argument is one
  bool has(std::string_view name) const;           // it is given
  bool has_part(std::string_view name) const;      // and its elements take part
  const ir::View* view(std::string_view name) const;
  int64_t size(const ir::View& view, size_t dim) const;  // in this run

  bool wants(size_t result) const;
  ir::DType result_dtype(size_t result) const;
  // Given as what kernels compute in.
  void result(size_t index, V value);
  // Of an op that fills its first argument, or works in place.
  void fill(V value);
  // Of an argument that the op writes, too.
  void update(std::string_view name, V value);

  // The element of a view that the node reads, at the point.
  V element(uint32_t view);
  // An element of an operand, any one, if the index is a place along an axis of the node's space; else it fails.
  V indexed_in_axis(std::string_view name, V index, uint32_t axis);
  // Writes the value, or adds it, to the element where the indices in these views say; of what the node writes so.
  void write_at(std::span<const uint32_t> indices, V value, bool adds, bool wraps = false);

  // How many points the member's reduction goes over, as an argument of the kernel.
  V reduced_points(ir::DType type);
  int64_t count_reduced() const;
  // The sum, in `sum_type`, of a value over all that the result does not vary over, kept rows aside. kNone if there is
  // no such reduction.
  V sum_for(size_t result, V value);
  // The member's reduction of a value, in its type.
  V reduce(Reduction reduction, V value);
  // The same for sums and products, in `sum_type`.
  V accumulate(Reduction reduction, V value);
  // Columns are one dim, along which the member's rows lie.
  bool has_one_column() const;
  // Where along an axis of its space the point is; i64. kNone if the kernel's dims do not tell.
  V axis_index(uint32_t axis);
  // The point's number, row-major.
  V linear_index();
  // An index that the node reads; i64. `wraps`: those below zero count from the end.
  V place(uint32_t view, int64_t bound, bool wraps = false, std::optional<int64_t> ignored = std::nullopt);
  // The element of an operand where the indices in these views say, one for each of its dims that they choose.
  V indexed(std::string_view name, std::span<const uint32_t> indices, bool wraps = false);
  // The element of an operand whose number, row-major, is in this view; those below zero count from the end.
  V numbered(std::string_view name, uint32_t number);

 private:
  V read(const ir::Domain::Access& access, std::vector<V> indices = {});
  void write(uint32_t view, V value);
  Group& group_;
  const uint32_t item_;
};

// Makes the values of the member's results. False: not in this form.
bool expand(NodeEmitter& node);
// Of OpDesc::tree.
bool expand_expression(NodeEmitter& node);
// Of what reads or writes at indices.
bool expand_indices(NodeEmitter& node);
// Of gelu, logit and gradients of activations.
bool expand_activation(NodeEmitter& node);
// What the `reduction` of a loss says.
enum LossReduction : int64_t { kNoReduction = 0, kMeanReduction = 1 };
// Of losses of pairs, and their gradients.
bool expand_loss(NodeEmitter& node);
// Of steps of optimizers.
bool expand_optimizer(NodeEmitter& node);

}  // namespace torch_remote::codegen

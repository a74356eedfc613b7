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

// The kernel under construction, which all parts of the lowering share.
namespace torch_remote::codegen {

using V = uint32_t;  // a value of the kernel, or kNone

// The type in which sums and products of `type` are accumulated. Squares of f32 neither overflow nor vanish in f64.
constexpr ir::DType sum_type(ir::DType type) { return type == ir::DType::kFloat32 ? ir::DType::kFloat64 : type; }

// Adds values to a launch's kernel. If an equal value exists, it is returned instead.
class Emitter {
 public:
  explicit Emitter(Launch& launch) : launch_(launch) {}

  ir::DType type(V value) const { return value_at(value).type; }
  const Value& value_at(V value) const { return launch_.kernel.values[value]; }

  V constant(ir::DType type, double number);
  V constant_int(ir::DType type, int64_t number);
  // Arguments of the kernel; each call adds one, except for a symbol that is an argument already.
  V scalar_float(double number);
  V scalar_int(int64_t number);
  V scalar_of(ir::DType type, ir::Sym symbol, int64_t value);  // f64, i64 or bool
  V index(uint32_t dim);
  V load(uint32_t operand, std::vector<V> indices = {});
  V convert(V value, ir::DType type);
  V to_bool(V value);  // a bool: whether the value is not 0
  V op(ir::ScalarOp op, V a, V b = kNone, V c = kNone);
  V fma(V a, V b, V c);  // a * b + c, rounded once
  V bits(V value, ir::DType type);
  // An f32 rounded to the precision of a half type; the result is an f32.
  V rounded(V value, ir::DType half);
  // A reduction over columns.
  V columns(Reduction reduction, V value);
  V sum_columns(V value) { return columns(Reduction::kSum, convert(value, sum_type(type(value)))); }
  // The sum over columns or lines, in `sum_type`. Short sums of an f32 are computed in f32 (`Order::short_sum`). The
  // error is a few units in the last place of the largest short sum, which is negligible if all numbers have one sign.
  V wide_sum(V value, Over over = Over::kColumns);
  // Whether the value is an absolute value or a square.
  bool is_nonnegative(V value) const;
  // Reductions along the last column up to each place (Kind::kRunning), and over rows.
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

// Emits the values of one member of a domain.
class NodeEmitter {
 public:
  struct Group;  // what the members of a group share: group_emitter.h

  NodeEmitter(Group& group, const ir::IterationDomain::Member& member, const ir::Node& node, uint32_t item);

  Emitter& e;
  const ir::Graph& graph;
  const ir::IterationDomain::Member& member;
  const ir::Node& node;
  const ir::OpDesc& desc;

  uint32_t item() const { return item_; }  // for ops over lists: the number of the tensors
  bool checks_divisors() const;            // whether the kernel reports an integer division by zero

  // The symbol's value as an argument of the kernel.
  V scalar_of(ir::DType type, ir::Sym symbol);
  // The element or number of an argument, in its own type. kNone if the op has no such argument or it is not given.
  V operand(size_t arg);
  V operand(std::string_view name);
  // The same value, converted to `type`.
  V operand(std::string_view name, ir::DType type);
  const ir::Arg& arg(size_t index) const { return ir::item_of(node.args[index], item_); }
  const ir::Arg* argument(std::string_view name) const;
  int64_t int_argument(std::string_view name) const;   // an int of this run; 0 if not given
  double float_argument(std::string_view name) const;  // a float or int of this run; 0 if not given
  bool bool_argument(std::string_view name) const;     // a bool of this run; false if not given
  int64_t symbol(ir::Sym symbol) const;                // the symbol's value in this run
  int64_t space_points() const;                        // points of the space that the node is computed over
  std::optional<double> number(size_t arg) const;      // the argument's number in this run, if it is one
  bool has(std::string_view name) const;               // whether the argument is given
  bool has_part(std::string_view name) const;          // whether it is given and the kernel accesses its elements
  const ir::View* view(std::string_view name) const;
  int64_t size(const ir::View& view, size_t dim) const;  // in this run

  bool is_result_used(size_t result) const;
  ir::DType result_dtype(size_t result) const;
  // Sets a result; `value` has the type that kernels compute in.
  void result(size_t index, V value);
  // Writes `value` to all parts that the node writes: for ops that fill their first argument or work in place.
  void fill(V value);
  // Writes `value` to an argument that the op updates in addition to its results.
  void update(std::string_view name, V value);

  // The element at the point, of a view that the node reads.
  V element(uint32_t view);
  // Loads an arbitrary element of an operand to check an index. The load reports a failure unless `index` is a place
  // along this axis of the node's space.
  V check_index_in_axis(std::string_view name, V index, uint32_t axis);
  // Writes the value, or adds it, to the elements at the indices in these views, for the parts that the node writes at
  // indices.
  void write_at(std::span<const uint32_t> indices, V value, bool adds, bool wraps = false);

  // The number of points that the member reduces, as an argument of the kernel.
  V reduced_points(ir::DType type);
  int64_t count_reduced() const;
  // The sum of a value, in `sum_type`, over all dims along which the result does not vary, except rows that are not
  // reduced (IterationDomain::unreduced_rows). Returns kNone if there is no such reduction.
  V sum_for(size_t result, V value);
  // The member's reduction of a value, in the value's type.
  V reduce(Reduction reduction, V value);
  // The same reduction for sums and products, in `sum_type`.
  V accumulate(Reduction reduction, V value);
  // Whether the kernel has one column dim, and the member reduces over it.
  bool has_one_column() const;
  // The point's index along an axis of the node's space, i64. kNone if no dim of the kernel is exactly that axis.
  V axis_index(uint32_t axis);
  // The point's row-major number in the space, i64. kNone if the kernel's dims are not in row-major order.
  V linear_index();
  // An index that the node reads, i64, which must be less than `bound` or equal `ignored`. `wraps`: negative indices
  // count from the end.
  V checked_index(uint32_t view, int64_t bound, bool wraps = false, std::optional<int64_t> ignored = std::nullopt);
  // The element of an operand at the indices in these views: one index for each dim that indices choose.
  V load_at_indices(std::string_view name, std::span<const uint32_t> indices, bool wraps = false);
  // The element of an operand whose row-major number is in this view; negative numbers count from the end.
  V load_at_linear_index(std::string_view name, uint32_t number);

 private:
  V read(const ir::IterationDomain::Access& access, std::vector<V> indices = {});
  void write(uint32_t view, V value);
  Group& group_;
  const uint32_t item_;
};

// Emits the values of the member's results. Returns false if no kernel computes this form of the op.
bool expand(NodeEmitter& node);
// Expands the op's scalar tree (OpDesc::tree).
bool expand_expression(NodeEmitter& node);
// Expands ops that read or write at indices.
bool expand_indices(NodeEmitter& node);
// Expands gelu, logit, other activations, and gradients of activations.
bool expand_activation(NodeEmitter& node);
// Values of a loss's argument `reduction`.
enum LossReduction : int64_t { kNoReduction = 0, kMeanReduction = 1 };
// Expands losses of pairs of elements, and their gradients.
bool expand_loss(NodeEmitter& node);
// Expands optimizer steps.
bool expand_optimizer(NodeEmitter& node);

}  // namespace torch_remote::codegen

#pragma once

#include <cstdint>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "codegen/lower/launch.h"

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

  V constant(ir::DType type, double number);  // `number` is a value of `type`
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
  V reduce(Reduction reduction, V value, Over over = Over::kColumns);
  // The sum over columns or lines, in `sum_type`. Short sums of an f32 are computed in f32 (`Order::short_sum`). The
  // error is a few units in the last place of the largest short sum, which is negligible if all numbers have one sign.
  V wide_sum(V value, Over over = Over::kColumns);
  V running(Reduction reduction, V value);  // along the last column, up to each position
  V random(V seed, V offset, V number);

  V add(V a, V b) { return op(ir::ScalarOp::kAdd, a, b); }
  V sub(V a, V b) { return op(ir::ScalarOp::kSub, a, b); }
  V mul(V a, V b) { return op(ir::ScalarOp::kMul, a, b); }
  V div(V a, V b) { return op(ir::ScalarOp::kDiv, a, b); }
  V where(V condition, V a, V b) { return op(ir::ScalarOp::kWhere, condition, a, b); }

 private:
  V add_value(Value value);
  V add_scalar(ir::DType type, uint64_t bits, ir::Sym symbol);
  Launch& launch_;
};

}  // namespace torch_remote::codegen

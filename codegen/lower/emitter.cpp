#include "codegen/lower/emitter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "codegen/loop/scalar_ops.h"

namespace torch_remote::codegen {

using ir::DType;
using ir::ScalarOp;

V Emitter::add_value(Value value) {
  std::vector<Value>& values = launch_.kernel.values;
  const auto found = std::ranges::find(values, value);
  if (found != values.end()) return static_cast<V>(found - values.begin());
  values.push_back(std::move(value));
  return static_cast<V>(values.size() - 1);
}

V Emitter::constant(DType type, double number) {
  if (ir::is_float(type)) return add_value({.type = type, .number = number});
  return add_value({.type = type, .integer = static_cast<int64_t>(number)});
}

V Emitter::add_scalar(DType type, uint64_t bits, ir::Sym symbol) {
  // One symbol is one argument. Other numbers are separate arguments: two that are equal now may differ in the next
  // run.
  const auto known = std::ranges::find(launch_.scalar_symbols, symbol);
  const auto at = static_cast<size_t>(known - launch_.scalar_symbols.begin());
  const bool found = symbol != ir::kNoSym && at < launch_.scalars.size() && launch_.kernel.scalars[at] == type;
  const auto argument = static_cast<uint32_t>(found ? at : launch_.scalars.size());
  if (!found) {
    launch_.kernel.scalars.push_back(type);
    launch_.scalars.push_back(bits);
    launch_.scalar_symbols.push_back(symbol);
  }
  return add_value({.kind = Kind::kScalar, .type = type, .a = argument});
}

V Emitter::scalar_float(double number) {
  return add_scalar(DType::kFloat64, std::bit_cast<uint64_t>(number), ir::kNoSym);
}
V Emitter::scalar_int(int64_t number) { return add_scalar(DType::kInt64, static_cast<uint64_t>(number), ir::kNoSym); }
V Emitter::scalar_of(DType type, ir::Sym symbol, int64_t value) {
  return add_scalar(type, static_cast<uint64_t>(value), symbol);
}

V Emitter::index(uint32_t dim) { return add_value({.kind = Kind::kIndex, .type = DType::kInt64, .a = dim}); }

V Emitter::load(uint32_t operand, std::vector<V> indices) {
  const DType type = loaded_type(launch_.kernel.operands[operand].dtype);
  return add_value({.kind = Kind::kLoad, .type = type, .operand = operand, .indices = std::move(indices)});
}

V Emitter::convert(V a, DType type) {
  return this->type(a) == type ? a : add_value({.kind = Kind::kConvert, .type = type, .a = a});
}

V Emitter::to_bool(V a) {
  if (type(a) == DType::kBool) return a;
  const Value& value = value_at(a);
  if (value.kind == Kind::kConvert && type(value.a) == DType::kBool) return value.a;
  return convert(a, DType::kBool);
}

V Emitter::op(ScalarOp op, V a, V b, V c) {
  const DType type = info(op).returns_bool ? DType::kBool : this->type(op == ScalarOp::kWhere ? b : a);
  return add_value({.kind = Kind::kScalarOp, .type = type, .op = op, .a = a, .b = b, .c = c});
}

V Emitter::fma(V a, V b, V c) { return add_value({.kind = Kind::kFma, .type = type(a), .a = a, .b = b, .c = c}); }

V Emitter::bits(V a, DType type) { return add_value({.kind = Kind::kBits, .type = type, .a = a}); }

V Emitter::rounded(V x, DType half) {
  const auto whole = [&](int number) { return constant(DType::kInt32, number); };
  const auto number = [&](double value) { return constant(DType::kFloat32, value); };
  // We round to the nearest number whose cut bits are zero, ties to even.
  const int cut = half == DType::kBFloat16 ? 16 : 13;
  const V word = bits(x, DType::kInt32);
  const V odd = op(ScalarOp::kBitAnd, op(ScalarOp::kShiftRight, word, whole(cut)), whole(1));
  const V sum = add(add(word, whole((1 << (cut - 1)) - 1)), odd);
  V result = bits(op(ScalarOp::kBitAnd, sum, whole(-(1 << cut))), DType::kFloat32);
  if (half == DType::kFloat16) {
    const V size = op(ScalarOp::kAbs, x);
    // Below 2^-14 adjacent float16 numbers are 2^-24 apart, as adjacent f32 numbers at 0.5 are.
    const V small = op(ScalarOp::kCopysign, sub(add(size, number(0.5)), number(0.5)), x);
    const V infinite = op(ScalarOp::kCopysign, number(std::numeric_limits<double>::infinity()), x);
    result = where(op(ScalarOp::kGe, size, number(65520)), infinite, result);
    result = where(op(ScalarOp::kLt, size, number(std::ldexp(1.0, -14))), small, result);
  }
  return where(op(ScalarOp::kIsNan, x), x, result);
}

V Emitter::reduce(Reduction reduction, V a, Over over) {
  const bool gives_index = reduction == Reduction::kArgMax || reduction == Reduction::kArgMin;
  const DType type = gives_index ? DType::kInt64 : this->type(a);
  return add_value({.kind = Kind::kReduce, .type = type, .reduction = reduction, .over = over, .a = a});
}

V Emitter::wide_sum(V a, Over over) {
  return add_value({.kind = Kind::kReduce, .type = sum_type(type(a)), .over = over, .a = a});
}

V Emitter::running(Reduction reduction, V a) {
  return add_value({.kind = Kind::kRunning, .type = type(a), .reduction = reduction, .a = a});
}

V Emitter::random(V seed, V offset, V number) {
  return add_value({.kind = Kind::kRandom, .type = DType::kInt32, .a = seed, .b = offset, .c = number});
}

}  // namespace torch_remote::codegen

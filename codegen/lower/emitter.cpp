#include "codegen/lower/emitter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

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
  Value value;
  value.type = type;
  value.number = number;
  return ir::is_float(type) ? add_value(value) : constant_int(type, static_cast<int64_t>(number));
}

V Emitter::constant_int(DType type, int64_t number) {
  if (ir::is_float(type)) return constant(type, static_cast<double>(number));
  Value value;
  value.type = type;
  value.integer = number;
  return add_value(value);
}

V Emitter::add_scalar(DType type, uint64_t bits, ir::Sym symbol) {
  // One symbol is one argument. Other numbers are separate arguments: two that are equal now may differ in the next
  // run.
  const auto known = std::ranges::find(launch_.scalar_symbols, symbol);
  const auto at = static_cast<size_t>(known - launch_.scalar_symbols.begin());
  const bool found = symbol != ir::kNoSym && at < launch_.scalars.size() && launch_.kernel.scalars[at] == type;
  Value value;
  value.kind = Kind::kScalar;
  value.type = type;
  value.a = static_cast<uint32_t>(found ? at : launch_.scalars.size());
  if (!found) {
    launch_.kernel.scalars.push_back(type);
    launch_.scalars.push_back(bits);
    launch_.scalar_symbols.push_back(symbol);
  }
  return add_value(value);
}

V Emitter::scalar_float(double number) {
  return add_scalar(DType::kFloat64, std::bit_cast<uint64_t>(number), ir::kNoSym);
}
V Emitter::scalar_int(int64_t number) { return add_scalar(DType::kInt64, static_cast<uint64_t>(number), ir::kNoSym); }
V Emitter::scalar_of(DType type, ir::Sym symbol, int64_t value) {
  return add_scalar(type, static_cast<uint64_t>(value), symbol);
}

V Emitter::index(uint32_t dim) {
  Value value;
  value.kind = Kind::kIndex;
  value.type = DType::kInt64;
  value.a = dim;
  return add_value(value);
}

V Emitter::load(uint32_t operand, std::vector<V> indices) {
  Value value;
  value.kind = Kind::kLoad;
  value.type = loaded_type(launch_.kernel.operands[operand].dtype);
  value.operand = operand;
  value.indices = std::move(indices);
  return add_value(std::move(value));
}

V Emitter::convert(V a, DType type) {
  if (this->type(a) == type) return a;
  Value value;
  value.kind = Kind::kConvert;
  value.type = type;
  value.a = a;
  return add_value(value);
}

V Emitter::to_bool(V a) {
  if (type(a) == DType::kBool) return a;
  const Value& value = launch_.kernel.values[a];
  if (value.kind == Kind::kConvert && type(value.a) == DType::kBool) return value.a;
  return convert(a, DType::kBool);
}

V Emitter::op(ScalarOp op, V a, V b, V c) {
  Value value;
  value.kind = Kind::kScalarOp;
  value.op = op;
  value.a = a;
  value.b = b;
  value.c = c;
  value.type = info(op).returns_bool ? DType::kBool : type(op == ScalarOp::kWhere ? b : a);
  return add_value(value);
}

V Emitter::fma(V a, V b, V c) {
  Value value;
  value.kind = Kind::kFma;
  value.a = a;
  value.b = b;
  value.c = c;
  value.type = type(a);
  return add_value(value);
}

V Emitter::bits(V a, DType type) {
  Value value;
  value.kind = Kind::kBits;
  value.a = a;
  value.type = type;
  return add_value(value);
}

V Emitter::rounded(V x, DType half) {
  const auto whole = [&](int64_t number) { return constant_int(DType::kInt32, number); };
  const auto number = [&](double value) { return constant(DType::kFloat32, value); };
  // We round to the nearest number whose cut bits are zero, ties to even.
  const int64_t cut = half == DType::kBFloat16 ? 16 : 13;
  const V word = bits(x, DType::kInt32);
  const V odd = op(ScalarOp::kBitAnd, op(ScalarOp::kShiftRight, word, whole(cut)), whole(1));
  const V sum = add(add(word, whole((int64_t{1} << (cut - 1)) - 1)), odd);
  V result = bits(op(ScalarOp::kBitAnd, sum, whole(-(int64_t{1} << cut))), DType::kFloat32);
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

V Emitter::columns(Reduction reduction, V a) {
  Value value;
  value.kind = Kind::kReduce;
  value.type = reduction == Reduction::kArgMax || reduction == Reduction::kArgMin ? DType::kInt64 : type(a);
  value.reduction = reduction;
  value.over = Over::kColumns;
  value.a = a;
  return add_value(value);
}

V Emitter::wide_sum(V a, Over over) {
  Value value;
  value.kind = Kind::kReduce;
  value.type = sum_type(type(a));
  value.reduction = Reduction::kSum;
  value.over = over;
  value.a = a;
  return add_value(value);
}

bool Emitter::is_nonnegative(V a) const {
  const Value& value = value_at(a);
  if (value.kind != Kind::kScalarOp) return false;
  return value.op == ir::ScalarOp::kAbs || (value.op == ir::ScalarOp::kMul && value.a == value.b);
}

V Emitter::rows(Reduction reduction, V a) {
  Value value;
  value.kind = Kind::kReduce;
  value.type = type(a);
  value.reduction = reduction;
  value.over = Over::kRows;
  value.a = a;
  return add_value(value);
}

V Emitter::running(Reduction reduction, V value) {
  Value made;
  made.kind = Kind::kRunning;
  made.type = type(value);
  made.reduction = reduction;
  made.a = value;
  return add_value(std::move(made));
}

V Emitter::random(V seed, V offset, V number) {
  Value value;
  value.kind = Kind::kRandom;
  value.type = DType::kInt32;
  value.a = seed;
  value.b = offset;
  value.c = number;
  return add_value(value);
}

}  // namespace torch_remote::codegen

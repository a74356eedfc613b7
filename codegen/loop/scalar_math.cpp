#include "codegen/loop/scalar_math.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "codegen/loop/half.h"
#include "codegen/loop/scalar_ops.h"
#include "ir/philox.h"

namespace torch_remote::codegen {

using ir::DType;
using ir::ScalarOp;

template <>
Cell to_cell(float x) {
  return {std::bit_cast<uint32_t>(x)};
}
template <>
Cell to_cell(double x) {
  return {std::bit_cast<uint64_t>(x)};
}
template <>
Cell to_cell(int64_t x) {
  return {static_cast<uint64_t>(x)};
}
template <>
float from_cell(Cell cell) {
  return std::bit_cast<float>(static_cast<uint32_t>(cell.bits));
}
template <>
double from_cell(Cell cell) {
  return std::bit_cast<double>(cell.bits);
}
template <>
int64_t from_cell(Cell cell) {
  return static_cast<int64_t>(cell.bits);
}

int64_t wrapped(DType type, int64_t x) {
  switch (type) {
    case DType::kBool:
      return x & 1;
    case DType::kUInt8:
      return static_cast<uint8_t>(x);
    case DType::kInt8:
      return static_cast<int8_t>(x);
    case DType::kInt16:
      return static_cast<int16_t>(x);
    case DType::kInt32:
      return static_cast<int32_t>(x);
    default:
      return x;
  }
}

namespace {

template <typename T>
T read(const void* element) {
  T x;
  std::memcpy(&x, element, sizeof(T));
  return x;
}

template <typename T>
void write(T x, void* element) {
  std::memcpy(element, &x, sizeof(T));
}

Cell integer_cell(int64_t x) { return to_cell<int64_t>(x); }

// Calls f with a zero of the type in which elements of `type` are computed: float, double or int64_t.
template <typename F>
auto computed_as(DType type, F&& f) {
  if (type == DType::kFloat32) return f(float{});
  if (type == DType::kFloat64) return f(double{});
  return f(int64_t{});
}

}  // namespace

Cell load_element(DType memory, const void* element) {
  switch (memory) {
    case DType::kBool:
      return integer_cell(read<uint8_t>(element) != 0);
    case DType::kUInt8:
      return integer_cell(read<uint8_t>(element));
    case DType::kInt8:
      return integer_cell(read<int8_t>(element));
    case DType::kInt16:
      return integer_cell(read<int16_t>(element));
    case DType::kInt32:
      return integer_cell(read<int32_t>(element));
    case DType::kInt64:
      return integer_cell(read<int64_t>(element));
    case DType::kFloat16:
      return to_cell(from_f16(read<uint16_t>(element)));
    case DType::kBFloat16:
      return to_cell(from_bf16(read<uint16_t>(element)));
    case DType::kFloat32:
      return to_cell(read<float>(element));
    default:
      return to_cell(read<double>(element));
  }
}

void store_element(DType memory, Cell cell, void* element) {
  switch (memory) {
    case DType::kFloat16:
      return write(to_f16(from_cell<float>(cell)), element);
    case DType::kBFloat16:
      return write(to_bf16(from_cell<float>(cell)), element);
    case DType::kFloat32:
      return write(from_cell<float>(cell), element);
    case DType::kFloat64:
      return write(from_cell<double>(cell), element);
    case DType::kInt16:
      return write(static_cast<int16_t>(cell.bits), element);
    case DType::kInt32:
      return write(static_cast<int32_t>(cell.bits), element);
    case DType::kInt64:
      return write(static_cast<int64_t>(cell.bits), element);
    default:
      return write(static_cast<uint8_t>(cell.bits), element);
  }
}

Cell convert(DType from, DType to, Cell cell) {
  return computed_as(from, [&](auto source) {
    using From = decltype(source);
    const auto x = from_cell<From>(cell);
    if (to == DType::kBool) return integer_cell(x != 0);
    return computed_as(to, [&](auto target) {
      using To = decltype(target);
      if constexpr (std::is_same_v<To, int64_t> && !std::is_same_v<From, int64_t>) {
        // NaN and numbers that do not fit may become any integer.
        return integer_cell(x >= -0x1p63 && x < 0x1p63 ? wrapped(to, static_cast<int64_t>(x)) : 0);
      } else if constexpr (std::is_same_v<To, int64_t>) {
        return integer_cell(wrapped(to, x));
      } else {
        return to_cell(static_cast<To>(x));
      }
    });
  });
}

Cell bits_as(DType to, Cell cell) {
  // A cell contains the bits of f32 and f64; integers are extended to 64 bits.
  if (to == DType::kFloat32) return {cell.bits & 0xFFFFFFFF};
  return to == DType::kFloat64 ? cell : integer_cell(wrapped(to, static_cast<int64_t>(cell.bits)));
}

namespace {

// These fix which of two zeros is the result, which ir::evaluate does not.
template <typename T>
T largest(T a, T b) {
  return a > b || a != a ? a : b;
}

template <typename T>
T smallest(T a, T b) {
  return a < b || a != a ? a : b;
}

template <typename T>
T apply_as(ScalarOp op, T a, T b) {
  switch (op) {
    case ScalarOp::kMax:
      return largest(a, b);
    case ScalarOp::kMin:
      return smallest(a, b);
    case ScalarOp::kFmax:
      return a > b || b != b ? a : b;
    case ScalarOp::kFmin:
      return a < b || b != b ? a : b;
    default:
      break;
  }
  const std::array<ir::ScalarNode, 3> tree = {{{ScalarOp::kArgument, 0}, {ScalarOp::kArgument, 1}, {op, 0, 1}}};
  const std::array<T, 2> arguments = {a, b};
  return ir::evaluate<T>(tree, arguments);
}

}  // namespace

Cell apply(ScalarOp op, DType type, Cell a, Cell b, Cell c) {
  if (op == ScalarOp::kWhere) return a.bits != 0 ? b : c;
  const bool answers = info(op).returns_bool;
  return computed_as(type, [&](auto zero) {
    using T = decltype(zero);
    const T result = apply_as<T>(op, from_cell<T>(a), from_cell<T>(b));
    if (answers) return integer_cell(result != 0);
    if constexpr (std::is_same_v<T, int64_t>) return integer_cell(wrapped(type, result));
    return to_cell(result);
  });
}

Cell fused_multiply_add(DType type, Cell a, Cell b, Cell c) {
  return type == DType::kFloat32 ? to_cell(std::fma(from_cell<float>(a), from_cell<float>(b), from_cell<float>(c)))
                                 : to_cell(std::fma(from_cell<double>(a), from_cell<double>(b), from_cell<double>(c)));
}

Cell scaled(DType type, Cell a, Cell b) {
  static constexpr double kMost = 1 << 14;  // beyond all exponents
  const auto exponent = [](double b) { return b != b ? 0 : static_cast<int>(std::clamp(b, -kMost, kMost)); };
  return type == DType::kFloat32 ? to_cell(std::ldexp(from_cell<float>(a), exponent(from_cell<float>(b))))
                                 : to_cell(std::ldexp(from_cell<double>(a), exponent(from_cell<double>(b))));
}

Cell evaluate(const Value& value, DType operand, Cell a, Cell b, Cell c) {
  switch (value.kind) {
    case Kind::kConstant:
      return accepts(OperandTypes::kFloats, value.type) ? convert(DType::kFloat64, value.type, to_cell(value.number))
                                                        : integer_cell(value.integer);
    case Kind::kConvert:
      return convert(operand, value.type, a);
    case Kind::kBits:
      return bits_as(value.type, a);
    case Kind::kFma:
      return fused_multiply_add(value.type, a, b, c);
    case Kind::kLdexp:
      return scaled(value.type, a, b);
    default:
      return apply(value.op, operand, a, b, c);
  }
}

namespace {

// Computes the operations of the kernels. The functions of libm would give other bits.
Cell log_sum_exp(DType type, Cell x, Cell y) {
  static const std::vector<Value> kSingle = log_add_exp(DType::kFloat32), kDouble = log_add_exp(DType::kFloat64);
  const std::vector<Value>& values = type == DType::kFloat64 ? kDouble : kSingle;
  std::vector<Cell> cells(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Value& value = values[i];
    if (value.kind == Kind::kScalar) {
      cells[i] = value.a == 0 ? x : y;
      continue;
    }
    const auto input = [&](uint32_t which) { return which == kNone ? Cell{} : cells[which]; };
    const DType operand = value.typed() == kNone ? value.type : values[value.typed()].type;
    cells[i] = evaluate(value, operand, input(value.a), input(value.b), input(value.c));
  }
  return cells.back();
}

}  // namespace

Cell identity(Reduction reduction, DType type) {
  switch (reduction) {
    case Reduction::kSum:
      return convert(DType::kInt64, type, integer_cell(0));
    case Reduction::kProduct:
      return convert(DType::kInt64, type, integer_cell(1));
    default:
      break;
  }
  const bool lowest = reduction == Reduction::kMax || reduction == Reduction::kLogSumExp;
  switch (type) {
    case DType::kFloat32:
    case DType::kFloat64:
      return convert(
          DType::kFloat64, type,
          to_cell(lowest ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity()));
    case DType::kBool:
      return integer_cell(lowest ? 0 : 1);
    case DType::kUInt8:
      return integer_cell(lowest ? 0 : UINT8_MAX);
    default: {
      const int64_t most = std::numeric_limits<int64_t>::max() >> (64 - 8 * item_size(type));
      return integer_cell(lowest ? -most - 1 : most);
    }
  }
}

Cell combine(Reduction reduction, DType type, Cell so_far, Cell next) {
  switch (reduction) {
    case Reduction::kSum:
      return apply(ScalarOp::kAdd, type, so_far, next, {});
    case Reduction::kProduct:
      return apply(ScalarOp::kMul, type, so_far, next, {});
    case Reduction::kMax:
      return apply(ScalarOp::kMax, type, so_far, next, {});
    case Reduction::kLogSumExp:
      return log_sum_exp(type, so_far, next);
    default:
      return apply(ScalarOp::kMin, type, so_far, next, {});
  }
}

bool prefers_next(Reduction reduction, DType type, Cell best, Cell next) {
  return computed_as(type, [&](auto zero) {
    using T = decltype(zero);
    const auto x = from_cell<T>(best), y = from_cell<T>(next);
    if (x != x) return false;
    return y != y || (reduction == Reduction::kArgMax ? y > x : y < x);
  });
}

int32_t random_word(uint64_t seed, uint64_t offset, uint64_t number) {
  return static_cast<int32_t>(ir::Philox(seed, offset).block(number / 4)[number % 4]);
}

}  // namespace torch_remote::codegen

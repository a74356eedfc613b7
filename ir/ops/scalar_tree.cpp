#include "ir/ops/scalar_tree.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

namespace torch_remote::ir {
namespace {

// Integers are computed as unsigned 64-bit integers, which wrap around by definition.
template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T>;

template <typename T>
T wrapped(uint64_t value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
bool is_nan(T x) {
  if constexpr (kIsInteger<T>) {
    return false;
  } else {
    return std::isnan(x);
  }
}

template <typename T>
bool is_inf(T x) {
  if constexpr (kIsInteger<T>) {
    return false;
  } else {
    return std::isinf(x);
  }
}

template <typename T>
bool is_negative(T x) {
  if constexpr (std::is_unsigned_v<T>) {
    return false;
  } else {
    return x < 0;
  }
}

// The quotient of two integers, rounded towards zero; 0 for a division by zero.
template <typename T>
T integer_quotient(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return wrapped<T>(0 - static_cast<uint64_t>(a));
  }
  return static_cast<T>(a / b);
}

template <typename T>
T fmod_of(T a, T b) {
  if constexpr (kIsInteger<T>) {
    return wrapped<T>(static_cast<uint64_t>(a) -
                      static_cast<uint64_t>(integer_quotient(a, b)) * static_cast<uint64_t>(b));
  } else {
    return std::fmod(a, b);
  }
}

template <typename T>
T remainder_of(T a, T b) {
  const T rest = fmod_of(a, b);
  if constexpr (kIsInteger<T>) {
    return rest != 0 && is_negative(rest) != is_negative(b)
               ? wrapped<T>(static_cast<uint64_t>(rest) + static_cast<uint64_t>(b))
               : rest;
  } else {
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
}

// Like c10::div_floor_floating, which follows CPython.
template <typename T>
T floor_div(T a, T b) {
  if constexpr (kIsInteger<T>) {
    const T quotient = integer_quotient(a, b);
    return fmod_of(a, b) != 0 && is_negative(a) != is_negative(b) ? static_cast<T>(quotient - 1) : quotient;
  } else {
    if (b == 0) return a / b;
    const T rest = std::fmod(a, b);
    T quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
    if (quotient == 0) return std::copysign(T{0}, a / b);
    const T floored = std::floor(quotient);
    return quotient - floored > T{0.5} ? floored + 1 : floored;
  }
}

template <typename T>
T power(T a, T b) {
  if constexpr (kIsInteger<T>) {
    if (is_negative(b)) {
      if (a == 1) return 1;
      return std::is_signed_v<T> && a == static_cast<T>(-1) ? (b % 2 == 0 ? T{1} : static_cast<T>(-1)) : T{0};
    }
    uint64_t result = 1, base = static_cast<uint64_t>(a);
    for (auto left = static_cast<uint64_t>(b); left != 0; left >>= 1) {
      if ((left & 1) != 0) result *= base;
      base *= base;
    }
    return wrapped<T>(result);
  } else {
    return std::pow(a, b);
  }
}

template <typename T>
T shifted_left(T a, T b) {
  if constexpr (kIsInteger<T>) {
    constexpr int kBits = 8 * sizeof(T);
    return is_negative(b) || static_cast<int64_t>(b) >= kBits ? T{0} : wrapped<T>(static_cast<uint64_t>(a) << b);
  } else {
    return a * std::exp2(b);
  }
}

template <typename T>
T shifted_right(T a, T b) {
  if constexpr (kIsInteger<T>) {
    constexpr int kMost = 8 * sizeof(T) - std::is_signed_v<T>;
    const bool far = is_negative(b) || static_cast<int64_t>(b) >= kMost;
    return static_cast<T>(far ? (std::is_signed_v<T> ? a >> kMost : 0) : a >> b);
  } else {
    return a / std::exp2(b);
  }
}

// Applies a function of floats. It is never reached for integers, because such an op computes in floats.
template <typename T, typename F>
T real(T x, F&& function) {
  if constexpr (kIsInteger<T>) {
    return 0;
  } else {
    return function(x);
  }
}

// Returns the second of two equal arguments (zeros), as LoopIR does.
template <typename T>
T larger(T a, T b) {
  return is_nan(a) ? a : is_nan(b) ? b : std::max(b, a);
}

template <typename T>
T smaller(T a, T b) {
  return is_nan(a) ? a : is_nan(b) ? b : std::min(b, a);
}

template <typename T>
T bits(ScalarOp op, T a, T b) {
  if constexpr (kIsInteger<T>) {
    if (op == ScalarOp::kBitAnd) return static_cast<T>(a & b);
    if (op == ScalarOp::kBitOr) return static_cast<T>(a | b);
    if (op == ScalarOp::kBitXor) return static_cast<T>(a ^ b);
    if constexpr (std::is_same_v<T, bool>) {
      return !a;
    } else {
      return static_cast<T>(~a);
    }
  } else {
    return std::numeric_limits<T>::quiet_NaN();
  }
}

template <typename T>
T arithmetic(ScalarOp op, T a, T b) {
  if constexpr (kIsInteger<T>) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    switch (op) {
      case ScalarOp::kNeg:
        return wrapped<T>(0 - x);
      case ScalarOp::kAdd:
        return wrapped<T>(x + y);
      case ScalarOp::kSub:
        return wrapped<T>(x - y);
      case ScalarOp::kMul:
        return wrapped<T>(x * y);
      default:
        return integer_quotient(a, b);
    }
  } else {
    switch (op) {
      case ScalarOp::kNeg:
        return -a;
      case ScalarOp::kAdd:
        return a + b;
      case ScalarOp::kSub:
        return a - b;
      case ScalarOp::kMul:
        return a * b;
      default:
        return a / b;
    }
  }
}

template <typename T>
T apply(ScalarOp op, T a, T b, T c) {
  switch (op) {
    case ScalarOp::kArgument:
    case ScalarOp::kNumber:
    case ScalarOp::kToCompute:
    case ScalarOp::kToResult:
      return a;
    case ScalarOp::kNeg:
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
    case ScalarOp::kMul:
    case ScalarOp::kDiv:
      return arithmetic(op, a, b);
    case ScalarOp::kEq:
      return a == b;
    case ScalarOp::kNe:
      return a != b;
    case ScalarOp::kLt:
      return a < b;
    case ScalarOp::kLe:
      return a <= b;
    case ScalarOp::kGt:
      return a > b;
    case ScalarOp::kGe:
      return a >= b;
    case ScalarOp::kBitAnd:
    case ScalarOp::kBitNot:
    case ScalarOp::kBitOr:
    case ScalarOp::kBitXor:
      return bits(op, a, b);
    case ScalarOp::kAbs:
      if constexpr (kIsInteger<T>) {
        return is_negative(a) ? arithmetic(ScalarOp::kNeg, a, b) : a;
      } else {
        return std::fabs(a);
      }
    case ScalarOp::kCeil:
      return kIsInteger<T> ? a : real(a, [](auto x) { return std::ceil(x); });
    case ScalarOp::kFloor:
      return kIsInteger<T> ? a : real(a, [](auto x) { return std::floor(x); });
    case ScalarOp::kRound:
      return kIsInteger<T> ? a : real(a, [](auto x) { return std::nearbyint(x); });
    case ScalarOp::kTrunc:
      return kIsInteger<T> ? a : real(a, [](auto x) { return std::trunc(x); });
    case ScalarOp::kFloorDiv:
      return floor_div(a, b);
    case ScalarOp::kFmod:
      return fmod_of(a, b);
    case ScalarOp::kRemainder:
      return remainder_of(a, b);
    case ScalarOp::kPow:
      return power(a, b);
    case ScalarOp::kShiftLeft:
      return shifted_left(a, b);
    case ScalarOp::kShiftRight:
      return shifted_right(a, b);
    case ScalarOp::kIsInf:
      return is_inf(a);
    case ScalarOp::kIsNan:
      return is_nan(a);
    case ScalarOp::kFmax:
      return is_nan(a) ? b : is_nan(b) ? a : std::max(b, a);
    case ScalarOp::kFmin:
      return is_nan(a) ? b : is_nan(b) ? a : std::min(b, a);
    case ScalarOp::kMax:
      return larger(a, b);
    case ScalarOp::kMin:
      return smaller(a, b);
    case ScalarOp::kLogicalAnd:
      return a != T{0} && b != T{0};
    case ScalarOp::kLogicalNot:
      return a == T{0};
    case ScalarOp::kLogicalOr:
      return a != T{0} || b != T{0};
    case ScalarOp::kLogicalXor:
      return (a != T{0}) != (b != T{0});
    case ScalarOp::kSign:
      return static_cast<T>((a > T{0}) - (a < T{0}));
    case ScalarOp::kWhere:
      return a != T{0} ? b : c;
    case ScalarOp::kAtan2:
      return real(a, [&](auto x) { return std::atan2(x, b); });
    case ScalarOp::kCopysign:
      return real(a, [&](auto x) { return std::copysign(x, b); });
    case ScalarOp::kHypot:
      return real(a, [&](auto x) { return std::hypot(x, b); });
    case ScalarOp::kAcos:
      return real(a, [](auto x) { return std::acos(x); });
    case ScalarOp::kAcosh:
      return real(a, [](auto x) { return std::acosh(x); });
    case ScalarOp::kAsin:
      return real(a, [](auto x) { return std::asin(x); });
    case ScalarOp::kAsinh:
      return real(a, [](auto x) { return std::asinh(x); });
    case ScalarOp::kAtan:
      return real(a, [](auto x) { return std::atan(x); });
    case ScalarOp::kAtanh:
      return real(a, [](auto x) { return std::atanh(x); });
    case ScalarOp::kCos:
      return real(a, [](auto x) { return std::cos(x); });
    case ScalarOp::kCosh:
      return real(a, [](auto x) { return std::cosh(x); });
    case ScalarOp::kErf:
      return real(a, [](auto x) { return std::erf(x); });
    case ScalarOp::kErfc:
      return real(a, [](auto x) { return std::erfc(x); });
    case ScalarOp::kExp:
      return real(a, [](auto x) { return std::exp(x); });
    case ScalarOp::kExp2:
      return real(a, [](auto x) { return std::exp2(x); });
    case ScalarOp::kExpm1:
      return real(a, [](auto x) { return std::expm1(x); });
    case ScalarOp::kLgamma:
      return real(a, [](auto x) { return std::lgamma(x); });
    case ScalarOp::kLog:
      return real(a, [](auto x) { return std::log(x); });
    case ScalarOp::kLog10:
      return real(a, [](auto x) { return std::log10(x); });
    case ScalarOp::kLog1p:
      return real(a, [](auto x) { return std::log1p(x); });
    case ScalarOp::kLog2:
      return real(a, [](auto x) { return std::log2(x); });
    case ScalarOp::kReciprocal:
      return real(a, [](auto x) { return 1 / x; });
    case ScalarOp::kRsqrt:
      return real(a, [](auto x) { return 1 / std::sqrt(x); });
    case ScalarOp::kSigmoid:
      return real(a, [](auto x) { return 1 / (1 + std::exp(-x)); });
    case ScalarOp::kSin:
      return real(a, [](auto x) { return std::sin(x); });
    case ScalarOp::kSinh:
      return real(a, [](auto x) { return std::sinh(x); });
    case ScalarOp::kSqrt:
      return real(a, [](auto x) { return std::sqrt(x); });
    case ScalarOp::kTan:
      return real(a, [](auto x) { return std::tan(x); });
    case ScalarOp::kTanh:
      return real(a, [](auto x) { return std::tanh(x); });
  }
  return a;
}

}  // namespace

template <typename T>
T evaluate(std::span<const ScalarNode> tree, std::span<const T> arguments) {
  std::array<T, kMaxScalarNodes> values;
  for (size_t i = 0; i < tree.size(); ++i) {
    const ScalarNode& node = tree[i];
    if (node.op == ScalarOp::kArgument) {
      values[i] = arguments[node.a];
    } else if (node.op == ScalarOp::kNumber) {
      values[i] = static_cast<T>(node.number);
    } else {
      values[i] = apply(node.op, values[node.a], values[node.b], values[node.c]);
    }
  }
  return values[tree.size() - 1];
}

template double evaluate<double>(std::span<const ScalarNode>, std::span<const double>);
template float evaluate<float>(std::span<const ScalarNode>, std::span<const float>);
template int64_t evaluate<int64_t>(std::span<const ScalarNode>, std::span<const int64_t>);
template int32_t evaluate<int32_t>(std::span<const ScalarNode>, std::span<const int32_t>);
template uint8_t evaluate<uint8_t>(std::span<const ScalarNode>, std::span<const uint8_t>);
template bool evaluate<bool>(std::span<const ScalarNode>, std::span<const bool>);

}  // namespace torch_remote::ir

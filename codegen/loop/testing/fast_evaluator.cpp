#include "codegen/loop/testing/fast_evaluator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

namespace torch_remote::codegen::testing {
namespace {

using ir::DType;
using ir::ScalarOp;

constexpr size_t kBlock = FastEvaluator::kBlock;

[[noreturn]] void fail(const char* what, int which) {
  std::fprintf(stderr, "FastEvaluator does not know %s %d\n", what, which);
  std::abort();
}

template <typename F>
void with_type(DType type, F&& f) {
  switch (type) {
    case DType::kBool:
    case DType::kUInt8:
      return f(uint8_t{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    default:
      fail("type", static_cast<int>(type));
  }
}

template <typename To, typename From, typename F>
void each(const From* a, const From* b, To* out, F&& f) {
  for (size_t i = 0; i < kBlock; ++i) out[i] = static_cast<To>(f(a[i], b[i]));
}

// Uses one instruction if the machine has it; the C library's function is fifty times slower.
#if defined(__x86_64__)
__attribute__((target("fma"))) void fma_by_machine(const float* a, const float* b, const float* c, float* out) {
  for (size_t i = 0; i < kBlock; ++i) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
}
__attribute__((target("fma"))) void fma_by_machine(const double* a, const double* b, const double* c, double* out) {
  for (size_t i = 0; i < kBlock; ++i) out[i] = __builtin_fma(a[i], b[i], c[i]);
}
bool has_fma() { return __builtin_cpu_supports("fma") != 0; }
__attribute__((target("sse4.1"))) void round_by_machine(const double* a, double* out) {
  for (size_t i = 0; i < kBlock; ++i) out[i] = __builtin_rint(a[i]);
}
#else
template <typename T>
void fma_by_machine(const T* a, const T* b, const T* c, T* out) {
  for (size_t i = 0; i < kBlock; ++i) out[i] = std::fma(a[i], b[i], c[i]);
}
bool has_fma() { return true; }
void round_by_machine(const double* a, double* out) {
  for (size_t i = 0; i < kBlock; ++i) out[i] = std::rint(a[i]);
}
#endif

template <typename T>
void fma_block(const T* a, const T* b, const T* c, T* out) {
  if (has_fma()) return fma_by_machine(a, b, c, out);
  for (size_t i = 0; i < kBlock; ++i) out[i] = std::fma(a[i], b[i], c[i]);
}

template <typename T>
void compare(ScalarOp op, const T* a, const T* b, uint8_t* out) {
  switch (op) {
    case ScalarOp::kEq:
      return each(a, b, out, [](T x, T y) { return x == y; });
    case ScalarOp::kNe:
      return each(a, b, out, [](T x, T y) { return x != y; });
    case ScalarOp::kLt:
      return each(a, b, out, [](T x, T y) { return x < y; });
    case ScalarOp::kLe:
      return each(a, b, out, [](T x, T y) { return x <= y; });
    case ScalarOp::kGt:
      return each(a, b, out, [](T x, T y) { return x > y; });
    case ScalarOp::kGe:
      return each(a, b, out, [](T x, T y) { return x >= y; });
    case ScalarOp::kLogicalAnd:
      return each(a, b, out, [](T x, T y) { return x != 0 && y != 0; });
    case ScalarOp::kLogicalOr:
      return each(a, b, out, [](T x, T y) { return x != 0 || y != 0; });
    case ScalarOp::kLogicalXor:
      return each(a, b, out, [](T x, T y) { return (x != 0) != (y != 0); });
    case ScalarOp::kLogicalNot:
      return each(a, a, out, [](T x, T) { return x == 0; });
    default:
      fail("comparison", static_cast<int>(op));
  }
}

template <typename T>
void float_op(ScalarOp op, const T* a, const T* b, T* out) {
  switch (op) {
    case ScalarOp::kNeg:
      return each(a, a, out, [](T x, T) { return -x; });
    case ScalarOp::kAdd:
      return each(a, b, out, [](T x, T y) { return x + y; });
    case ScalarOp::kSub:
      return each(a, b, out, [](T x, T y) { return x - y; });
    case ScalarOp::kMul:
      return each(a, b, out, [](T x, T y) { return x * y; });
    case ScalarOp::kDiv:
      return each(a, b, out, [](T x, T y) { return x / y; });
    case ScalarOp::kAbs:
      return each(a, a, out, [](T x, T) { return std::fabs(x); });
    case ScalarOp::kCeil:
      return each(a, a, out, [](T x, T) { return std::ceil(x); });
    case ScalarOp::kFloor:
      return each(a, a, out, [](T x, T) { return std::floor(x); });
    case ScalarOp::kTrunc:
      return each(a, a, out, [](T x, T) { return std::trunc(x); });
    case ScalarOp::kRound:
      if constexpr (std::is_same_v<T, double>) return round_by_machine(a, out);
      return each(a, a, out, [](T x, T) { return std::rint(x); });
    case ScalarOp::kSqrt:
      return each(a, a, out, [](T x, T) { return std::sqrt(x); });
    case ScalarOp::kCopysign:
      return each(a, b, out, [](T x, T y) { return std::copysign(x, y); });
    case ScalarOp::kMax:
      return each(a, b, out, [](T x, T y) { return x != x || x > y ? x : y; });
    case ScalarOp::kMin:
      return each(a, b, out, [](T x, T y) { return x != x || x < y ? x : y; });
    default:
      fail("operation", static_cast<int>(op));
  }
}

template <typename T>
void whole_op(ScalarOp op, const T* a, const T* b, T* out) {
  using U = uint64_t;
  constexpr int kBits = 8 * sizeof(T);
  switch (op) {
    case ScalarOp::kNeg:
      return each(a, a, out, [](T x, T) { return U{0} - static_cast<U>(x); });
    case ScalarOp::kAdd:
      return each(a, b, out, [](T x, T y) { return static_cast<U>(x) + static_cast<U>(y); });
    case ScalarOp::kSub:
      return each(a, b, out, [](T x, T y) { return static_cast<U>(x) - static_cast<U>(y); });
    case ScalarOp::kMul:
      return each(a, b, out, [](T x, T y) { return static_cast<U>(x) * static_cast<U>(y); });
    case ScalarOp::kDiv:
      return each(a, b, out, [](T x, T y) {
        if (y == 0) return U{0};
        return std::is_signed_v<T> && y == static_cast<T>(-1) ? U{0} - static_cast<U>(x) : static_cast<U>(x / y);
      });
    case ScalarOp::kBitAnd:
      return each(a, b, out, [](T x, T y) { return x & y; });
    case ScalarOp::kBitOr:
      return each(a, b, out, [](T x, T y) { return x | y; });
    case ScalarOp::kBitXor:
      return each(a, b, out, [](T x, T y) { return x ^ y; });
    case ScalarOp::kShiftLeft:
      return each(a, b, out, [](T x, T y) { return y < 0 || y >= kBits ? U{0} : static_cast<U>(x) << y; });
    case ScalarOp::kShiftRight:
      return each(a, b, out, [](T x, T y) { return x >> (y < 0 || y >= kBits - 1 ? kBits - 1 : y); });
    default:
      fail("operation", static_cast<int>(op));
  }
}

// a * 2^b, in two steps, the first of which is exact.
template <typename Word, int kMantissa, typename T>
void scale(const T* a, const T* b, T* out) {
  constexpr Word kBias = std::numeric_limits<T>::max_exponent - 1;
  for (size_t i = 0; i < kBlock; ++i) {
    const Word power = static_cast<Word>(b[i]), half = power >> 1;
    const T first = std::bit_cast<T>((half + kBias) << kMantissa);
    out[i] = a[i] * first * std::bit_cast<T>((power - half + kBias) << kMantissa);
  }
}

// Selects like condition[i] ? b[i] : c[i], for elements of one width.
template <typename U>
void select(const uint8_t* condition, const U* b, const U* c, U* out) {
  for (size_t i = 0; i < kBlock; ++i) out[i] = condition[i] != 0 ? b[i] : c[i];
}

bool is_comparison(ScalarOp op) {
  return (op >= ScalarOp::kEq && op <= ScalarOp::kGe) || (op >= ScalarOp::kLogicalAnd && op <= ScalarOp::kLogicalXor);
}

}  // namespace

FastEvaluator::FastEvaluator(const Kernel& kernel) : kernel_(kernel) {
  blocks_.assign(kernel_.values.size(), std::vector<uint64_t>(kBlock));
  for (size_t place = 0; place < kernel_.values.size(); ++place) {
    const Value& value = kernel_.values[place];
    if (value.kind != Kind::kConstant) continue;
    with_type(value.type, [&]<typename T>(T) {
      T* out = reinterpret_cast<T*>(blocks_[place].data());
      std::fill(out, out + kBlock,
                std::is_floating_point_v<T> ? static_cast<T>(value.number) : static_cast<T>(value.integer));
    });
  }
}

void FastEvaluator::compute(const Value& value, size_t place) {
  const auto block = [&]<typename T>(uint32_t id, T) {
    return id == kNone ? nullptr : reinterpret_cast<T*>(blocks_[id].data());
  };
  const auto to = static_cast<uint32_t>(place);
  if (value.kind == Kind::kBits) {
    blocks_[place] = blocks_[value.a];
    return;
  }
  const DType type = kernel_.values[value.a].type;
  if (value.kind == Kind::kConvert) {
    return with_type(value.type, [&]<typename To>(To) {
      with_type(type, [&]<typename From>(From) {
        const From* a = block(value.a, From{});
        each(a, a, block(to, To{}), [](From x, From) { return x; });
      });
    });
  }
  if (value.kind == Kind::kFma) {
    if (type == DType::kFloat32) {
      return fma_block(block(value.a, 0.0F), block(value.b, 0.0F), block(value.c, 0.0F), block(to, 0.0F));
    }
    return fma_block(block(value.a, 0.0), block(value.b, 0.0), block(value.c, 0.0), block(to, 0.0));
  }
  if (value.kind == Kind::kLdexp) {
    if (type == DType::kFloat32) return scale<int32_t, 23>(block(value.a, 0.0F), block(value.b, 0.0F), block(to, 0.0F));
    return scale<int64_t, 52>(block(value.a, 0.0), block(value.b, 0.0), block(to, 0.0));
  }
  if (value.kind != Kind::kScalarOp) fail("kind", static_cast<int>(value.kind));
  if (value.op == ScalarOp::kWhere) {
    return with_type(value.type, [&]<typename T>(T) {
      select(block(value.a, uint8_t{}), block(value.b, T{}), block(value.c, T{}), block(to, T{}));
    });
  }
  with_type(type, [&]<typename T>(T) {
    const T *a = block(value.a, T{}), *b = block(value.b, T{});
    if (is_comparison(value.op)) {
      compare(value.op, a, b, block(to, uint8_t{}));
    } else if constexpr (std::is_floating_point_v<T>) {
      float_op(value.op, a, b, block(to, T{}));
    } else {
      whole_op(value.op, a, b, block(to, T{}));
    }
  });
}

void FastEvaluator::run(std::span<const void* const> inputs, size_t count, void* output) {
  for (size_t place = 0; place < kernel_.values.size(); ++place) {
    const Value& value = kernel_.values[place];
    if (value.kind == Kind::kConstant) continue;
    if (value.kind == Kind::kLoad) {
      std::memcpy(blocks_[place].data(), inputs[value.operand], count * ir::item_size(value.type));
    } else {
      compute(value, place);
    }
  }
  const uint32_t result = kernel_.stores.front().value;
  std::memcpy(output, blocks_[result].data(), count * ir::item_size(kernel_.values[result].type));
}

}  // namespace torch_remote::codegen::testing

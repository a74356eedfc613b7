#pragma once

#ifndef __device__
#define __device__ __attribute__((device))
#endif
// For the generated functions. They are always inlined, because a call would save registers in memory.
#define INLINE __attribute__((always_inline)) inline

// The operations of LoopIR that C++ has no operator for, for the generated functions (print_cuda.h). `T` is float,
// double or a signed integer type.
namespace torch_remote::codegen::formulas {

// NaN if one of them is NaN; b if both are zero.
template <typename T>
__device__ inline T max(T a, T b) {
  return a > b || a != a ? a : b;
}
template <typename T>
__device__ inline T min(T a, T b) {
  return a < b || a != a ? a : b;
}
// The other one if one of them is NaN.
template <typename T>
__device__ inline T fmax(T a, T b) {
  return a > b || b != b ? a : b;
}
template <typename T>
__device__ inline T fmin(T a, T b) {
  return a < b || b != b ? a : b;
}

// Rounds towards zero. Division by zero gives 0, and overflow wraps around.
template <typename T>
__device__ inline T quotient(T a, T b) {
  if (b == 0) return 0;
  return b == static_cast<T>(-1) ? static_cast<T>(0 - static_cast<unsigned long>(a)) : static_cast<T>(a / b);
}

// If the count `b` is negative, or at least the number of bits, shift_left returns 0, and shift_right returns -1 or 0
// by the sign of `a`.
template <typename T>
__device__ inline T shift_left(T a, T b) {
  return b >= 0 && b < static_cast<T>(8 * sizeof(T)) ? static_cast<T>(static_cast<unsigned long>(a) << b) : T(0);
}
template <typename T>
__device__ inline T shift_right(T a, T b) {
  constexpr T kMost = 8 * sizeof(T) - 1;
  return static_cast<T>(a >> (b >= 0 && b < kMost ? b : kMost));
}

// a * 2^power, rounded once. `power` must be an integer from -252 to 254 for float, and from -2044 to 2046 for double,
// so that both factors are normal numbers. a * 2^(power / 2) must be a normal number, too. The first of the two
// multiplications is therefore exact. The low bits of `sum` are `power` plus twice the exponent bias.
__device__ inline float ldexp(float a, float power) {
  const int sum = __builtin_bit_cast(int, power + (0x1.8p23F + 2 * 127)), half = sum >> 1;
  return a * __builtin_bit_cast(float, half << 23) * __builtin_bit_cast(float, (sum - half) << 23);
}
__device__ inline double ldexp(double a, double power) {
  const long sum = __builtin_bit_cast(long, power + (0x1.8p52 + 2 * 1023)), half = sum >> 1;
  return a * __builtin_bit_cast(double, half << 52) * __builtin_bit_cast(double, (sum - half) << 52);
}

}  // namespace torch_remote::codegen::formulas

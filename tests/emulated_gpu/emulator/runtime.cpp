#include "tests/emulated_gpu/emulator/runtime.h"

#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/emulated_gpu/emulator/worker.h"

namespace torch_remote::codegen::emulator {
namespace {

const Registers* registers() { return &Worker::current()->self().registers; }

uint32_t barrier(uint32_t site, uint32_t op, uint32_t predicate) {
  return Worker::current()->barrier(site, static_cast<BarrierOp>(op), predicate != 0);
}

uint64_t warp(uint32_t site, uint32_t op, uint32_t mask, uint64_t value, uint32_t lane, uint32_t clamp) {
  return Worker::current()->warp(site, static_cast<WarpOp>(op), mask, value, lane, clamp);
}

void access(const void* address, uint64_t bytes, uint32_t kind, uint64_t alignment, uint32_t site) {
  Worker::current()->access(address, bytes, static_cast<AccessKind>(kind), alignment, site);
}

// Checks an access to a local variable. `begin` is the variable's address.
void local(const char* address, uint64_t bytes, const char* begin, uint64_t size, uint32_t site) {
  const auto offset = static_cast<uint64_t>(address - begin);
  if (offset <= size && bytes <= size - offset) return;
  Worker::current()->local_out_of_bounds(static_cast<int64_t>(offset), size, site);
}

void fence(uint32_t device_wide) { Worker::current()->fence(device_wide != 0); }
void loop_iteration(uint32_t site) { Worker::current()->loop_iteration(site); }
void yield() { Worker::current()->yield(); }
void exit_thread() { Worker::current()->exit(); }
void trap(uint32_t site) { Worker::current()->trap(site); }

// Sets the CPU's rounding mode (_MM_SET_ROUNDING_MODE) while it lives.
class Rounding {
 public:
  explicit Rounding(uint32_t mode) : before_(_mm_getcsr()) { _mm_setcsr((before_ & ~_MM_ROUND_MASK) | mode); }
  ~Rounding() { _mm_setcsr(before_); }
  Rounding(const Rounding&) = delete;
  Rounding& operator=(const Rounding&) = delete;

 private:
  uint32_t before_;
};

template <typename T>
T directed(uint32_t op, uint32_t mode, T first, T second, T third) {
  // Volatile accesses keep the compiler from moving the computation across the changes of the mode.
  volatile T x = first, y = second, z = third, result = 0;
  const Rounding rounding(mode);
  switch (static_cast<Directed>(op)) {
    case Directed::kAdd:
      result = x + y;
      break;
    case Directed::kMul:
      result = x * y;
      break;
    case Directed::kDiv:
      result = x / y;
      break;
    case Directed::kFma:
      result = std::fma(x, y, z);
      break;
    case Directed::kSqrt:
      result = std::sqrt(x);
      break;
    case Directed::kRcp:
      result = T{1} / x;
      break;
  }
  return result;
}

// The bf16 is in the lower half of a float, as code generation expects. NaN has the GPU's bits.
float bf16_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
float to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return bf16_bits(0x7FFF);
  return bf16_bits((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Rounds to odd, so that a second rounding gives the same result as rounding once.
float narrow(double x) {
  const auto nearest = static_cast<float>(x);
  if (std::isnan(x) || std::isinf(nearest) || static_cast<double>(nearest) == x) return nearest;
  const bool away = std::abs(static_cast<double>(nearest)) > std::abs(x);
  const auto bits = std::bit_cast<uint32_t>(nearest) - (away ? 1 : 0);
  return std::bit_cast<float>(bits | 1);
}
float to_bf16_from_double(double x) { return to_bf16(narrow(x)); }

// Rounds the result of `narrow`, which has enough extra bits.
float to_half_from_double(double x) {
  const auto bits = std::bit_cast<uint32_t>(narrow(x));
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return bf16_bits(0x7FFF);
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent > 15) return bf16_bits(sign | 0x7C00);
  if (exponent < -25) return bf16_bits(sign);
  const uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  const int shift = exponent >= -14 ? 13 : -exponent - 1;  // 13 + (-14 - exponent)
  const uint32_t kept = mantissa >> shift, rest = mantissa & ((1U << shift) - 1), half = 1U << (shift - 1);
  const uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0);
  // The implicit bit of `kept` adds one to the exponent.
  return bf16_bits(sign | (exponent >= -14 ? rounded + (static_cast<uint32_t>(exponent + 14) << 10) : rounded));
}

template <typename Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

using F1 = float (*)(float);
using F2 = float (*)(float, float);
using F3 = float (*)(float, float, float);
using D1 = double (*)(double);
using D2 = double (*)(double, double);
using D3 = double (*)(double, double, double);

}  // namespace

std::span<const RuntimeSymbol> runtime_symbols() {
  static const RuntimeSymbol symbols[] = {
      {kRegistersFunction, address(registers)},
      {kBarrierFunction, address(barrier)},
      {kWarpFunction, address(warp)},
      {kAccessFunction, address(access)},
      {kLocalFunction, address(local)},
      {kFenceFunction, address(fence)},
      {kLoopIterationFunction, address(loop_iteration)},
      {kYieldFunction, address(yield)},
      {kExitFunction, address(exit_thread)},
      {kTrapFunction, address(trap)},
      {kDirected32Function, address(directed<float>)},
      {kDirected64Function, address(directed<double>)},
      {"__truncsfbf2", address(to_bf16)},
      {"__truncdfbf2", address(to_bf16_from_double)},
      {"__truncdfhf2", address(to_half_from_double)},
      {"memcpy", address<void*(void*, const void*, size_t)>(std::memcpy)},
      {"memmove", address<void*(void*, const void*, size_t)>(std::memmove)},
      {"memset", address<void*(void*, int, size_t)>(std::memset)},
      {"exp2f", address(static_cast<F1>(std::exp2))},
      {"exp2", address(static_cast<D1>(std::exp2))},
      {"expf", address(static_cast<F1>(std::exp))},
      {"exp", address(static_cast<D1>(std::exp))},
      {"log2f", address(static_cast<F1>(std::log2))},
      {"log2", address(static_cast<D1>(std::log2))},
      {"logf", address(static_cast<F1>(std::log))},
      {"log", address(static_cast<D1>(std::log))},
      {"sinf", address(static_cast<F1>(std::sin))},
      {"sin", address(static_cast<D1>(std::sin))},
      {"cosf", address(static_cast<F1>(std::cos))},
      {"cos", address(static_cast<D1>(std::cos))},
      {"tanhf", address(static_cast<F1>(std::tanh))},
      {"powf", address(static_cast<F2>(std::pow))},
      {"pow", address(static_cast<D2>(std::pow))},
      {"fmodf", address(static_cast<F2>(std::fmod))},
      {"fmod", address(static_cast<D2>(std::fmod))},
      {"fmaf", address(static_cast<F3>(std::fma))},
      {"fma", address(static_cast<D3>(std::fma))},
      {"roundf", address(static_cast<F1>(std::round))},
      {"round", address(static_cast<D1>(std::round))},
      {"fminf", address(static_cast<F2>(std::fmin))},
      {"fmin", address(static_cast<D2>(std::fmin))},
      {"fmaxf", address(static_cast<F2>(std::fmax))},
      {"fmax", address(static_cast<D2>(std::fmax))},
  };
  return symbols;
}

}  // namespace torch_remote::codegen::emulator

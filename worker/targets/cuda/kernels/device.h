#pragma once

// The parts of CUDA C++ that hand-written kernels need, without CUDA's headers. Only clang compiles this file. A kernel
// is compiled once for all dtypes: it computes in f64 or i64, and rounds results to the dtype that its arguments name.
// This costs little time, because the kernels are memory-bound.

#include "codegen/formulas/functions_generated.h"
#include "worker/targets/cuda/kernels/arguments.h"

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((launch_bounds(threads)))

#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

namespace torch_remote::worker::cuda {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;

// Indices and sizes of the launch, which has one dim. A loop over items starts at first_item() and steps by
// all_threads().
__device__ inline i64 thread() { return __nvvm_read_ptx_sreg_tid_x(); }
__device__ inline i64 threads() { return __nvvm_read_ptx_sreg_ntid_x(); }
__device__ inline i64 block() { return __nvvm_read_ptx_sreg_ctaid_x(); }
__device__ inline i64 blocks() { return __nvvm_read_ptx_sreg_nctaid_x(); }
__device__ inline i64 first_item() { return block() * threads() + thread(); }
__device__ inline i64 all_threads() { return blocks() * threads(); }
__device__ inline void sync() { __syncthreads(); }

template <typename T>
__device__ inline T* pointer(u64 address) {
  return reinterpret_cast<T*>(address);
}

// x / y for numbers that are not negative; 32-bit division is much faster.
__device__ inline i64 divide(i64 x, i64 y) {
  if (((x | y) >> 32) == 0) return static_cast<u32>(x) / static_cast<u32>(y);
  return x / y;
}

// -- dtypes

// The numbers of ir::DType.
enum : i64 {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kBool = 11,
  kBFloat16 = 15,
};
__device__ inline bool is_float(i64 dtype) {
  return dtype == kFloat16 || dtype == kFloat32 || dtype == kFloat64 || dtype == kBFloat16;
}

__device__ inline float from_bfloat16(u16 bits) { return __builtin_bit_cast(float, static_cast<u32>(bits) << 16); }
__device__ inline u16 to_bfloat16(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  if (x != x) return 0x7FC0;
  return static_cast<u16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Load or store element `i` of an array. The functions for floats require is_float(dtype), those for integers an
// integer dtype or bool.
__device__ inline double load_float(u64 address, i64 i, i64 dtype) {
  switch (dtype) {
    case kFloat16:
      return static_cast<double>(static_cast<float>(pointer<const _Float16>(address)[i]));
    case kBFloat16:
      return static_cast<double>(from_bfloat16(pointer<const u16>(address)[i]));
    case kFloat32:
      return static_cast<double>(pointer<const float>(address)[i]);
    default:
      return pointer<const double>(address)[i];
  }
}
__device__ inline i64 load_int(u64 address, i64 i, i64 dtype) {
  switch (dtype) {
    case kUInt8:
      return pointer<const u8>(address)[i];
    case kBool:
      return pointer<const u8>(address)[i] != 0;
    case kInt8:
      return pointer<const signed char>(address)[i];
    case kInt16:
      return pointer<const short>(address)[i];
    case kInt32:
      return pointer<const int>(address)[i];
    default:
      return pointer<const i64>(address)[i];
  }
}
__device__ inline void store_float(u64 address, i64 i, i64 dtype, double x) {
  switch (dtype) {
    case kFloat16:
      pointer<_Float16>(address)[i] = static_cast<_Float16>(static_cast<float>(x));
      break;
    case kBFloat16:
      pointer<u16>(address)[i] = to_bfloat16(static_cast<float>(x));
      break;
    case kFloat32:
      pointer<float>(address)[i] = static_cast<float>(x);
      break;
    default:
      pointer<double>(address)[i] = x;
  }
}
__device__ inline void store_int(u64 address, i64 i, i64 dtype, i64 x) {
  switch (dtype) {
    case kBool:
      pointer<u8>(address)[i] = x != 0;
      break;
    case kUInt8:
    case kInt8:
      pointer<u8>(address)[i] = static_cast<u8>(x);
      break;
    case kInt16:
      pointer<u16>(address)[i] = static_cast<u16>(x);
      break;
    case kInt32:
      pointer<u32>(address)[i] = static_cast<u32>(x);
      break;
    default:
      pointer<i64>(address)[i] = x;
  }
}
// The same for numbers of type double or i64.
template <typename T>
__device__ inline T load_number(u64 address, i64 i, i64 dtype) {
  if constexpr (__is_same(T, double)) {
    return load_float(address, i, dtype);
  } else {
    return load_int(address, i, dtype);
  }
}
__device__ inline void store_number(u64 address, i64 i, i64 dtype, double x) { store_float(address, i, dtype, x); }
__device__ inline void store_number(u64 address, i64 i, i64 dtype, i64 x) { store_int(address, i, dtype, x); }

// The value after a store and a load.
__device__ inline double rounded(double x, i64 dtype) {
  switch (dtype) {
    case kFloat16:
      return static_cast<double>(static_cast<float>(static_cast<_Float16>(static_cast<float>(x))));
    case kBFloat16:
      return static_cast<double>(from_bfloat16(to_bfloat16(static_cast<float>(x))));
    case kFloat32:
      return static_cast<double>(static_cast<float>(x));
    default:
      return x;
  }
}

// move() copies one element of `item` bytes (1, 2, 4, 8 or 16) with put(). Positions are in elements. `kShared`: other
// threads may write the same value to this element concurrently.
template <typename T, bool kShared>
__device__ inline void put(u64 to, i64 at, T x) {
  if (kShared) {
    pointer<volatile T>(to)[at] = x;
  } else {
    pointer<T>(to)[at] = x;
  }
}
template <bool kShared = false>
__device__ inline void move(u64 to, i64 to_at, u64 from, i64 from_at, i64 item) {
  switch (item) {
    case 1:
      put<u8, kShared>(to, to_at, pointer<const u8>(from)[from_at]);
      break;
    case 2:
      put<u16, kShared>(to, to_at, pointer<const u16>(from)[from_at]);
      break;
    case 4:
      put<u32, kShared>(to, to_at, pointer<const u32>(from)[from_at]);
      break;
    case 8:
      put<u64, kShared>(to, to_at, pointer<const u64>(from)[from_at]);
      break;
    default:
      put<u64, kShared>(to, 2 * to_at, pointer<const u64>(from)[2 * from_at]);
      put<u64, kShared>(to, 2 * to_at + 1, pointer<const u64>(from)[2 * from_at + 1]);
  }
}

// -- blocks

// Combines the values of the block's kThreads threads in a fixed order. Returns the result to all threads.
template <int kThreads, typename T, typename F>
__device__ inline T over_block(T mine, T* shared, F&& both) {
  sync();  // The previous result has been read.
  shared[thread()] = mine;
  for (int apart = kThreads / 2; apart > 0; apart /= 2) {
    sync();
    if (thread() < apart) shared[thread()] = both(shared[thread()], shared[thread() + apart]);
  }
  sync();
  return shared[0];
}
template <int kThreads>
__device__ inline double sum_of_block(double mine, double* shared) {
  return over_block<kThreads>(mine, shared, [](double a, double b) { return a + b; });
}

// -- failures that depend on data

// The layout of codegen::gpu::IndexRecord. fail() keeps the first failure. `record`
// is the address of a FailureRecord, or has the bit kIndirectRecord. All operands of a kernel belong to one op, so
// fail() does not write `unfailed_operands`.
struct FailureRecord {
  u32 operand, unfailed_operands;
  i64 index, bound;
};
__device__ inline void fail(u64 record, u32 operand, i64 index, i64 bound) {
  if ((record & kIndirectRecord) != 0) record = *pointer<const u64>(record & ~kIndirectRecord);
  auto* const to = pointer<FailureRecord>(record);
  u32 none = 0xFFFFFFFF;
  if (!__atomic_compare_exchange_n(&to->operand, &none, operand, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
  to->index = index;
  to->bound = bound;
}

// -- elementary functions, in f64

__device__ inline double magnitude(double x) { return x < 0 ? -x : x == 0 ? 0 : x; }

namespace f64 = codegen::formulas::f64;
using f64::exp;
using f64::log;

__device__ inline void sine_cosine(double x, double* sine, double* cosine) {
  *sine = f64::sin(x);
  *cosine = f64::cos(x);
}

}  // namespace torch_remote::worker::cuda

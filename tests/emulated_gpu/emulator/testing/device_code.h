#pragma once

// The part of CUDA C++ that kernels need, without CUDA's headers; for clang.

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __launch_bounds__(threads) __attribute__((launch_bounds(threads)))

#define KERNEL extern "C" __global__ void

// Indices of a thread along x and y.
#define TID __nvvm_read_ptx_sreg_tid_x()
#define TID_Y __nvvm_read_ptx_sreg_tid_y()
#define BLOCK __nvvm_read_ptx_sreg_ctaid_x()
#define BLOCK_Y __nvvm_read_ptx_sreg_ctaid_y()
#define THREADS __nvvm_read_ptx_sreg_ntid_x()
#define THREADS_Y __nvvm_read_ptx_sreg_ntid_y()
#define BLOCKS __nvvm_read_ptx_sreg_nctaid_x()

using uint = unsigned;
using float4 = float __attribute__((ext_vector_type(4)));
constexpr uint kAll = 0xFFFFFFFF;

__device__ inline void sync_warp() { __nvvm_bar_warp_sync(kAll); }
__device__ inline void fence() { __nvvm_membar_gl(); }

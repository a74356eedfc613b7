#pragma once

#include <chrono>
#include <string>

#include "worker/targets/cuda/gemm/cublaslt.h"

// For tests: an emulated cuBLASLt, as a table of functions. Plain loops compute matmuls on the memory of the emulated
// driver (emulated_driver.h), in stream order. Arguments are checked at least as strictly as in the real library:
// combinations of types, sizes, strides, alignments, workspaces, and overlaps of the result.
namespace torch_remote::worker::cuda::emulated {

// An EmulatedDriver must exist while the functions are called. It counts the calls: `EmulatedDriver::calls`.
lt::Table cublaslt();

// Algorithms for a matmul. The heuristic returns those that support the problem, in this order.
enum class MatmulAlgorithm : int {
  kVectors,  // needs addresses and columns at multiples of 16 bytes
  kSplitK,   // splits long sums in two parts, in a workspace
  kBasic,
};
// Delays each run of an algorithm from now on.
void slow_down(MatmulAlgorithm id, std::chrono::microseconds delay);

// Objects that were created and not destroyed, as "1 handle, 2 layouts".
std::string cublaslt_leaks();

}  // namespace torch_remote::worker::cuda::emulated

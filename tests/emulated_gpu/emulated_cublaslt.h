#pragma once

#include <chrono>
#include <string>

#include "worker/targets/cuda/gemm/cublaslt.h"

// For tests: cuBLASLt in software, as a table of functions. Products are computed by plain loops on the memory of the
// emulated driver (emulated_driver.h), in the order of the stream. Arguments are checked as the real library does, or
// more strictly: combinations of types, sizes, distances, alignments, workspaces; what a result overlaps.
namespace torch_remote::worker::cuda::emulated {

// There is an EmulatedDriver while its functions are called. Calls are counted there: `EmulatedDriver::calls`.
lt::Table cublaslt();

// Ways to compute a product: the library proposes those that can do one, in this order.
enum class Way : int {
  kVectors,  // wants addresses and columns at multiples of 16 bytes
  kParts,    // long sums in two parts, in a workspace
  kPlain,
};
// How much longer a way takes, from now on.
void slow_down(Way way, std::chrono::microseconds delay);

// "1 handle, 2 layouts": what was made and not destroyed.
std::string cublaslt_left();

}  // namespace torch_remote::worker::cuda::emulated

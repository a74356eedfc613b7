#pragma once

#include <chrono>
#include <string>

#include "worker/targets/cuda/dnn/cudnn.h"

// For tests: an emulated cuDNN, as a table of functions. Plain loops compute convolutions on the memory of the emulated
// driver (emulated_driver.h), in stream order. Descriptors are checked at least as strictly as in the real library.
// This includes required attributes, their types and their order; sizes, layouts and data types; ids, addresses and
// their alignment; and overlaps of the result. Everything that a plan was made from must still exist.
namespace torch_remote::worker::cuda::emulated {

// An EmulatedDriver must exist while the functions are called. It counts the calls: `EmulatedDriver::calls`.
dnn::Table cudnn();

// Engines, in the order in which the heuristic returns them.
enum class Engine : int {
  kLowPrecision,  // computes float32 in TF32
  kUnordered,     // only for filter gradients: reports that its sums are not deterministic
  kBroken,        // no plan can be made from it
  kWorkspace,     // needs a workspace; not for float64
  kFallback,      // the heuristic's fallback
};
// Delays each run of an engine from now on.
void slow_down(Engine engine, std::chrono::microseconds delay);
// Removes an engine from the heuristic's results, or adds it again.
void exclude_engine(Engine engine, bool out);
// How often an engine has executed in this process.
uint64_t executions_of(Engine engine);

// Objects that were created and not destroyed, as "1 handle, 2 descriptors".
std::string cudnn_leaks();

}  // namespace torch_remote::worker::cuda::emulated

#pragma once

#include <cstdint>
#include <random>

#include "codegen/loop/loop_ir.h"

// Random kernels for property tests. They depend only on the generator's state, so a seed identifies a failure.
namespace torch_remote::codegen::testing {

using Rng = std::mt19937_64;

struct RandomKernelOptions {
  uint32_t max_rows = 2;  // number of dims
  uint32_t max_columns = 2;
  uint32_t max_values = 32;  // an approximate limit
  // Allows exp, fmod, pow, ...: functions that expand_functions replaces. Without them, results do not depend on libm.
  bool functions = false;
  bool indexed = true;  // allows loads and stores at indices
  bool finish = true;   // allows reductions over rows
  bool adds = true;     // allows stores that add to the existing element
  // Allows reductions over lines (docs/loop_ir.md), and stores of one element for each line.
  bool lines = false;
};

// Makes a kernel that passes the verifier; any construct that the options allow may occur. All its stored bits are
// defined, so they can be compared exactly: what LoopIR leaves undefined does not reach a store. Undefined are the
// result of a conversion that is out of range, the payload and sign of a NaN, and which of several stores to one
// position wins.
Kernel random_kernel(Rng& rng, const RandomKernelOptions& options = {});

}  // namespace torch_remote::codegen::testing

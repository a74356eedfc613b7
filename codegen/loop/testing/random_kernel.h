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
  bool adds = true;     // allows stores that add
  bool lines = false;   // allows reductions over lines, and stores along the outer column dim only
};

// Makes a kernel that verifies; any construct may occur. Its results are defined to the last bit. What LoopIR leaves
// undefined does not reach a store: conversions that do not fit, bits and sign of a NaN, several rows that store to one
// position.
Kernel random_kernel(Rng& rng, const RandomKernelOptions& options = {});

}  // namespace torch_remote::codegen::testing

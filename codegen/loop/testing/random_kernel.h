#pragma once

#include <cstdint>
#include <random>

#include "codegen/loop/loop_ir.h"

// Random kernels for property tests. Everything is a function of the generator's state, so a failure is named by a
// seed.
namespace torch_remote::codegen::testing {

using Rng = std::mt19937_64;

struct RandomKernelOptions {
  uint32_t max_rows = 2;  // dims
  uint32_t max_columns = 2;
  uint32_t max_values = 32;  // about
  // exp, fmod, pow, ...: what expand_functions writes as arithmetic. Without it, libm's digits are not in the results.
  bool functions = false;
  bool indexed = true;  // loads and stores at indices
  bool finish = true;   // reductions over rows
  bool adds = true;     // stores that add
  bool lines = false;   // reductions over lines, stores along the outer column dim only
};

// A kernel that verifies, with every construct that a kernel can have. What it computes is defined to the last bit:
// what LoopIR leaves open (a conversion to integers that does not fit, the bits and the sign of a NaN, two rows that
// store to one place) does not reach a store.
Kernel random_kernel(Rng& rng, const RandomKernelOptions& options = {});

}  // namespace torch_remote::codegen::testing

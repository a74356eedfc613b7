#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codegen/loop/loop_ir.h"

// Computes kernels of expanded functions for many arguments, much faster than the interpreter: 1024 elements at a time,
// operation by operation. It serves tests of functions, which try millions of arguments.
namespace torch_remote::codegen::testing {

class FastEvaluator {
 public:
  static constexpr size_t kBlock = 1024;

  // The kernel may have loads (of f32, f64 or integers, without indices), arithmetic and one store. Anything else
  // aborts.
  explicit FastEvaluator(const Kernel& kernel);
  // `inputs` are the operands that are loaded, in order.
  void run(std::span<const void* const> inputs, size_t count, void* output);

 private:
  void compute(const Value& value, size_t place);

  Kernel kernel_;
  std::vector<std::vector<uint64_t>> blocks_;  // of each value
};

}  // namespace torch_remote::codegen::testing

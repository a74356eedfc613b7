#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codegen/loop/loop_ir.h"

// Evaluates simple kernels for many elements, much faster than the interpreter: it executes each operation for 1024
// elements before the next operation. Tests of elementary functions use it to try millions of arguments.
namespace torch_remote::codegen::testing {

class FastEvaluator {
 public:
  static constexpr size_t kBlock = 1024;

  // The kernel may have loads (of f32, f64 or integers, without indices), arithmetic and one store. Anything else
  // aborts.
  explicit FastEvaluator(const Kernel& kernel);
  // Computes `count` elements. inputs[i] has the elements of operand i; `output` receives the stored elements.
  void run(std::span<const void* const> inputs, size_t count, void* output);

 private:
  void compute(const Value& value, size_t place);

  Kernel kernel_;
  std::vector<std::vector<uint64_t>> blocks_;  // of each value
};

}  // namespace torch_remote::codegen::testing

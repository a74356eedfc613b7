#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/math_modes.h"

namespace torch_remote::worker::cuda {

// A small program with inputs and the expected contents of its first surviving buffer.
struct TestProgram {
  std::string name;         // Name of the row.
  std::string runner = {};  // Runner::name() of the only runner that may execute it. Empty: all runners may.
  std::string text = {};    // Text form of the graph.
  std::vector<std::vector<std::byte>> inputs = {};
  ir::DType dtype = ir::DType::kFloat32;  // Of the result: kFloat32, kFloat16 or kInt64.
  std::vector<double> expected = {};
  double tolerance = 1e-5;  // Maximum of |result - expected| / max(1, |expected|).
  std::vector<int64_t> params = {};
  ir::MathModes math_modes = 0;
  int runs = 1;               // The results of the last run are compared.
  bool needs_graph = false;   // The runs must launch a CUDA graph.
  bool needs_kernel = false;  // A compiled kernel must execute the group.
  std::string without = {};   // What the user loses if the part is missing, and how to install it.
};

// One program for each file of hand-written kernels, then one for each other part.
std::vector<TestProgram> test_programs();

}  // namespace torch_remote::worker::cuda

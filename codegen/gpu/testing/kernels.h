#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

// Typical kernels of programs, by name.
namespace torch_remote::codegen::gpu::testing {

struct NamedKernel {
  std::string_view name;
  std::string_view text;
  // Sizes of all dims, and bounds of the indexed ones, to call it with.
  std::vector<std::vector<int64_t>> sizes;
  std::vector<int64_t> bounds = {};
};

const std::vector<NamedKernel>& named_kernels();
const NamedKernel& named_kernel(std::string_view name);

}  // namespace torch_remote::codegen::gpu::testing

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

// Typical kernels of programs, by name.
namespace torch_remote::codegen::gpu::testing {

struct NamedKernel {
  std::string_view name;
  std::string_view text;
  // One entry for each call that tests make: the sizes of the kernel's dims.
  std::vector<std::vector<int64_t>> sizes;
  // For every call: the bounds of the indices, one for each `_` in the text.
  std::vector<int64_t> bounds = {};
};

const std::vector<NamedKernel>& named_kernels();
const NamedKernel& named_kernel(std::string_view name);

}  // namespace torch_remote::codegen::gpu::testing

#pragma once

#include <string_view>

// Kernels that do more than record their op: factories, views, copies between devices, storages, reads of host values.
namespace torch_remote::frontend {

// Whether kernels.cpp or autocast.cpp registers the op itself ("aten::empty.memory_format").
bool has_custom_kernel(std::string_view name);

}  // namespace torch_remote::frontend

#pragma once

#include <string_view>

// Kernels that are not "record this op": factories, views, copies between devices, storages, host reads.
namespace torch_remote::frontend {

// True for the ops that kernels.cpp and autocast.cpp register themselves ("aten::empty.memory_format").
bool is_own_kernel(std::string_view name);

}  // namespace torch_remote::frontend

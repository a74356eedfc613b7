#pragma once

#include <string>

#include "ir/status.h"
#include "worker/targets/cpu/compiled/kernel_cache.h"

namespace torch_remote::worker::kernels {

// Fills in `compile` and `version`, so that kernels are compiled by the library at `path`
// (codegen/library/codegen_api.h). `target` is the CPU level that they are compiled for, such as "x86-64-v3". The
// library is opened when the first kernel is not in the cache. Returns an error if the file does not exist.
Status open_compiler(const std::string& path, const std::string& target, CacheOptions* options);

}  // namespace torch_remote::worker::kernels

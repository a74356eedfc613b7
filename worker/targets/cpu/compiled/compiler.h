#pragma once

#include <string>

#include "ir/status.h"
#include "worker/targets/cpu/compiled/kernel_cache.h"

namespace torch_remote::worker::kernels {

// Fills in `compile` and `version`: kernels are compiled by the library at `path` (codegen/library/codegen_api.h),
// which is opened by the first of them that is not in the cache. An error if there is no such file.
Status open_compiler(const std::string& path, const std::string& target, CacheOptions* options);

}  // namespace torch_remote::worker::kernels

#pragma once

#include <string>

namespace torch_remote::worker {

// Returns the folder for compiled kernels and measured algorithm choices: $TORCH_REMOTE_KERNEL_CACHE, or a folder in
// the user's cache. Empty: nothing is stored.
std::string cache_folder();

}  // namespace torch_remote::worker

#pragma once

#include <string>

namespace torch_remote::worker {

// Where compiled kernels are kept, and what is known of libraries' ones: TORCH_REMOTE_KERNEL_CACHE, or the user's
// cache. Empty: nowhere.
std::string cache_folder();

}  // namespace torch_remote::worker

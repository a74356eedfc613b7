#include "worker/targets/cache_folder.h"

#include <cstdlib>

namespace torch_remote::worker {

std::string cache_folder() {
  if (const char* folder = std::getenv("TORCH_REMOTE_KERNEL_CACHE")) return folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return std::string(cache) + "/torch-remote/kernels";
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + "/.cache/torch-remote/kernels" : std::string();
}

}  // namespace torch_remote::worker

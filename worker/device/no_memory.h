#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/status.h"

namespace torch_remote::worker {

// The worker's memory is used up, or what its session may have of it. `what` it was wanted for, if that is worth a
// word, and how many bytes, if somebody knows. As on CUDA, XPU and MPS the text has " out of memory.", which libraries
// look for.
inline Status no_memory_for(std::string_view what, std::optional<uint64_t> nbytes = {}) {
  std::string message = "remote: the worker is out of memory.";
  if (!what.empty()) message += " It has none left for " + std::string(what);
  if (nbytes) {
    message += what.empty() ? " It tried" : "; it tried";
    message += " to allocate " + std::to_string(*nbytes) + " bytes";
  }
  return {ErrorCode::kOutOfMemory, std::move(message), "OutOfMemoryError"};
}

}  // namespace torch_remote::worker

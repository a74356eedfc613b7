#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/status.h"

namespace torch_remote::worker {

// The error when the worker's memory, or what its session may use of it, is exhausted. `what`: what the memory is for;
// may be empty. `nbytes`: the size of the allocation, if it is known. As on CUDA, XPU and MPS the text has " out of
// memory.", which libraries look for.
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

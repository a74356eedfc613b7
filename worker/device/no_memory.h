#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/status.h"

namespace torch_remote::worker {

// The worker's memory is used up, or what its session may have of it. `what` it was wanted for, if that is worth a
// word, and how many bytes, if somebody knows.
inline Status no_memory_for(std::string_view what, std::optional<uint64_t> nbytes = {}) {
  std::string message = "remote: the worker has no memory left";
  if (!what.empty()) message += " for " + std::string(what);
  if (nbytes) message += "; tried to allocate " + std::to_string(*nbytes) + " bytes";
  return {ErrorCode::kOutOfMemory, std::move(message), "OutOfMemoryError"};
}

}  // namespace torch_remote::worker

#pragma once

#include <cstdint>

namespace torch_remote::remote {

// States what the peer may do with memory that this end lends it.
enum class MemoryAccess : uint8_t {
  kWritable,
  // The peer can map the memory only for reading: this end seals its segments against writing by others (Linux 5.1).
  // For an end that does not trust its peer.
  kReadOnly,
};

}  // namespace torch_remote::remote

#pragma once

#include <cstdint>

namespace torch_remote::remote {

// What the peer may do with the memory that this end lends it.
enum class Lending : uint8_t {
  kWritable,
  // It maps it read-only, and the kernel lets nobody map it otherwise: this end's segments are sealed against writing
  // by others (Linux 5.1). For an end that does not trust the other one.
  kReadOnly,
};

}  // namespace torch_remote::remote

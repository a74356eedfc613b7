#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "worker/device/device.h"
#include "worker/session/buffer_memory.h"
#include "worker/session/failure.h"

namespace torch_remote::worker {

// Copies of the contents that buffers had when a failure happened, until the client knows the failure. A run takes the
// copies of its inputs, adds to them, and gives them back. For one thread.
class OlderContents {
 public:
  struct Copy {
    uint64_t failure = 0;       // Number of the last failure before the copy was made.
    MemoryPtr memory;           // Null: there is no copy, so the contents cannot be restored.
    FailurePtr missing_update;  // The failure whose update the copy lacks.
  };
  using Copies = std::vector<Copy>;  // The copies of one buffer, the oldest first.

  // The device outlives this.
  explicit OlderContents(Device& device) : device_(device) {}

  bool empty() const { return by_buffer_.empty(); }
  bool contains(uint64_t buffer) const { return by_buffer_.contains(buffer); }
  Copies take(uint64_t buffer);
  void put(uint64_t buffer, Copies copies);
  void drop(uint64_t buffer) { by_buffer_.erase(buffer); }
  // The client knows all failures before this one.
  void drop_before(uint64_t failure);

  // The `nbytes` bytes at `data` will be written after this failure: copies them, unless `copies` has a copy from after
  // it. Makes a copy only if as much memory as it takes stays free. `data` may be null: the contents do not exist.
  void save(Copies& copies, const void* data, uint64_t nbytes, uint64_t failure, FailurePtr missing_update);
  // An update is skipped for this failure: restores the contents that the buffer at `data` had when it happened.
  // Returns the failure whose update these contents lack, or null.
  FailurePtr restore(Copies& copies, void* data, const FailurePtr& failure);

 private:
  Device& device_;
  std::unordered_map<uint64_t, Copies> by_buffer_;  // By buffer id.
};

}  // namespace torch_remote::worker

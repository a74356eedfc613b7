#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "worker/device/device.h"
#include "worker/session/buffer_memory.h"
#include "worker/session/failure.h"

namespace torch_remote::worker {

// Copies of contents with which writes are undone (docs/design/failures.md). After a failure, ops that do not depend on
// it still write to buffers. If an update of such a buffer is later skipped because of the failure, the buffer gets
// back the contents that it had when the failure happened. A copy is dropped when the client knows the failure. A run
// takes the copies of its inputs, adds to them, and gives them back. For one thread.
class OlderContents {
 public:
  struct Copy {
    uint64_t failure = 0;       // Number of the last failure before the copy was made.
    MemoryPtr memory;           // Null: there is no copy, so the contents cannot be restored.
    FailurePtr missing_update;  // An update skipped for this failure is missing in the copy; null: none is missing.
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

  // Call it before a write to the `nbytes` bytes at `data`. `failure`: number of the last failure that the client does
  // not know. Copies the bytes, unless the newest of `copies` was made after that failure. If less than `nbytes` of
  // memory would stay free, or `data` is null (there are no contents), adds an entry without memory.
  void save(Copies& copies, const void* data, uint64_t nbytes, uint64_t failure, FailurePtr missing_update);
  // Call it when an update of the buffer at `data` is skipped because of this failure. Restores the contents that the
  // buffer had when the failure happened, if there is a copy. Returns Copy::missing_update of that copy, or null.
  FailurePtr restore(Copies& copies, void* data, const FailurePtr& failure);

 private:
  Device& device_;
  std::unordered_map<uint64_t, Copies> by_buffer_;  // By buffer id.
};

}  // namespace torch_remote::worker

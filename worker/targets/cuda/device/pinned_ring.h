#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"

namespace torch_remote::worker::cuda {

// A ring of pinned memory for small copies to the GPU, all on one stream. It is divided into areas. Before an area is
// reused, `take` waits until all copies from it are done. So nothing waits, and few events are recorded, unless the GPU
// is far behind. The GPU's context must be current.
class PinnedRing {
 public:
  static constexpr size_t kAreas = 4, kAreaWords = 8192;  // Words have 8 bytes.

  explicit PinnedRing(const Driver& driver) : driver_(driver) {}
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // Does nothing if it is open.
  Status open();
  // Returns memory for `words` words, at most kAreaWords. Before the next
  // take(), queue the copy from this memory: the ring waits only for copies that are queued.
  Status take(size_t words, Stream stream, uint64_t** memory);
  // Waits until the queued copies are done, and frees the memory. Not to be called on a lost GPU, whose pinned memory
  // is freed when the process ends.
  void close(Stream stream);

 private:
  void free();

  const Driver& driver_;
  uint64_t* words_ = nullptr;
  std::array<Event, kAreas> area_done_ = {};  // Recorded when `take` moves on from the area.
  size_t area_ = 0, used_ = 0;                // Words used in the current area.
};

}  // namespace torch_remote::worker::cuda

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"

namespace torch_remote::worker::cuda {

// Pinned memory that small copies to the GPU are made from, all on one stream. It is used in turn, an area at a time:
// who comes to an area again waits until all that was copied from it is done. So nothing is waited for, and no event is
// recorded, as long as the GPU is not far behind. The context is current.
class PinnedRing {
 public:
  static constexpr size_t kAreas = 4, kAreaWords = 8192;  // of 8 bytes

  explicit PinnedRing(const Driver& driver) : driver_(driver) {}
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // Once it is open, nothing.
  Status open();
  // Room for so many words, an area's at most. What was taken before is queued.
  Status take(size_t words, Stream stream, uint64_t** room);
  // Waits until what is queued is done. (Of a lost GPU pinned memory goes with the process.)
  void close(Stream stream);

 private:
  void free();

  const Driver& driver_;
  uint64_t* words_ = nullptr;
  std::array<Event, kAreas> left_ = {};  // recorded when the area was left
  size_t area_ = 0, used_ = 0;           // of the area
};

}  // namespace torch_remote::worker::cuda

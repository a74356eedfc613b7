#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "worker/device/device.h"
#include "worker/targets/cuda/device/gpu.h"

namespace torch_remote::worker::cuda {

// Reads of at most kMaxBytes that are in flight. The work stream copies each of them into a ring of pinned memory. When
// its ticket is done, `finish` copies it from there on the CPU. So a read takes one copy and the ticket's event.
// The memory is allocated at the first read. Not thread safe. The GPU's context must be current.
class SmallReads {
 public:
  static constexpr size_t kMaxBytes = 64 << 10, kRingBytes = 1 << 20;

  // Pinned memory that was taken for a read.
  struct Memory {
    std::byte* data = nullptr;
    size_t bytes = 0;       // Size of the read.
    size_t ring_bytes = 0;  // Bytes of the ring that are in use until the read is done.
  };

  explicit SmallReads(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~SmallReads();
  SmallReads(const SmallReads&) = delete;
  SmallReads& operator=(const SmallReads&) = delete;

  // Returns memory for a read of `bytes` bytes, or nothing: the read is too large, the ring is full, or there is no
  // pinned memory. Memory is returned to the ring in the order in which it was taken.
  std::optional<Memory> take(size_t bytes);
  // GPU memory of kMaxBytes, in which the work stream packs strided views; 0: there is none.
  DevicePointer packing_memory();
  // Adds a read whose copy into `memory` is queued, and done at `ticket`.
  void add(Ticket ticket, const Memory& memory, std::byte* destination);
  // Copies the bytes of the reads whose tickets are at most `done` to their destinations.
  void finish(Ticket done);
  bool empty() const { return reads_.empty(); }

 private:
  static constexpr size_t kRingAlignment = 64;
  struct Read {
    Ticket ticket = 0;
    Memory memory;
    std::byte* destination = nullptr;
  };

  const std::shared_ptr<Gpu> gpu_;
  bool is_open_ = false;          // The driver was asked for the ring's memory.
  std::byte* ring_ = nullptr;     // Pinned; null: there is none.
  size_t next_ = 0, in_use_ = 0;  // Bytes: where the next read begins, and how many before it are in use.
  DevicePointer packing_ = 0;
  std::deque<Read> reads_;  // In the order of their tickets.
};

}  // namespace torch_remote::worker::cuda

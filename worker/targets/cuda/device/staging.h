#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker/targets/cuda/device/gpu.h"

namespace torch_remote::worker::cuda {

// Staging memory for copies between host and GPU in one direction. A slot has pinned memory and the same number of
// bytes on the GPU. The work stream copies between the slot's GPU memory and tensors; a second stream copies between
// the slot's two halves. So copies overlap with work, and no call waits for them. Events order the two streams.
class Staging {
 public:
  // The caller may use a slot until `next` returns it again. Its next user waits on the GPU for the events.
  struct Slot {
    std::byte* pinned = nullptr;
    DevicePointer memory = 0;
    Event filled = nullptr;   // Recorded by the stream that fills the slot.
    Event emptied = nullptr;  // Recorded by the stream that empties it.
  };

  Staging(std::shared_ptr<Gpu> gpu, size_t slot_bytes, uint32_t slots)
      : gpu_(std::move(gpu)), slot_bytes_(slot_bytes), count_(slots) {}
  ~Staging();

  // Makes the first slot. Others are made on demand, if there is memory.
  Status open();
  size_t slot_bytes() const { return slot_bytes_; }
  // The next slot in turn. The GPU's context must be current.
  const Slot& next();

 private:
  Status add();
  void remove(const Slot& slot);

  const std::shared_ptr<Gpu> gpu_;
  const size_t slot_bytes_;
  const uint32_t count_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace torch_remote::worker::cuda

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker/targets/cuda/device/gpu.h"

namespace torch_remote::worker::cuda {

// Memory that copies between host and GPU go through, in one direction: slots of pinned memory, each with as much of
// the GPU's. The work stream moves elements between a slot and where they belong, another stream between the slot's two
// halves; so copies go on beside work, and no call waits for them. Events order both streams.
class Staging {
 public:
  // A slot's memory is of the caller's until it is used again; what comes then waits for that, on the GPU.
  struct Slot {
    std::byte* pinned = nullptr;
    DevicePointer memory = 0;
    Event filled = nullptr;   // by the stream that brings elements
    Event emptied = nullptr;  // by the one that takes them away
  };

  Staging(std::shared_ptr<Gpu> gpu, size_t slot_bytes, uint32_t slots)
      : gpu_(std::move(gpu)), slot_bytes_(slot_bytes), count_(slots) {}
  ~Staging();

  // Makes the first slot. The others are made when they are needed, if there is memory.
  Status open();
  size_t slot_bytes() const { return slot_bytes_; }
  // The next one. The context is current.
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

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/launch/place.h"

// What a unit's plan finds in one run: the graph's buffers, and memory of its own.
namespace torch_remote::worker::cuda {

Status no_memory(uint64_t bytes, std::string_view what);

class RunMemory {
 public:
  RunMemory(CudaDevice& device, std::span<const tr_buffer> buffers) : device_(device), buffers_(buffers) {}
  // Gives its own memory back: what is queued is done before anybody else gets it.
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  // More of its own memory, bytes each: places from kScratch on. `what` is for the error if there is none.
  Status allocate(std::span<const uint64_t> nbytes, std::string_view what);
  DevicePointer address(const Place& place) const;  // 0 of kNowhere

  // Queued; the GPU's context is current.
  Status copy(const Moved& moved) const;
  void fill(const Place& to, uint64_t nbytes, uint8_t value) const;

 private:
  CudaDevice& device_;
  std::span<const tr_buffer> buffers_;
  std::vector<tr_buffer> own_;
};

}  // namespace torch_remote::worker::cuda

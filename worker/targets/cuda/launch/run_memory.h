#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/launch/location.h"

// The memory of one run of a plan: the graph's buffers, and scratch memory.
namespace torch_remote::worker::cuda {

Status no_memory(uint64_t bytes, std::string_view what);

class RunMemory {
 public:
  RunMemory(CudaDevice& device, std::span<const tr_buffer> buffers) : device_(device), buffers_(buffers) {}
  // Releases the scratch memory. Its next user is queued behind the work that uses it.
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  // Allocates pieces of scratch memory of these sizes in bytes. Location::buffer of piece i is kScratch + i. `what`
  // names the use in the error.
  Status allocate(std::span<const uint64_t> nbytes, std::string_view what);
  DevicePointer address(const Location& location) const;  // 0 for kNoLocation.

  // Both are queued; the GPU's context must be current.
  Status copy(const StridedMove& moved) const;
  void fill(const Location& to, uint64_t nbytes, uint8_t value) const;

 private:
  CudaDevice& device_;
  std::span<const tr_buffer> buffers_;
  std::vector<tr_buffer> scratch_;
};

}  // namespace torch_remote::worker::cuda

#include "worker/targets/cuda/launch/run_memory.h"

#include <memory>
#include <string>

#include "worker/targets/cuda/device/copy_kernel.h"

namespace torch_remote::worker::cuda {

Status no_memory(uint64_t bytes, std::string_view what) {
  return {ErrorCode::kOutOfMemory,
          "remote: the GPU has no " + std::to_string(bytes) + " bytes left for " + std::string(what),
          "OutOfMemoryError"};
}

RunMemory::~RunMemory() {
  for (tr_buffer& buffer : scratch_) {
    if (buffer.release != nullptr) buffer.release(buffer.owner);
  }
}

Status RunMemory::allocate(std::span<const uint64_t> nbytes, std::string_view what) {
  for (const uint64_t bytes : nbytes) {
    if (!device_.memory().allocate(bytes, &scratch_.emplace_back(), Visibility::kPrivate))
      return no_memory(bytes, what);
  }
  return {};
}

DevicePointer RunMemory::address(const Location& location) const {
  if (location.buffer == kNoLocation) return 0;
  const tr_buffer& buffer =
      location.buffer >= kScratch ? scratch_[location.buffer - kScratch] : buffers_[location.buffer];
  return reinterpret_cast<DevicePointer>(buffer.data) + location.offset;
}

Status RunMemory::copy(const StridedMove& moved) const {
  return queue_copy(device_.gpu(), device_.kernels(),
                    {.from = address(moved.from),
                     .to = address(moved.to),
                     .from_type = moved.from_type,
                     .to_type = moved.to_type,
                     .sizes = moved.sizes,
                     .from_strides = moved.from_strides,
                     .to_strides = moved.to_strides});
}

void RunMemory::fill(const Location& to, uint64_t nbytes, uint8_t value) const {
  if (nbytes == 0) return;
  static const std::shared_ptr<const void> kFills = std::make_shared<char>();
  Gpu& gpu = device_.gpu();
  const DevicePointer at = address(to);
  gpu.queue().add(
      {.words = {at, nbytes, value}, .keep_alive = kFills, .queue = [&gpu, at, nbytes, value](Stream stream) {
         return to_status(gpu.driver(), gpu.driver().memset_d8_async(at, value, nbytes, stream), "cuMemsetD8Async");
       }});
}

}  // namespace torch_remote::worker::cuda

#include "worker/targets/cuda/device/small_reads.h"

#include <cstring>

namespace torch_remote::worker::cuda {

// On a lost GPU nothing is freed, as in Staging.
SmallReads::~SmallReads() {
  if (gpu_->is_lost()) return;
  const ContextGuard current(*gpu_);
  if (packing_ != 0) (void)gpu_->free(packing_);
  if (ring_ != nullptr) (void)gpu_->driver().mem_free_host(ring_);
}

std::optional<SmallReads::Memory> SmallReads::take(size_t bytes) {
  if (bytes > kMaxBytes) return std::nullopt;
  if (!std::exchange(is_open_, true)) {
    void* pinned = nullptr;
    if (gpu_->driver().mem_host_alloc(&pinned, kRingBytes, 0) == Result::kSuccess)
      ring_ = static_cast<std::byte*>(pinned);
  }
  const size_t rounded = (bytes + kRingAlignment - 1) / kRingAlignment * kRingAlignment;
  const size_t skipped = next_ + rounded > kRingBytes ? kRingBytes - next_ : 0;  // A read does not wrap around.
  if (ring_ == nullptr || in_use_ + skipped + rounded > kRingBytes) return std::nullopt;
  const size_t begin = skipped != 0 ? 0 : next_;
  next_ = begin + rounded;
  in_use_ += skipped + rounded;
  return Memory{ring_ + begin, bytes, skipped + rounded};
}

DevicePointer SmallReads::packing_memory() {
  if (packing_ == 0 && gpu_->memory().allocate(&packing_, kMaxBytes) != Result::kSuccess) packing_ = 0;
  return packing_;
}

void SmallReads::add(Ticket ticket, const Memory& memory, std::byte* destination) {
  reads_.push_back({ticket, memory, destination});
}

void SmallReads::finish(Ticket done) {
  for (; !reads_.empty() && reads_.front().ticket <= done; reads_.pop_front()) {
    const Read& read = reads_.front();
    std::memcpy(read.destination, read.memory.data, read.memory.bytes);
    in_use_ -= read.memory.ring_bytes;
  }
}

}  // namespace torch_remote::worker::cuda

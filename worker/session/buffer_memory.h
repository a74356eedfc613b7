#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "worker/device/memory.h"
#include "worker/runner/plugin.h"

namespace torch_remote::worker {

// The memory of a buffer. Shared between the session and the messages that lend it to the client. Only the session's
// thread calls it; any thread may drop the last reference.
class Memory {
 public:
  // Releases the tr_buffer on destruction.
  explicit Memory(const tr_buffer& buffer) : data_(buffer.data), nbytes_(buffer.nbytes), buffer_(buffer) {}
  // A poisoned buffer: only a size, no memory.
  explicit Memory(uint64_t nbytes) : data_(nullptr), nbytes_(nbytes) {}
  // Memory owned by `keep`. Counted in the allocator's statistics.
  Memory(void* data, uint64_t nbytes, std::shared_ptr<void> keep, CachingAllocator* counted)
      : data_(data), nbytes_(nbytes), keep_(std::move(keep)), counted_(counted) {
    counted_->add_external(nbytes_);
  }
  ~Memory() {
    contents_change();
    if (buffer_.release) buffer_.release(buffer_.owner);
    if (counted_) counted_->remove_external(nbytes_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  uint64_t nbytes() const { return nbytes_; }
  // Records that this run has it as an input. Returns false if the run has it as an input already.
  bool bind(uint64_t run) { return std::exchange(bound_by_, run) != run; }
  // Whether an op in the background writes it.
  bool is_being_written() const { return writers_ != 0; }
  void begin_writing() { ++writers_; }
  void end_writing() { --writers_; }
  // Data that a runner derives from the contents; dropped when they change.
  tr_cached_data* cached_data() { return &cached_data_; }
  void contents_change() {
    if (cached_data_.release) cached_data_.release(cached_data_.data);
    cached_data_ = {};
  }

 private:
  void* data_;
  uint64_t nbytes_;
  tr_buffer buffer_{};
  std::shared_ptr<void> keep_;
  CachingAllocator* counted_ = nullptr;
  uint64_t bound_by_ = 0;
  uint32_t writers_ = 0;
  tr_cached_data cached_data_{};
};
using MemoryPtr = std::shared_ptr<Memory>;

}  // namespace torch_remote::worker

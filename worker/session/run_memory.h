#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/device/memory.h"
#include "worker/runner/plugin.h"
#include "worker/session/loaded_program.h"

namespace torch_remote::worker {

inline tr_buffer borrowed(void* data, uint64_t nbytes) { return {data, nbytes, nullptr, nullptr}; }

// The memory of one run's buffers, by graph buffer. If an entry's `owner` is set, this object owns the memory and
// releases it on destruction; release() or the caller may empty the entry earlier. Sizes are the program's `nbytes`.
// For one thread.
class RunMemory {
 public:
  // Both outlive this.
  RunMemory(const LoadedProgram& program, CachingAllocator& memory)
      : program_(program), memory_(memory), buffers_(program.graph.buffers.size()) {}
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  tr_buffer& operator[](uint32_t buffer) { return buffers_[buffer]; }
  const tr_buffer& operator[](uint32_t buffer) const { return buffers_[buffer]; }
  size_t size() const { return buffers_.size(); }
  tr_buffer* data() { return buffers_.data(); }

  // Allocates memory for the small temporaries that no runner allocates itself. Returns false if there is not enough.
  bool allocate_arena();
  // Allocates the memory that the stage touches first. Returns false if there is not enough.
  bool allocate(const Stage& stage);
  // Call this before the session executes the nodes of a group one by one. `next`: the first node that has not run. The
  // stage may have given the memory of an operand to a result of the group. Single nodes still read that operand, so it
  // gets its memory back. The result has no memory until it is allocated.
  void unshare(const Stage& stage, uint32_t next);
  // Allocates memory for one buffer, unless it has some. Returns false if there is not enough; the buffer then stays
  // without memory.
  bool allocate(uint32_t buffer);
  void release(uint32_t buffer);

 private:
  const LoadedProgram& program_;
  CachingAllocator& memory_;
  std::vector<tr_buffer> buffers_;
  tr_buffer arena_{};
};

}  // namespace torch_remote::worker

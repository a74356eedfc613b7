#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/device/memory.h"
#include "worker/runner/plugin.h"
#include "worker/session/loaded_program.h"

namespace torch_remote::worker {

// A buffer whose memory has another owner; nothing releases it.
inline tr_buffer borrowed(void* data, uint64_t nbytes) { return {data, nbytes, nullptr, nullptr}; }

// The memory of one run's buffers, by graph buffer. If an entry has a release function, this object owns its memory and
// releases it on destruction. Call release() to release it earlier, or empty the entry to take the memory over. Sizes
// are those in the program's `nbytes`. For one thread.
class RunMemory {
 public:
  // Both must outlive this object.
  RunMemory(const LoadedProgram& program, CachingAllocator& memory)
      : program_(program), memory_(memory), buffers_(program.graph.buffers.size()) {}
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  tr_buffer& operator[](uint32_t buffer) { return buffers_[buffer]; }
  const tr_buffer& operator[](uint32_t buffer) const { return buffers_[buffer]; }
  size_t size() const { return buffers_.size(); }
  tr_buffer* data() { return buffers_.data(); }

  // Allocates one block for the small temporaries that no runner allocates itself. Returns false if there is not enough
  // memory, or if they need more than an arena can have.
  bool allocate_arena();
  // Allocates the buffers that the stage touches first. Returns false if there is not enough memory. Buffers that were
  // allocated before that keep their memory.
  bool allocate(const Stage& stage);
  // Call this when a stage has stopped and the session continues node by node. `next`: the first node that has not run.
  // allocate(stage) may have moved the memory of an operand to a result of the same group. A node that runs alone may
  // still read that operand, so unshare() moves the memory back. The result has no memory until it is allocated.
  void unshare(const Stage& stage, uint32_t next);
  // Allocates memory for one buffer, unless it has some. If its size is unknown, the memory contains all that its views
  // reach. Returns false if there is not enough memory; the buffer then has none.
  bool allocate(uint32_t buffer);
  void release(uint32_t buffer);

 private:
  const LoadedProgram& program_;
  CachingAllocator& memory_;
  std::vector<tr_buffer> buffers_;
  tr_buffer arena_{};
};

}  // namespace torch_remote::worker

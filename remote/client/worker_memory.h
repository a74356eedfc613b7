#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What a worker says about its machine and its memory (wire.fbs: HelloReply, WorkerUse, Memory, MemoryReply).
namespace torch_remote::remote {

// What it computes on.
struct MachineInfo {
  std::string processor;             // "AMD EPYC 7R13 Processor"
  uint32_t cores = 0;                // that it may use
  uint64_t memory = 0;               // bytes that it may use
  std::vector<std::string> targets;  // of kernels: "sm_90"
};

// Of one kind of thing: now, the most there was, and all that came and went.
struct MemoryStat {
  uint64_t current = 0, peak = 0, allocated = 0, freed = 0;
};

struct MemoryUse {
  MemoryStat allocated, reserved;    // bytes, in buffers and held by the allocator
  MemoryStat allocations, segments;  // the same, in pieces
  uint64_t retries = 0;              // allocations that succeeded after a trim
  uint64_t failures = 0;             // allocations that did not succeed
};

// What is to be done with the memory, in this order.
struct MemoryRequest {
  bool trim = false;              // give back what is reserved and not in use
  std::optional<uint64_t> limit;  // bytes that may be reserved from now on
  bool reset_peak = false;
  bool reset_totals = false;
};

// In bytes.
struct MemoryRoom {
  uint64_t limit = 0;
  uint64_t free = 0;  // that may still be reserved, and that the machine has
};

}  // namespace torch_remote::remote

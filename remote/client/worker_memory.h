#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/capabilities.h"

// A worker reports this about its machine and its memory (wire.fbs: HelloReply, WorkerStats, Memory, MemoryReply).
namespace torch_remote::remote {

// The hardware that computes.
struct MachineInfo {
  std::string processor;          // "AMD EPYC 7R13 Processor"
  uint32_t cores = 0;             // number of cores that the worker may use
  uint64_t memory = 0;            // bytes that the worker may use
  ir::Capabilities capabilities;  // what it does in addition to executing single ops
};

// Statistics of one quantity: its current value, its peak, and the totals allocated and freed.
struct MemoryStat {
  uint64_t current = 0, peak = 0, allocated = 0, freed = 0;
};

struct MemoryUse {
  MemoryStat allocated, reserved;    // bytes in buffers, and bytes that the allocator holds
  MemoryStat allocations, segments;  // the numbers of buffers and segments
  uint64_t num_alloc_retries = 0;    // allocations that succeeded after the allocator trimmed its memory
  uint64_t num_ooms = 0;             // allocations that failed
};

// Requests to the worker's allocator, executed in the order of the fields.
struct MemoryRequest {
  bool empty_cache = false;       // give back memory that is reserved but not in use
  std::optional<uint64_t> limit;  // bytes that may be reserved from now on
  bool reset_peak = false;
  bool reset_totals = false;
};

// Available memory, in bytes.
struct MemoryLimits {
  uint64_t limit = 0;
  uint64_t free = 0;  // may still be reserved, and the machine has it
};

}  // namespace torch_remote::remote

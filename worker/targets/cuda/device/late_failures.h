#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/gpu/launch.h"
#include "ir/status.h"
#include "worker/device/device.h"
#include "worker/targets/cuda/device/gpu.h"

namespace torch_remote::worker::cuda {

// What an operand is that has no dim.
inline constexpr int64_t kDivision = -2, kMaskedCount = -3;

// Of an operand of a kernel that an index says a place of: which node has it.
struct IndexedOperand {
  uint32_t node = 0;
  std::string_view op;     // lives as long as the process; empty: no index says a place of this one
  int64_t dim = -1;        // of the tensor, that the index is along; -1: ops that do not say it; or what is no index
  std::string words = {};  // what is told; empty: what the op says of an index
};

// What an op says of an index that is out of its bounds: as on the CPU. Of what is no index, its own words.
Status index_error(const IndexedOperand& operand, int64_t index, int64_t bound);

// Failures that only data can tell. A kernel that may find one is given a record in the GPU's memory; after a run these
// are copied to the host, behind the kernels, and made empty again. Used by one thread, with the GPU's context current.
class LateFailures {
 public:
  explicit LateFailures(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~LateFailures();

  // A record for a launch of this run: its address, or 0 if the GPU is lost or has no memory. `operands` are the
  // kernel's.
  uint64_t take(uint64_t run, std::shared_ptr<const std::vector<IndexedOperand>> operands);
  // Queues that the records that were taken since come to the host; `ticket` is then their place.
  bool flush(Ticket ticket);
  // Nothing is on its way that may have failed.
  bool is_empty() const { return taken_.empty(); }
  // All records are on their way: they must be collected before another one is taken.
  bool is_full() const { return taken_.size() >= kRecords; }
  // Looks at what came with tickets up to this one.
  void collect(Ticket done, std::vector<LateFailure>* failures);

 private:
  static constexpr uint32_t kRecords = 1024;  // at once, on their way

  struct Taken {
    uint32_t record = 0;
    uint64_t run = 0;
    std::shared_ptr<const std::vector<IndexedOperand>> operands;
    Ticket ticket = 0;  // 0: not flushed
  };
  bool open();
  bool copy(uint32_t first, uint32_t last);

  const std::shared_ptr<Gpu> gpu_;
  DevicePointer records_ = 0;
  codegen::gpu::IndexRecord* host_ = nullptr;  // pinned
  uint32_t next_ = 0;                          // record
  std::deque<Taken> taken_;
};

}  // namespace torch_remote::worker::cuda

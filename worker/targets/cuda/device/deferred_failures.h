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

// Values of IndexedOperand::dim for failures that are not indices.
inline constexpr int64_t kDivision = -2, kMaskedCount = -3;

// Describes an operand of a kernel that is addressed by an index: which node reads or writes it.
struct IndexedOperand {
  uint32_t node = 0;
  std::string_view op;  // Lives as long as the process; empty: no index addresses this operand.
  int64_t dim = -1;  // The tensor's dim that is indexed; -1: the op's message names none; or kDivision, kMaskedCount.
  std::string message = {};  // The error message; empty: the op's own message about an index.
  // Returns the message for what the kernel stored, or an empty string if that is an index and its bound.
  std::string (*describe)(int64_t index, int64_t bound) = nullptr;
};

// The error for an index out of bounds, with the message that the op has on the CPU (the columns `index_error` and
// `data_error` of ir/ops/*.toml). Failures that are not indices have their own messages.
Status index_error(const IndexedOperand& operand, int64_t index, int64_t bound);

// Failures that depend on data and are found by kernels. A kernel that may find one gets a record in GPU memory. After
// a run, the records are copied to the host behind the kernels and reset. Used by one thread, with the GPU's context
// current.
class DeferredFailures {
 public:
  explicit DeferredFailures(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~DeferredFailures();

  // Takes a record for a launch of this run. Returns its address, or 0 if the GPU is lost or out of memory. `operands`
  // are the kernel's.
  uint64_t take(uint64_t run, std::shared_ptr<const std::vector<IndexedOperand>> operands);
  // Queues the copy of all records taken since the last flush to the host. The copy is done when `ticket` is.
  bool flush(Ticket ticket);
  // No record is in flight, so no queued launch can fail.
  bool is_empty() const { return in_flight_.empty(); }
  // All records are in flight: they must be collected before another one is taken.
  bool is_full() const { return in_flight_.size() >= kRecords; }
  // Collects failures from the records whose tickets are at most `done`.
  void collect(Ticket done, std::vector<DeferredFailure>* failures);

 private:
  static constexpr uint32_t kRecords = 1024;  // At most this many in flight.

  struct InFlightRecord {
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
  uint32_t next_ = 0;                          // Index of the next record in the ring.
  std::deque<InFlightRecord> in_flight_;
};

}  // namespace torch_remote::worker::cuda

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "worker/device/memory.h"
#include "worker/targets/cuda/device/driver.h"
#include "worker/targets/cuda/device/stream_memory.h"
#include "worker/targets/cuda/device/work_queue.h"

namespace torch_remote::worker::cuda {

// A GPU's context, and what one device (cuda_device.h) has in it. It lives until the device is gone and all of its
// memory has been released.
class Gpu {
 public:
  // Copies the driver's function table.
  static Status open(const Driver& driver, int ordinal, std::shared_ptr<Gpu>* gpu);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const Driver& driver() const { return driver_; }
  Context context() const { return context_; }
  // Three streams: work; copies from the host to staging memory (`copy_in_stream`); copies from staging memory to the
  // host (`copy_out_stream`). `work_stream` flushes the queue first, so that what the caller queues on the stream comes
  // after it.
  Stream work_stream() const {
    queue_->flush();
    return work_stream_;
  }
  // The work stream without a flush: for the queue itself, and for work that may run before the queue's.
  Stream stream() const { return work_stream_; }
  WorkQueue& queue() const { return *queue_; }
  Stream copy_in_stream() const { return copy_in_stream_; }
  Stream copy_out_stream() const { return copy_out_stream_; }
  // Memory in the order of the work stream. `free` flushes the queue first.
  const StreamMemory& memory() const { return memory_; }
  Result free(DevicePointer address) const {
    queue_->flush();
    return memory_.free(address);
  }

  int ordinal() const { return ordinal_; }
  std::string name() const { return name_; }
  uint32_t sm() const { return sm_; }  // Compute capability without the point: 90.
  uint32_t multiprocessors() const { return multiprocessors_; }
  // Bytes that were free when the GPU was opened.
  uint64_t free_memory() const { return free_memory_; }

  // False if the call failed. From then on the GPU is lost: nothing queued later takes effect, and `status` says why
  // and which op was running. Thread safe.
  bool check(Result result, const char* what);
  void mark_lost(const Status& why);
  bool is_lost() const { return lost_.load(std::memory_order_acquire); }
  Status status() const;
  // Names the op that is being queued, for error messages. `op` must live as long as the process.
  void set_current_op(std::string_view op) { current_op_ = op; }

 private:
  explicit Gpu(const Driver& driver);
  Status open_device(int ordinal);
  Status retain_context();
  Status open_context();

  const Driver driver_;
  int ordinal_ = 0;
  DeviceNumber device_ = 0;
  Context context_ = nullptr;
  Stream work_stream_ = nullptr, copy_in_stream_ = nullptr, copy_out_stream_ = nullptr;
  MemoryPool pool_ = nullptr;  // Null: the GPU has no memory pools.
  StreamMemory memory_;
  bool has_pools_ = true;
  std::string name_;
  uint32_t sm_ = 0, multiprocessors_ = 1;
  uint64_t free_memory_ = 0;
  std::string_view current_op_;
  std::atomic<bool> lost_ = false;
  std::unique_ptr<WorkQueue> queue_;
  mutable std::mutex mutex_;
  Status status_;
};

// Makes the GPU's context current on the calling thread for as long as this object lives.
class ContextGuard {
 public:
  explicit ContextGuard(const Gpu& gpu) : driver_(gpu.driver()) { (void)driver_.ctx_push_current(gpu.context()); }
  ~ContextGuard() { (void)driver_.ctx_pop_current(nullptr); }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  const Driver& driver_;
};

// Allocates GPU memory; allocations and frees are ordered on its work stream.
std::unique_ptr<SegmentSource> make_segment_source(std::shared_ptr<Gpu> gpu);

}  // namespace torch_remote::worker::cuda

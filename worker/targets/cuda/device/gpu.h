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
#include "worker/targets/cuda/device/work_queue.h"

namespace torch_remote::worker::cuda {

// A GPU's context, and what one device (cuda_device.h) has there. Lives until the device is gone and its last memory
// came back.
class Gpu {
 public:
  // The driver's functions are copied.
  static Status open(const Driver& driver, int ordinal, std::shared_ptr<Gpu>* gpu);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const Driver& driver() const { return driver_; }
  Context context() const { return context_; }
  // Work; copies from the host into staging memory; copies from staging memory to the host.
  // Who asks for the first one queues something there: all that is in the queue comes before.
  Stream work() const {
    queue_->flush();
    return work_;
  }
  // The same without that: for the queue itself, and what may come before.
  Stream stream() const { return work_; }
  WorkQueue& queue() const { return *queue_; }
  Stream in() const { return in_; }
  Stream out() const { return out_; }
  MemoryPool pool() const { return pool_; }

  int ordinal() const { return ordinal_; }
  std::string name() const { return name_; }
  uint32_t sm() const { return sm_; }  // 90
  uint32_t processors() const { return processors_; }
  // Bytes that nobody used when it was opened.
  uint64_t free_memory() const { return free_memory_; }

  // False if it failed: nothing that is queued from now on counts, `status` says why, and what was being done then.
  // Any thread.
  bool check(Result result, const char* what);
  void lose(const Status& why);
  bool is_lost() const { return lost_.load(std::memory_order_acquire); }
  Status status() const;
  // The op whose work was queued last, for the message. `op` lives as long as the process.
  void set_doing(std::string_view op) { doing_ = op; }

 private:
  explicit Gpu(const Driver& driver);
  Status open_device(int ordinal);
  Status open_context();

  const Driver driver_;
  int ordinal_ = 0;
  DeviceNumber device_ = 0;
  Context context_ = nullptr;
  Stream work_ = nullptr, in_ = nullptr, out_ = nullptr;
  MemoryPool pool_ = nullptr;
  std::string name_;
  uint32_t sm_ = 0, processors_ = 1;
  uint64_t free_memory_ = 0;
  std::string_view doing_;
  std::atomic<bool> lost_ = false;
  std::unique_ptr<WorkQueue> queue_;
  mutable std::mutex mutex_;
  Status status_;
};

// Makes the GPU's context the calling thread's, for as long as it lives.
class Current {
 public:
  explicit Current(const Gpu& gpu) : driver_(gpu.driver()) { (void)driver_.ctx_push_current(gpu.context()); }
  ~Current() { (void)driver_.ctx_pop_current(nullptr); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
};

// Memory of the GPU's pool, in the order of its work.
std::unique_ptr<SegmentSource> make_segment_source(std::shared_ptr<Gpu> gpu);

}  // namespace torch_remote::worker::cuda

#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker/device/device.h"
#include "worker/targets/cuda/device/deferred_failures.h"
#include "worker/targets/cuda/device/gpu.h"
#include "worker/targets/cuda/device/kernel_store.h"
#include "worker/targets/cuda/device/peer_memory.h"
#include "worker/targets/cuda/device/small_reads.h"
#include "worker/targets/cuda/device/staging.h"

namespace torch_remote::worker::cuda {

// Memory and work of one GPU. Work is queued on one stream, and so are copies of at most 64 KiB. Larger copies go
// through staging memory on separate streams, so that no call waits for them. Work that was queued before a copy to the
// GPU overlaps with it. Later work waits on the GPU until the copied bytes are there. The work stream also waits while
// all slots for copies to the host are in use.
class CudaDevice final : public Device {
 public:
  struct Options {
    Driver driver;
    int ordinal = 0;
    uint64_t limit = 0;     // Bytes for tensors; 0: 15/16 of the free memory, as kernels and staging need some.
    KernelOptions kernels;  // Also used for the kernels that pack strided views.
    size_t slot_bytes = size_t{4} << 20;               // Bytes of a staging slot, on the GPU and in pinned memory.
    uint32_t slots = 4;                                // The most staging slots in each direction.
    uint64_t peer_memory_limit = uint64_t{256} << 20;  // Maximum bytes of PeerMemory that are kept for reuse.
  };
  static Status open(const Options& options, std::unique_ptr<CudaDevice>* device);
  ~CudaDevice() override;

  std::string description() const override { return gpu_->name(); }

  void copy_in(void* destination, std::span<const std::byte> source, std::shared_ptr<void> keep) override;
  void copy_out(const StridedBytes& source, std::byte* destination, std::shared_ptr<void> keep) override;
  void copy(void* destination, const void* source, uint64_t nbytes) override;
  void fill(void* destination, std::byte value, uint64_t nbytes) override;

  bool asynchronous() const override { return true; }
  Ticket record() override;
  bool done(Ticket ticket) override;
  Status wait(Ticket ticket) override;
  void notify(Ticket ticket, std::function<void()> then) override;
  std::function<uint64_t()> read_clock() override;
  std::vector<DeferredFailure> take_failures() override;
  std::vector<DeferredFailure> await_failures() override;
  PeerMemory* peer_memory() override { return peers_.get(); }

  // -- For the device's runners

  Gpu& gpu() { return *gpu_; }
  std::shared_ptr<Gpu> shared_gpu() { return gpu_; }
  KernelStore& kernels() { return kernels_; }
  // Takes a record for a launch that may find an index out of bounds, or another error in its data
  // (deferred_failures.h). `run`: tr_run::run_id. Returns the record's address on the GPU, or 0 if the GPU is lost or
  // out of memory. Waits for the GPU if all records are in use.
  uint64_t take_failure_record(uint64_t run, std::shared_ptr<const std::vector<IndexedOperand>> operands);
  // Call it after queuing work on the work stream. The tickets of record() cover only work that was reported here or
  // that this class queued.
  void queued();

 private:
  // Events that show when the streams have reached a ticket. `out`: null without copies on that stream.
  struct TicketEvents {
    Ticket ticket = 0;
    Event work = nullptr, out = nullptr;
  };
  // A copy on the host between pageable and pinned memory.
  struct HostCopy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
  };
  struct RetainedMemory {
    Ticket ticket = 0;
    std::shared_ptr<void> memory;
    std::deque<HostCopy> copies;  // Arguments of host functions on a stream, which need stable addresses.
  };
  struct View;  // A view for copy_out whose adjacent dims are merged.

  CudaDevice(const std::shared_ptr<Gpu>& gpu, const Options& options, uint64_t limit);

  bool check(Result result, const char* what) { return gpu_->check(result, what); }
  RetainedMemory& retain(std::shared_ptr<void> memory);
  // `registered`: the GPU can access the host memory (registered_memory.h).
  bool copy_in_staged(DevicePointer to, const std::byte* from, size_t bytes, bool registered, RetainedMemory& retained);
  bool copy_out_small(const View& view, std::byte* destination, std::shared_ptr<void>& keep);
  bool copy_out_staged(const View& view, std::byte*& to, bool registered, RetainedMemory& retained);
  bool pack(const View& view, DevicePointer to);
  bool copy_on_host(Stream stream, const HostCopy& copy, RetainedMemory& retained);
  Event new_event();
  bool is_reached(Event event);
  void poll(std::vector<RetainedMemory>* finished);
  bool poll_for_reads(Ticket ticket);
  bool is_done(Ticket ticket) const { return done_ >= ticket || gpu_->is_lost(); }
  void watch();

  const std::shared_ptr<Gpu> gpu_;
  KernelStore kernels_;
  DeferredFailures deferred_failures_;
  Staging in_, out_;
  const std::unique_ptr<PeerMemory> peers_;
  std::shared_ptr<void> clock_event_;      // The event of the last clock reading.
  double clock_ns_ = 0;                    // The clock's value at that event.
  std::vector<DeferredFailure> failures_;  // Collected, and not yet returned by take_failures().
  bool has_copies_out_ = false;            // A copy on the stream for copies out was queued since marked_.

  mutable std::mutex mutex_;  // Guards the members below.
  SmallReads small_reads_;
  Ticket queued_ = 0, marked_ = 0, done_ = 0;
  std::deque<TicketEvents> ticket_events_;
  std::vector<Event> events_;  // For reuse.
  std::deque<RetainedMemory> retained_;
  std::multimap<Ticket, std::function<void()>> waiting_;
  std::condition_variable wake_;
  bool closing_ = false;
  std::thread watcher_;  // Calls the functions in waiting_; started by the first one.
};

}  // namespace torch_remote::worker::cuda

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/math_modes.h"
#include "ir/status.h"
#include "remote/transport/transport.h"
#include "worker/device/memory.h"
#include "worker/device/peer_memory.h"

// A device holds tensor bytes and queues work on them: this machine's memory, or a GPU.
//
// A device has memory of its own. An address in it has a meaning only for the device's calls and its runners
// (worker/runner/runner.h). A session passes addresses on, and never reads or writes there.
// A device does its work in the order of the calls, but maybe later: a call returns when its work is queued. A ticket
// says when work is done. Memory that is freed while queued work uses it is reused only by later work, so freeing needs
// no ticket.
namespace torch_remote::worker {

// A point in a device's queue: all work that was queued before it was taken. Tickets grow. 0: all work was done.
using Ticket = uint64_t;

// Elements in a device's memory. Sizes and strides are in elements; none is negative.
struct StridedBytes {
  const void* data = nullptr;  // The first element.
  uint32_t item_size = 0;      // Bytes: 1, 2, 4, 8 or 16.
  std::span<const int64_t> sizes, strides;
};

// A failure that depends on data, and was found only when the work was done: an index out of range, a failed check.
struct DeferredFailure {
  uint64_t run_id = 0;  // tr_run::run_id
  uint32_t node = 0;    // Node of that run's program.
  Status error;
};

// For one thread.
class Device {
 public:
  explicit Device(CachingAllocator::Pointer memory) : memory_(std::move(memory)) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string description() const = 0;  // "AMD EPYC 7R13 Processor"

  // The allocator of this device's memory. Allocating and freeing are not queued.
  CachingAllocator& memory() { return *memory_; }
  const CachingAllocator& memory() const { return *memory_; }

  // Sets how the device's runners compute matmuls and convolutions, from now on.
  void set_math_modes(ir::MathModes math_modes) { math_modes_ = math_modes; }
  ir::MathModes math_modes() const { return math_modes_; }

  // -- Queued work.

  // `keep` is held until the source is read.
  virtual void copy_in(void* destination, std::span<const std::byte> source, std::shared_ptr<void> keep) = 0;
  // Copies elements, packed and row-major, to host memory. `keep` owns that memory and is held until it is written.
  // Sizes and strides are read before the call returns.
  virtual void copy_out(const StridedBytes& source, std::byte* destination, std::shared_ptr<void> keep) = 0;
  virtual void copy(void* destination, const void* source, uint64_t nbytes) = 0;
  virtual void fill(void* destination, std::byte value, uint64_t nbytes) = 0;

  // -- Progress.

  // Whether work may be done after its call returns, so that tickets other than 0 exist.
  virtual bool asynchronous() const { return false; }
  virtual Ticket record() = 0;
  virtual bool done(Ticket ticket) = 0;
  // Returns kLost if the device is lost.
  virtual Status wait(Ticket ticket) = 0;
  // Calls `then` once the ticket is done: on any thread, or within this call if it is done already.
  virtual void notify(Ticket ticket, std::function<void()> then) = 0;
  // Queues a read of the device's clock, in ns since an arbitrary point. The returned function returns the value. Call
  // it at most once, when the next ticket is done.
  virtual std::function<uint64_t()> read_clock() = 0;
  // Returns the failures of work that is done, in order, each once.
  virtual std::vector<DeferredFailure> take_failures() { return {}; }
  // Returns the failures of all queued work, and leaves them for take_failures(). Waits for work that may fail.
  virtual std::vector<DeferredFailure> await_failures() { return {}; }

  // -- Capabilities.

  // Whether the device's memory is this process's memory, which any code may write while no other work uses it.
  virtual bool is_host_memory() const { return false; }
  // Whether memory that the client sent can become a buffer in place.
  virtual bool adopts() const { return false; }
  // The size in bytes from which the client can read pieces of the device's memory in place.
  virtual uint64_t lends_from() const { return UINT64_MAX; }
  // Returns such a piece as an attachment; null: the caller must copy it out. `keep` is held until the client returns
  // the piece.
  virtual remote::AttachmentPtr lend(const void* data, uint64_t nbytes, std::shared_ptr<void> keep) { return nullptr; }
  // Memory that devices of other processes can read directly; null: the device has none.
  virtual PeerMemory* peer_memory() { return nullptr; }

 private:
  CachingAllocator::Pointer memory_;
  ir::MathModes math_modes_ = 0;
};

}  // namespace torch_remote::worker

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

// Where tensor bytes live and work on them is queued: this machine's memory, a GPU.
//
// A device has memory of its own. An address in it means something to the device's calls and to its runners
// (worker/runner/runner.h), and to nobody else: a session passes it on and never looks there. What is asked of a
// device is done in the order of the calls, but maybe later: a call returns when its work is queued. A ticket tells
// when it is done. Memory that is given back while work that uses it is queued is used again only by work behind that,
// so freeing needs no ticket.
namespace torch_remote::worker {

// A point in a device's queue: all that was queued before it was taken. They grow. 0: nothing was left to be done.
using Ticket = uint64_t;

// Elements in a device's memory. Sizes and strides in elements, none of them negative.
struct StridedBytes {
  const void* data = nullptr;  // the first one
  uint32_t item_size = 0;      // bytes: 1, 2, 4, 8 or 16
  std::span<const int64_t> sizes, strides;
};

// A failure that only data could tell, so that it was found when the work was done: an index out of range, a check.
struct LateFailure {
  uint64_t run = 0;   // tr_run::number
  uint32_t node = 0;  // of that run's program
  Status error;
};

// Used by one thread.
class Device {
 public:
  explicit Device(CachingAllocator::Pointer memory) : memory_(std::move(memory)) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string description() const = 0;  // "AMD EPYC 7R13 Processor"

  // Memory of this device. Allocating and freeing are no work to be queued.
  CachingAllocator& memory() { return *memory_; }
  const CachingAllocator& memory() const { return *memory_; }

  // How its runners do products and convolutions, from now on.
  void set_math(ir::MathModes math) { math_ = math; }
  ir::MathModes math() const { return math_; }

  // -- queued

  // `keep` is held until the source was read.
  virtual void copy_in(void* destination, std::span<const std::byte> source, std::shared_ptr<void> keep) = 0;
  // Elements, packed and row-major, to host memory; `keep` holds that, until it was written. (Sizes and strides are
  // read before the call returns.)
  virtual void copy_out(const StridedBytes& source, std::byte* destination, std::shared_ptr<void> keep) = 0;
  virtual void copy(void* destination, const void* source, uint64_t nbytes) = 0;
  virtual void fill(void* destination, std::byte value, uint64_t nbytes) = 0;

  // -- how far it is

  // Whether work may be done after a call has returned: tickets other than 0.
  virtual bool asynchronous() const { return false; }
  virtual Ticket record() = 0;
  virtual bool done(Ticket ticket) = 0;
  // kLost if the device is.
  virtual Status wait(Ticket ticket) = 0;
  // Calls `then` once the ticket is done: on any thread, from within this call if it is done already.
  virtual void notify(Ticket ticket, std::function<void()> then) = 0;
  // Queues a look at the device's clock, in ns since any point. What is returned gives what it showed; it is to be
  // called, once or never, when the next ticket is done.
  virtual std::function<uint64_t()> read_clock() = 0;
  // What failed in work that is done, in its order, once.
  virtual std::vector<LateFailure> take_failures() { return {}; }
  // What all work that was queued leaves to be taken, which stays there. Waits for that work, if it may have failed.
  virtual std::vector<LateFailure> await_failures() { return {}; }

  // -- offers

  // Its memory is this process's, and may be written to by whoever knows that nobody else does.
  virtual bool is_host_memory() const { return false; }
  // Memory that the client sent may be a buffer's as it lies there.
  virtual bool adopts() const { return false; }
  // The size from which pieces of its memory can be read by the client where they lie.
  virtual uint64_t lends_from() const { return UINT64_MAX; }
  // Such a piece as an attachment; null: it has to be copied out. `keep` is held until the client has given it back.
  virtual remote::AttachmentPtr lend(const void* data, uint64_t nbytes, std::shared_ptr<void> keep) { return nullptr; }
  // Memory that devices of other processes read by themselves. Null: it has none.
  virtual PeerMemory* peer_memory() { return nullptr; }

 private:
  CachingAllocator::Pointer memory_;
  ir::MathModes math_ = 0;
};

}  // namespace torch_remote::worker

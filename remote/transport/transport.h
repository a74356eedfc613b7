#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/status.h"
#include "remote/wire/wire.h"

// A Transport moves frames between a client and a worker, in order. One object is one end of one connection. There are
// implementations within a process (TORCH_REMOTE_WORKER=inproc, tests), over a Unix socket with shared memory (the
// local default), and over byte streams (TCP, TLS, pipes).
namespace torch_remote::remote {

// Memory for tensor bytes that both ends access as cheaply as the transport allows: shared memory over a Unix socket,
// ordinary memory elsewhere. Its creator writes the bytes once; the other end reads them in place. It is reference
// counted. When the receiver drops the last reference, the sender may reuse the memory. An attachment may outlive its
// transport. In shared memory the peer can still write to the bytes, so copy what must not change after a check.
class Attachment {
 public:
  virtual ~Attachment() = default;
  virtual std::span<std::byte> bytes() = 0;
};
using AttachmentPtr = std::shared_ptr<Attachment>;

// Argument of Transport::set_spin_time for low-latency programs. It is longer than the time that a training loop's own
// code takes between two calls.
inline constexpr std::chrono::milliseconds kLowLatencySpin{1};

// Called during a wait every kWaitStep, without any lock. Returns false to give up, for example after Ctrl-C; the reply
// is then dropped when it comes.
using KeepWaiting = std::function<bool()>;
inline constexpr std::chrono::milliseconds kWaitStep{50};

// Limit in bytes for frames that were received but not yet taken. It is far above what a client may send without an
// acknowledgement, or a worker without a request. A peer that keeps sending and does not receive has to wait.
inline constexpr size_t kMaxQueued = size_t{64} << 20;

struct Frame {
  wire::Header header;  // send() fills in length and checksum
  std::vector<uint8_t> control;
  AttachmentPtr attachment;    // null: none
  uint64_t refused_bytes = 0;  // bytes of an attachment for which this end had no memory; `attachment` is null then
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Allocates `size` bytes for this end to send, aligned to 64 bytes, with undefined contents. Returns null if out of
  // memory. Thread safe. The memory of released attachments is reused, because its pages are already mapped. A call for
  // a large attachment takes microseconds. Untouched pages take no memory, but each segment holds a descriptor until it
  // is first sent, so avoid attachments that may never be sent.
  virtual AttachmentPtr allocate(size_t size) = 0;

  // Makes an attachment of existing memory without a copy. With shared memory, the bytes must be in a segment of this
  // connection, created by either end; for any other memory it returns null. Transports within a process and over byte
  // streams accept any memory; a byte stream sends the bytes from there. The memory must not change until `owner` is
  // released, which happens when the peer gives it back or has received the bytes. A thread of this end that is in
  // send, receive or the destructor releases it. Thread safe.
  virtual AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> owner) = 0;

  // Sends one frame; `control` is not copied if it can go out at once. Blocks while the peer accepts nothing. Meanwhile
  // it receives into a queue of at most kMaxQueued bytes plus one frame, so two ends that both send less than that
  // cannot deadlock. Returns kLost if the peer is gone. Thread safe; frames of one thread stay in order.
  virtual Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) = 0;

  // Receives the next frame. Returns kTimeout after `timeout`; zero takes only what is already there. Returns kLost
  // when the peer is gone and all its frames were received. Returns kInvalid for bytes that are not a frame; the
  // connection is then unusable. One thread at a time.
  virtual Status receive(Frame* frame, std::chrono::nanoseconds timeout) = 0;

  // From now on receive spins for this long before it sleeps, and yields the core meanwhile. A frame that comes during
  // that time needs no wake-up and is received sooner. This is a hint; with zero, the default, it sleeps at once.
  // Thread safe.
  virtual void set_spin_time(std::chrono::nanoseconds time) {}

  // From now on a spinning thread moves to another core when another thread needs its core. Otherwise a scheduler that
  // avoids waking cores may put both ends on one core, where they alternate. For an end that owns its threads.
  virtual void avoid_busy_cores() {}

  // Wakes a thread that waits in receive, which then returns kTimeout. If none waits, the next receive that would wait
  // returns at once.
  virtual void wake() = 0;

  // For a forked child: closes the child's copies of the descriptors, so that the peer still notices when the parent's
  // end closes. Takes no lock. Afterwards the object may only be leaked.
  virtual void abandon() = 0;

  // Whether the peer maps the memory of attachments, both this end's and its own. If so, it can still write to
  // attachments that it sent.
  virtual bool shares_memory() const { return true; }

  // The other end's process id if it is another process on this machine, else 0.
  virtual int peer_process() const { return 0; }
  // Whether the other end, which claims to be process `process`, is another process on this machine. May take a
  // millisecond.
  virtual bool is_peer(int process) const { return process != 0 && process == peer_process(); }

  virtual std::string description() const = 0;  // "unix (shared memory), pid 123"
};

// Returns two connected ends in this process.
std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> make_inproc_transport();

// Makes one end of a connected Unix stream socket; owns the descriptor. Attachments from 32 KiB on are memfd segments,
// whose descriptors are sent once over the socket. Smaller ones go through the socket.
std::unique_ptr<Transport> make_unix_transport(int socket);

}  // namespace torch_remote::remote

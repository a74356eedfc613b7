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

// Moves frames between a client and a worker, in order. One object is one end of one connection. Implementations: in
// process (tests), a Unix socket with shared memory (the local default), and plain streams of bytes (TCP, TLS, pipes).
namespace torch_remote::remote {

// Memory for tensor bytes that both ends can get at as cheaply as the transport allows: shared memory over a Unix
// socket, plain memory elsewhere. Whoever makes one writes the bytes into it once; the other end reads them in place.
// Reference counted through shared_ptr; when the last reference at the receiving end goes, the sender may use the
// memory again. May outlive the transport. In shared memory the peer can still write to the bytes: copy what must not
// change once checked.
class Attachment {
 public:
  virtual ~Attachment() = default;
  virtual std::span<std::byte> bytes() = 0;
};
using AttachmentPtr = std::shared_ptr<Attachment>;

// For Transport::busy_wait, where programs of low latency run: longer than a training loop's code takes between calls.
inline constexpr std::chrono::milliseconds kBusyWait{1};

// Called while waiting, every kWaitStep, without any lock: returns false to give up (Ctrl-C); the reply is then dropped
// when it comes.
using KeepWaiting = std::function<bool()>;
inline constexpr std::chrono::milliseconds kWaitStep{50};

// Of frames that were received and not asked for yet, in bytes: far more than what a client may send before it is
// acknowledged, or a worker before it is asked again. A peer that sends on without receiving has to wait.
inline constexpr size_t kMaxQueued = size_t{64} << 20;

struct Frame {
  wire::Header header;  // length and checksum are filled in by send
  std::vector<uint8_t> control;
  AttachmentPtr attachment;  // may be null
  uint64_t refused = 0;      // bytes of an attachment that came and found no memory here; `attachment` is null then
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Memory of `size` bytes to be sent by this end, aligned to 64 bytes, contents undefined. Null if there is none (out
  // of memory). Thread safe. Attachments that were let go are used again, so that their pages are warm. Large ones cost
  // microseconds; pages that are not touched take no memory, but each holds a descriptor until it is first sent: make
  // few of those that may never be.
  virtual AttachmentPtr allocate(size_t size) = 0;

  // Makes an attachment of memory without a copy, if it lies where the other end can reach it (in an attachment of this
  // connection that either one made; anywhere in process) or would be sent from anyway (a plain stream), else null. It
  // must not change until `keep` is released: when the peer has given it back or has its bytes, on a thread of this end
  // that is in send, receive or the destructor. Thread safe.
  virtual AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> keep) = 0;

  // Sends one frame: control as given (not copied if it can go out at once). Blocks while the peer does not take it,
  // but receives meanwhile, into a queue of kMaxQueued bytes and a frame, so two ends that each send less than that at
  // the same time cannot lock up. kLost if the peer is gone. Thread safe; frames of one thread stay in order.
  virtual Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) = 0;

  // The next frame. kTimeout after `timeout` (zero: only what is there already), kLost when the peer is gone and
  // everything it sent was received, kInvalid for bytes that are no frame of ours (the connection is then useless). One
  // thread at a time.
  virtual Status receive(Frame* frame, std::chrono::nanoseconds timeout) = 0;

  // From now on receive looks again and again for so long before it sleeps, and yields the core in between: what comes
  // meanwhile costs the sender no wake-up and is met sooner. A hint; zero: sleep at once, as at first. Thread safe.
  virtual void busy_wait(std::chrono::nanoseconds time) {}

  // From now on a thread that looks, and finds that somebody else needs its core, goes on on another one: a scheduler
  // that would rather wake no core puts both ends on one, where they take turns. For an end whose threads are its own.
  virtual void leave_busy_cores() {}

  // Wakes a thread that waits in receive (it returns kTimeout). If none does, the next one that would wait does not.
  virtual void wake() = 0;

  // In a forked child: closes the child's copies of the descriptors, so that the peer still sees the parent's end
  // close. Takes no lock. Nothing but leaking the object may follow.
  virtual void abandon() = 0;

  // Whether the peer sees the memory of attachments, this end's and those that it sent: then it could still write to
  // what came from it.
  virtual bool shares_memory() const { return true; }

  // The process at the other end, if it is another one on this machine, else 0.
  virtual int peer_process() const { return 0; }
  // Whether the process at the other end, which says this number, is another one on this machine. May take a
  // millisecond.
  virtual bool is_peer(int process) const { return process != 0 && process == peer_process(); }

  virtual std::string description() const = 0;  // "unix (shared memory), pid 123"
};

// Two ends in one process.
std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> make_inproc_transport();

// One end of a connected Unix stream socket; owns the descriptor. Attachments of 32 KiB and more live in memfd segments
// whose descriptors travel once, over the socket; smaller ones go through it.
std::unique_ptr<Transport> make_unix_transport(int socket);

}  // namespace torch_remote::remote

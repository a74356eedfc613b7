#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "flatbuffers/flatbuffers.h"
#include "remote/client/outbox.h"
#include "remote/client/program_cache.h"
#include "remote/client/replies.h"
#include "remote/client/speculative_reads.h"
#include "remote/client/types.h"
#include "remote/client/worker_memory.h"
#include "remote/transport/transport.h"
#include "remote/wire/wire_generated.h"

// The messages of one session, in order. A client and its parts share a channel: they encode a message into `builder`,
// send it, and wait for its reply.
namespace torch_remote::remote {

struct AtomicCounters {
  std::atomic<uint64_t> flushes{0}, programs_built{0}, program_hits{0}, programs_dropped{0}, round_trips{0},
      connections{0}, bytes_sent{0}, bytes_uploaded{0}, bytes_downloaded{0};
};

// Locks: `order` defines the order of messages and is held while a message is encoded and sent. freed_ids_mutex_ guards
// the list that destructors append to. Replies, Outbox and ProgramCache have their own locks, which are taken after
// these two, each for a short time. The lock of ConnectionStatus is taken before theirs, and never with `order`.
class Channel {
 public:
  Channel(std::unique_ptr<Transport> connected, BuildFunction build)
      : transport(std::move(connected)),
        replies(*transport, programs),
        outbox(*transport, replies, std::move(build), machine_.capabilities, counters.bytes_sent,
               counters.programs_built) {}
  // Closes the session.
  ~Channel();

  // Sends the client hello and waits for the reply, as Client::connect says. Nothing may be sent before.
  Status connect(const KeepWaiting& keep_waiting);

  // For a forked child: forgets everything without touching the connection, and no destructor runs.
  void abandon() {
    abandoned_ = true;
    transport->abandon();
  }
  // See Client::end_waits().
  void end_waits();
  // Whether this is a forked child. If so, take no lock and fail with forked(): another thread of the parent may have
  // held the lock.
  bool is_abandoned() const { return abandoned_; }
  static Status forked() {
    return {ErrorCode::kLost,
            "remote: the worker belongs to the process that this one was forked from; use the 'spawn' start method"};
  }
  // Returns kLost and the reason once the worker is gone, and in a forked child.
  Status health() const { return abandoned_ ? forked() : replies.health(); }

  uint64_t session() const { return session_; }
  const MachineInfo& machine() const { return machine_; }
  // Names the runners, the worker's process and the transport.
  std::string description() const;

  // Allocates an attachment to send. `purpose` is for the error if there is no memory: "an upload".
  Status allocate(size_t size, const char* purpose, AttachmentPtr* attachment);
  // Frees a buffer; the id is sent with the next message. Never blocks for long and never throws.
  void free(uint64_t id);

  // The following require `order`.
  // Handles messages that have arrived, checks health, and reserves space in flight (Replies::reserve) for `messages`
  // and for a list of frees before them.
  Status begin(size_t messages, size_t bytes);
  // Takes the pending frees, for the next message. Returns them encoded; they are valid until the next call.
  const std::vector<uint8_t>& take_freed_ids();
  // Whether the last take_freed_ids() took this id.
  bool has_just_freed(uint64_t id) const;
  // Sends the pending frees in a message of their own, if there are any.
  Status send_freed_ids();
  // Returns the sequence of the next message, which has an attachment of `bytes` bytes and goes to the outbox.
  uint64_t next_sequence(size_t bytes = 0) {
    replies.sending(++sequence, bytes);
    return sequence;
  }
  wire::Header header(wire::Type type, uint64_t number, uint16_t flags) const {
    wire::Header h;
    h.type = static_cast<uint8_t>(type);
    h.flags = flags;
    h.session = session_;
    h.sequence = number;
    return h;
  }
  // Sends the message in `builder`. With `wants_reply`, the caller will wait for the reply to *number. If it returns
  // kOutOfMemory, the attachment was not sent, no reply will come, and the connection still works.
  Status send(wire::Type type, bool wants_reply, AttachmentPtr attachment, uint64_t* number);

  // The following must be called without `order`.
  // Sends the pending frees and one message, which `encode` writes into `builder` with `order` held.
  template <typename Encode>
  Status send_message(wire::Type type, bool wants_reply, AttachmentPtr attachment, Encode&& encode, uint64_t* number);
  // Sends a message that wants a reply in the same way, then waits for the reply.
  template <typename Encode>
  Status ask(wire::Type type, Encode&& encode, const KeepWaiting& keep_waiting, Frame* reply, OpError* error);
  // Replies::wait, counted as a round trip.
  Status wait(uint64_t number, const KeepWaiting& keep_waiting, Frame* reply, OpError* error,
              bool keep_expecting = false);

  // These members are thread safe. There is one exception: functions of `programs` and `outbox` that only one thread at
  // a time may call require `order`.
  const std::unique_ptr<Transport> transport;
  ProgramCache programs;
  Replies replies;
  AtomicCounters counters;
  Outbox outbox;

  std::mutex order;
  // The following members are guarded by `order`.
  uint64_t sequence = 0;     // of the last message
  uint64_t next_id = 1;      // of the next buffer
  uint64_t checkpoints = 0;  // number of checkpoints so far
  flatbuffers::FlatBufferBuilder builder{16 << 10};
  SpeculativeReads speculative_reads;

 private:
  std::atomic<bool> abandoned_ = false;
  std::atomic<bool> ended_waits_ = false;  // end_waits() was called while the connection worked
  // constant after connect()
  uint64_t session_ = 0;
  std::string runners_;
  int process_ = 0, peer_ = 0;
  MachineInfo machine_;

  std::vector<uint64_t> freed_ids_now_;   // the last frees that were taken; guarded by `order`
  std::vector<uint8_t> freed_ids_bytes_;  // the same, encoded
  std::mutex freed_ids_mutex_;
  std::vector<uint64_t> freed_ids_;  // pending
};

template <typename Encode>
Status Channel::send_message(wire::Type type, bool wants_reply, AttachmentPtr attachment, Encode&& encode,
                             uint64_t* number) {
  if (abandoned_) return forked();
  std::lock_guard lock(order);
  if (Status status = begin(1, attachment ? attachment->bytes().size() : 0); !status) return status;
  if (Status status = send_freed_ids(); !status) return status;
  builder.Clear();
  encode();
  return send(type, wants_reply, std::move(attachment), number);
}

template <typename Encode>
Status Channel::ask(wire::Type type, Encode&& encode, const KeepWaiting& keep_waiting, Frame* reply, OpError* error) {
  uint64_t number = 0;
  if (Status status = send_message(type, true, nullptr, encode, &number); !status) return status;
  return wait(number, keep_waiting, reply, error);
}

}  // namespace torch_remote::remote

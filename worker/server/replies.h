#pragma once

#include <cstdint>
#include <utility>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "remote/wire/wire_generated.h"
#include "worker/server/handshake.h"
#include "worker/server/inbox.h"
#include "worker/session/session.h"

namespace torch_remote::worker {

// Sends the worker's messages to the client: replies, acknowledgements and parts of profiles. Encodes one message at a
// time, and tracks which of the client's messages are done, and which of those the client knows as done.
//
// For the session's thread. Sending returns kLost if the client is gone. All arguments of the constructor must outlive
// the object.
class Replies {
 public:
  Replies(remote::Transport& transport, const Inbox& inbox, const OpenSession& opened, Session& session);

  // -- Contents of the next message.

  // Begins a message, and returns the builder of its contents.
  flatbuffers::FlatBufferBuilder& begin() {
    builder_.Clear();
    return builder_;
  }
  // Encodes the failure and marks it as known to the client. Null: there is no failure.
  flatbuffers::Offset<wire::Error> encode_and_mark_reported(const FailurePtr& failure);
  wire::WorkerStats worker_stats() const;
  // Allocates an attachment. It counts against the limit until the client has released it. Returns null if there is no
  // memory.
  remote::AttachmentPtr allocate(uint64_t nbytes);

  // -- Sending what was begun.

  template <typename Message>
  Status send(wire::Type type, uint64_t sequence, flatbuffers::Offset<Message> message,
              remote::AttachmentPtr attachment = nullptr) {
    builder_.Finish(message);
    return send_encoded(type, sequence, std::move(attachment));
  }
  // A reply acknowledges its message and all earlier ones.
  template <typename Message>
  Status reply(wire::Type type, uint64_t to, flatbuffers::Offset<Message> message,
               remote::AttachmentPtr attachment = nullptr) {
    builder_.Finish(message);
    note_reply(to);
    return send_encoded(type, to, std::move(attachment));
  }

  // -- Acknowledgements.

  // Records that this message and all earlier ones are done.
  void mark_done(uint64_t sequence) { done_ = sequence; }
  // Sequence number of the last message that the client knows as done.
  uint64_t acknowledged() const { return acknowledged_; }
  // Acknowledges all messages that are done.
  Status acknowledge();
  // Acknowledges them if they are many, or if the last acknowledgement is long ago.
  Status acknowledge_if_due();
  // Acknowledges them if the client lacks any news. Call it before the worker waits.
  Status acknowledge_news();

  // Whether to record when replies are sent.
  void record_times(bool record) { records_times_ = record; }
  // CLOCK_MONOTONIC in ns just before the last reply was sent, if it was recorded.
  uint64_t replied_at() const { return replied_at_; }

 private:
  void note_reply(uint64_t to);
  Status send_encoded(wire::Type type, uint64_t sequence, remote::AttachmentPtr attachment);

  remote::Transport& transport_;
  const Inbox& inbox_;
  const OpenSession& opened_;
  Session& session_;
  flatbuffers::FlatBufferBuilder builder_{4096};
  uint64_t done_;                     // Sequence number of the last message that is done.
  uint64_t acknowledged_;             // Sequence number of the last message that the client knows as done.
  uint64_t acknowledged_at_;          // Time of the last acknowledgement, measured by Inbox::asked(), in ns.
  bool reported_background_ = false;  // The last message to the client said that a background op is running.
  bool records_times_ = false;
  uint64_t replied_at_ = 0;
};

}  // namespace torch_remote::worker

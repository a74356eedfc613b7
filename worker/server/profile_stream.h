#pragma once

#include <cstdint>
#include <memory>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "remote/wire/wire_generated.h"
#include "worker/server/handshake.h"
#include "worker/server/replies.h"
#include "worker/session/profile.h"
#include "worker/session/session.h"

namespace torch_remote::worker {

// Records the profile that a client asks for, and sends it to the client: parts while it is recorded, and the rest in
// the reply to Stop.
//
// For the session's thread. Its functions return kLost if the client is gone. All arguments of the constructor must
// outlive the object.
class ProfileStream {
 public:
  ProfileStream(const OpenSession& opened, Session& session, Replies& replies)
      : opened_(opened), session_(session), replies_(replies) {}

  // Executes the client's command and replies to it. Start replaces a profile that is being recorded, whose events are
  // then lost. `received`: when the command was received, in ns of CLOCK_MONOTONIC. Call this when the device's work
  // and background ops are done.
  Status execute(const wire::Profile& command, uint64_t sequence, uint64_t received);

  // Call this when the handling of a message begins. Returns the time in ns of CLOCK_MONOTONIC; 0: no profile is
  // recorded.
  uint64_t begin_message() const { return profile_ ? monotonic_ns() : 0; }
  // Records that a message has been handled. `begin`: what begin_message() returned.
  void end_message(const wire::Header& message, uint64_t begin);

  // Sends what was recorded since the last part, even if that is nothing. If there is no memory for the events, they
  // are dropped and counted. Does nothing if no profile is recorded.
  Status hand_over();
  // As hand_over(), but only when a part is due.
  Status hand_over_if_due() { return due_in() == 0 ? hand_over() : Status(); }
  // Nanoseconds until a part is due; Profile::kNever: no part becomes due before another message is handled.
  uint64_t due_in() const { return profile_ ? profile_->next_hand_over_in(monotonic_ns()) : Profile::kNever; }

 private:
  using Programs = flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::ProfileProgram>>>;
  // Copies the events since the last call to *events, and encodes their programs with `builder`. Null *events: there
  // are none, or there is no memory for them.
  Programs take(Profile& profile, flatbuffers::FlatBufferBuilder& builder, remote::AttachmentPtr* events);

  const OpenSession& opened_;
  Session& session_;
  Replies& replies_;
  std::unique_ptr<Profile> profile_;  // Set while a profile is recorded.
};

}  // namespace torch_remote::worker

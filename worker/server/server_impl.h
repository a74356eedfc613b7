#pragma once

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ir/math_modes.h"
#include "remote/wire/message.h"
#include "worker/server/inbox.h"
#include "worker/server/python.h"
#include "worker/server/server_options.h"
#include "worker/session/profile.h"
#include "worker/session/session.h"

// The implementation of serve().
namespace torch_remote::worker {

using remote::AttachmentPtr;
using remote::Frame;
using wire::Type;

inline Status damaged(const char* what) {
  return Status::invalid(std::string("remote: the client sent a damaged ") + what + " message");
}

// Copies, because flatbuffers' verifier checks the alignment of a vector, but not of its elements.
inline std::vector<int64_t> elements(const flatbuffers::Vector<int64_t>* vector) {
  std::vector<int64_t> copy(vector ? vector->size() : 0);
  if (!copy.empty()) std::memcpy(copy.data(), vector->Data(), copy.size() * sizeof(int64_t));
  return copy;
}

class Server {
 public:
  Server(remote::Transport& transport, const ServerOptions& options);

  Status run();

 private:
  // Whether results must not depend on timing.
  bool is_reproducible() const { return waits_for_plans_ || options_.repeatable; }
  ir::MathModes math_of(const wire::Run& run) const;
  Status hello();
  Status refuse(const Status& why);
  Status open_device(int client);
  Status next(Frame* frame);
  Status handle(Frame& frame);
  Status handle_message(Frame& frame);
  Status out_of_memory(const Frame& frame);
  Status handle_profiled(Frame& frame);

  Status load_program(Frame& frame);
  Status unload(Frame& frame);
  Status run_program(Frame& frame);
  Status upload(Frame& frame);
  Status free(Frame& frame);
  Status read(Frame& frame);
  Status synchronize(Frame& frame);
  Status checkpoint(Frame& frame, wire::Checkpoint what);
  Status mark(Frame& frame);
  Status find_file(Frame& frame);
  Status read_file(Frame& frame);
  struct PendingCall {
    uint64_t base = 0;    // Buffer of the call's first result; 0: the client does not want the results.
    uint64_t nbytes = 0;  // Bytes of the request, charged to the client.
  };
  Status call(Frame& frame);
  // Copies the operands of a call. Returns null, or the reason why it cannot begin.
  FailurePtr begin_call(Frame& frame, const wire::Call& message);
  Status end_call(Frame& frame);
  Status answer_calls();
  Status answer_call(PythonResult& result, const PendingCall& call);
  Status has_op(Frame& frame);
  Status profile(Frame& frame);
  Status memory(Frame& frame);
  wire::WorkerUse worker_use() const;
  Status acknowledge();
  // Encodes the events since the last call into *events and builder_.
  using Programs = flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::ProfileProgram>>>;
  Programs take_profile(Profile& profile, AttachmentPtr* events);
  // Sends them to the client if it is time, or if `now`.
  Status hand_over_profile(bool now = false);

  flatbuffers::Offset<wire::Error> encode(const FailurePtr& failure);
  // Encodes the failure and marks it as known to the client.
  flatbuffers::Offset<wire::Error> encode_and_mark_reported(const FailurePtr& failure);
  AttachmentPtr allocate(uint64_t nbytes);
  // Sends the contents of builder_.
  Status send(Type type, uint64_t sequence, AttachmentPtr attachment = nullptr);
  Status reply(Type type, uint64_t to, AttachmentPtr attachment = nullptr);

  // Calls finish() when the device has done its queued work: now, or later from settle(). Replies are sent in the order
  // of their messages.
  template <typename F>
  Status when_done(uint64_t sequence, F&& finish);
  // Finishes messages whose device work is done.
  Status settle();
  Status check_device(Ticket ticket);
  // Waits until the device has done all work.
  Status drain();

  remote::Transport& transport_;
  ServerOptions options_;
  Inbox inbox_;
  const bool waits_for_plans_;  // Runs wait for their kernels (TORCH_REMOTE_WAIT_COMPILE).
  OpenDevice opened_;
  CachingAllocator* memory_ = nullptr;  // The device's.
  uint64_t limit_ = 0;                  // The largest limit that a client can set.
  std::unique_ptr<Session> session_;
  std::unique_ptr<Profile> profile_;       // Set while a profile is recorded.
  std::unique_ptr<PythonCalls> python_;    // Set once a function was called.
  std::map<uint64_t, PendingCall> calls_;  // Calls that are not answered yet, by sequence.
  flatbuffers::FlatBufferBuilder builder_{4096};
  std::vector<int64_t> words_;
  uint64_t session_number_ = 0;
  bool reported_background_ = false;  // The last message to the client said that a background op is running.
  struct Pending {
    Ticket ticket = 0;
    uint64_t sequence = 0;
    std::function<Status()> finish;
  };
  std::deque<Pending> pending_;   // Messages whose device work is not done.
  Ticket notified_ = 0;           // The device calls back at this ticket.
  uint64_t done_ = 0;             // Sequence of the last message that is done.
  uint64_t acknowledged_ = 0;     // Sequence that the client knows as done.
  uint64_t acknowledged_at_ = 0;  // Time of the last acknowledgement, measured by Inbox::asked(), in ns.
  uint64_t replied_ = 0;          // When the last reply was sent, while a profile is recorded.
};

template <typename F>
Status Server::when_done(uint64_t sequence, F&& finish) {
  const Ticket ticket = opened_.device->record();
  if (pending_.empty() && (ticket == 0 || opened_.device->done(ticket))) {
    if (Status status = check_device(ticket); !status.ok()) return status;
    session_->settle();
    Status status = finish();
    done_ = sequence;
    return status;
  }
  pending_.push_back({ticket, sequence, std::forward<F>(finish)});
  return {};
}

}  // namespace torch_remote::worker

#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "remote/wire/wire_generated.h"
#include "worker/device/charge.h"
#include "worker/device/memory.h"
#include "worker/server/inbox.h"
#include "worker/server/pending_messages.h"
#include "worker/server/python.h"
#include "worker/server/replies.h"
#include "worker/server/server_options.h"
#include "worker/session/session.h"

namespace torch_remote::worker {

// The client's calls of Python functions, until they are answered. Their operands count against the memory limit.
//
// For the session's thread. Its functions return kInvalid for a malformed message, and kLost if the client is gone. All
// arguments of the constructor must outlive the object.
class FunctionCalls {
 public:
  FunctionCalls(const ServerOptions& options, CachingAllocator& memory, Inbox& inbox, Session& session,
                PendingMessages& pending, Replies& replies)
      : options_(options), memory_(memory), inbox_(inbox), session_(session), pending_(pending), replies_(replies) {}

  // Begins a call. If it cannot begin, replies with the reason.
  Status begin(const wire::CallFunction& message, const remote::Frame& frame);
  // Interrupts or kills a call, or frees its results.
  Status end(const wire::CancelFunction& message);
  // Replies to calls that have ended. They wake the inbox when they end.
  Status answer();

 private:
  struct PendingCall {
    uint64_t first_result_id = 0;  // Buffer of the call's first result; 0: the client does not want the results.
    Charge operands;
  };

  // Copies the operands and starts the function. Returns null, or the reason why the call cannot begin.
  FailurePtr start(const wire::CallFunction& message, const remote::Frame& frame);
  Status answer(PythonResult& result, uint64_t first_result_id);

  const ServerOptions& options_;
  CachingAllocator& memory_;
  Inbox& inbox_;
  Session& session_;
  PendingMessages& pending_;
  Replies& replies_;
  std::unique_ptr<PythonCalls> python_;    // Set once a function was called.
  std::map<uint64_t, PendingCall> calls_;  // Calls that are not answered yet, by sequence number.
};

}  // namespace torch_remote::worker

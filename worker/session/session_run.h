#pragma once

#include <vector>

#include "worker/session/session.h"

// Declarations that the parts of a session share about a run. session_run.cpp executes a run; session_failures.cpp
// tracks what a failure leaves behind.
namespace torch_remote::worker {

inline tr_buffer borrowed(void* data, uint64_t nbytes) { return {data, nbytes, nullptr, nullptr}; }

inline void release(tr_buffer& buffer) {
  if (buffer.release) buffer.release(buffer.owner);
  buffer = {};
}

Status out_of_memory(uint64_t nbytes);

// Describes the failure of node `index`.
Failure failure_of(const LoadedProgram& program, const std::vector<int64_t>& values, uint32_t index,
                   const Status& status, uint64_t sequence);

// One run, while it executes.
struct Session::Run {
  // Releases what the run still holds if it ends early.
  ~Run() {
    for (tr_buffer& buffer : buffers) release(buffer);
    release(arena);
  }

  LoadedProgram& program;
  const RunRequest& request;
  std::vector<int64_t>* words;
  size_t words_used = 0;
  // One per graph buffer. The run releases an entry with an owner, or hands it on.
  std::vector<tr_buffer> buffers = {};
  std::vector<FailurePtr> poison = {};  // One per graph buffer; empty while no buffer is poisoned.
  std::vector<FailurePtr> behind = {};  // One per graph buffer, or empty: the failure whose update the buffer lacks.
  // One per graph buffer, or empty: the failed check after which the buffer was written.
  std::vector<FailurePtr> after = {};
  std::vector<std::vector<Kept>> kept = {};
  FailurePtr check = nullptr;      // The failed check after which everything is written now.
  FailurePtr cancelled = nullptr;  // Set if the rest of the run is cancelled.
  uint64_t since_look = 0;         // Nanoseconds of work since the last look for a cancellation.
  tr_buffer arena{};
  FailurePtr failure = nullptr;  // The failure of the last node: it did not run, or its operands lack an update.
  uint32_t next = 0;             // The node to continue with.
  bool one_by_one = false;       // Nodes execute one at a time, from `next` on.
  bool aliased = false;          // One buffer is bound twice; our own client never does this.
  std::vector<tr_attachment*> attachments = {};  // One per graph buffer; empty: no runner uses attachments.
  // One per graph buffer: survivors that a background op uses. Empty if there are none.
  std::vector<MemoryPtr> made = {};
  std::vector<InFlight::Call> calls = {};  // For a profile, while an asynchronous device executes the calls.

  void set_poison(uint32_t buffer, const FailurePtr& reason) {
    if (poison.empty()) poison.resize(buffers.size());
    if (!poison[buffer]) poison[buffer] = reason;
  }
  FailurePtr poison_of(uint32_t buffer) const { return poison.empty() ? nullptr : poison[buffer]; }
  void add_behind(uint32_t buffer, const FailurePtr& reason) {
    if (behind.empty()) behind.resize(buffers.size());
    behind[buffer] = earlier(behind[buffer], reason);
  }
  FailurePtr behind_of(uint32_t buffer) const { return behind.empty() ? nullptr : behind[buffer]; }
  void add_after(uint32_t buffer, const FailurePtr& check) {
    if (after.empty()) after.resize(buffers.size());
    after[buffer] = earlier(after[buffer], check);
  }
  FailurePtr after_of(uint32_t buffer) const { return after.empty() ? nullptr : after[buffer]; }
  std::vector<Kept>& kept_of(uint32_t buffer) {
    if (kept.empty()) kept.resize(buffers.size());
    return kept[buffer];
  }
};

}  // namespace torch_remote::worker

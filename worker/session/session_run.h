#pragma once

#include <vector>

#include "worker/session/session.h"

// Declarations that the parts of a session share about a run. session_run.cpp executes a run; session_failures.cpp
// tracks what a failure leaves missing_updates.
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
  std::vector<FailurePtr> missing_updates =
      {};  // One per graph buffer, or empty: the failure whose update the buffer lacks.
  // One per graph buffer, or empty: the failed check after which the buffer was written.
  std::vector<FailurePtr> failed_checks = {};
  std::vector<std::vector<OlderContents>> older_contents = {};
  FailurePtr check = nullptr;      // The failed check after which everything is written now.
  FailurePtr cancelled = nullptr;  // Set if the rest of the run is cancelled.
  uint64_t unchecked_ns = 0;       // Nanoseconds of work since the last look for a cancellation.
  tr_buffer arena{};
  FailurePtr failure = nullptr;  // The failure of the last node: it did not run, or its operands lack an update.
  uint32_t next = 0;             // The node to continue with.
  bool one_by_one = false;       // Nodes execute one at a time, from `next` on.
  bool aliased = false;          // One buffer is bound twice; our own client never does this.
  std::vector<tr_attachment*> attachments = {};  // One per graph buffer; empty: no runner uses attachments.
  // One per graph buffer: survivors that a background op uses. Empty if there are none.
  std::vector<MemoryPtr> shared_survivors = {};
  std::vector<InFlight::Call> calls = {};  // For a profile, while an asynchronous device executes the calls.

  void set_poison(uint32_t buffer, const FailurePtr& reason) {
    if (poison.empty()) poison.resize(buffers.size());
    if (!poison[buffer]) poison[buffer] = reason;
  }
  FailurePtr poison_of(uint32_t buffer) const { return poison.empty() ? nullptr : poison[buffer]; }
  void add_missing_update(uint32_t buffer, const FailurePtr& reason) {
    if (missing_updates.empty()) missing_updates.resize(buffers.size());
    missing_updates[buffer] = earlier(missing_updates[buffer], reason);
  }
  FailurePtr missing_update_of(uint32_t buffer) const {
    return missing_updates.empty() ? nullptr : missing_updates[buffer];
  }
  void add_failed_check(uint32_t buffer, const FailurePtr& check) {
    if (failed_checks.empty()) failed_checks.resize(buffers.size());
    failed_checks[buffer] = earlier(failed_checks[buffer], check);
  }
  FailurePtr failed_check_of(uint32_t buffer) const { return failed_checks.empty() ? nullptr : failed_checks[buffer]; }
  std::vector<OlderContents>& older_contents_of(uint32_t buffer) {
    if (older_contents.empty()) older_contents.resize(buffers.size());
    return older_contents[buffer];
  }
};

}  // namespace torch_remote::worker

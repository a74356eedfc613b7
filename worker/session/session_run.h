#pragma once

#include <vector>

#include "worker/session/session.h"

// What the parts of a session share about a run: session_run.cpp has it done, session_failures.cpp knows what failures
// leave.
namespace torch_remote::worker {

inline tr_buffer borrowed(void* data, uint64_t nbytes) { return {data, nbytes, nullptr, nullptr}; }

inline void release(tr_buffer& buffer) {
  if (buffer.release) buffer.release(buffer.owner);
  buffer = {};
}

Status out_of_memory(uint64_t nbytes);

// Of a node that failed.
Failure failure_of(const LoadedProgram& program, const std::vector<int64_t>& values, uint32_t index,
                   const Status& status, uint64_t sequence);

// One run, while it goes on.
struct Session::Run {
  // Whatever it still has, if it ends early.
  ~Run() {
    for (tr_buffer& buffer : buffers) release(buffer);
    release(arena);
  }

  LoadedProgram& program;
  const RunRequest& request;
  std::vector<int64_t>* words;
  size_t words_used = 0;
  std::vector<tr_buffer> buffers = {};  // of the graph. With an owner: to be kept or released by the run
  std::vector<FailurePtr> poison = {};  // of the graph's buffers; empty while there is none
  std::vector<FailurePtr> behind = {};  // likewise: which update they lack
  std::vector<FailurePtr> after = {};   // likewise: which failed check they come after
  std::vector<std::vector<Kept>> kept = {};
  FailurePtr check = nullptr;      // everything that is written now comes after this failed check
  FailurePtr cancelled = nullptr;  // the rest of it
  uint64_t since_look = 0;         // ns of work, without looking whether it is
  tr_buffer arena{};
  FailurePtr failure = nullptr;                  // of the last node: it did not run, or its operands are behind
  uint32_t next = 0;                             // the node to go on with
  bool one_by_one = false;                       // its nodes, from `next` on
  bool aliased = false;                          // one buffer is bound twice, which no client of ours does
  std::vector<tr_attachment*> attachments = {};  // of the graph's buffers; empty: nobody asks for them
  std::vector<MemoryPtr> made = {};  // of the graph's buffers: survivors that an op in the background uses; else empty
  std::vector<InFlight::Call> calls = {};  // of a profile, while an asynchronous device does them

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

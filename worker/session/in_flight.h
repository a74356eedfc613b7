#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

#include "worker/device/device.h"
#include "worker/session/failure.h"
#include "worker/session/loaded_program.h"

namespace torch_remote::worker {

// A read that was queued: what it gave is good if no failure came by the time it was done.
struct QueuedRead {
  uint64_t buffer = 0;
  FailurePtr failure;
};

// What a session has queued on an asynchronous device, in order, until it is done: what a failure that is found then
// has spoilt. One thread.
class InFlight {
 public:
  struct Call {
    uint32_t first = 0, last = 0;
    std::vector<uint64_t> times;  // tr_run::times; empty: not wanted
  };
  struct Run {
    Ticket ticket = 0;
    uint64_t number = 0;    // tr_run::number
    uint64_t sequence = 0;  // of the message
    std::shared_ptr<LoadedProgram> program;
    std::vector<int64_t> values;   // of its symbols
    std::vector<uint64_t> nbytes;  // of its buffers
    std::vector<uint64_t> inputs;  // ids, in the order of the program's inputs; 0: it was not there
    uint64_t base = 0;             // id of the first survivor
    std::vector<Call> calls;       // in order
    bool answered = false;         // somebody waits for what its last node tells
    uint32_t profile_variant = 0;  // Profile::variant, while a profile is recorded
    FailurePtr failure;            // of that
  };

  bool empty() const { return work_.empty(); }
  void add(Run run) { work_.push_back({std::move(run), nullptr}); }
  void add(Ticket ticket, std::shared_ptr<QueuedRead> read);

  // The run of this number, or null.
  const Run* find(uint64_t number) const;
  // The node of this run has failed: the buffers, by id, that it and what used its results since have left without
  // sensible contents. Reads of such ones fail. A node that writes nothing: what was written since.
  std::unordered_set<uint64_t> spread(uint64_t number, uint32_t node, const FailurePtr& failure);

  // How many, from the first, are done.
  size_t count_done(Device& device) const;
  // Forgets so many; `finished` is called with each run.
  void forget(size_t count, const std::function<void(const Run&)>& finished);

 private:
  struct Work {
    Run run;
    std::shared_ptr<QueuedRead> read;  // if it is one
  };
  std::deque<Work> work_;
};

}  // namespace torch_remote::worker

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

// A read that was queued. Its bytes are valid if no failure was found by the time it is done.
struct QueuedRead {
  uint64_t buffer = 0;
  FailurePtr failure;
};

// The work that a session has queued on an asynchronous device, in order, until it is done. When a failure is found
// late, this says which buffers and reads it invalidates. For one thread.
class InFlight {
 public:
  struct Call {
    uint32_t first = 0, last = 0;
    std::vector<uint64_t> times;  // tr_run::times; empty: no times were requested.
  };
  struct Run {
    Ticket ticket = 0;
    uint64_t run_id = 0;    // tr_run::run_id
    uint64_t sequence = 0;  // Sequence number of the message.
    std::shared_ptr<LoadedProgram> program;
    std::vector<int64_t> values;      // Values of the program's symbols.
    std::vector<uint64_t> nbytes;     // Sizes of the program's buffers.
    std::vector<uint64_t> inputs;     // Ids, in the order of the program's inputs; 0: the input did not exist.
    uint64_t first_result_id = 0;     // Id of the first survivor.
    std::vector<Call> calls;          // In the order of their calls.
    bool wants_result_words = false;  // The client waits for the result words of the last node.
    uint32_t profile_variant = 0;     // Profile::variant, while a profile is recorded
    FailurePtr failure;               // The failure of the last node, if one was found.
  };

  bool empty() const { return work_.empty(); }
  void add(Run run) { work_.push_back({std::move(run), nullptr}); }
  void add(Ticket ticket, std::shared_ptr<QueuedRead> read);

  // Returns the run with this id, or null.
  const Run* find(uint64_t run_id) const;
  // Records that this node of this run failed. Returns the ids of the buffers whose contents are invalid now: those
  // that the node writes, and those computed from them since. Reads of these buffers fail.
  // If the node writes nothing (a check), the result is everything that was written after it.
  std::unordered_set<uint64_t> invalidate_from(uint64_t run_id, uint32_t node, const FailurePtr& failure);

  // The number of leading entries that are done.
  size_t count_done(Device& device) const;
  // Removes the first `count` entries; calls `finished` with each run among them.
  void forget(size_t count, const std::function<void(const Run&)>& finished);

 private:
  struct Work {
    Run run;
    std::shared_ptr<QueuedRead> read;  // Set if the entry is a read.
  };
  std::deque<Work> work_;
};

}  // namespace torch_remote::worker

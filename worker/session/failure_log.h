#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "worker/device/memory.h"
#include "worker/session/failure.h"
#include "worker/session/loaded_program.h"
#include "worker/session/older_contents.h"

namespace torch_remote::worker {

// The failures of a session: numbers them, and remembers which of them the client does not know. For one thread.
class FailureLog {
 public:
  // Both outlive the log. A failure is charged to `memory` as long as it is referenced.
  FailureLog(CachingAllocator& memory, OlderContents& older_contents)
      : memory_(memory), older_contents_(older_contents) {}

  FailurePtr add(Failure failure);
  // Adds the failure of node `index` of a run with these symbol values. The message names the op and its operands.
  FailurePtr add(const LoadedProgram& program, const std::vector<int64_t>& values, uint32_t index, const Status& status,
                 uint64_t sequence);
  // Adds the failure of a message that the client cancelled, so the client knows it.
  FailurePtr add_cancelled(uint64_t sequence);
  // Adds the failure of a run whose program could not be decoded. Such a program does not say which buffers its runs
  // create: ids from `first_result_id` on that do not exist fail with this failure.
  FailurePtr add_undecoded(Failure failure, uint64_t first_result_id);
  // The failure of a message that names a buffer that does not exist. Its number is 0 if it was not added.
  FailurePtr no_such_buffer(uint64_t id, uint64_t sequence) const;

  // Whether there are failures that the client does not know.
  bool has_unreported() const { return !unreported_.empty() || unlisted_ != 0; }
  // The number of the last failure that the client does not know and that is not a failed check; 0: none.
  uint64_t last_unreported() const;
  // Returns the first failed check that the client does not know, or null.
  FailurePtr first_check();

  // Returns a failure that was not announced yet, and marks it as announced; null if there is none.
  FailurePtr announce();
  // Marks the failure as known to the client. Older contents that only this failure could restore are dropped.
  void mark_reported(const FailurePtr& failure);
  // Returns the failures that the client does not know yet, in order; the caller marks them as known. `more` counts
  // failures that are not in the list.
  std::vector<FailurePtr> take(uint64_t* more);

  // A failure that invalidates the result words of the run with this sequence was found after the run returned.
  void defer(uint64_t sequence, const FailurePtr& failure) { deferred_[sequence] = failure; }
  // Returns such a failure, or null. Call it once, when the run's ticket is done.
  FailurePtr take_deferred(uint64_t sequence);

 private:
  FailurePtr make(Failure failure) const;

  CachingAllocator& memory_;
  OlderContents& older_contents_;
  std::vector<FailurePtr> unreported_;  // At most kMaxUnreported, in order.
  uint64_t unlisted_ = 0;               // Failures that unreported_ had no space for.
  uint64_t count_ = 0;                  // The number of the last failure.
  FailurePtr check_;                    // The first failed check, when one was added last.
  FailurePtr undecoded_;                // Set by add_undecoded().
  uint64_t undecoded_first_result_id_ = 0;
  std::unordered_map<uint64_t, FailurePtr> deferred_;  // By sequence; only of runs whose words the client waits for.
};

}  // namespace torch_remote::worker

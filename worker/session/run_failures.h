#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/session/buffers.h"
#include "worker/session/failure.h"
#include "worker/session/loaded_program.h"

namespace torch_remote::worker {

// Records which buffers of one run are affected by failures, and passes failures from the operands of nodes to what the
// nodes write. Buffers are named by their indices in the graph. It takes no memory while there are no failures. For one
// thread.
class RunFailures {
 public:
  // The program outlives this. `check`: a check that failed in an earlier run and that the client does not know, or
  // null. All writes of this run then count as written after it.
  RunFailures(const LoadedProgram& program, FailurePtr check) : program_(program), check_(std::move(check)) {}

  // Takes over the failures of an input's entry. Call it before the run.
  void load(uint32_t buffer, const Buffers::Entry& entry);
  // Sets the failures of an input's entry, which has contents. Call it after the run.
  void store(uint32_t buffer, Buffers::Entry& entry) const {
    if (!empty() || !failed_checks_.empty()) store_failures(buffer, entry);
  }

  // True: no buffer was poisoned or lacked an update since the run began, so no node has an unusable operand.
  bool empty() const { return poison_.empty() && missing_updates_.empty(); }
  // Returns the reason why a buffer has no contents, or null.
  FailurePtr poison_of(uint32_t buffer) const { return of(poison_, buffer); }
  // Returns the failure whose update a buffer lacks, or null.
  FailurePtr missing_update_of(uint32_t buffer) const { return of(missing_updates_, buffer); }
  // Returns the failed check after which a buffer was written, or null.
  FailurePtr failed_check_of(uint32_t buffer) const { return of(failed_checks_, buffer); }
  // If the buffer has several failures of one kind, set_poison() keeps the first that was set. The other two functions
  // keep the earliest that the client does not know.
  void set_poison(uint32_t buffer, const FailurePtr& failure);
  void add_missing_update(uint32_t buffer, const FailurePtr& failure) { add(missing_updates_, buffer, failure); }
  void add_failed_check(uint32_t buffer, const FailurePtr& failure) { add(failed_checks_, buffer, failure); }
  // A node has written the buffer: it has contents, and lacks no update.
  void repair(uint32_t buffer);

  // Returns the earliest failure that makes an operand of the node unusable; null: the node can run. A buffer that the
  // node overwrites as a whole, without reading it, is always usable.
  FailurePtr blocked(uint32_t node) const;
  // Nodes [first, last) ran: what they wrote inherits the failed checks of their operands.
  void pass_on(uint32_t first, uint32_t last) {
    if (check_ || !failed_checks_.empty()) pass_on_checks(first, last);
  }
  // The node is a check, and it failed. All later writes of this run count as written after the failed check. So do
  // other results of the ops that computed the check's operands, and everything that was computed from these results.
  void check_failed(uint32_t node, const FailurePtr& failure);

  // The failure that invalidates the result words of the last node: the node did not run, or it ran after a failed
  // check that the client does not know. Null: its result words are valid.
  const FailurePtr& of_last_node() const { return of_last_node_; }
  void set_of_last_node(const FailurePtr& failure) { of_last_node_ = failure; }

 private:
  // One failure per graph buffer; empty while there is none.
  using ByBuffer = std::vector<FailurePtr>;
  static FailurePtr of(const ByBuffer& failures, uint32_t buffer) {
    return failures.empty() ? nullptr : failures[buffer];
  }
  void add(ByBuffer& failures, uint32_t buffer, const FailurePtr& failure);
  void store_failures(uint32_t buffer, Buffers::Entry& entry) const;
  void pass_on_checks(uint32_t first, uint32_t last);
  bool overwrites_whole_buffer(uint32_t node, uint32_t buffer) const;

  const LoadedProgram& program_;
  ByBuffer poison_, missing_updates_, failed_checks_;
  FailurePtr check_;  // The failed check after which everything is written now.
  FailurePtr of_last_node_;
};

inline void RunFailures::load(uint32_t buffer, const Buffers::Entry& entry) {
  if (entry.poisoned()) return set_poison(buffer, entry.failure);
  if (is_unreported(entry.failure)) add_missing_update(buffer, entry.failure);
  if (is_unreported(entry.check)) add_failed_check(buffer, entry.check);
}

}  // namespace torch_remote::worker

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/session/buffers.h"
#include "worker/session/failure.h"
#include "worker/session/loaded_program.h"

namespace torch_remote::worker {

// Which buffers of one run are affected by failures, by graph buffer, and how failures pass from the operands of nodes
// to what they write. Takes no memory while there are no failures. For one thread.
class RunFailures {
 public:
  // The program outlives this. `check`: the failed check after which the run writes, or null.
  RunFailures(const LoadedProgram& program, FailurePtr check) : program_(program), check_(std::move(check)) {}

  // Reads and updates the entry of an input, before and after the run.
  void load(uint32_t buffer, const Buffers::Entry& entry);
  void store(uint32_t buffer, Buffers::Entry& entry) const {
    if (!empty() || !failed_checks_.empty()) store_failures(buffer, entry);
  }

  // True: no node has an unusable operand.
  bool empty() const { return poison_.empty() && missing_updates_.empty(); }
  // The reason why a buffer has no contents.
  FailurePtr poison_of(uint32_t buffer) const { return of(poison_, buffer); }
  // The failure whose update a buffer lacks.
  FailurePtr missing_update_of(uint32_t buffer) const { return of(missing_updates_, buffer); }
  // The failed check after which a buffer was written.
  FailurePtr failed_check_of(uint32_t buffer) const { return of(failed_checks_, buffer); }
  void set_poison(uint32_t buffer, const FailurePtr& failure);
  void add_missing_update(uint32_t buffer, const FailurePtr& failure) { add(missing_updates_, buffer, failure); }
  void add_failed_check(uint32_t buffer, const FailurePtr& failure) { add(failed_checks_, buffer, failure); }
  // A node has written the buffer: it has contents, and lacks no update.
  void repair(uint32_t buffer);

  // Returns the earliest failure that makes an operand of the node unusable; null: the node can run.
  FailurePtr blocked(uint32_t node) const;
  // Nodes [first, last) ran: what they wrote inherits the failed checks of their operands.
  void pass_on(uint32_t first, uint32_t last) {
    if (check_ || !failed_checks_.empty()) pass_on_checks(first, last);
  }
  // The node is a check, and it failed.
  void check_failed(uint32_t node, const FailurePtr& failure);

  // The failure of the last node: it did not run, or its operands lack an update. Null: its result words are valid.
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

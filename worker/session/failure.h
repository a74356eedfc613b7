#pragma once

#include <cstdint>
#include <memory>

#include "ir/status.h"

namespace torch_remote::worker {

// The reason why a buffer has no contents, or lacks an update.
struct Failure {
  Status status;
  uint32_t program = 0;          // Program number; 0: not the failure of a run.
  uint32_t record = 0;           // Index in the trace of that program.
  uint64_t sequence = 0;         // Sequence number of the message.
  bool check = false;            // A check failed: a node without results that writes nothing.
  uint64_t number = 0;           // Position among the session's failures, from 1.
  uint64_t skipped_updates = 0;  // In-place updates that did not happen because of this failure.
  bool reported = false;         // The client knows this failure.
  bool announced = false;        // An acknowledgement has contained it, for captures (wire.fbs: Acknowledge.error).
};
using FailurePtr = std::shared_ptr<Failure>;

// Whether there is a failure that the client does not know.
inline bool is_unreported(const FailurePtr& failure) { return failure && !failure->reported; }

// The earlier one of those failures that the client does not know.
inline FailurePtr earlier(const FailurePtr& a, const FailurePtr& b) {
  if (!is_unreported(a)) return b;
  return is_unreported(b) && b->number < a->number ? b : a;
}

}  // namespace torch_remote::worker

#pragma once

#include <cstdint>
#include <memory>

#include "ir/status.h"

namespace torch_remote::worker {

// Why a buffer has no contents, or lacks an update.
struct Failure {
  Status status;
  uint32_t program = 0;   // 0: no run's
  uint32_t record = 0;    // of that program's trace
  uint64_t sequence = 0;  // of the message
  bool check = false;     // of a node that makes and writes nothing
  uint64_t number = 0;    // counts the session's failures
  uint64_t skipped = 0;   // updates in place that did not happen because of it
  bool told = false;      // the client knows it
  bool announced = false;
};
using FailurePtr = std::shared_ptr<Failure>;

// There is one that the client does not know.
inline bool untold(const FailurePtr& failure) { return failure && !failure->told; }

// Of two that the client does not know, the earlier.
inline FailurePtr earlier(const FailurePtr& a, const FailurePtr& b) {
  if (!untold(a)) return b;
  return untold(b) && b->number < a->number ? b : a;
}

}  // namespace torch_remote::worker

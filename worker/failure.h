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

}  // namespace torch_remote::worker

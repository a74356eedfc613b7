#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "frontend/device/fast_mutex.h"
#include "ir/trace.h"

namespace torch_remote::frontend {

// A run for which no program was known.
struct UnexpectedCompile {
  std::string op;        // schema name of the first record that differs; empty if none does
  ir::SourceRef source;  // of that record; of the last record if none differs
  // Index of the record that differs. It equals `records` if only the tensors that outlive the trace differ, and is
  // larger if no program was known.
  size_t record = 0;
  size_t records = 0;           // number of the run's records
  bool compiled_graph = false;  // the first run of a graph of torch.compile
};

// The first cache miss of one device while the user expects none.
class CompileExpectation {
 public:
  // `mutex` guards this object: the lock of the device's traces.
  explicit CompileExpectation(FastMutex& mutex) : mutex_(mutex) {}

  // With `expect`, forgets a noted miss and notes the next one. Otherwise stops noting, and keeps a noted miss for
  // take_miss(). Any thread may call it, without the lock.
  void expect_no_compile(bool expect);
  // Describes the noted miss, and forgets it: where the trace differs from the known programs. Empty if nothing missed.
  // Takes the lock, releases it, and then takes the GIL.
  std::string take_miss();

  // The next functions are called with the lock held.
  // Whether the next miss would be noted.
  bool watches() const { return on_ && !miss_; }
  void note(UnexpectedCompile miss) { miss_ = std::move(miss); }

 private:
  FastMutex& mutex_;
  bool on_ = false;
  std::optional<UnexpectedCompile> miss_;
};

}  // namespace torch_remote::frontend

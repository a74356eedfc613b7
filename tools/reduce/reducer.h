#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tools/reduce/interesting.h"
#include "tools/runs/case.h"

// Makes a run smaller while it stays interesting. Applies delta debugging (Zeller and Hildebrandt 2002) to the
// ops, the surviving buffers, the operands of ops on lists, and the sizes. Ends when no single step succeeds.
namespace torch_remote::tools::reduce {

struct Progress {
  std::string step;
  size_t ops = 0;
  uint64_t input_bytes = 0;
  uint64_t tests = 0;
};

class Reducer {
 public:
  // `reference` computes the results of dropped nodes.
  Reducer(RestartingWorker& reference, Test& test, std::function<void(const Progress&)> progress)
      : reference_(reference), test_(test), progress_(std::move(progress)) {}

  // Returns kInvalid if the run is not interesting at the beginning.
  Status reduce(RunCase* run);
  uint64_t tests() const { return tests_; }

 private:
  Status interesting(const RunCase& run, bool* yes);
  // Replaces the run by `candidate` if that is interesting.
  Status attempt(const char* step, RunCase candidate, bool* taken);
  Status attempt_nodes(const char* step, const std::vector<bool>& keep, bool* taken);

  Status drop_nodes();
  Status drop_survivors();
  Status drop_operands();
  Status shrink_sizes();

  RestartingWorker& reference_;
  Test& test_;
  const std::function<void(const Progress&)> progress_;
  RunCase run_;
  uint64_t tests_ = 0;
};

}  // namespace torch_remote::tools::reduce

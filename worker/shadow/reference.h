#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ir/math_modes.h"
#include "ir/status.h"
#include "worker/shadow/isolated_step.h"
#include "worker/targets/target.h"

namespace torch_remote::worker {

using Bytes = std::vector<std::byte>;

// The contents of an isolated step's buffers after the step.
struct StepResults {
  std::vector<Bytes> inputs;   // By IsolatedStep::inputs. May be empty where the step writes nothing.
  std::vector<Bytes> created;  // By IsolatedStep::created.
};

// Executes isolated steps. For one thread.
class Reference {
 public:
  static Status open(const ReferenceOpener& opener, std::unique_ptr<Reference>* reference);

  // Executes the step on these inputs.
  // Returns an error if no runner executes one of its nodes, or if a node fails.
  Status run(const IsolatedStep& step, std::span<const Bytes> inputs, ir::MathModes math_modes, StepResults* results);

 private:
  Reference() = default;

  OpenDevice opened_;
};

}  // namespace torch_remote::worker

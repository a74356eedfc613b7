#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "worker/runner/plugin.h"
#include "worker/session/loaded_program.h"

namespace torch_remote::worker {

// Sees the operands and the results of a run's steps. For the session's thread.
class StepWatcher {
 public:
  virtual ~StepWatcher() = default;

  // Whether it wants to see the steps of this run. Called once per run, when the steps are chosen. Each node outside of
  // a group is then a step of its own.
  virtual bool begins_run(const LoadedProgram& program) = 0;
  // Nodes [first, last) are about to be executed by one call of this runner. `buffers`: one per graph buffer, in the
  // device's memory. Null: it does not want to see the results.
  virtual std::shared_ptr<void> before(const LoadedProgram& program, std::span<const tr_buffer> buffers,
                                       uint32_t runner, uint32_t first, uint32_t last, uint64_t sequence) = 0;
  // They have been executed, or queued. Not called if they failed.
  virtual void after(std::shared_ptr<void> step, std::span<const tr_buffer> buffers) = 0;
  // Number of steps with which something was wrong. Thread safe.
  virtual uint64_t findings() const = 0;
};

}  // namespace torch_remote::worker

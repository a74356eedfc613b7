#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "worker/runner/runner.h"
#include "worker/session/loaded_program.h"
#include "worker/session/step_watcher.h"
#include "worker/shadow/reference.h"

// Shadow runs: the steps of some runs are executed again, by slow reference implementations, and their results are
// compared. They find wrong kernels on hardware and drivers on which nobody has run the tests.
//
// Each step is checked alone. It gets the operands that it had on the device, so differences do not add up, and a
// difference names one kernel. The session copies operands and results to this process's memory; a thread with low
// priority does the rest.
namespace torch_remote::worker {

struct ShadowSettings {
  double rate = 0;          // The share of runs that are checked, from 0 to 1.
  uint64_t first_runs = 0;  // Before that, so many runs are checked: those whose program, or choice of kernels, is new.
};

struct ShadowCounts {
  uint64_t runs = 0;         // Runs that were checked.
  uint64_t steps = 0;        // Steps that were compared.
  uint64_t left_out = 0;     // Steps that were not compared: too large, or without a reference implementation.
  uint64_t bytes = 0;        // Bytes that were copied from the device.
  uint64_t copying_ns = 0;   // Nanoseconds that copying took on the session's thread.
  uint64_t checking_ns = 0;  // Nanoseconds that the checks took on their thread.
  uint64_t differences = 0;  // Steps whose results differ.
};

// A step whose results differ from those of the reference.
struct ShadowDifference {
  uint32_t program = 0;
  uint64_t sequence = 0;          // The run's message.
  std::vector<uint32_t> records;  // By record of `graph`: the record of the program's trace.
  uint32_t record = 0;            // The record of `graph` that the first differing node came from.
  std::string runner;             // It executed the step.
  std::string op;                 // The first node that differs, with its operands.
  std::string what;               // "result 0 (f32): 12 of 400 elements differ, ..."
  // The step as a program of its own, with its inputs.
  ir::Graph graph;
  std::vector<int64_t> params;
  std::vector<Bytes> inputs;
  ir::MathModes math_modes = 0;
};

// For the session's thread, except where noted.
class Shadow final : public StepWatcher {
 public:
  // `device` and `runners` must outlive the object.
  Shadow(Device& device, const Runners& runners, ReferenceOpener opener);
  // Drops the checks that have not begun.
  ~Shadow() override;
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  void set(const ShadowSettings& settings);
  // Waits until all checks are done. The device must have done its work: the session's thread gets no notification
  // meanwhile.
  void wait();
  ShadowCounts counts() const;  // Thread safe.
  // Returns the oldest difference that was not taken yet, or null. At most kMaxDifferences are kept.
  std::unique_ptr<ShadowDifference> take();

  // StepWatcher
  bool begins_run(const LoadedProgram& program) override;
  std::shared_ptr<void> before(const LoadedProgram& program, std::span<const tr_buffer> buffers, uint32_t runner,
                               uint32_t first, uint32_t last, uint64_t sequence) override;
  void after(std::shared_ptr<void> step, std::span<const tr_buffer> buffers) override;
  uint64_t findings() const override;

 private:
  struct Copied;
  struct Queue;  // The device's notifications hold it, too. They may come late.

  void copy_out(const tr_buffer& buffer, const std::shared_ptr<Copied>& keep, Bytes* bytes);
  void work();

  Device& device_;
  const Runners& runners_;
  const ReferenceOpener opener_;
  ShadowSettings settings_;
  std::unordered_map<uint32_t, std::vector<Step>> checked_;  // Programs' steps that `first_runs` has counted.
  uint64_t skip_ = 0;  // Number of runs until the next one that is checked at settings_.rate; 0: not drawn yet.
  std::minstd_rand random_{std::random_device{}()};
  const std::shared_ptr<Queue> queue_;
  std::thread thread_;  // Started by the first check.
};

}  // namespace torch_remote::worker

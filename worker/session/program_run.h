#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ir/math_modes.h"
#include "ir/status.h"
#include "worker/device/device.h"
#include "worker/runner/runner.h"
#include "worker/session/background_ops.h"
#include "worker/session/buffers.h"
#include "worker/session/failure_log.h"
#include "worker/session/in_flight.h"
#include "worker/session/loaded_program.h"
#include "worker/session/older_contents.h"
#include "worker/session/profile.h"
#include "worker/session/run_failures.h"
#include "worker/session/run_memory.h"
#include "worker/session/step_watcher.h"

namespace torch_remote::worker {

struct RunRequest {
  uint32_t program = 0;
  uint64_t first_result_id = 0;
  std::span<const uint8_t> params, bindings, freed_ids;
  uint64_t sequence = 0;
  bool wants_result_words = false;  // The client waits for the result words of the last node.
  bool reset_delta = false;         // Params and bindings are encoded as for a first run.
  ir::MathModes math_modes = 0;
};

// All runs of a session share this state.
struct RunContext {
  Device& device;
  const Runners& runners;
  OlderContents& older_contents;
  FailureLog& failures;
  Buffers& buffers;
  BackgroundOps& background_ops;
  InFlight& in_flight;
  const std::function<bool(uint64_t sequence)>& cancelled;       // May be empty.
  std::function<void(bool heavy_run)> notify_threads = nullptr;  // From a runner that lends its threads; may be null.
  uint32_t background_runner = kNoRunner;  // Index into `runners`: the runner whose nodes execute in the background.
  bool waits_for_plans = false;            // Runs wait for plans that are being built.
  Profile* profile = nullptr;              // Records when ops run; null: none does.
  StepWatcher* watcher = nullptr;          // Sees operands and results; null: none does.
  uint64_t run_id = 0;
  // Scratch.
  std::vector<uint64_t> nbytes = {};
  tr_error error = {};
};

// One run of a program. Call execute() or drop(), once. For one thread.
//
// The fast path calls the runners stage by stage. If a node fails, an operand is unusable, or memory runs out, the
// remaining nodes execute one by one: those with unusable operands are skipped, and what they would have written is
// marked.
class ProgramRun {
 public:
  // All of them outlive the run. The program was decoded; its params and bindings are those of the request.
  ProgramRun(RunContext& context, const std::shared_ptr<LoadedProgram>& program, const RunRequest& request);

  // `result_words` receives the results of the last node that the client wants to know. Returns the reason why they are
  // invalid, or null.
  FailurePtr execute(std::vector<int64_t>* result_words);
  // Executes nothing: `why` is the failure of all that the run would have created or written. Returns `why`.
  FailurePtr drop(const FailurePtr& why);

 private:
  // Before and after the nodes execute (program_run.cpp).
  void bind_inputs();
  Status prepare();
  void unshare_written();
  void note_in_flight();
  void finish();
  void store(uint64_t id, uint32_t buffer, MemoryPtr memory);

  // Executing nodes (program_run_calls.cpp).
  bool execute_stages();
  bool call_in_pieces(uint32_t first, uint32_t last);
  void execute_one_by_one();
  bool check_cancelled();
  bool call(uint32_t first, uint32_t last, bool alone = false);
  bool call_steps(uint32_t first, uint32_t last, uint64_t* times);
  bool call_watched(const Step& step, uint32_t first, uint32_t last, uint64_t* times);
  bool call_alone(uint32_t node, uint64_t* times);
  bool call_runner(uint32_t runner, uint32_t first, uint32_t last, uint64_t* times);
  tr_run describe(uint32_t runner, uint32_t first, uint32_t last, uint64_t* times);
  uint64_t* times_of(uint32_t first, uint32_t last);
  bool begin(uint32_t node, uint64_t* times);
  bool find_uses(uint32_t node, std::vector<BackgroundOps::Use>* uses);
  bool await_operands(uint32_t first, uint32_t last);
  bool await_background(const std::function<bool(const BackgroundOps::Op&)>& concerns);

  // Nodes that fail or cannot run (program_run_failures.cpp).
  FailurePtr add_failure(Status why, uint32_t record = 0);
  void call_and_repair(uint32_t node);
  void save_older_contents(uint32_t node, uint64_t failure);
  void skip(uint32_t node, const FailurePtr& failure);
  void skip_update(uint32_t buffer, const FailurePtr& failure);
  void copy_older_value(uint32_t node, const FailurePtr& failure);
  void notify_skipped(uint32_t node, const FailurePtr& failure) const;
  void fail_all(const FailurePtr& failure);

  RunContext& context_;
  const std::shared_ptr<LoadedProgram>& shared_program_;
  LoadedProgram& program_;
  const RunRequest& request_;
  std::vector<int64_t>* result_words_ = nullptr;
  size_t result_words_used_ = 0;
  RunMemory memory_;
  RunFailures failures_;
  std::vector<OlderContents::Copies> older_contents_;  // One per graph buffer, or empty.
  FailurePtr cancelled_;                               // Set if the rest of the run is cancelled.
  uint64_t unchecked_ns_ = 0;                          // Nanoseconds of work since the last look for a cancellation.
  uint32_t next_ = 0;                                  // The node to continue with.
  bool one_by_one_ = false;                            // Nodes execute one at a time, from `next_` on.
  bool watched_ = false;                               // context_.watcher wants to see this run's steps.
  bool aliased_ = false;                               // One buffer is bound twice; our own client never does this.
  std::vector<tr_cached_data*> cached_data_;           // One per graph buffer; empty: no runner uses cached data.
  // One per graph buffer: survivors that a background op uses. Empty if there are none.
  std::vector<MemoryPtr> shared_survivors_;
  std::vector<InFlight::Call> calls_;  // For a profile, while an asynchronous device executes the calls.
};

}  // namespace torch_remote::worker

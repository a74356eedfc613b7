#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/arena.h"
#include "ir/graph.h"
#include "ir/math_modes.h"
#include "remote/wire/delta.h"
#include "worker/device/memory.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker {

// A part of a run: memory is allocated before it and released after it.
struct Stage {
  struct Block {
    uint32_t buffer = 0;
    uint32_t from = ir::kNoBuffer;  // The buffer whose memory this one takes over.
  };
  uint32_t first = 0, last = 0;   // Nodes [first, last).
  std::vector<Block> allocate;    // Survivors and large temporaries that this stage touches first.
  std::vector<uint32_t> release;  // Large temporaries that are dead after this stage.
  std::vector<uint32_t> erase;    // Indices into `inputs` of the inputs that are dead after this stage.
};

inline constexpr uint32_t kNoRunner = ~uint32_t{0};           // No runner.
inline constexpr uint32_t kUnknownRunner = ~uint32_t{0} - 1;  // The runner is not known yet.

// Nodes [first, last) and the runner that executes them.
struct Step {
  uint32_t first = 0, last = 0;
  uint32_t runner = 0;    // kNoRunner: the step fails.
  bool is_group = false;  // A group that is executed as one; never cut.
  // The index of the group that these nodes belong to, if a runner wants to know how long they take one by one.
  uint32_t timed_group = ir::kNoNode;
  bool operator==(const Step&) const = default;
};

// A program as a session holds it: the graph, the runners' forms of it, and the results of the last run's preparation.
// The latter make the next run with the same sizes cheap.
struct LoadedProgram {
  ~LoadedProgram();

  uint32_t number = 0;
  Status status;  // Not ok: the program could not be decoded or loaded, so its runs fail.
  bool decoded = false;
  ir::Graph graph;
  std::vector<uint8_t> bytes;  // Retained if a runner may accept a group later.

  // The runners' forms of the program, and the choice of runners. If a node of a group fails or must not run, the
  // session does not use `steps` for the group: its nodes execute one by one.
  struct Loaded {
    std::unique_ptr<RunnerProgram> program;  // Null: this runner executes none of the nodes.
    bool is_current = false;                 // The runner has seen `values`.
  };
  std::vector<Loaded> loaded;        // By runner.
  std::vector<Step> steps;           // In order; they cover all nodes.
  std::vector<Step> groups;          // Groups that a runner may execute as one.
  std::vector<uint8_t> group_taken;  // One per group: it executes as one in runs with the present values.
  std::vector<uint64_t>
      group_times;  // One per group: nanoseconds that its nodes took in this run, if a runner wants to know.
  std::vector<uint64_t> accepting_runners;  // One per node: bit set of the runners that accept it.
  std::vector<uint32_t>
      node_runners;  // One per node: the runner that executes it outside of a group, kNoRunner or kUnknownRunner.
  std::vector<uint64_t> accepted;  // One per runner: its generation when `steps` were made.
  bool tune = false;
  bool is_tuning = false;        // A runner is tuning: the runner of a group may change from run to run.
  double work = 0;               // Sum over all steps (RunnerProgram::work).
  uint64_t choice = 0;           // Grows when a node is executed by a different runner.
  bool asks_again = false;       // `steps` are chosen again before the next run.
  bool steps_outdated = false;   // `steps` do not agree with the groups or the runners of nodes.
  bool waits_for_plans = false;  // Waits for plans that are being built, because results must not depend on timing.
  CachingAllocator* memory = nullptr;  // The allocator that `charged` bytes are charged to.
  uint64_t charged = 0;

  // Derived from the graph.
  std::vector<uint32_t> inputs;        // Buffers, in the order of the bindings.
  std::vector<uint32_t> survivors;     // Fresh buffers, in the order of their ids.
  std::vector<bool> written;           // One per buffer: some node writes this input.
  std::vector<bool> runner_allocates;  // One per buffer: the runner allocates its memory.
  std::vector<bool> outlives;     // One per buffer: it outlives the run, or is an older value of a buffer that does.
  bool uses_cached_data = false;  // Runners may attach data to the inputs.
  bool updates = false;           // Some node updates in place a buffer that outlives the run.
  std::vector<bool> temporary;    // One per buffer: it has memory that only the steps need.
  std::vector<ir::Lifetime> lifetimes;
  // The lifetimes when steps execute: a buffer that the step of a group touches lives through all of the step.
  std::vector<ir::Lifetime> step_lifetimes;
  std::vector<std::vector<uint32_t>> dead_after;  // One per node: the temporaries that it is the last to touch.
  size_t result_words = 0;                        // Upper bound on the result words.

  // Set by the runs.
  std::vector<int64_t> params;
  remote::Bindings bindings;
  std::vector<int64_t> values;   // Values of the symbols.
  std::vector<uint64_t> nbytes;  // Sizes of the buffers.
  ir::MathModes math_modes = 0;
  bool evaluated = false;  // `values` are computed from `params`.
  bool chosen = false;     // `steps` are chosen for `values` and for what the runners take now.
  bool placed = false;     // `layout` belongs to `values` and `nbytes`, and all views lie inside their buffers.
  ir::ArenaLayout layout;  // Places the small temporaries.
  std::vector<Stage> stages;
  uint32_t piece = 8;  // Number of nodes after which a long run looks for a cancellation.
};

// Computes where temporaries lie, for `values` and `nbytes`: small ones in an arena, each large one in a block of its
// own. Cuts the run into stages where a large buffer is created after large buffers have died, so that it can take
// their memory. Such dead buffers are temporaries, or inputs that do not outlive the run (activations, in a backward
// pass).
void place_buffers(LoadedProgram& program);

// Returns the step that contains the node; the steps after it follow.
std::vector<Step>::const_iterator step_of(const LoadedProgram& program, uint32_t node);

// Returns the first position from `node` on where a run may be cut.
uint32_t next_cut(const LoadedProgram& program, uint32_t node);

// Decodes and loads a program. Errors go to `status` only. `memory` is charged with what the program takes, here and in
// the runners, as long as it lives. `bytes` may change during the call.
std::shared_ptr<LoadedProgram> load_program(uint32_t number, const Runners& runners, CachingAllocator* memory,
                                            std::span<const std::byte> bytes, bool tune);

// If the generation of a runner has changed, asks again which groups the runners accept. choose_steps() then asks again
// what they take.
void update_groups(LoadedProgram& program, const Runners& runners);

// Chooses the runners for the present values.
void choose_steps(LoadedProgram& program);

// Returns the runner that executes a node alone with the present values, or kNoRunner.
uint32_t runner_of(LoadedProgram& program, uint32_t node);

// Explains why runners earlier in the list do not execute the node: "compiled kernels: it is being compiled". Empty if
// there are none, or they gave no reason.
std::string reasons(const LoadedProgram& program, const Runners& runners, uint32_t node);

// The error of a node that no runner executes: each runner's reason, and what to do.
Status refusal(const LoadedProgram& program, const Runners& runners, uint32_t node);

// After a run: reports to runners that tune how long nodes took. `complete`: all nodes ran as in `steps`, each once.
void end_tuned_run(LoadedProgram& program, bool complete);

// The size of a buffer whose size is not known.
inline constexpr uint64_t kUnknownSize = std::numeric_limits<int64_t>::max();

// Bytes of a buffer that the graph's views reach, for a buffer of unknown size.
uint64_t reach(const ir::Graph& graph, const std::vector<int64_t>& values, uint32_t buffer);

// Whether the node overwrites all of a buffer of `nbytes` and reads nothing of it. kUnknownSize: all that the graph
// reaches of the buffer.
bool overwrites_all(const ir::Graph& graph, const std::vector<int64_t>& values, uint64_t nbytes, uint32_t node,
                    uint32_t buffer);

// Describes the node with its operands: "aten::embedding(f32[10, 4], i64[3])". Sizes come from `values`; if `values` is
// empty, they are left out.
std::string describe_node(const ir::Graph& graph, const ir::Node& node, const std::vector<int64_t>& values);

}  // namespace torch_remote::worker

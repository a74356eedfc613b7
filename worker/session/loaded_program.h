#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/math_modes.h"
#include "remote/wire/delta.h"
#include "worker/device/memory.h"
#include "worker/runner/runner.h"
#include "worker/session/layout.h"

namespace torch_remote::worker {

// A part of a run, before which memory is taken and after which it is given back.
struct Stage {
  struct Block {
    uint32_t buffer = 0;
    uint32_t from = ir::kNoBuffer;  // whose memory it takes over
  };
  uint32_t first = 0, last = 0;   // nodes [first, last)
  std::vector<Block> allocate;    // survivors and large temporaries that are first touched here
  std::vector<uint32_t> release;  // large temporaries that are dead afterwards
  std::vector<uint32_t> erase;    // indices into `inputs` of those that are dead afterwards
};

inline constexpr uint32_t kNobody = ~uint32_t{0};       // no runner
inline constexpr uint32_t kUnasked = ~uint32_t{0} - 1;  // a runner that is not known yet

// Nodes [first, last), and who does them.
struct Step {
  uint32_t first = 0, last = 0;
  uint32_t runner = 0;  // kNobody: it fails
  bool whole = false;   // a group that is done as one: never cut
  // The group whose nodes these are, where somebody wants to know how long they take one by one.
  uint32_t timed = ir::kNoNode;
  bool operator==(const Step&) const = default;
};

// A program as a session keeps it: the graph, the runners' forms of it, and what the last run has left so that the next
// one with the same sizes costs little.
struct LoadedProgram {
  ~LoadedProgram();

  uint32_t number = 0;
  Status status;  // not ok: could not be decoded or loaded; its runs fail
  bool decoded = false;
  ir::Graph graph;
  std::vector<uint8_t> bytes;  // kept where a group may be accepted later

  // Who does what. Cut where a node failed, or one must not run, nodes are done one by one.
  struct Loaded {
    std::unique_ptr<RunnerProgram> program;  // null: nothing is this runner's
    bool is_current = false;                 // it has seen `values`
  };
  std::vector<Loaded> loaded;      // by runner
  std::vector<Step> steps;         // in order; all nodes
  std::vector<Step> groups;        // those that a runner may do as one
  std::vector<uint8_t> taken;      // of each of these: it is done as one, in runs with the present values
  std::vector<uint64_t> took;      // of each of these: ns of its nodes in this run, where somebody wants to know
  std::vector<uint64_t> may;       // of each node: the runners that accept it, as bits
  std::vector<uint32_t> alone;     // of each node: the runner that executes it alone, kNobody or kUnasked
  std::vector<uint64_t> accepted;  // of each runner: its generation when `steps` were made
  bool tune = false;
  bool times = false;                  // some runner is tuning: who does a group may change from run to run
  double work = 0;                     // of all steps (RunnerProgram::work)
  uint64_t choice = 0;                 // grows when a node is executed by another runner than before
  bool asks_again = false;             // `steps` are chosen again before the next run
  bool waits = false;                  // for plans that are being built: results must not depend on time
  CachingAllocator* memory = nullptr;  // that it is charged to
  uint64_t charged = 0;

  // From the graph.
  std::vector<uint32_t> inputs;     // buffers, in the order of the bindings
  std::vector<uint32_t> survivors;  // fresh ones, in the order of their ids
  std::vector<bool> written;        // inputs that some node writes
  std::vector<bool> created;        // the runner makes its memory
  std::vector<bool> outlives;       // the run; or what it is an older value of does
  bool attaches = false;            // runners may keep something beside its inputs
  bool updates = false;             // some node writes in place what outlives the run
  std::vector<bool> temporary;      // has memory, which nobody but the steps needs
  std::vector<ir::Lifetime> lifetimes;
  std::vector<ir::Lifetime> held;  // the same when the steps are done: what one does as one, lives through all of it
  std::vector<std::vector<uint32_t>> dead_after;  // of each node: temporaries that it is the last to touch
  size_t words = 0;                               // at most that many result words

  // From the runs.
  std::vector<int64_t> params;
  remote::Bindings bindings;
  std::vector<int64_t> values;   // of the symbols
  std::vector<uint64_t> nbytes;  // of the buffers
  ir::MathModes math = 0;
  bool evaluated = false;  // `values` are those of `params`
  bool chosen = false;     // `steps` are those for `values`, and what the runners take
  bool placed = false;     // `layout` is that of `values` and `nbytes`, and all views lie inside their buffers
  Layout layout;           // of the small temporaries
  std::vector<Stage> stages;
  uint32_t piece = 8;  // nodes after which a long run looks whether it is to go on
};

// Says where temporaries lie, for `values` and `nbytes`: small ones in an arena, each large one in a block of its own.
// Cuts the run where something large is made and something large is dead by then (a temporary, or an input that does
// not outlive the run: activations, in a backward pass), so that it can have that memory.
void place_buffers(LoadedProgram& program);

// The step that has the node; those behind it follow.
std::vector<Step>::const_iterator step_of(const LoadedProgram& program, uint32_t node);

// The first place at `node` or behind it where a run may be cut.
uint32_t next_cut(const LoadedProgram& program, uint32_t node);

// Decodes and loads; never fails but for `status`. What the program takes, here and in the runners, is charged to
// `memory` as long as it lives. `bytes` may change while this looks at them.
std::shared_ptr<LoadedProgram> load_program(uint32_t number, const Runners& runners, CachingAllocator* memory,
                                            std::span<const std::byte> bytes, bool tune);

// Has the runners asked again if the generation of one has changed.
void update_groups(LoadedProgram& program, const Runners& runners);

// Chooses who executes what with the present values.
void choose_steps(LoadedProgram& program);

// The runner that executes a node alone with the present values, or kNobody.
uint32_t runner_of(LoadedProgram& program, uint32_t node);

// Why runners that come before the one that executes the node do not: "compiled kernels: it is being compiled". Empty
// if there are none, or they gave no reason.
std::string reasons(const LoadedProgram& program, const Runners& runners, uint32_t node);

// The error of a node that nobody executes: each runner's reason, and what to do.
Status refusal(const LoadedProgram& program, const Runners& runners, uint32_t node);

// After a run: tells the runners that tune how long nodes took. `complete`: all of them were done so, each once.
void end_tuned_run(LoadedProgram& program, bool complete);

// Of a buffer of which nobody knows how large it is.
inline constexpr uint64_t kUnknownSize = std::numeric_limits<int64_t>::max();

// Bytes that the graph's views of a buffer reach, for one whose size nobody knows.
uint64_t reach(const ir::Graph& graph, const std::vector<int64_t>& values, uint32_t buffer);

// The node overwrites all of a buffer of `nbytes` (kUnknownSize: what the graph reaches of it) and reads nothing of it.
bool overwrites_all(const ir::Graph& graph, const std::vector<int64_t>& values, uint64_t nbytes, uint32_t node,
                    uint32_t buffer);

// "aten::embedding(f32[10, 4], i64[3])": the node with its operands as `values` say, or without sizes if they are
// empty.
std::string describe_node(const ir::Graph& graph, const ir::Node& node, const std::vector<int64_t>& values);

}  // namespace torch_remote::worker

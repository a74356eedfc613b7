#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "remote/wire/delta.h"
#include "worker/executor.h"
#include "worker/layout.h"
#include "worker/memory.h"

namespace torch_remote::worker {

// A part of a run, after which memory can be given back.
struct Stage {
  uint32_t first = 0, last = 0;    // nodes [first, last)
  std::vector<uint32_t> allocate;  // survivors that are first touched here
  std::vector<uint32_t> release;   // indices into `inputs` of those that are dead afterwards
};

// A program as a session keeps it: the graph, the executor's form of it, and what the last run has left so that the
// next one with the same sizes costs little.
struct LoadedProgram {
  ~LoadedProgram();

  uint32_t number = 0;
  Status status;  // not ok: could not be decoded or loaded; its runs fail
  bool decoded = false;
  ir::Graph graph;
  const tr_executor_api* api = nullptr;
  tr_executor* executor = nullptr;
  tr_program* handle = nullptr;
  CachingAllocator* memory = nullptr;  // that it is charged to
  uint64_t charged = 0;

  // From the graph.
  std::vector<uint32_t> inputs;     // buffers, in the order of the bindings
  std::vector<uint32_t> survivors;  // fresh ones, in the order of their ids
  std::vector<bool> written;        // inputs that some node writes
  std::vector<bool> created;        // the executor makes its memory
  std::vector<bool> outlives;       // the run; or what it is an older value of does
  bool updates = false;             // some node writes in place what outlives the run
  std::vector<bool> in_arena;
  std::vector<ir::Lifetime> lifetimes;
  std::vector<std::vector<uint32_t>> dead_after;  // of each node: temporaries that it is the last to touch
  size_t words = 0;                               // at most that many result words

  // From the runs.
  std::vector<int64_t> params;
  remote::Bindings bindings;
  std::vector<int64_t> values;   // of the symbols
  std::vector<uint64_t> nbytes;  // of the buffers
  bool evaluated = false;        // `values` are those of `params`
  bool placed = false;           // `layout` is that of `values` and `nbytes`, and all views lie inside their buffers
  bool executor_is_current = false;  // the executor has seen `values`
  Layout layout;
  std::vector<Stage> stages;
  uint32_t piece = 8;  // nodes after which a long run looks whether it is to go on
};

// Cuts a run where many bytes of inputs that do not outlive it (activations, in a backward pass) are dead, so that what
// comes after can have their memory.
void find_stages(LoadedProgram& program);

// What the executor says.
Status executor_error(const tr_error& error);

// Decodes and loads; never fails but for `status`. What the program takes, here and in the executor, is charged to
// `memory` as long as it lives. `bytes` may change while this looks at them.
std::unique_ptr<LoadedProgram> load_program(uint32_t number, const tr_executor_api* api, tr_executor* executor,
                                            CachingAllocator* memory, std::span<const std::byte> bytes, bool tune);

// "aten::embedding(f32[10, 4], i64[3])": the node with its operands as `values` say, or without sizes if they are
// empty.
std::string describe_node(const ir::Graph& graph, const ir::Node& node, const std::vector<int64_t>& values);

}  // namespace torch_remote::worker

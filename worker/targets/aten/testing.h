#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "worker/device/memory.h"
#include "worker/runner/plugin.h"

// For tests: builds graphs from calls of ATen ops, and runs them.
namespace torch_remote::worker::aten {

// Registers an op that the op table does not list, with torch's schema.
void register_if_unknown(std::string_view name);

// Adds calls to a graph. Tensors are identified by their storages and stay alive; the run's buffers start as copies of
// them.
class TestGraph {
 public:
  // Adds a node. `results`: tensors with the sizes and strides of the op's results; their contents are not used. An
  // undefined tensor is an unused result. Pass the same tensors as arguments of later calls that read the results.
  // Random ops get (seed, offset).
  void call(std::string_view op, const std::vector<c10::IValue>& args, const std::vector<c10::IValue>& results,
            int64_t seed = 0, int64_t offset = 0);
  // Call this after the last call: completes the graph. Loading calls it too.
  void finish();

  ir::Graph graph;
  std::vector<int64_t> params;
  std::vector<at::Tensor> tensors;  // one per buffer

 private:
  ir::Sym param(int64_t value);
  ir::Sym size(int64_t value);
  ir::Arg view(const at::Tensor& tensor, bool fresh);
  ir::Arg value(const ir::ArgDesc& desc, const c10::IValue& value);
  ir::Arg number(const c10::IValue& value, bool structural);
};

// Runs graphs through the plugin's C ABI.
class TestRunner {
 public:
  explicit TestRunner(bool inproc = false, uint64_t limit = uint64_t{8} << 30, int threads = 1);
  ~TestRunner();

  struct Outcome {
    int code = 0;
    tr_error error{};
    std::vector<int64_t> result_words;
    std::vector<uint64_t> times;  // from Loaded::run with `timed`
  };

  // A loaded program with its memory. Each run fills the buffers from the builder's tensors; the caller compares the
  // results.
  class Loaded {
   public:
    Loaded(TestRunner& runner, TestGraph& builder, bool tune = false);
    ~Loaded();
    // Runs the program, or its nodes [first, last). `changed`: the parameters may differ from those of the last run, so
    // sizes are computed again. `timed`: measures each node.
    Outcome run(bool changed = true);
    Outcome run(uint32_t first, uint32_t last, bool changed, bool timed = false);
    // Returns a copy of the tensor of a view of the graph.
    at::Tensor tensor(uint32_t view) const;
    void fill_inputs();
    void release();

    std::vector<tr_buffer> buffers;
    tr_program* program = nullptr;
    tr_error error{};

   private:
    TestRunner& runner_;
    TestGraph& builder_;
    std::vector<int64_t> values_;
  };

  const tr_runner_api* api;
  tr_runner* runner = nullptr;
  CachingAllocator::Pointer memory;
  tr_client_activity client = TR_CLIENT_IDLE;  // what the host reports

 private:
  tr_host host_{};
};

}  // namespace torch_remote::worker::aten

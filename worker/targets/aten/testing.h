#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "worker/device/memory.h"
#include "worker/runner/plugin.h"

// For tests: calls of ATen ops as graphs, and a runner to run them.
namespace torch_remote::worker::aten {

// Makes an op that the op table does not list known, from torch's schema.
void register_if_unknown(std::string_view name);

// Adds calls to a graph. Tensors are told apart by their storages and kept: what they are, the run's buffers become.
class TestGraph {
 public:
  // Adds a node. `results`: what the op is to return (sizes and strides count, the memory does not matter; undefined:
  // no result wanted); the tensors then stand for the results in later calls. Random ops get (seed, offset).
  void call(std::string_view op, const std::vector<c10::IValue>& args, const std::vector<c10::IValue>& results,
            int64_t seed = 0, int64_t offset = 0);
  // After the last call: makes the graph whole. Loading does it too.
  void finish();

  ir::Graph graph;
  std::vector<int64_t> params;
  std::vector<at::Tensor> tensors;  // one of each buffer

 private:
  ir::Sym param(int64_t value);
  ir::Sym size(int64_t value);
  ir::Arg view(const at::Tensor& tensor, bool fresh);
  ir::Arg value(const ir::ArgDesc& desc, const c10::IValue& value);
  ir::Arg number(const c10::IValue& value, bool structural);
};

// Runs graphs through the plugin's C interface.
class TestRunner {
 public:
  explicit TestRunner(bool inproc = false, uint64_t limit = uint64_t{8} << 30, int threads = 1);
  ~TestRunner();

  struct Outcome {
    int code = 0;
    tr_error error{};
    std::vector<int64_t> words;
    std::vector<uint64_t> times;  // of the nodes, if wanted
  };

  // A program with its memory; buffers are filled from the builder's tensors before each run, results compared by the
  // caller.
  class Loaded {
   public:
    Loaded(TestRunner& runner, TestGraph& builder, bool tune = false);
    ~Loaded();
    Outcome run(bool changed = true);
    Outcome run(uint32_t first, uint32_t last, bool changed, bool timed = false);
    // The result of a view of the graph, as a copy.
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
  tr_client client = TR_CLIENT_RESTS;  // what the host says

 private:
  tr_host host_{};
};

}  // namespace torch_remote::worker::aten

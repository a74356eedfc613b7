#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "worker/device/strided_copy.h"
#include "worker/runner/plugin.h"
#include "worker/targets/cpu/loops/attention_call.h"

namespace torch_remote::worker::kernels {

// The loops for a kernel target (host_target, kernel_runner.h); null if there are none.
const AttentionLoops* attention_loops(std::string_view target);

// Where a tensor of a call lies in the run's buffers.
struct TensorLocation {
  uint32_t buffer = 0;
  int64_t offset = 0;                                 // bytes
  AttentionTensor AttentionCall::* tensor = nullptr;  // the call's field for it
};

// `remote::attention` or its gradient, with the sizes of one run. Queries are [batch, query heads, queries, size], keys
// are [batch, heads, keys, size], and values are [batch, heads, keys, value size]. The number of query heads is a
// multiple of that of heads, so several query heads may share keys and values. The dtype is f32, bf16 or f16; the
// arithmetic is f32.
class Attention {
 public:
  // Returns null if the loops do not support the node: for example, because of its dtype, or because a tensor has no
  // elements. Returns null also if sizes do not match; the next runner reports that error. `values`: the values of the
  // graph's symbols in this run. `loops` must outlive the result.
  static std::unique_ptr<Attention> bind(const ir::Graph& graph, const ir::Node& node, std::span<const int64_t> values,
                                         const AttentionLoops& loops);

  // The estimated work, in the unit of Launches::points().
  double points() const;
  // Bytes that a run needs in addition to the buffers. They are the scratch memory of one thread, and the partial
  // results of all pieces of the keys (KeySplit).
  size_t scratch() const;
  // Computes the results. `buffers` are the graph's. The order of arithmetic depends on sizes alone: `parallel` only
  // assigns tasks to threads. If `parallel` is empty, this thread runs all tasks.
  void run(std::span<const tr_buffer> buffers, const ParallelFor& parallel);

 private:
  explicit Attention(const AttentionLoops& loops) : loops_(loops) {}

  void split();
  void run_forward(const AttentionCall& call, const ParallelFor& parallel) const;
  void run_backward(const AttentionCall& call, const ParallelFor& parallel) const;

  const AttentionLoops& loops_;
  AttentionCall call_;
  KeySplit pieces_;
  std::vector<TensorLocation> places_;
  bool forward_ = true;
  double multiplications_ = 0;
  bool tiny_ = false;  // takes less time than waking a thread
};

}  // namespace torch_remote::worker::kernels

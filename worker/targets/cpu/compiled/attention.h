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

// The loops for a target of kernels (host_target, kernel_runner.h); null: there are none.
const AttentionLoops* attention_loops(std::string_view target);

// Where a tensor of a call lies.
struct AttentionPlace {
  uint32_t buffer = 0;
  int64_t offset = 0;  // bytes
  AttentionTensor AttentionCall::* tensor = nullptr;
};

// `remote::attention` or its gradient, with the sizes of one run: queries [batch, heads, queries, size], keys and
// values that several heads may share, f32, bf16 or f16, which are computed in f32.
class Attention {
 public:
  // Null where it does not do the node: other dtypes, sizes that do not go together (whose error is the next runner's
  // to tell), nothing to compute.
  static std::unique_ptr<Attention> bind(const ir::Graph& graph, const ir::Node& node, std::span<const int64_t> values,
                                         const AttentionLoops& loops);

  // What it does, in points of other kernels (Launches::points).
  double points() const;
  // Bytes that a thread needs beside buffers, and those that are joined.
  size_t scratch() const;
  // What is computed depends on sizes alone: `parallel` decides nothing but who does what.
  void run(std::span<const tr_buffer> buffers, const ParallelFor& parallel);

 private:
  explicit Attention(const AttentionLoops& loops) : loops_(loops) {}

  void split();
  void run_forward(const AttentionCall& call, const ParallelFor& parallel) const;
  void run_backward(const AttentionCall& call, const ParallelFor& parallel) const;

  const AttentionLoops& loops_;
  AttentionCall call_;
  AttentionPieces pieces_;
  std::vector<AttentionPlace> places_;
  bool forward_ = true;
  double multiplications_ = 0;
  bool tiny_ = false;  // not worth a thread's waking
};

}  // namespace torch_remote::worker::kernels

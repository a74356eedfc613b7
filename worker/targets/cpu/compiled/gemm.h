#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "ir/graph.h"
#include "worker/device/strided_copy.h"
#include "worker/runner/plugin.h"
#include "worker/targets/cpu/compiled/gemm_shape.h"
#include "worker/targets/cpu/loops/gemm_call.h"

namespace torch_remote::worker::kernels {

// The loops for this target, as host_target() of kernel_runner.h names it. Null: there are no loops for it.
const GemmLoops* gemm_loops(std::string_view target);

// Runs a call, on the threads of `parallel` if it is worth waking them.
void run_gemm(const GemmLoops& loops, const GemmCall& call, const ParallelFor& parallel);

// `aten::mm` or `aten::addmm` with the sizes of one run, f32, bf16 or f16. The left matrix has up to
// ir::kMaxMatmulRows rows; the elements of the right matrix's columns are contiguous.
class SmallGemm {
 public:
  // Returns null if the loops do not support the node: its op, dtypes, sizes or strides, sizes that do not match (the
  // next runner reports that error), or nothing to compute.
  static std::unique_ptr<SmallGemm> bind(const ir::Graph& graph, const ir::Node& node, std::span<const int64_t> values,
                                         const GemmLoops& loops);

  GemmShape shape() const { return {call_.type, call_.rows, call_.columns, call_.depth}; }
  // The estimated work, in points of compiled kernels (Launches::points).
  double points() const;
  // Bytes that a run needs in addition to the buffers.
  size_t scratch() const;
  void run(std::span<const tr_buffer> buffers, const ParallelFor& parallel) const;

 private:
  friend class SmallGemmBinder;
  struct Location {
    uint32_t buffer = 0;
    int64_t offset = 0;  // bytes
  };

  explicit SmallGemm(const GemmLoops& loops) : loops_(loops) {}

  const GemmLoops& loops_;
  GemmCall call_;  // addresses are filled in by `run`
  Location left_, right_, result_, addend_;
  bool adds_ = false;
};

}  // namespace torch_remote::worker::kernels

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "ir/graph.h"
#include "worker/runner/plugin.h"
#include "worker/targets/cpu/compiled/gemm_shape.h"

namespace torch_remote::worker::kernels {

// The shape of a float32 GEMM.
GemmShape shape_of(const tr_matmul& matmul);

// `aten::mm`, `addmm`, `bmm` or `baddbmm` in float32 with the sizes of one run, as arguments for a library
// (Runner::matmul).
class LibraryGemm {
 public:
  // Returns null if ATen should execute the op: other ops, dtypes or strides, factors other than 1, sizes that do not
  // match (the op reports that error), or nothing to compute.
  static std::unique_ptr<LibraryGemm> bind(const ir::Graph& graph, const ir::Node& node,
                                           std::span<const int64_t> values);

  GemmShape shape() const { return shape_of(matmul_); }
  // The estimated work, in points of compiled kernels (Launches::points).
  double points() const;
  // Returns false if the library does not support the GEMM.
  bool run(std::span<const tr_buffer> buffers, const std::function<bool(const tr_matmul&)>& library) const;

 private:
  friend class LibraryGemmBinder;
  struct Location {
    uint32_t buffer = 0;
    int64_t offset = 0;  // bytes
  };

  LibraryGemm() = default;

  tr_matmul matmul_{};  // addresses are filled in by `run`
  Location left_, right_, addend_, result_;
  bool adds_ = false;
};

}  // namespace torch_remote::worker::kernels

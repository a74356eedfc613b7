#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

#include "ir/fusion/fusion.h"
#include "worker/targets/cpu/loops/gemm_call.h"

namespace torch_remote::worker::kernels {

// The estimated work of a GEMM that reads `elements` elements once, with `rows` rows, in points. A point is the unit of
// work of compiled kernels, about 0.6 ns (launch.h). With few rows, reading dominates and each element is a point. With
// many rows, multiplications dominate.
inline double gemm_points(double elements, int64_t rows) {
  constexpr double kMultiplicationsPerPoint = 32;
  return elements * std::max(1.0, static_cast<double>(rows) / kMultiplicationsPerPoint);
}

struct GemmShape {
  GemmType type = GemmType::kFloat;
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t batches = 0;  // 0: two matrices without a batch dim
  // left_transposed: the left matrix has stride 1 along its rows; otherwise along the depth. right_row_major: the right
  // matrix has stride 1 along its columns; otherwise along the depth, as F.linear's weights.
  bool left_transposed = false, right_row_major = false;
  auto operator<=>(const GemmShape&) const = default;

  // Whether the loops for few rows (gemm_call.h) support the shape.
  bool may_be_loops() const {
    return rows <= ir::kMaxMatmulRows && batches == 0 && !left_transposed && !right_row_major;
  }
  // Whether oneDNN may be faster than the library that torch calls for this dtype.
  bool may_be_onednn() const {
    return type == GemmType::kFloat && static_cast<double>(rows) * static_cast<double>(columns) *
                                               static_cast<double>(depth) *
                                               static_cast<double>(batches == 0 ? 1 : batches) >=
                                           kFewestForOneDnn;
  }

  // Minimum number of multiplications for oneDNN. Calling it costs some 10 µs, and the first call of a shape some 300
  // µs.
  static constexpr double kFewestForOneDnn = 1 << 19;
};

}  // namespace torch_remote::worker::kernels

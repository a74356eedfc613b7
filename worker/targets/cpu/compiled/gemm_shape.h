#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

#include "ir/fusion/fusion.h"
#include "worker/targets/cpu/loops/gemm_call.h"

namespace torch_remote::worker::kernels {

// The estimated work of a GEMM that reads `elements` elements once, with `rows` rows, in points of compiled kernels
// (Launches::points). With few rows, reading dominates and each element is a point. With many rows, multiplications
// dominate.
inline double gemm_points(double elements, int64_t rows) {
  constexpr double kMultiplicationsPerPoint = 32;
  return elements * std::max(1.0, static_cast<double>(rows) / kMultiplicationsPerPoint);
}

struct GemmShape {
  GemmType type = GemmType::kFloat;
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t batches = 0;  // 0: two matrices without a batch dim
  // Which dims have stride 1. left_transposed: the rows of the left matrix, not the depth. right_row_major: the columns
  // of the right matrix, not the depth (F.linear's weights have it along the depth).
  bool left_transposed = false, right_row_major = false;
  auto operator<=>(const GemmShape&) const = default;

  // Whether the loops for few rows support it (gemm_call.h).
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

  // Number of multiplications. A call costs some 10 us, and the first one of a shape some 300 us.
  static constexpr double kFewestForOneDnn = 1 << 19;
};

}  // namespace torch_remote::worker::kernels

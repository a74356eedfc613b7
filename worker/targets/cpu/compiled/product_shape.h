#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

#include "ir/fusion/fusion.h"
#include "worker/targets/cpu/loops/product_call.h"

namespace torch_remote::worker::kernels {

// What a product with so many elements, each read once, and rows does, in points of other kernels (Launches::points).
// With few rows the elements come from memory, and each is a point; with many it is the multiplications that count.
inline double product_points(double elements, int64_t rows) {
  constexpr double kMultiplicationsPerPoint = 32;
  return elements * std::max(1.0, static_cast<double>(rows) / kMultiplicationsPerPoint);
}

struct ProductShape {
  ProductType type = ProductType::kFloat;
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t batches = 0;  // 0: it is of two matrices
  // Where neighbours lie: of the left one along rows and not along depth, of the right one along columns and not along
  // depth (as F.linear's weights do).
  bool left_across = false, right_along_columns = false;
  auto operator<=>(const ProductShape&) const = default;

  // What the loops for few rows may do (product_call.h).
  bool may_be_loops() const {
    return rows <= ir::kMostProductRows && batches == 0 && !left_across && !right_along_columns;
  }
  // What oneDNN may be faster at than what torch calls for the type.
  bool may_be_onednn() const {
    return type == ProductType::kFloat && static_cast<double>(rows) * static_cast<double>(columns) *
                                                  static_cast<double>(depth) *
                                                  static_cast<double>(batches == 0 ? 1 : batches) >=
                                              kFewestForOneDnn;
  }

  // Multiplications. A call costs some 10 us, and the first one of a shape 300.
  static constexpr double kFewestForOneDnn = 1 << 19;
};

}  // namespace torch_remote::worker::kernels

#pragma once

#include <compare>
#include <cstdint>

#include "worker/kernels/product_call.h"

namespace torch_remote::worker::kernels {

struct ProductShape {
  ProductType type = ProductType::kFloat;
  int64_t rows = 0, columns = 0, depth = 0;
  auto operator<=>(const ProductShape&) const = default;
};

}  // namespace torch_remote::worker::kernels

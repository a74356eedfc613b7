#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "ir/graph.h"
#include "worker/runner/plugin.h"
#include "worker/targets/cpu/compiled/product_shape.h"

namespace torch_remote::worker::kernels {

// Of a product in float32.
ProductShape shape_of(const tr_product& product);

// `aten::mm`, `addmm`, `bmm` or `baddbmm` in float32 with the sizes of one run, as a library does it
// (Runner::products).
class LibraryProduct {
 public:
  // Null where it is left to the op: other ops, dtypes or strides, factors other than 1; sizes that do not go together
  // (whose error is the op's to tell); nothing to compute.
  static std::unique_ptr<LibraryProduct> bind(const ir::Graph& graph, const ir::Node& node,
                                              std::span<const int64_t> values);

  ProductShape shape() const { return shape_of(product_); }
  // What it does, in points of other kernels (Launches::points).
  double points() const;
  // False: the library does not do it.
  bool run(std::span<const tr_buffer> buffers, const std::function<bool(const tr_product&)>& library) const;

 private:
  friend class LibraryProductBinder;
  struct Place {
    uint32_t buffer = 0;
    int64_t offset = 0;  // bytes
  };

  LibraryProduct() = default;

  tr_product product_{};  // without addresses
  Place left_, right_, added_, result_;
  bool adds_ = false;
};

}  // namespace torch_remote::worker::kernels

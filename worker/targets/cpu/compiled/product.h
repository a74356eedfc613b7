#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "ir/graph.h"
#include "worker/device/strided_copy.h"
#include "worker/runner/plugin.h"
#include "worker/targets/cpu/compiled/product_shape.h"
#include "worker/targets/cpu/loops/product_call.h"

namespace torch_remote::worker::kernels {

// The loops for a target of kernels (host_target, kernel_runner.h); null: there are none.
const ProductLoops* product_loops(std::string_view target);

// Does a call, on the threads that `parallel` has if it is worth one's waking.
void run_product(const ProductLoops& loops, const ProductCall& call, const ParallelFor& parallel);

// `aten::mm` or `aten::addmm` of up to ir::kMostProductRows rows and a matrix whose columns have their elements side by
// side, with the sizes of one run, f32, bf16 or f16.
class Product {
 public:
  // Null where it does not do the node: other ops, dtypes, sizes or strides; sizes that do not go together (whose error
  // is the next runner's to tell); nothing to compute.
  static std::unique_ptr<Product> bind(const ir::Graph& graph, const ir::Node& node, std::span<const int64_t> values,
                                       const ProductLoops& loops);

  ProductShape shape() const { return {call_.type, call_.rows, call_.columns, call_.depth}; }
  // What it does, in points of other kernels (Launches::points).
  double points() const;
  // Bytes that it needs beside buffers.
  size_t scratch() const;
  void run(std::span<const tr_buffer> buffers, const ParallelFor& parallel) const;

 private:
  friend class ProductBinder;
  struct Place {
    uint32_t buffer = 0;
    int64_t offset = 0;  // bytes
  };

  explicit Product(const ProductLoops& loops) : loops_(loops) {}

  const ProductLoops& loops_;
  ProductCall call_;  // without addresses
  Place left_, right_, result_, added_;
  bool adds_ = false;
};

}  // namespace torch_remote::worker::kernels

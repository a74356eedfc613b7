#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// The iteration points of an op that reads or writes at indices, and the elements of each point. Writes to an element
// that several points share happen in the order of the points. So results are reproducible, and equal those of a single
// thread.
class IndexedPoints {
 public:
  IndexedPoints(PlanBuilder& plan, const OpTensor& self) : plan_(plan), self_(self) {
    arguments_.item = ir::item_size(self.dtype);
  }

  // Adds a dim; outer dims come first. The strides are those of `self` and of the values along it.
  size_t add_dim(int64_t size, int64_t self_stride, int64_t value_stride);
  // Adds an index along dim `dim` of `self`. The index varies along the `rank` dims that begin with `first`; its own
  // dims are broadcast to the last of these.
  void add_index(const OpTensor& given, int64_t dim, size_t first, size_t rank);
  void wrap() { arguments_.allows_negative = 1; }
  void skip(int64_t index) { arguments_.skipped = index; }

  Status read(Location values) { return launch("index_read", values); }
  // Points that share an element must have the same value.
  Status write(Location values) { return launch("index_write", values); }
  // Indices vary along the first `key_dims` dims.
  Status apply(Location values, int64_t key_dims, IndexApplyArguments apply);

 private:
  Status check(Location values) const;
  void split_parts();
  void count();
  Status launch(const char* kernel, Location values);
  std::span<const Location> locations() const { return {locations_, static_cast<size_t>(arguments_.indices)}; }

  PlanBuilder& plan_;
  const OpTensor self_;
  IndexArguments arguments_;
  Location locations_[kMaxIndices];
  bool fits_ = true;  // Each index is along a dim of `self`, and varies along dims that points can have.
};

}  // namespace torch_remote::worker::cuda

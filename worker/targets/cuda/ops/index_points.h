#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"

namespace torch_remote::worker::cuda {

// The points of an op that reads or writes where indices say, and where they have their elements. Writes to elements
// that several points share are done in the order of these points: results are the same in each run, and those of one
// thread.
class Points {
 public:
  Points(OpPlanner& planner, const OpTensor& self) : planner_(planner), self_(self) {
    arguments_.item = ir::item_size(self.dtype);
  }

  // A dim, outer ones first: how far apart elements of `self` and of the values are along it.
  size_t add_dim(int64_t size, int64_t self_stride, int64_t value_stride);
  // An index along a dim of `self`. It varies along the dims that begin with `first`, as its own dims say (broadcast to
  // the last of `rank` such dims).
  void add_index(const OpTensor& given, int64_t dim, size_t first, size_t rank);
  void wrap() { arguments_.wraps = 1; }
  void skip(int64_t index) { arguments_.skipped = index; }

  Status read(Place values) { return launch("index_read", values); }
  // Values are the same wherever points share an element.
  Status write(Place values) { return launch("index_write", values); }
  // The first `key_dims` dims are those that indices vary along.
  Status apply(Place values, int64_t key_dims, IndexApplyArguments apply);

 private:
  Status check() const;
  void split_parts();
  void count();
  Status launch(const char* kernel, Place values);
  std::span<const Place> places() const { return {places_, static_cast<size_t>(arguments_.indices)}; }

  OpPlanner& planner_;
  const OpTensor self_;
  IndexArguments arguments_;
  Place places_[kMostIndices];
};

}  // namespace torch_remote::worker::cuda

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/targets/cuda/ops/plan/launch_builder.h"
#include "worker/targets/cuda/ops/plan/op_node.h"
#include "worker/targets/cuda/ops/plan/op_plan.h"
#include "worker/targets/cuda/ops/plan/op_tensor.h"

namespace torch_remote::worker::cuda {

// Adds the steps of a node's plan for one run's values. Needs no GPU.
class PlanBuilder {
 public:
  // Both must outlive the builder.
  PlanBuilder(OpNode& node, OpPlan* plan);
  PlanBuilder(const PlanBuilder&) = delete;
  PlanBuilder& operator=(const PlanBuilder&) = delete;

  OpNode& node() { return node_; }
  OpPlan& built() { return *plan_; }  // The plan so far.

  // Requests scratch memory for the time of the plan's steps; its contents are undefined.
  Location scratch(uint64_t nbytes);
  // A contiguous tensor in scratch memory.
  OpTensor scratch_tensor(ir::DType dtype, std::vector<int64_t> sizes);
  // A contiguous copy in scratch memory, broadcast to `sizes`.
  OpTensor copy_of(const OpTensor& tensor, ir::DType dtype, std::vector<int64_t> sizes);
  // The tensor's elements, contiguous and in that dtype: the tensor itself if it fits, else a copy.
  Location packed(const OpTensor& tensor, ir::DType dtype);
  Location packed(const OpTensor& tensor) { return packed(tensor, tensor.dtype); }
  // The same, broadcast to `sizes`.
  Location expanded(const OpTensor& tensor, ir::DType dtype, const std::vector<int64_t>& sizes);
  // `packed` as a tensor.
  OpTensor packed_tensor(const OpTensor& tensor, ir::DType dtype);
  // `packed` as a tensor of one dim.
  OpTensor flat(const OpTensor& tensor, ir::DType dtype);
  OpTensor flat(const OpTensor& tensor) { return flat(tensor, tensor.dtype); }
  // The absolute values of complex numbers, as a real contiguous tensor in scratch memory.
  OpTensor absolute_values(const OpTensor& tensor);
  // The tensor, copied if it shares a buffer with `written`.
  OpTensor without_overlap(const OpTensor& tensor, const OpTensor& written);
  // Where to write a result's contiguous elements. It is in scratch memory if the result is strided or an operand
  // shares its buffer; `finish` then adds the copy.
  Location output(const OpTensor& to);
  // The same as a tensor.
  OpTensor output_tensor(const OpTensor& to);
  // The same for elements with the dtype and strides of `made`. `fits`: the result's memory can be written like that.
  Location output(const OpTensor& to, OpTensor made, bool fits);

  // Broadcasts `from`. Requires (OpNode::require) that its sizes can be broadcast.
  void copy(const OpTensor& from, const OpTensor& to);
  // Sets contiguous elements, of at most 8 bytes, to these bits.
  void fill(Location to, int64_t count, ir::DType dtype, uint64_t bits);
  void zero(Location to, uint64_t nbytes) { plan_->steps.emplace_back(OpFill{to, nbytes, 0}); }
  void upload(OpUpload upload) { plan_->steps.emplace_back(std::move(upload)); }
  // `grid`: number of blocks; `block`: threads per block.
  template <typename T>
  LaunchBuilder<T> launch(KernelFile file, const char* kernel, const T& arguments, int64_t grid, unsigned block = 256) {
    return {&plan_->steps, file, kernel, arguments, grid, block};
  }
  // Add an operand to which failures of the node's kernels can refer; return its number. The parameters are members of
  // IndexedOperand (deferred_failures.h).
  uint32_t add_operand(int64_t dim, std::string message = {});
  uint32_t add_described_operand(std::string (*describe)(int64_t index, int64_t bound));
  // Whether elements at these strides are in memory of the node's tensors, or in the scratch memory. `item`: bytes of
  // an element.
  bool is_inside(const Location& at, int64_t item, std::span<const int64_t> sizes,
                 std::span<const int64_t> strides) const;
  // Must be called after the last step. kUnsupported: a step would access other memory, a launch has too many blocks,
  // or a condition of OpNode::require does not hold.
  Status finish();

 private:
  bool is_read(uint32_t buffer) const;
  uint64_t end_of(uint32_t buffer) const;
  bool is_valid(const OpStep& step) const;
  void add_copy(Location from, ir::DType from_type, std::span<const int64_t> from_strides, const OpTensor& to);
  // Copies between complex and real dtypes.
  void add_parts_copy(Location from, ir::DType from_type, std::span<const int64_t> from_strides, const OpTensor& to);

  OpNode& node_;
  OpPlan* const plan_;
  std::map<uint32_t, uint64_t> ends_;  // One past the last byte of each buffer that the node's views reach.
  struct DeferredCopy {
    OpTensor from, to;
  };
  std::vector<DeferredCopy> deferred_copies_;
};

// Plans the node's first result. The client may have recorded it without sizes (a dynamic result), although the sizes
// do not depend on data. `make` adds the steps that write its contiguous elements. For a dynamic result, `make` is
// called later, by OpPlan::plan_rest, when the builder may be gone: it must own what it uses, and add steps only to its
// argument. kUnsupported: the node has no first result, or one with another dtype or other sizes.
using MakeResult = std::function<void(std::vector<OpStep>* steps, Location to)>;
Status make_result(PlanBuilder& plan, ir::DType dtype, const std::vector<int64_t>& sizes, const MakeResult& make);

}  // namespace torch_remote::worker::cuda

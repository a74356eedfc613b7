#include <algorithm>
#include <cmath>
#include <string>

#include "worker/targets/cuda/kernels/bag_arguments.h"
#include "worker/targets/cuda/ops/index_points.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"
#include "worker/targets/cuda/ops/op_sort.h"

// Sums, means and maxima of bags of rows of a table (embedding_bag), and gradients of tables.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// The result, zeroed; rows are then added to it.
OpTensor cleared(PlanBuilder& plan, const OpTensor& made) {
  OpTensor to = plan.output_tensor(made);
  plan.zero(to.location, to.nbytes());
  return to;
}

// Adds a row of values to each index's row of the table. The row comes from `grad`, or is that of the index's bag.
Status add_rows(OpNode& node, PlanBuilder& plan, const OpTensor& grad, const OpTensor& indices, const OpTensor& made,
                const std::optional<OpTensor>& bags, const std::optional<OpTensor>& sizes) {
  const int64_t count = indices.count(), length = made.sizes[1];
  const auto scales = node.tensor("per_sample_weights");
  const bool is_rows = grad.sizes.size() == 2 ? grad.sizes[1] == length
                                              : !bags && grad.count() == count_of(std::vector<int64_t>{count, length});
  if (!is_rows || !ir::is_float(made.dtype) || !has_count(scales, count))
    return unsupported("of sizes that do not match");
  const OpTensor to = cleared(plan, made);
  if (count == 0 || length == 0) return {};
  const OpTensor index = plan.flat(indices, DType::kInt64);
  const OpTensor values = plan.scratch_tensor(to.dtype, {count, length});
  Location keys;
  if (node.flag("scale_grad_by_freq")) {
    Sorted sorted;
    if (Status status = sort_tensor(plan, index, index.location, {1, count, 1}, false, &sorted); !status.ok()) {
      return status;
    }
    keys = sorted.keys;
  }
  OpTensor rows = grad;  // [bags or indices, length]
  if (!bags && rows.sizes.size() != 2) {
    rows.location = plan.packed(grad);
    rows.sizes = {count, length};
    rows.strides = {length, 1};
  }
  BagSpreadArguments spread{
      .count = count, .length = length, .dtype = static_cast<i64>(to.dtype), .bag_count = rows.sizes[0]};
  std::ranges::copy(rows.strides, spread.grad_strides);
  const Location of_bags = bags ? plan.packed(*bags, DType::kInt64) : Location();
  const Location of_sizes = sizes ? plan.packed(*sizes, DType::kInt64) : Location();
  const Location of_scales = scales ? plan.packed(*scales, to.dtype) : Location();
  plan.launch(KernelFile::kBag, "bag_spread", spread, blocks_for(values.count()))
      .at(&BagSpreadArguments::grad, rows.location)
      .at(&BagSpreadArguments::bags, of_bags)
      .at(&BagSpreadArguments::sizes, of_sizes)
      .at(&BagSpreadArguments::scales, of_scales)
      .at(&BagSpreadArguments::indices, index.location)
      .at(&BagSpreadArguments::keys, keys)
      .at(&BagSpreadArguments::values, values.location);
  IndexedPoints points(plan, to);
  points.add_dim(count, 0, length);
  points.add_dim(length, to.strides[1], 1);
  points.add_index(index, 0, 0, 1);
  if (const int64_t padding = node.integer("padding_idx", -1); padding >= 0) points.skip(padding);
  return points.apply(values.location, 1, {.combine = Combine::kSum});
}

// The bag of each index, if the forward op has not stored it.
OpTensor bags_of(PlanBuilder& plan, const OpTensor& offsets, int64_t count, int64_t bags) {
  const OpTensor made = plan.scratch_tensor(DType::kInt64, {count});
  const Location of_offsets = plan.packed(offsets, DType::kInt64);
  const BagArguments arguments{
      .count = count, .bag_count = std::min(bags, offsets.count()), .index_dtype = static_cast<i64>(DType::kInt64)};
  plan.launch(KernelFile::kBag, "bag_numbers", arguments, blocks_for(count))
      .at(&BagArguments::offsets, of_offsets)
      .at(&BagArguments::bags, made.location);
  return made;
}

// What bag_forward reports about offsets.
std::string describe_offset(int64_t offset, int64_t bound) {
  const std::string number = std::to_string(offset);
  if (bound == kFirstOffset) {
    return "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. However, "
           "got " +
           number;
  }
  if (bound > kLastOffset) return {};
  return "offsets[-1] can not be greater than input's length " + std::to_string(kLastOffset - bound) +
         " but got offsets[-1] of " + number;
}

RowNorm row_norm_of(double p) {
  if (std::isinf(p)) return p > 0 ? RowNorm::kMax : RowNorm::kMin;
  return p == 0 ? RowNorm::kZero : p == 1 ? RowNorm::kL1 : p == 2 ? RowNorm::kL2 : RowNorm::kPower;
}

}  // namespace

Status bag_plans::forward(OpNode& node, PlanBuilder& plan) {
  const auto weight = node.tensor("weight"), indices = node.tensor("indices"), offsets = node.tensor("offsets");
  const auto scales = node.tensor("per_sample_weights"), to = node.result(0);
  if (!weight || !indices || !offsets || !to || weight->sizes.size() != 2 || to->sizes.size() != 2) {
    return unsupported("of other dims");
  }
  const auto bags = node.result(1), sizes = node.result(2), most = node.result(3);
  BagArguments arguments{.rows = weight->sizes[0],
                         .length = weight->sizes[1],
                         .count = indices->count(),
                         .bag_count = to->sizes[0],
                         .offset_count = offsets->count(),
                         .padding = node.integer("padding_idx", -1),
                         .dtype = static_cast<i64>(weight->dtype),
                         .mode = static_cast<BagMode>(node.integer("mode"))};
  if (arguments.mode > BagMode::kMax || !ir::is_float(weight->dtype)) return unsupported("in this mode");
  const bool fits = to->dtype == weight->dtype && to->sizes[1] == weight->sizes[1] &&
                    offsets->count() >= arguments.bag_count && has_count(scales, indices->count());
  if (!fits) return unsupported("of sizes that do not match");
  std::ranges::copy(weight->strides, arguments.weight_strides);
  const DType index_dtype = bags ? bags->dtype : sizes ? sizes->dtype : most ? most->dtype : DType::kInt64;
  if (index_dtype != DType::kInt64 && index_dtype != DType::kInt32) return unsupported("to indices of this dtype");
  arguments.index_dtype = static_cast<i64>(index_dtype);
  const Location of_indices = plan.packed(*indices, DType::kInt64), of_offsets = plan.packed(*offsets, DType::kInt64);
  const Location of_scales = scales ? plan.packed(*scales, weight->dtype) : Location();
  // Results that have more elements than are written (an extra offset, unused maxima) are zero there.
  const auto output = [&](const std::optional<OpTensor>& made, int64_t written) {
    if (!made || made->count() == 0) return Location();
    const Location location = plan.output(*made);
    node.require(made->dtype == index_dtype && made->count() >= written);
    if (made->count() != written) plan.zero(location, made->nbytes());
    return location;
  };
  const bool has_most = arguments.mode == BagMode::kMax;
  const Location out = plan.output(*to), of_sizes = output(sizes, arguments.bag_count);
  const Location of_most = output(most, has_most ? to->count() : 0);
  const Location of_bags = output(bags, arguments.count);
  plan.add_described_operand(describe_offset);
  plan.launch(KernelFile::kBag, "bag_forward", arguments, blocks_for(arguments.bag_count * arguments.length))
      .at(&BagArguments::weight, weight->location)
      .at(&BagArguments::indices, of_indices)
      .at(&BagArguments::offsets, of_offsets)
      .at(&BagArguments::scales, of_scales)
      .at(&BagArguments::out, out)
      .at(&BagArguments::sizes, of_sizes)
      .at(&BagArguments::max_indices, has_most ? of_most : Location())
      .failure([](const BagArguments& words) { return &words.failure; });
  if (of_bags.buffer == kNoLocation) return {};
  plan.launch(KernelFile::kBag, "bag_numbers", arguments, blocks_for(arguments.count))
      .at(&BagArguments::offsets, of_offsets)
      .at(&BagArguments::bags, of_bags);
  return {};
}

Status bag_plans::backward(OpNode& node, PlanBuilder& plan) {
  const auto grad = node.tensor("grad"), indices = node.tensor("indices"), sizes = node.tensor("bag_size"),
             offsets = node.tensor("offsets"), made = node.result(0);
  auto bags = node.tensor("offset2bag");
  if (node.flag("sparse")) return unsupported("to a sparse gradient");
  if (!grad || !indices || !made || grad->dtype != made->dtype || grad->sizes.size() != 2 || made->sizes.size() != 2) {
    return unsupported("of other dims");
  }
  const auto mode = static_cast<BagMode>(node.integer("mode"));
  if (mode != BagMode::kMax) {
    if (offsets && bags && bags->count() != indices->count()) {
      bags = bags_of(plan, *offsets, indices->count(), grad->sizes[0]);
    }
    if (!bags || bags->count() != indices->count()) return unsupported("without the bags of indices");
    if (mode == BagMode::kMean && (!sizes || sizes->count() < grad->sizes[0]))
      return unsupported("without sizes of bags");
    return add_rows(node, plan, *grad, *indices, *made, bags, mode == BagMode::kMean ? sizes : std::nullopt);
  }
  const auto most = node.tensor("maximum_indices");
  if (!most || most->sizes != grad->sizes) return unsupported("without the places of maxima");
  const OpTensor to = cleared(plan, *made);
  IndexedPoints points(plan, to);
  points.add_dim(grad->sizes[0], 0, grad->strides[0]);
  points.add_dim(grad->sizes[1], to.strides[1], grad->strides[1]);
  points.add_index(*most, 0, 0, 2);
  points.skip(-1);  // The index of empty bags.
  return points.apply(grad->location, 2, {.combine = Combine::kSum});
}

Status bag_plans::scales_backward(OpNode& node, PlanBuilder& plan) {
  const auto grad = node.tensor("grad"), weight = node.tensor("weight"), indices = node.tensor("indices"),
             offsets = node.tensor("offsets"), to = node.result(0);
  if (!grad || !weight || !indices || !offsets || !to || grad->sizes.size() != 2 || weight->sizes.size() != 2 ||
      grad->dtype != weight->dtype || !ir::is_float(grad->dtype) || grad->sizes[1] != weight->sizes[1] ||
      !is_of(to, grad->dtype, indices->count())) {
    return unsupported("of other dims");
  }
  BagScaleArguments arguments{.rows = weight->sizes[0],
                              .length = weight->sizes[1],
                              .count = indices->count(),
                              .bag_count = std::min(grad->sizes[0], offsets->count()),
                              .padding = node.integer("padding_idx", -1),
                              .dtype = static_cast<i64>(grad->dtype)};
  std::ranges::copy(grad->strides, arguments.grad_strides);
  std::ranges::copy(weight->strides, arguments.weight_strides);
  const Location of_indices = plan.packed(*indices, DType::kInt64), of_offsets = plan.packed(*offsets, DType::kInt64);
  plan.add_operand(-1);
  plan.launch(KernelFile::kBag, "bag_scales", arguments, blocks_for(arguments.count))
      .at(&BagScaleArguments::grad, grad->location)
      .at(&BagScaleArguments::weight, weight->location)
      .at(&BagScaleArguments::indices, of_indices)
      .at(&BagScaleArguments::offsets, of_offsets)
      .at(&BagScaleArguments::out, plan.output(*to))
      .failure([](const BagScaleArguments& words) { return &words.failure; });
  return {};
}

Status bag_plans::embedding_backward(OpNode& node, PlanBuilder& plan) {
  const auto grad = node.tensor("grad_output"), index = node.tensor("indices"), made = node.result(0);
  if (!grad || !index || !made || grad->dtype != made->dtype || made->sizes.size() != 2) {
    return unsupported("without a result");
  }
  if (node.flag("scale_grad_by_freq")) return add_rows(node, plan, *grad, *index, *made, std::nullopt, std::nullopt);
  const OpTensor to = cleared(plan, *made);
  IndexedPoints points(plan, to);
  const size_t rank = index->sizes.size();
  if (grad->sizes.size() != rank + 1) return unsupported("of other dims");
  for (size_t d = 0; d < rank; ++d) points.add_dim(index->sizes[d], 0, grad->strides[d]);
  points.add_dim(to.sizes[1], to.strides[1], grad->strides[rank]);
  points.add_index(*index, 0, 0, rank);
  if (const int64_t padding = node.integer("padding_idx", -1); padding >= 0) points.skip(padding);
  return points.apply(grad->location, static_cast<int64_t>(rank), {.combine = Combine::kSum});
}

Status bag_plans::embedding_renorm(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), indices = node.tensor("indices");
  if (!self || !indices || self->sizes.size() != 2 || !ir::is_float(self->dtype)) return unsupported("of other dims");
  const auto made = node.result(0);
  if (made && (made->sizes != self->sizes || made->dtype != self->dtype)) return unsupported("into another tensor");
  if (made && (made->location.buffer != self->location.buffer || made->location.offset != self->location.offset)) {
    plan.copy(*self, *made);
  }
  const OpTensor& to = made ? *made : *self;
  const double p = node.number("norm_type", 2);
  RenormArguments arguments{.rows = to.sizes[0],
                            .length = to.sizes[1],
                            .count = indices->count(),
                            .dtype = static_cast<i64>(to.dtype),
                            .norm = row_norm_of(p),
                            .p = p,
                            .most = node.number("max_norm")};
  std::ranges::copy(to.strides, arguments.weight_strides);
  const Location named = plan.packed(*indices, DType::kInt64);
  const Location marks = plan.scratch(static_cast<uint64_t>(arguments.rows));
  plan.zero(marks, static_cast<uint64_t>(arguments.rows));
  plan.add_operand(-1);
  plan.launch(KernelFile::kBag, "bag_mark", arguments, blocks_for(arguments.count))
      .at(&RenormArguments::indices, named)
      .at(&RenormArguments::marks, marks)
      .failure([](const RenormArguments& words) { return &words.failure; });
  plan.launch(KernelFile::kBag, "bag_renorm", arguments, std::min(arguments.rows, kMaxBlocks), 128)
      .at(&RenormArguments::weight, to.location)
      .at(&RenormArguments::marks, marks);
  return {};
}

}  // namespace torch_remote::worker::cuda

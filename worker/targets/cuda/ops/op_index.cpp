#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/index_points.h"
#include "worker/targets/cuda/ops/op_complex.h"
#include "worker/targets/cuda/ops/op_lowered.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"
#include "worker/targets/cuda/ops/op_select.h"

// Reads and writes at indices. Writes to an element that several points share happen in the order of the points. So
// results are reproducible, and equal those of a single thread.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

int64_t dim_of(OpNode& node, const OpTensor& self) {
  const int64_t dim = node.integer("dim");
  return dim < 0 ? dim + std::max<int64_t>(static_cast<int64_t>(self.sizes.size()), 1) : dim;
}

// The tensor that an op changes: its result with the elements of `self` copied into it, or `self` itself.
std::optional<OpTensor> target_of(OpNode& node, PlanBuilder& plan, const OpTensor& self) {
  const std::optional<OpTensor> to = node.result(0);
  if (to && (to->location.buffer != self.location.buffer || to->location.offset != self.location.offset))
    plan.copy(self, *to);
  return to ? to : self;
}

int64_t stride_at(const OpTensor& tensor, size_t dim) { return dim < tensor.strides.size() ? tensor.strides[dim] : 0; }

// Adds the dims of an index that has the sizes of the values. `self` may have another size along `dim`.
void add_dims(IndexedPoints& points, const OpTensor& index, const OpTensor& self, const OpTensor* values, int64_t dim) {
  for (size_t d = 0; d < index.sizes.size(); ++d) {
    const int64_t self_stride = static_cast<int64_t>(d) == dim ? 0 : stride_at(self, d);
    points.add_dim(index.sizes[d], self_stride, values != nullptr ? stride_at(*values, d) : 0);
  }
  points.add_index(index, dim, 0, index.sizes.size());
}

bool find_combine(std::string_view name, Combine* combine) {
  const std::pair<std::string_view, Combine> names[] = {
      {"sum", Combine::kSum},  {"add", Combine::kSum},  {"prod", Combine::kProduct}, {"multiply", Combine::kProduct},
      {"amax", Combine::kMax}, {"amin", Combine::kMin}, {"mean", Combine::kMean}};
  for (const auto& [known, value] : names) {
    if (known == name) *combine = value;
    if (known == name) return true;
  }
  return false;
}

// A number as one element. None: the argument is not such a number.
std::optional<OpTensor> number_of(OpNode& node, PlanBuilder& plan, std::string_view name, DType dtype) {
  if (ir::is_complex(dtype)) return complex_number(node, plan, name, dtype);
  OpTensor number = plan.scratch_tensor(dtype, {});
  plan.fill(number.location, 1, dtype, node.bits(name, dtype));
  return number;
}

Status scatter(OpNode& node, PlanBuilder& plan, IndexApplyArguments apply) {
  const std::optional<OpTensor> self = node.tensor("self"), index = node.tensor("index");
  if (!self || !index) return unsupported("without an index");
  if (const ir::Arg* const reduce = node.argument("reduce")) {
    if (!find_combine(reduce->text, &apply.combine)) return unsupported("reduce=" + reduce->text);
    apply.with_self = node.flag("include_self", true) ? 1 : 0;
  }
  const std::optional<OpTensor> to = target_of(node, plan, *self), source = node.tensor("src");
  const int64_t dim = dim_of(node, *self);
  if (!source && !node.has("value")) return unsupported("without values");
  IndexedPoints points(plan, *to);
  if (source) {
    const OpTensor values = plan.without_overlap(*source, *to);
    if (values.dtype != to->dtype) return unsupported("values of another dtype");
    add_dims(points, *index, *to, &values, dim);
    return points.apply(values.location, static_cast<int64_t>(index->sizes.size()), apply);
  }
  const std::optional<OpTensor> value = number_of(node, plan, "value", to->dtype);
  if (!value) return unsupported("of such a number");
  add_dims(points, *index, *to, nullptr, dim);
  if (apply.combine == Combine::kSet) return points.write(value->location);
  return points.apply(value->location, static_cast<int64_t>(index->sizes.size()), apply);
}

// Writes maxima to their positions in a plane of zeros. If several have the same position, the last one wins.
Status max_unpool(OpNode& node, PlanBuilder& plan, size_t space) {
  const std::optional<OpTensor> self = node.tensor("self"), index = node.tensor("indices"), to = node.result(0);
  if (!self || !index || !to || self->sizes.size() < space || to->sizes.size() != self->sizes.size()) {
    return unsupported("without indices");
  }
  const size_t rank = self->sizes.size(), lead = rank - space;
  OpTensor planes = *to;
  planes.location = plan.output(*to);
  plan.zero(planes.location, to->nbytes());
  planes.sizes.assign(to->sizes.begin(), to->sizes.begin() + static_cast<std::ptrdiff_t>(lead));
  planes.sizes.push_back(1);
  for (size_t d = lead; d < rank; ++d) planes.sizes.back() *= to->sizes[d];
  planes.strides = packed_strides(planes.sizes);
  IndexedPoints points(plan, planes);
  for (size_t d = 0; d < rank; ++d) {
    points.add_dim(self->sizes[d], d < lead ? planes.strides[d] : 0, self->strides[d]);
  }
  points.add_index(*index, static_cast<int64_t>(lead), 0, rank);
  return points.apply(self->location, static_cast<int64_t>(rank), {});
}

// index_add, index_copy, index_fill, index_reduce: the index's dim comes first.
Status write_slices(OpNode& node, PlanBuilder& plan, IndexApplyArguments apply) {
  const std::optional<OpTensor> self = node.tensor("self"), index = node.tensor("index");
  if (!self || !index) return unsupported("without an index");
  if (const ir::Arg* const reduce = node.argument("reduce")) {
    if (!find_combine(reduce->text, &apply.combine)) return unsupported("reduce=" + reduce->text);
    apply.with_self = node.flag("include_self", true) ? 1 : 0;
  }
  const std::optional<OpTensor> to = target_of(node, plan, *self);
  std::optional<OpTensor> source = node.tensor("source");
  OpTensor values;
  if (source) {
    values = plan.without_overlap(*source, *to);
    if (values.dtype != to->dtype) return unsupported("values of another dtype");
  } else if (const std::optional<OpTensor> value = node.tensor("value")) {
    values = *value;
    values.location = plan.packed(*value, to->dtype);
  } else if (node.has("value")) {
    const std::optional<OpTensor> number = number_of(node, plan, "value", to->dtype);
    if (!number) return unsupported("of such a number");
    values = *number;
  } else {
    return unsupported("without values");
  }
  const auto dim = static_cast<size_t>(dim_of(node, *self));
  const auto stride = [&](size_t d) { return source && d < values.sizes.size() ? values.strides[d] : 0; };
  IndexedPoints points(plan, *to);
  const int64_t count = index->count();
  points.add_dim(count, 0, stride(dim));
  for (size_t d = 0; d < to->sizes.size(); ++d) {
    if (d != dim) points.add_dim(to->sizes[d], to->strides[d], stride(d));
  }
  points.add_index(*index, static_cast<int64_t>(dim), 0, 1);
  if (!source) {
    points.wrap();
    return points.write(values.location);
  }
  return points.apply(values.location, 1, apply);
}

// x[:, i, :, j]: the dims without an index keep their order. The broadcast dims of all indices replace the first
// indexed dim. If other dims lie between the indexed ones, the broadcast dims come first.
struct Indexed {
  std::vector<std::pair<size_t, OpTensor>> indices;  // Pairs of dim and index.
  std::vector<int64_t> common;                       // The sizes of the broadcast indices.
  std::vector<size_t> left;                          // Dims of `self` without an index.
  size_t position = 0;                               // The position of the first broadcast dim in the result.
};

bool find_indexed(OpNode& node, const OpTensor& self, Indexed* indexed) {
  const ir::Arg* const list = node.argument("indices");
  if (list == nullptr || list->tag != ir::ArgTag::kList || list->items.size() > self.sizes.size()) return false;
  for (size_t d = 0; d < list->items.size(); ++d) {
    if (list->items[d].tag != ir::ArgTag::kView) continue;
    OpTensor index = node.tensor_of(list->items[d].a);
    if (index.dtype != DType::kInt64 && index.dtype != DType::kInt32) return false;
    indexed->common.resize(std::max(indexed->common.size(), index.sizes.size()), 1);
    indexed->indices.emplace_back(d, std::move(index));
  }
  if (indexed->indices.empty()) return false;
  std::ranges::fill(indexed->common, 1);
  for (const auto& [dim, index] : indexed->indices) {
    const size_t missing = indexed->common.size() - index.sizes.size();
    for (size_t d = 0; d < index.sizes.size(); ++d) {
      if (index.sizes[d] != 1) indexed->common[missing + d] = index.sizes[d];
    }
  }
  const size_t first = indexed->indices.front().first, last = indexed->indices.back().first;
  for (size_t d = 0; d < self.sizes.size(); ++d) {
    if (std::ranges::none_of(indexed->indices, [&](const auto& index) { return index.first == d; })) {
      indexed->left.push_back(d);
    }
  }
  const bool adjacent = last - first + 1 == indexed->indices.size();
  indexed->position = adjacent ? first : 0;
  return true;
}

// Adds the result's dims. The broadcast dims of the indices come at their position, or first.
void add_dims(IndexedPoints& points, const Indexed& indexed, const OpTensor& self,
              std::span<const int64_t> value_strides, bool common_first) {
  const size_t common = indexed.common.size();
  const auto add_common = [&] {
    const size_t first = [&] {
      size_t at = 0;
      for (size_t c = 0; c < common; ++c) {
        const size_t d = points.add_dim(indexed.common[c], 0, value_strides[indexed.position + c]);
        if (c == 0) at = d;
      }
      return at;
    }();
    for (const auto& [dim, index] : indexed.indices) points.add_index(index, static_cast<int64_t>(dim), first, common);
  };
  if (common_first) add_common();
  for (size_t i = 0; i < indexed.left.size(); ++i) {
    if (i == indexed.position && !common_first) add_common();
    const size_t in_result = i < indexed.position ? i : i + common;
    points.add_dim(self.sizes[indexed.left[i]], self.strides[indexed.left[i]], value_strides[in_result]);
  }
  if (indexed.position >= indexed.left.size() && !common_first) add_common();
}

// Writes values where a mask is true; the mask covers the dims from `first` on. There is one value per true element, or
// one for all.
Status write_masked(OpNode& node, PlanBuilder& plan, const OpTensor& to, const OpTensor& mask, size_t first,
                    const OpTensor& values) {
  const size_t rank = to.sizes.size(), covered = mask.sizes.size();
  if (rank > kMaxDims || covered == 0 || first > rank || covered > rank - first) return unsupported("of so many dims");
  if (!std::ranges::equal(mask.sizes, std::span(to.sizes).subspan(first, covered))) {
    return unsupported("a mask of other sizes");
  }
  IndexMaskedArguments write;
  IndexArguments& index = write.index;
  index.count = to.count();
  index.rank = static_cast<i64>(rank);
  index.item = ir::item_size(to.dtype);
  write.dtype = static_cast<i64>(to.dtype);
  write.adds = node.flag("accumulate") ? 1 : 0;
  if (write.adds != 0 && !is_kernel_dtype(to.dtype)) return unsupported("sums of these dtypes where a mask says");
  // The values have the sizes of x[mask]: one dim replaces those that the mask covers.
  const size_t result_rank = rank - covered + 1;
  if (values.sizes.size() > result_rank) return unsupported("values of more dims");
  const size_t missing = result_rank - values.sizes.size();
  const auto stride_of = [&](size_t d) {
    return d < missing || values.sizes[d - missing] == 1 ? 0 : values.strides[d - missing];
  };
  const std::vector<int64_t> packed = packed_strides(mask.sizes);
  const bool each = first >= missing && values.sizes[first - missing] != 1;
  for (size_t d = 0; d < rank; ++d) {
    index.sizes[d] = to.sizes[d];
    index.self_strides[d] = to.strides[d];
    const bool is_masked = d >= first && d < first + covered;
    index.index_strides[0][d] = is_masked ? mask.strides[d - first] : 0;
    index.index_strides[1][d] = is_masked && each ? packed[d - first] : 0;
    index.value_strides[d] = is_masked ? 0 : stride_of(d < first ? d : d - covered + 1);
  }
  if (index.count == 0) return {};
  Location numbers;
  if (each) {
    index.steps[1] = stride_of(first);
    index.bounds[1] = values.sizes[first - missing];
    write.last = mask.count() - 1;
    numbers = plan.scratch(8 * static_cast<uint64_t>(mask.count()));
    const Location in = plan.packed(mask);
    plan.launch(KernelFile::kScan, "scan_sum_int_rows",
                ScanArguments{.length = mask.count(),
                              .in_dtype = static_cast<i64>(DType::kBool),
                              .out_dtype = static_cast<i64>(DType::kInt64)},
                1)
        .at(&ScanArguments::in, in)
        .at(&ScanArguments::out, numbers);
    plan.add_operand(kMaskedCount);
  }
  // The values of the masked points are one more dim.
  std::vector<int64_t> sizes = to.sizes, strides(index.value_strides, index.value_strides + rank);
  sizes.push_back(each ? index.bounds[1] : 1);
  strides.push_back(index.steps[1]);
  if (!plan.is_inside(values.location, index.item, sizes, strides)) return unsupported("values of other sizes");
  plan.launch(KernelFile::kIndex, "index_write_masked", write, blocks_for(index.count))
      .at_word([](const IndexMaskedArguments& words) { return &words.index.self; }, to.location)
      .at_word([](const IndexMaskedArguments& words) { return &words.index.values; }, values.location)
      .at_word([](const IndexMaskedArguments& words) { return &words.index.index[0]; }, mask.location)
      .at_word([](const IndexMaskedArguments& words) { return &words.index.index[1]; }, numbers)
      .failure([](const IndexMaskedArguments& words) { return &words.index.failure; }, each);
  return {};
}

// Moves the class dim of pixels to the end, as it is for rows.
OpTensor with_classes_last(const OpTensor& tensor) {
  if (tensor.sizes.size() != 4) return tensor;
  OpTensor made = tensor;
  for (std::vector<int64_t>* const dims : {&made.sizes, &made.strides}) {
    std::rotate(dims->begin() + 1, dims->begin() + 2, dims->end());
  }
  return made;
}

}  // namespace

// -- Indices for every element ----------------------------------------------------------------------------------------

Status index_plans::gather(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), index = node.tensor("index"), to = node.result(0);
  if (!self || !index || !to) return unsupported("without an index");
  IndexedPoints points(plan, *self);
  add_dims(points, *index, *self, &*to, dim_of(node, *self));
  return points.read(to->location);
}

Status index_plans::take(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), index = node.tensor("index"), to = node.result(0);
  if (!self || !index || !to) return unsupported("without an index");
  IndexedPoints points(plan, plan.flat(*self));
  for (size_t d = 0; d < index->sizes.size(); ++d) points.add_dim(index->sizes[d], 0, stride_at(*to, d));
  points.add_index(*index, 0, 0, index->sizes.size());
  points.wrap();
  return points.read(to->location);
}

// Writes at flat indices: to a contiguous copy if the tensor is strided.
Status index_plans::put(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), index = node.tensor("index"),
                                source = node.tensor("source");
  if (!self || !index || !source || source->dtype != self->dtype || source->count() != index->count()) {
    return unsupported("without values");
  }
  const std::optional<OpTensor> to = target_of(node, plan, *self);
  const OpTensor values = plan.without_overlap(*source, *to), positions = plan.without_overlap(*index, *to);
  const OpTensor flat = plan.flat(*to);
  OpTensor in_order = positions, from = values;
  if (values.sizes != positions.sizes) {
    in_order = plan.flat(positions, DType::kInt64);
    from = plan.flat(values);
  }
  IndexedPoints points(plan, flat);
  for (size_t d = 0; d < from.sizes.size(); ++d) points.add_dim(from.sizes[d], 0, from.strides[d]);
  points.add_index(in_order, 0, 0, from.sizes.size());
  points.wrap();
  const bool adds = node.flag("accumulate");
  const Status status = points.apply(from.location, static_cast<int64_t>(from.sizes.size()),
                                     {.combine = adds ? Combine::kSum : Combine::kSet});
  OpTensor packed = *to;
  packed.location = flat.location;
  packed.strides = packed_strides(to->sizes);
  if (!to->is_packed()) plan.copy(packed, *to);
  return status;
}

Status index_plans::scatter_set(OpNode& node, PlanBuilder& plan) { return scatter(node, plan, {}); }
Status index_plans::scatter_add(OpNode& node, PlanBuilder& plan) {
  return scatter(node, plan, {.combine = Combine::kSum});
}
Status index_plans::max_unpool2d(OpNode& node, PlanBuilder& plan) { return max_unpool(node, plan, 2); }
Status index_plans::max_unpool3d(OpNode& node, PlanBuilder& plan) { return max_unpool(node, plan, 3); }

// Fills elements that may share memory. (Compiled kernels fill tensors whose elements are in memory order.)
Status index_plans::fill(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> to = node.result(0);
  if (!to || node.tensor("value")) return unsupported("with what a tensor has");
  const std::optional<OpTensor> number = number_of(node, plan, "value", to->dtype);
  if (!number) return unsupported("with such a number");
  IndexedPoints points(plan, *to);
  for (size_t d = 0; d < to->sizes.size(); ++d) points.add_dim(to->sizes[d], to->strides[d], 0);
  return points.write(number->location);
}

// -- Indices for slices -----------------------------------------------------------------------------------------------

Status index_plans::index_select(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), index = node.tensor("index"), to = node.result(0);
  if (!self || !index || !to) return unsupported("without an index");
  const auto dim = static_cast<size_t>(dim_of(node, *self));
  IndexedPoints points(plan, *self);
  for (size_t d = 0; d < to->sizes.size(); ++d) {
    points.add_dim(to->sizes[d], d == dim ? 0 : stride_at(*self, d), to->strides[d]);
  }
  if (to->sizes.empty()) points.add_dim(1, 0, 0);
  points.add_index(*index, static_cast<int64_t>(dim), dim, 1);
  return points.read(to->location);
}

Status index_plans::index_add(OpNode& node, PlanBuilder& plan) {
  const ir::Arg* const alpha = node.argument("alpha");
  if (alpha != nullptr && alpha->tag == ir::ArgTag::kComplex) return unsupported("times a complex number");
  IndexApplyArguments apply{.combine = Combine::kSum};
  apply.alpha = node.number("alpha", 1);
  apply.int_alpha = node.integer("alpha", 1);
  return write_slices(node, plan, apply);
}

Status index_plans::index_copy(OpNode& node, PlanBuilder& plan) { return write_slices(node, plan, {}); }

// -- Lists of indices -------------------------------------------------------------------------------------------------

Status index_plans::index(OpNode& node, PlanBuilder& plan) {
  if (node.dynamic_result(0)) return index_by_mask(node, plan);
  const std::optional<OpTensor> self = node.tensor("self"), to = node.result(0);
  Indexed indexed;
  if (!self || !to || !find_indexed(node, *self, &indexed)) return unsupported("indices that are no integers");
  if (to->sizes.size() != indexed.common.size() + indexed.left.size()) return unsupported("of other dims");
  IndexedPoints points(plan, *self);
  add_dims(points, indexed, *self, to->strides, false);
  points.wrap();
  return points.read(to->location);
}

Status index_plans::index_put(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self");
  const std::optional<OpTensor> given = node.tensor("values");
  if (!self || !given || given->dtype != self->dtype) return unsupported("values of another dtype");
  if (const auto mask = find_mask(node)) {
    const std::optional<OpTensor> to = target_of(node, plan, *self);
    const OpTensor values = plan.without_overlap(*given, *to);
    return write_masked(node, plan, *to, plan.without_overlap(mask->first, *to), mask->second, values);
  }
  Indexed indexed;
  if (!find_indexed(node, *self, &indexed)) return unsupported("indices that are no integers");
  const std::optional<OpTensor> to = target_of(node, plan, *self);
  if (to->sizes.size() != self->sizes.size()) return unsupported("of other dims");
  const OpTensor values = plan.without_overlap(*given, *to);
  const size_t rank = indexed.common.size() + indexed.left.size();
  std::vector<int64_t> strides(rank);
  for (size_t d = 0; d < values.sizes.size() && d < rank; ++d) {
    const size_t from = values.sizes.size() - 1 - d;
    strides[rank - 1 - d] = values.sizes[from] == 1 ? 0 : values.strides[from];
  }
  IndexedPoints points(plan, *to);
  add_dims(points, indexed, *to, strides, true);
  points.wrap();
  const bool accumulates = node.flag("accumulate");
  if (!accumulates && values.count() == 1) return points.write(values.location);
  return points.apply(values.location, static_cast<int64_t>(indexed.common.size()),
                      {.combine = accumulates ? Combine::kSum : Combine::kSet});
}

Status index_plans::nll_loss(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), target = node.tensor("target"), to = node.result(0),
                                total = node.result(1);
  if (!self || !target || !to || self->sizes.empty()) return unsupported("of other dims");
  const bool pixels = self->sizes.size() == 4;
  if (self->sizes.size() > 2 && !pixels) return unsupported("of other dims");
  const std::optional<OpTensor> weight = node.tensor("weight");
  const bool one = self->sizes.size() == 1;
  const int64_t count = self->sizes[pixels ? 1 : self->sizes.size() - 1], reduction = node.integer("reduction");
  const int64_t rows = one ? 1 : pixels ? self->sizes[0] * self->sizes[2] * self->sizes[3] : self->sizes[0];
  const bool fits = ir::is_float(self->dtype) && target->count() == rows && has_count(weight, count) &&
                    is_of(to, self->dtype, reduction == 0 ? rows : 1) && is_of(total, self->dtype, 1);
  if (!fits) return unsupported("of sizes that do not match");
  const Location classes = plan.packed(*target, DType::kInt64);
  const NllLossArguments loss{.rows = rows,
                              .classes = count,
                              .row_stride = one      ? 0
                                            : pixels ? count
                                                     : self->strides[0],
                              .class_stride = pixels ? 1 : self->strides.back(),
                              .dtype = static_cast<i64>(self->dtype),
                              .reduction = reduction,
                              .ignored = node.integer("ignore_index", -100)};
  const Location weights = weight ? plan.packed(*weight, self->dtype) : Location{};
  const Location in = pixels ? plan.packed(with_classes_last(*self)) : self->location;
  plan.add_operand(-1);
  plan.launch(KernelFile::kIndex, "nll_loss", loss, 1)
      .at(&NllLossArguments::in, in)
      .at(&NllLossArguments::target, classes)
      .at(&NllLossArguments::weight, weights)
      .at(&NllLossArguments::out, plan.output(*to))
      .at(&NllLossArguments::total, total ? plan.output(*total) : Location{})
      .failure([](const NllLossArguments& words) { return &words.failure; });
  return {};
}

Status index_plans::nll_loss_backward(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> grad = node.tensor("grad_output"), target = node.tensor("target"),
                                total = node.tensor("total_weight"), to = node.result(0);
  if (!grad || !target || !total || !to || to->sizes.empty()) return unsupported("of other dims");
  const bool pixels = to->sizes.size() == 4;
  if (to->sizes.size() > 2 && !pixels) return unsupported("of other dims");
  OpTensor made = with_classes_last(*to), grads = plan.packed_tensor(*grad, grad->dtype);
  const OpTensor rows = plan.flat(*target, DType::kInt64);
  const int64_t reduction = node.integer("reduction");
  if (to->count() != count_of(std::vector<int64_t>{rows.count(), made.sizes.back()}) ||
      (reduction == 0 && grads.count() != rows.count())) {
    return unsupported("of sizes that do not match");
  }
  made.location = plan.output(made);
  made.sizes = {rows.count(), made.sizes.back()};
  made.strides = {made.sizes[1], 1};
  if (reduction == 0) {
    grads.sizes = rows.sizes;
    grads.strides = {1};
  }
  const std::optional<OpTensor> given = node.tensor("weight");
  const OpArgument weight = given ? OpArgument(*given) : OpArgument();
  return plan_op(plan, ir::ops::aten_nll_loss_backward,
                 {grads, {}, rows, weight, reduction, node.integer("ignore_index", -100), *total}, {made});
}

}  // namespace torch_remote::worker::cuda

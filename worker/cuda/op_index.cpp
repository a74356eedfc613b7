#include <algorithm>
#include <string>
#include <utility>

#include "worker/cuda/kernels/arguments.h"
#include "worker/cuda/op_plan.h"

// Reads and writes where indices say. Writes to elements that several points share are done in the order of these
// points: results are the same in each run, and those of one thread.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// The points of an op, and where they have their elements.
class Points {
 public:
  Points(OpPlanner& planner, const OpTensor& self) : planner_(planner), self_(self) {
    arguments_.item = ir::item_size(self.dtype);
  }

  // A dim, outer ones first: how far apart elements of `self` and of the values are along it.
  size_t add_dim(int64_t size, int64_t self_stride, int64_t value_stride) {
    const auto d = static_cast<size_t>(arguments_.rank++);
    if (d >= kMostDims) return d;
    arguments_.sizes[d] = size;
    arguments_.self_strides[d] = self_stride;
    arguments_.value_strides[d] = value_stride;
    return d;
  }
  // An index along a dim of `self`. It varies along the dims that begin with `first`, as its own dims say (broadcast to
  // the last of `rank` such dims).
  void add_index(const OpTensor& given, int64_t dim, size_t first, size_t rank) {
    const auto k = static_cast<size_t>(arguments_.indices++);
    if (k >= kMostIndices || arguments_.rank > kMostDims) return;
    OpTensor index = given;
    if (given.dtype != DType::kInt64) {
      index.place = planner_.packed(given, DType::kInt64);
      index.strides = packed_strides(given.sizes);
    } else {
      index = planner_.apart(given, self_);
    }
    places_[k] = index.place;
    for (size_t d = 0; d < index.sizes.size(); ++d) {
      const size_t to = first + rank - index.sizes.size() + d;
      arguments_.index_strides[k][to] = index.sizes[d] == 1 ? 0 : index.strides[d];
    }
    const bool is_number = self_.sizes.empty();
    arguments_.steps[k] = is_number ? 1 : self_.strides[static_cast<size_t>(dim)];
    arguments_.bounds[k] = is_number ? 1 : self_.sizes[static_cast<size_t>(dim)];
    planner_.add_operand(dim);
  }
  // The same of all elements of a packed `self`.
  void flatten(int64_t count) {
    arguments_.steps[0] = 1;
    arguments_.bounds[0] = count;
  }
  void wrap() { arguments_.wraps = 1; }
  void skip(int64_t index) { arguments_.skipped = index; }

  Status read(Place values) { return launch("index_read", values); }
  // Values are the same wherever points share an element.
  Status write(Place values) { return launch("index_write", values); }
  // The first `key_dims` dims are those that indices vary along.
  Status apply(Place values, int64_t key_dims, IndexApplyArguments apply);

 private:
  Status check() const {
    if (arguments_.rank > kMostDims) return refuse("more than " + std::to_string(kMostDims) + " dims");
    if (arguments_.indices > kMostIndices) return refuse("more than " + std::to_string(kMostIndices) + " indices");
    return {};
  }
  void count() {
    arguments_.count = 1;
    for (i64 d = 0; d < arguments_.rank; ++d) arguments_.count *= arguments_.sizes[d];
  }
  Status launch(const char* kernel, Place values) {
    if (Status status = check(); !status.ok()) return status;
    count();
    auto call = planner_.launch(KernelFile::kIndex, kernel, arguments_, blocks_for(arguments_.count));
    call.at(&IndexArguments::self, self_.place).at(&IndexArguments::values, values);
    for (size_t k = 0; k < static_cast<size_t>(arguments_.indices); ++k) {
      call.at_word([k](const IndexArguments& words) { return &words.index[k]; }, places_[k]);
    }
    if (arguments_.indices != 0) call.failure([](const IndexArguments& words) { return &words.failure; });
    return {};
  }

  OpPlanner& planner_;
  const OpTensor self_;
  IndexArguments arguments_;
  Place places_[kMostIndices];
};

Status Points::apply(Place values, int64_t key_dims, IndexApplyArguments apply) {
  if (Status status = check(); !status.ok()) return status;
  if (apply.combine != Combine::kSet && ir::is_complex(self_.dtype)) return refuse("sums of complex numbers");
  count();
  apply.key_dims = key_dims;
  apply.key_count = 1;
  for (i64 d = 0; d < key_dims; ++d) apply.key_count *= arguments_.sizes[d];
  if (apply.key_count >= (int64_t{1} << 31)) return refuse("more indices than are sorted at once");
  if (arguments_.count == 0) return {};
  const IndexKeysArguments keys{.index = arguments_, .key_dims = key_dims, .key_count = apply.key_count};
  const Place place = planner_.scratch(8 * static_cast<uint64_t>(apply.key_count));
  auto call = planner_.launch(KernelFile::kIndex, "index_keys", keys, blocks_for(apply.key_count));
  call.at(&IndexKeysArguments::keys, place);
  for (size_t k = 0; k < static_cast<size_t>(arguments_.indices); ++k) {
    call.at_word([k](const IndexKeysArguments& words) { return &words.index.index[k]; }, places_[k]);
  }
  call.failure([](const IndexKeysArguments& words) { return &words.index.failure; });
  const Sorted sorted = sort_rows(planner_, place, 1, apply.key_count);
  apply.index = arguments_;
  apply.dtype = static_cast<i64>(self_.dtype);
  planner_.launch(KernelFile::kIndex, "index_apply", apply, blocks_for(arguments_.count))
      .at(&IndexApplyArguments::keys, sorted.keys)
      .at(&IndexApplyArguments::places, sorted.places)
      .at_word([](const IndexApplyArguments& words) { return &words.index.self; }, self_.place)
      .at_word([](const IndexApplyArguments& words) { return &words.index.values; }, values);
  return {};
}

int64_t dim_of(OpPlanner& planner, const OpTensor& self) {
  const int64_t dim = planner.whole("dim");
  return dim < 0 ? dim + std::max<int64_t>(static_cast<int64_t>(self.sizes.size()), 1) : dim;
}

// What an op changes: its result, with the elements of `self`, or `self` itself.
std::optional<OpTensor> target_of(OpPlanner& planner, const OpTensor& self) {
  const std::optional<OpTensor> to = planner.result(0);
  if (to && (to->place.buffer != self.place.buffer || to->place.offset != self.place.offset)) planner.copy(self, *to);
  return to ? to : self;
}

int64_t stride_at(const OpTensor& tensor, size_t dim) { return tensor.sizes.empty() ? 0 : tensor.strides[dim]; }

// -- indices of all elements ------------------------------------------------------------------------------------------

// The dims of an index that is as its values; `self` has others along `dim`.
void add_dims(Points& points, const OpTensor& index, const OpTensor& self, const OpTensor* values, int64_t dim) {
  for (size_t d = 0; d < index.sizes.size(); ++d) {
    const int64_t self_stride = static_cast<int64_t>(d) == dim ? 0 : stride_at(self, d);
    points.add_dim(index.sizes[d], self_stride, values != nullptr ? stride_at(*values, d) : 0);
  }
  points.add_index(index, dim, 0, index.sizes.size());
}

Status gather(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self"), index = planner.tensor("index"), to = planner.result(0);
  if (!self || !index || !to) return refuse("without an index");
  Points points(planner, *self);
  add_dims(points, *index, *self, &*to, dim_of(planner, *self));
  return points.read(to->place);
}

Status take(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self"), index = planner.tensor("index"), to = planner.result(0);
  if (!self || !index || !to) return refuse("without an index");
  OpTensor flat = *self;
  flat.place = planner.packed(*self);
  flat.sizes = {self->count()};
  flat.strides = {1};
  Points points(planner, flat);
  for (size_t d = 0; d < index->sizes.size(); ++d) points.add_dim(index->sizes[d], 0, to->strides[d]);
  points.add_index(*index, 0, 0, index->sizes.size());
  points.wrap();
  return points.read(to->place);
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

// An element that all points have.
OpTensor number_of(OpPlanner& planner, std::string_view name, DType dtype) {
  OpTensor number;
  number.dtype = dtype;
  number.place = planner.scratch(8);
  planner
      .launch(KernelFile::kFill, "fill_bits",
              FillArguments{.count = 1, .item = ir::item_size(dtype), .bits = planner.bits(name, dtype)}, 1, 32)
      .at(&FillArguments::out, number.place);
  return number;
}

Status scatter(OpPlanner& planner, IndexApplyArguments apply) {
  const std::optional<OpTensor> self = planner.tensor("self"), index = planner.tensor("index");
  if (!self || !index) return refuse("without an index");
  if (const ir::Arg* const reduce = planner.argument("reduce")) {
    if (!find_combine(reduce->text, &apply.combine)) return refuse("reduce=" + reduce->text);
    apply.with_self = planner.flag("include_self", true) ? 1 : 0;
  }
  const std::optional<OpTensor> to = target_of(planner, *self), source = planner.tensor("src");
  const int64_t dim = dim_of(planner, *self);
  if (!source && !planner.has("value")) return refuse("without values");
  Points points(planner, *to);
  if (source) {
    const OpTensor values = planner.apart(*source, *to);
    if (values.dtype != to->dtype) return refuse("values of another dtype");
    add_dims(points, *index, *to, &values, dim);
    return points.apply(values.place, static_cast<int64_t>(index->sizes.size()), apply);
  }
  if (ir::is_complex(to->dtype)) return refuse("a complex number");
  const OpTensor value = number_of(planner, "value", to->dtype);
  add_dims(points, *index, *to, nullptr, dim);
  if (apply.combine == Combine::kSet) return points.write(value.place);
  return points.apply(value.place, static_cast<int64_t>(index->sizes.size()), apply);
}
Status scatter_set(OpPlanner& planner) { return scatter(planner, {}); }
Status scatter_add(OpPlanner& planner) { return scatter(planner, {.combine = Combine::kSum}); }

// -- indices of slices ------------------------------------------------------------------------------------------------

Status index_select(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self"), index = planner.tensor("index"), to = planner.result(0);
  if (!self || !index || !to) return refuse("without an index");
  const auto dim = static_cast<size_t>(dim_of(planner, *self));
  Points points(planner, *self);
  for (size_t d = 0; d < to->sizes.size(); ++d) {
    points.add_dim(to->sizes[d], d == dim ? 0 : stride_at(*self, d), to->strides[d]);
  }
  if (to->sizes.empty()) points.add_dim(1, 0, 0);
  points.add_index(*index, static_cast<int64_t>(dim), dim, 1);
  return points.read(to->place);
}

// index_add, index_copy, index_fill, index_reduce: the index's dim comes first.
Status write_slices(OpPlanner& planner, IndexApplyArguments apply) {
  const std::optional<OpTensor> self = planner.tensor("self"), index = planner.tensor("index");
  if (!self || !index) return refuse("without an index");
  if (const ir::Arg* const reduce = planner.argument("reduce")) {
    if (!find_combine(reduce->text, &apply.combine)) return refuse("reduce=" + reduce->text);
    apply.with_self = planner.flag("include_self", true) ? 1 : 0;
  }
  const std::optional<OpTensor> to = target_of(planner, *self);
  std::optional<OpTensor> source = planner.tensor("source");
  OpTensor values;
  if (source) {
    values = planner.apart(*source, *to);
    if (values.dtype != to->dtype) return refuse("values of another dtype");
  } else if (const std::optional<OpTensor> value = planner.tensor("value")) {
    values = *value;
    values.place = planner.packed(*value, to->dtype);
  } else if (planner.has("value")) {
    values = number_of(planner, "value", to->dtype);
  } else {
    return refuse("without values");
  }
  const auto dim = static_cast<size_t>(dim_of(planner, *self));
  const auto stride = [&](size_t d) { return source && d < values.sizes.size() ? values.strides[d] : 0; };
  Points points(planner, *to);
  const int64_t count = index->count();
  points.add_dim(count, 0, stride(dim));
  for (size_t d = 0; d < to->sizes.size(); ++d) {
    if (d != dim) points.add_dim(to->sizes[d], to->strides[d], stride(d));
  }
  points.add_index(*index, static_cast<int64_t>(dim), 0, 1);
  if (!source) {
    points.wrap();
    return points.write(values.place);
  }
  return points.apply(values.place, 1, apply);
}
Status index_add(OpPlanner& planner) {
  IndexApplyArguments apply{.combine = Combine::kSum};
  apply.alpha = planner.number("alpha", 1);
  apply.whole_alpha = planner.whole("alpha", 1);
  return write_slices(planner, apply);
}
Status index_copy(OpPlanner& planner) { return write_slices(planner, {}); }

Status embedding_backward(OpPlanner& planner) {
  const std::optional<OpTensor> grad = planner.tensor("grad_output"), index = planner.tensor("indices"),
                                made = planner.result(0);
  if (!grad || !index || !made || grad->dtype != made->dtype) return refuse("without a result");
  if (planner.flag("scale_grad_by_freq")) return refuse("scale_grad_by_freq");
  OpTensor to = *made;
  to.place = planner.output(*made);
  to.strides = packed_strides(to.sizes);
  planner.zero(to.place, to.nbytes());
  Points points(planner, to);
  const size_t rank = index->sizes.size();
  for (size_t d = 0; d < rank; ++d) points.add_dim(index->sizes[d], 0, grad->strides[d]);
  points.add_dim(to.sizes[1], to.strides[1], grad->strides[rank]);
  points.add_index(*index, 0, 0, rank);
  if (const int64_t padding = planner.whole("padding_idx", -1); padding >= 0) points.skip(padding);
  return points.apply(grad->place, static_cast<int64_t>(rank), {.combine = Combine::kSum});
}

// -- lists of indices -------------------------------------------------------------------------------------------------

// x[:, i, :, j]: the dims that are left keep their order; those of all indices, broadcast, come where the first index
// is, or, if other dims lie between indices, first.
struct Indexed {
  std::vector<std::pair<size_t, OpTensor>> indices;  // dim, index
  std::vector<int64_t> common;                       // sizes
  std::vector<size_t> left;                          // dims of `self`
  size_t place = 0;                                  // in the result, of the first common dim
};

bool find_indexed(OpPlanner& planner, const OpTensor& self, Indexed* indexed) {
  const ir::Arg* const list = planner.argument("indices");
  if (list == nullptr || list->tag != ir::ArgTag::kList) return false;
  for (size_t d = 0; d < list->items.size(); ++d) {
    if (list->items[d].tag != ir::ArgTag::kView) continue;
    OpTensor index = planner.tensor_of(list->items[d].a);
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
  indexed->place = adjacent ? first : 0;
  return true;
}

// The dims of the result: common ones at their place, or first.
void add_dims(Points& points, const Indexed& indexed, const OpTensor& self, std::span<const int64_t> value_strides,
              bool common_first) {
  const size_t common = indexed.common.size();
  const auto add_common = [&] {
    const size_t first = [&] {
      size_t at = 0;
      for (size_t c = 0; c < common; ++c) {
        const size_t d = points.add_dim(indexed.common[c], 0, value_strides[indexed.place + c]);
        if (c == 0) at = d;
      }
      return at;
    }();
    for (const auto& [dim, index] : indexed.indices) points.add_index(index, static_cast<int64_t>(dim), first, common);
  };
  if (common_first) add_common();
  for (size_t i = 0; i < indexed.left.size(); ++i) {
    if (i == indexed.place && !common_first) add_common();
    const size_t in_result = i < indexed.place ? i : i + common;
    points.add_dim(self.sizes[indexed.left[i]], self.strides[indexed.left[i]], value_strides[in_result]);
  }
  if (indexed.place >= indexed.left.size() && !common_first) add_common();
}

Status index(OpPlanner& planner) {
  if (planner.dynamic_result(0)) return plan_index_by_mask(planner);
  const std::optional<OpTensor> self = planner.tensor("self"), to = planner.result(0);
  Indexed indexed;
  if (!self || !to || !find_indexed(planner, *self, &indexed)) return refuse("indices that are no integers");
  Points points(planner, *self);
  add_dims(points, indexed, *self, to->strides, false);
  points.wrap();
  return points.read(to->place);
}

// One value, where a mask of the dims from `first` on says so.
Status write_masked(OpPlanner& planner, const OpTensor& to, const OpTensor& mask, size_t first, Place value) {
  if (to.sizes.size() > kMostDims) return refuse("of so many dims");
  IndexArguments write{.count = to.count(), .rank = static_cast<i64>(to.sizes.size())};
  write.item = ir::item_size(to.dtype);
  for (size_t d = 0; d < to.sizes.size(); ++d) {
    write.sizes[d] = to.sizes[d];
    write.self_strides[d] = to.strides[d];
    const bool is_masked = d >= first && d < first + mask.sizes.size();
    write.index_strides[0][d] = is_masked ? mask.strides[d - first] : 0;
  }
  planner.launch(KernelFile::kIndex, "index_write_masked", write, blocks_for(write.count))
      .at(&IndexArguments::self, to.place)
      .at(&IndexArguments::values, value)
      .at_word([](const IndexArguments& words) { return &words.index[0]; }, mask.place);
  return {};
}

Status index_put(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self");
  const std::optional<OpTensor> given = planner.tensor("values");
  if (!self || !given || given->dtype != self->dtype) return refuse("values of another dtype");
  if (const auto mask = planner.mask(); mask && given->count() == 1 && !planner.flag("accumulate")) {
    const std::optional<OpTensor> to = target_of(planner, *self);
    const OpTensor value = planner.apart(*given, *to);
    return write_masked(planner, *to, planner.apart(mask->first, *to), mask->second, value.place);
  }
  Indexed indexed;
  if (!find_indexed(planner, *self, &indexed)) return refuse("indices that are no integers");
  const std::optional<OpTensor> to = target_of(planner, *self);
  const OpTensor values = planner.apart(*given, *to);
  const size_t rank = indexed.common.size() + indexed.left.size();
  std::vector<int64_t> strides(rank);
  for (size_t d = 0; d < values.sizes.size() && d < rank; ++d) {
    const size_t from = values.sizes.size() - 1 - d;
    strides[rank - 1 - d] = values.sizes[from] == 1 ? 0 : values.strides[from];
  }
  Points points(planner, *to);
  add_dims(points, indexed, *to, strides, true);
  points.wrap();
  const bool accumulates = planner.flag("accumulate");
  if (!accumulates && values.count() == 1) return points.write(values.place);
  return points.apply(values.place, static_cast<int64_t>(indexed.common.size()),
                      {.combine = accumulates ? Combine::kSum : Combine::kSet});
}

// Of pixels: their classes side by side, as those of rows are.
OpTensor with_classes_last(const OpTensor& tensor) {
  if (tensor.sizes.size() != 4) return tensor;
  OpTensor made = tensor;
  for (std::vector<int64_t>* const dims : {&made.sizes, &made.strides}) {
    std::rotate(dims->begin() + 1, dims->begin() + 2, dims->end());
  }
  return made;
}

Status nll_loss(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self"), target = planner.tensor("target"),
                                to = planner.result(0), total = planner.result(1);
  if (!self || !target || !to || self->sizes.empty()) return refuse("of other dims");
  const bool pixels = self->sizes.size() == 4;
  if (self->sizes.size() > 2 && !pixels) return refuse("of other dims");
  const std::optional<OpTensor> weight = planner.tensor("weight");
  const bool one = self->sizes.size() == 1;
  const Place classes = planner.packed(*target, DType::kInt64);
  const int64_t count = self->sizes[pixels ? 1 : self->sizes.size() - 1];
  const NllLossArguments loss{.rows = one      ? 1
                                      : pixels ? target->count()
                                               : self->sizes[0],
                              .classes = count,
                              .row_stride = one      ? 0
                                            : pixels ? count
                                                     : self->strides[0],
                              .class_stride = pixels ? 1 : self->strides.back(),
                              .dtype = static_cast<i64>(self->dtype),
                              .reduction = planner.whole("reduction"),
                              .ignored = planner.whole("ignore_index", -100)};
  const Place weights = weight ? planner.packed(*weight, self->dtype) : Place{};
  const Place in = pixels ? planner.packed(with_classes_last(*self)) : self->place;
  planner.add_operand(-1);
  planner.launch(KernelFile::kIndex, "nll_loss", loss, 1)
      .at(&NllLossArguments::in, in)
      .at(&NllLossArguments::target, classes)
      .at(&NllLossArguments::weight, weights)
      .at(&NllLossArguments::out, planner.output(*to))
      .at(&NllLossArguments::total, total ? planner.output(*total) : Place{})
      .failure([](const NllLossArguments& words) { return &words.failure; });
  return {};
}

Status nll_loss_backward(OpPlanner& planner) {
  const std::optional<OpTensor> grad = planner.tensor("grad_output"), target = planner.tensor("target"),
                                total = planner.tensor("total_weight"), to = planner.result(0);
  if (!grad || !target || !total || !to || to->sizes.empty()) return refuse("of other dims");
  const bool pixels = to->sizes.size() == 4;
  if (to->sizes.size() > 2 && !pixels) return refuse("of other dims");
  const std::optional<OpTensor> weight = planner.tensor("weight");
  const Place classes = planner.packed(*target, DType::kInt64), grads = planner.packed(*grad, to->dtype);
  const Place weights = weight ? planner.packed(*weight, to->dtype) : Place{};
  const Place sum = planner.packed(*total, to->dtype), out = planner.output(with_classes_last(*to));
  planner.zero(out, to->nbytes());
  const NllLossBackwardArguments loss{.rows = to->sizes.size() == 1 ? 1
                                              : pixels              ? target->count()
                                                                    : to->sizes[0],
                                      .classes = to->sizes[pixels ? 1 : to->sizes.size() - 1],
                                      .dtype = static_cast<i64>(to->dtype),
                                      .reduction = planner.whole("reduction"),
                                      .ignored = planner.whole("ignore_index", -100)};
  planner.launch(KernelFile::kIndex, "nll_loss_backward", loss, blocks_for(loss.rows))
      .at(&NllLossBackwardArguments::grad, grads)
      .at(&NllLossBackwardArguments::target, classes)
      .at(&NllLossBackwardArguments::weight, weights)
      .at(&NllLossBackwardArguments::total, sum)
      .at(&NllLossBackwardArguments::out, out);
  return {};
}

constexpr NamedPlan kPlans[] = {{"gather", gather, true},
                                {"take", take, true},
                                {"scatter", scatter_set, true},
                                {"scatter_add", scatter_add},
                                {"scatter_reduce", scatter_set},
                                {"index_select", index_select, true},
                                {"index_add", index_add},
                                {"index_copy", index_copy, true},
                                {"index_fill", index_copy},
                                {"index_reduce", index_copy},
                                {"embedding_dense_backward", embedding_backward},
                                {"index", index, true},
                                {"_unsafe_index", index, true},
                                {"index_put", index_put, true},
                                {"_index_put_impl", index_put, true},
                                {"_unsafe_index_put", index_put, true},
                                {"nll_loss_forward", nll_loss},
                                {"nll_loss_backward", nll_loss_backward},
                                {"nll_loss2d_forward", nll_loss},
                                {"nll_loss2d_backward", nll_loss_backward}};

}  // namespace

std::span<const NamedPlan> index_plans() { return kPlans; }

}  // namespace torch_remote::worker::cuda

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/op_complex.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Elements that are computed from their position, and ops that consist of copies.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

Status range(PlanBuilder& plan, const RangeArguments& range, const OpTensor& to) {
  plan.launch(KernelFile::kFill, "fill_range", range, blocks_for(range.count))
      .at(&RangeArguments::out, plan.output(to));
  return {};
}

// Whether the ends that are tensors have one element each.
bool has_single_ends(OpNode& node) { return has_count(node.tensor("start"), 1) && has_count(node.tensor("end"), 1); }

// Start and end may be tensors without dims.
Status fill_linspace(OpNode& node, PlanBuilder& plan, bool raises) {
  const std::optional<OpTensor> to = node.result(0);
  if (!to || !has_single_ends(node) || !is_kernel_dtype(to->dtype)) return unsupported("without a result");
  const auto number = [&](std::string_view name) {
    if (node.tensor(name)) return 0.0;
    return ir::is_float(to->dtype) ? node.number(name) : static_cast<double>(node.integer(name));
  };
  const auto location = [&](std::string_view name) {
    const std::optional<OpTensor> end = node.tensor(name);
    return end ? plan.packed(*end, DType::kFloat64) : Location();
  };
  const Location first = location("start"), last = location("end");
  plan.launch(KernelFile::kFill, "fill_linspace",
              LinspaceArguments{.count = to->count(),
                                .dtype = static_cast<i64>(to->dtype),
                                .first = number("start"),
                                .last = number("end"),
                                .raises = raises ? 1 : 0,
                                .base = raises ? node.number("base", 10) : 0},
              blocks_for(to->count()))
      .at(&LinspaceArguments::first_at, first)
      .at(&LinspaceArguments::last_at, last)
      .at(&LinspaceArguments::out, plan.output(*to));
  return {};
}

// Complex numbers are filled part by part.
Status fill_between_complex(OpNode& node, PlanBuilder& plan, const OpTensor& to) {
  if (!has_single_ends(node)) return unsupported("between tensors with dims");
  const auto location = [&](std::string_view name) {
    std::optional<OpTensor> end = node.tensor(name);
    if (!end) end = complex_number(node, plan, name, DType::kComplex128);
    return end ? plan.packed(*end, DType::kComplex128) : Location();
  };
  Location first = location("start"), last = location("end"), out = plan.output(to);
  if (first.buffer == kNoLocation || last.buffer == kNoLocation) return unsupported("between these ends");
  const DType part = part_of(to.dtype);
  for (int i = 0; i < 2; ++i) {
    plan.launch(KernelFile::kFill, "fill_linspace",
                LinspaceArguments{.count = to.count(), .dtype = static_cast<i64>(part), .step = 2},
                blocks_for(to.count()))
        .at(&LinspaceArguments::first_at, first)
        .at(&LinspaceArguments::last_at, last)
        .at(&LinspaceArguments::out, out);
    first.offset += sizeof(double);
    last.offset += sizeof(double);
    out.offset += ir::item_size(part);
  }
  return {};
}

// The result, contiguous. It is in scratch memory if it is strided or an operand shares its buffer.
std::optional<OpTensor> packed_result(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> to = node.result(0);
  return to ? std::optional(plan.output_tensor(*to)) : to;
}

bool find_tensors(OpNode& node, std::vector<OpTensor>* tensors) {
  const ir::Arg* const list = node.argument("tensors");
  if (list == nullptr || list->tag != ir::ArgTag::kList) return false;
  for (const ir::Arg& item : list->items) {
    if (item.tag != ir::ArgTag::kView) return false;
    tensors->push_back(node.tensor_of(item.a));
  }
  return true;
}

// A slice's begin, and its size for the given step.
std::pair<int64_t, int64_t> slice_of(OpNode& node, int64_t size, int64_t step) {
  const auto position = [&](std::string_view name, int64_t otherwise) {
    const int64_t given = node.integer(name, otherwise);
    return std::clamp<int64_t>(given < 0 ? given + size : given, 0, size);
  };
  const int64_t begin = position("start", 0), end = std::max(position("end", size), begin);
  return {begin, end == begin ? 0 : (end - begin - 1) / step + 1};
}

// The tensor that replaces a part of `self`, or of zeros.
std::optional<OpTensor> replacement_of(OpNode& node) { return node.tensor(node.has("src") ? "src" : "grad_output"); }

// Rolls dims one after the other: along each dim, two pieces swap places.
void roll_dims(PlanBuilder& plan, const OpTensor& from, const OpTensor& to,
               std::span<const std::pair<size_t, int64_t>> shifts) {
  if (shifts.empty()) return plan.copy(from, to);
  const auto [dim, given] = shifts.front();
  const int64_t size = from.sizes[dim];
  if (size == 0) return;
  const int64_t shift = (given % size + size) % size;
  roll_dims(plan, slice(from, dim, 0, size - shift), slice(to, dim, shift, size - shift), shifts.subspan(1));
  if (shift != 0) roll_dims(plan, slice(from, dim, size - shift, shift), slice(to, dim, 0, shift), shifts.subspan(1));
}

Status triangle(OpNode& node, PlanBuilder& plan, bool upper) {
  const std::optional<OpTensor> self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->sizes.size() < 2 || to->sizes != self->sizes || to->dtype != self->dtype) {
    return unsupported("of no matrix");
  }
  const Location in = plan.packed(*self);
  plan.launch(KernelFile::kFill, "triangle",
              TriangleArguments{.count = self->count(),
                                .rows = self->sizes[self->sizes.size() - 2],
                                .columns = self->sizes.back(),
                                .diagonal = node.integer("diagonal"),
                                .upper = upper ? 1 : 0,
                                .item = ir::item_size(self->dtype)},
              blocks_for(self->count()))
      .at(&TriangleArguments::in, in)
      .at(&TriangleArguments::out, plan.output(*to));
  return {};
}

// The diagonal of the last two dims of `tensor`.
OpTensor diagonal_of(const OpTensor& tensor, int64_t offset) {
  const size_t rank = tensor.sizes.size();
  const int64_t rows = tensor.sizes[rank - 2], columns = tensor.sizes[rank - 1];
  const int64_t row = std::max<int64_t>(-offset, 0), column = std::max<int64_t>(offset, 0);
  OpTensor made = tensor;
  made.sizes.resize(rank - 1);
  made.strides.resize(rank - 1);
  made.sizes.back() = std::max<int64_t>(std::min(rows - row, columns - column), 0);
  made.strides.back() = tensor.strides[rank - 2] + tensor.strides[rank - 1];
  if (made.sizes.back() != 0) {
    const int64_t first = row * tensor.strides[rank - 2] + column * tensor.strides[rank - 1];
    made.location.offset += static_cast<uint64_t>(first) * ir::item_size(tensor.dtype);
  }
  return made;
}

// Moves these two dims to the end.
OpTensor with_matrices(OpNode& node, const OpTensor& tensor, int64_t first, int64_t second) {
  const size_t rank = tensor.sizes.size(), rows = node.dim(first, rank), columns = node.dim(second, rank);
  node.require(rows != columns);
  OpTensor made = tensor;
  made.sizes.clear();
  made.strides.clear();
  const auto add = [&](size_t d) {
    made.sizes.push_back(tensor.sizes[d]);
    made.strides.push_back(tensor.strides[d]);
  };
  for (size_t d = 0; d < rank; ++d) {
    if (d != rows && d != columns) add(d);
  }
  add(rows);
  add(columns);
  return made;
}

void clear(PlanBuilder& plan, const OpTensor& to) {
  const OpTensor zeros = to.is_packed() ? to : plan.scratch_tensor(to.dtype, to.sizes);
  plan.zero(zeros.location, zeros.nbytes());
  if (!to.is_packed()) plan.copy(zeros, to);
}

// Row and column indices of a triangle's elements, row by row.
Status triangle_indices(OpNode& node, PlanBuilder& plan, bool upper) {
  const std::optional<OpTensor> to = node.result(0);
  if (!to || to->sizes.size() != 2 || to->sizes[0] != 2) return unsupported("without a result");
  constexpr int64_t kMost = int64_t{1} << 31;  // Rows, columns and elements.
  const int64_t rows = node.integer("row"), columns = node.integer("col"),
                offset = std::clamp(node.integer("offset"), -kMost, kMost);
  if (rows < 0 || columns < 0 || std::max({rows, columns, to->sizes[1]}) >= kMost) return unsupported("of such sizes");
  const OpTensor wide = plan.scratch_tensor(DType::kInt64, to->sizes);
  plan.upload({wide.location, [=, count = to->sizes[1]](std::span<const int64_t>) {
                 std::vector<std::byte> bytes(static_cast<size_t>(count) * 16);
                 int64_t made = 0;
                 const auto put = [&](int64_t at, int64_t x) {
                   std::memcpy(bytes.data() + 8 * static_cast<size_t>(at), &x, 8);
                 };
                 for (int64_t row = 0; row < rows && made < count; ++row) {
                   const int64_t first = upper ? std::clamp<int64_t>(row + offset, 0, columns) : 0;
                   const int64_t last = upper ? columns : std::clamp<int64_t>(row + offset + 1, 0, columns);
                   for (int64_t column = first; column < last && made < count; ++column, ++made) {
                     put(made, row);
                     put(count + made, column);
                   }
                 }
                 return bytes;
               }});
  plan.copy(wide, *to);
  return {};
}

}  // namespace

Status fill_plans::arange(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> to = node.result(0);
  if (!to) return unsupported("without a result");
  return range(plan,
               {.count = to->count(),
                .dtype = static_cast<i64>(to->dtype),
                .first = node.number("start"),
                .step = node.number("step", 1),
                .int_first = node.integer("start"),
                .int_step = node.integer("step", 1)},
               *to);
}

Status fill_plans::linspace(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> to = node.result(0);
  if (to && ir::is_complex(to->dtype)) return fill_between_complex(node, plan, *to);
  return fill_linspace(node, plan, false);
}

Status fill_plans::logspace(OpNode& node, PlanBuilder& plan) { return fill_linspace(node, plan, true); }

Status fill_plans::cat(OpNode& node, PlanBuilder& plan) {
  std::vector<OpTensor> tensors;
  const std::optional<OpTensor> to = packed_result(node, plan);
  if (!to || to->sizes.empty() || !find_tensors(node, &tensors)) return unsupported("without a list");
  const size_t dim = node.dim(node.integer("dim"), to->sizes.size());
  int64_t begin = 0;
  for (const OpTensor& tensor : tensors) {
    if (tensor.sizes.size() != to->sizes.size()) continue;  // A legacy empty tensor of one dim, which cat skips.
    const int64_t size = tensor.sizes[dim];
    plan.copy(tensor, slice(*to, dim, begin, size));
    begin += size;
  }
  return {};
}

Status fill_plans::stack(OpNode& node, PlanBuilder& plan) {
  std::vector<OpTensor> tensors;
  const std::optional<OpTensor> to = packed_result(node, plan);
  if (!to || to->sizes.empty() || !find_tensors(node, &tensors)) return unsupported("without a list");
  const size_t dim = node.dim(node.integer("dim"), to->sizes.size());
  int64_t begin = 0;
  for (OpTensor& tensor : tensors) {
    if (tensor.sizes.size() + 1 != to->sizes.size()) return unsupported("of other dims");
    tensor.sizes.insert(tensor.sizes.begin() + static_cast<std::ptrdiff_t>(dim), 1);
    tensor.strides.insert(tensor.strides.begin() + static_cast<std::ptrdiff_t>(dim), 0);
    plan.copy(tensor, slice(*to, dim, begin++, 1));
  }
  return {};
}

// Copies `self`, or zeros, and replaces a slice, or the elements at one index of a dim.
Status fill_plans::replace(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> from = replacement_of(node), self = node.tensor("self");
  const bool slices = !node.has("index");
  const std::optional<OpTensor> to = packed_result(node, plan);
  if (!from || !to || to->sizes.empty()) return unsupported("without a result");
  const size_t dim = node.dim(node.integer("dim"), to->sizes.size());
  if (from->sizes.size() + (slices ? 0 : 1) != to->sizes.size()) return unsupported("of other dims");
  if (self) {
    plan.copy(*self, *to);
  } else {
    plan.zero(to->location, to->nbytes());
  }
  const int64_t size = to->sizes[dim];
  if (slices) {
    const int64_t step = node.integer("step", 1);
    if (step < 1) return unsupported("with such a step");
    const auto [begin, count] = slice_of(node, size, step);
    plan.copy(*from, slice(*to, dim, begin, count, step));
    return {};
  }
  const int64_t index = node.integer("index");
  OpTensor one = *from;
  one.sizes.insert(one.sizes.begin() + static_cast<std::ptrdiff_t>(dim), 1);
  one.strides.insert(one.strides.begin() + static_cast<std::ptrdiff_t>(dim), 0);
  plan.copy(one, slice(*to, dim, index < 0 ? index + size : index, 1));
  return {};
}

Status fill_plans::pad(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), to = packed_result(node, plan);
  const std::vector<int64_t> pads = node.integers("pad");
  if (!self || !to || self->sizes.size() != to->sizes.size() || pads.size() / 2 > self->sizes.size()) {
    return unsupported("without a result");
  }
  if (ir::is_complex(to->dtype)) {
    const std::optional<OpTensor> value = complex_number(node, plan, "value", to->dtype);
    if (!value) return unsupported("without a number");
    plan.copy(*value, *to);
  } else {
    plan.fill(to->location, to->count(), to->dtype, node.bits("value", to->dtype));
  }
  OpTensor from = *self, inner = *to;
  for (size_t i = 0; i + 1 < pads.size(); i += 2) {
    const size_t dim = self->sizes.size() - 1 - i / 2;
    const int64_t before = pads[i], after = pads[i + 1];
    const int64_t size = self->sizes[dim] + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    from = slice(from, dim, std::max<int64_t>(-before, 0), size);
    inner = slice(inner, dim, std::max<int64_t>(before, 0), size);
  }
  plan.copy(from, inner);
  return {};
}

Status fill_plans::flip(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), to = packed_result(node, plan);
  if (!self || !to || self->sizes.size() > kMaxDims) return unsupported("of so many dims");
  if (to->sizes != self->sizes || to->dtype != self->dtype) return unsupported("into another size or dtype");
  OpTensor from = *self;
  if (from.count() == 0) return {};
  for (const int64_t given : node.integers("dims")) {
    if (from.sizes.empty()) break;
    const size_t dim = node.dim(given, from.sizes.size());
    from.location.offset +=
        static_cast<uint64_t>((from.sizes[dim] - 1) * from.strides[dim]) * ir::item_size(from.dtype);
    from.strides[dim] = -from.strides[dim];
  }
  IndexArguments copy{.count = from.count(), .rank = static_cast<i64>(from.sizes.size())};
  copy.item = ir::item_size(from.dtype);
  for (size_t d = 0; d < from.sizes.size(); ++d) {
    copy.sizes[d] = from.sizes[d];
    copy.self_strides[d] = from.strides[d];
    copy.value_strides[d] = to->strides[d];
  }
  plan.launch(KernelFile::kIndex, "index_read", copy, blocks_for(copy.count))
      .at(&IndexArguments::self, from.location)
      .at(&IndexArguments::values, to->location);
  return {};
}

Status fill_plans::roll(OpNode& node, PlanBuilder& plan) {
  std::optional<OpTensor> self = node.tensor("self"), to = packed_result(node, plan);
  const std::vector<int64_t> shifts = node.integers("shifts"), dims = node.integers("dims");
  if (!self || !to) return unsupported("without a result");
  std::vector<std::pair<size_t, int64_t>> pairs;
  if (dims.empty()) {  // Rolls the flattened tensor.
    for (OpTensor* const each : {&*self, &*to}) *each = plan.flat(*each);
    if (!shifts.empty()) pairs.emplace_back(0, shifts[0]);
  } else if (self->sizes.empty() || dims.size() > 3) {
    return unsupported("of so many dims");
  }
  if (self->sizes != to->sizes) return unsupported("into another size");
  for (size_t i = 0; i < dims.size() && i < shifts.size(); ++i) {
    const size_t dim = node.dim(dims[i], self->sizes.size());
    const auto same = std::ranges::find(pairs, dim, &std::pair<size_t, int64_t>::first);
    if (same != pairs.end()) {
      const int64_t size = std::max<int64_t>(self->sizes[dim], 1);
      same->second = same->second % size + shifts[i] % size;
    } else {
      pairs.emplace_back(dim, shifts[i]);
    }
  }
  roll_dims(plan, *self, *to, pairs);
  return {};
}

Status fill_plans::lower_triangle(OpNode& node, PlanBuilder& plan) { return triangle(node, plan, false); }
Status fill_plans::upper_triangle(OpNode& node, PlanBuilder& plan) { return triangle(node, plan, true); }

// Copies elements of any dtype. Both tensors may share a buffer.
Status fill_plans::copy(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> from = node.tensor("src"), to = node.result(0);
  if (!from || !to) return unsupported("of a number");
  plan.copy(plan.without_overlap(*from, *to), *to);
  return {};
}

Status fill_plans::zero(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> to = node.result(0);
  if (!to) return unsupported("without a result");
  clear(plan, *to);
  return {};
}

// Fills each tensor of a list.
Status fill_plans::zeros(OpNode& node, PlanBuilder& plan) {
  const ir::Arg* const list = node.argument("self");
  if (list == nullptr || list->tag != ir::ArgTag::kList || node.listed_result(0, 0)) return unsupported("of numbers");
  for (const ir::Arg& item : list->items) {
    if (item.tag != ir::ArgTag::kView) return unsupported("of numbers");
    clear(plan, node.tensor_of(item.a));
  }
  return {};
}

Status fill_plans::eye(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> to = packed_result(node, plan);
  if (!to || to->sizes.size() != 2) return unsupported("without a result");
  plan.zero(to->location, to->nbytes());
  const OpTensor diagonal = diagonal_of(*to, 0);
  const OpTensor ones = plan.scratch_tensor(part_of(to->dtype), diagonal.sizes);
  plan.fill(ones.location, ones.count(), ones.dtype, ir::is_float(ones.dtype) ? float_bits(1, ones.dtype) : 1);
  plan.copy(ones, diagonal);
  return {};
}

Status fill_plans::embed_diagonal(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), to = packed_result(node, plan);
  if (!self || !to || to->sizes.size() < 2) return unsupported("without a result");
  plan.zero(to->location, to->nbytes());
  plan.copy(*self, diagonal_of(with_matrices(node, *to, node.integer("dim1", -2), node.integer("dim2", -1)),
                               node.integer("offset")));
  return {};
}

// Copies `self`, or zeros, and replaces a diagonal.
Status fill_plans::replace_diagonal(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> from = replacement_of(node), self = node.tensor("self");
  const std::optional<OpTensor> to = packed_result(node, plan);
  if (!from || !to || to->sizes.size() < 2) return unsupported("without a result");
  if (self) {
    plan.copy(*self, *to);
  } else {
    plan.zero(to->location, to->nbytes());
  }
  const OpTensor matrices = with_matrices(node, *to, node.integer("dim1", 0), node.integer("dim2", 1));
  plan.copy(*from, diagonal_of(matrices, node.integer("offset")));
  return {};
}

Status fill_plans::copy_diagonal(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), to = packed_result(node, plan);
  if (!self || !to || self->sizes.size() < 2) return unsupported("without a result");
  plan.copy(
      diagonal_of(with_matrices(node, *self, node.integer("dim1", 0), node.integer("dim2", 1)), node.integer("offset")),
      *to);
  return {};
}

Status fill_plans::lower_indices(OpNode& node, PlanBuilder& plan) { return triangle_indices(node, plan, false); }
Status fill_plans::upper_indices(OpNode& node, PlanBuilder& plan) { return triangle_indices(node, plan, true); }

// Adds windows along a dim, whose elements are the last dim, to the elements that they were taken from.
Status fill_plans::unfold_backward(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> grad = node.tensor("grad_in"), to = node.result(0);
  if (!grad || !to || grad->dtype != to->dtype || grad->sizes.empty()) return unsupported("without a result");
  if (to->dtype == DType::kBool) return unsupported("of bools");
  const bool is_complex = ir::is_complex(to->dtype);
  const int64_t size = node.integer("size"), step = node.integer("step");
  const size_t dim = to->sizes.empty() ? 0 : node.dim(node.integer("dim"), to->sizes.size());
  bool fits = size > 0 && step > 0 && (is_complex || is_kernel_dtype(to->dtype)) && grad->sizes.back() == size &&
              grad->sizes.size() == to->sizes.size() + 1;
  for (size_t d = 0; fits && d < to->sizes.size(); ++d) fits = d == dim || grad->sizes[d] == to->sizes[d];
  if (!fits) return unsupported("of sizes that do not match");
  UnfoldBackwardArguments arguments{.count = to->count() * (is_complex ? 2 : 1),
                                    .length = 1,
                                    .inner = 1,
                                    .windows = 1,
                                    .size = size,
                                    .step = step,
                                    .dtype = static_cast<i64>(part_of(to->dtype))};
  if (!to->sizes.empty()) {
    const OuterLengthInner dims = split(to->sizes, static_cast<int64_t>(dim));
    arguments.length = dims.length;
    arguments.inner = dims.inner;
    arguments.windows = grad->sizes[dim];
  }
  OpTensor from = *grad;
  if (is_complex) {  // The two parts become the last of the inner dims.
    arguments.inner *= 2;
    from = parts_of(*grad);
    std::swap(from.sizes[from.sizes.size() - 2], from.sizes.back());
    std::swap(from.strides[from.strides.size() - 2], from.strides.back());
  }
  const Location in = plan.packed(from);
  plan.launch(KernelFile::kFill, "unfold_backward", arguments, blocks_for(arguments.count))
      .at(&UnfoldBackwardArguments::in, in)
      .at(&UnfoldBackwardArguments::out, plan.output(*to));
  return {};
}

}  // namespace torch_remote::worker::cuda

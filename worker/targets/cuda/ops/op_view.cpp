#include "worker/targets/cuda/ops/op_view.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "worker/targets/cuda/ops/op_plans_generated.h"

// Copies of views (`permute_copy` and the like): the view's sizes and strides, and one copy.
namespace torch_remote::worker::cuda {
namespace {

// Copies the elements of `from` in order, even if the sizes differ.
void copy_all(PlanBuilder& plan, const OpTensor& from, const OpTensor& to) {
  if (from.sizes == to.sizes) return plan.copy(from, to);
  OpTensor same = to;
  same.dtype = from.dtype;
  same.location = plan.packed(from);
  same.strides = packed_strides(to.sizes);
  plan.copy(same, to);
}

Status copy_with_exchanged(OpNode& node, PlanBuilder& plan, int64_t first, int64_t second) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to) return unsupported("without a result");
  OpTensor from = *self;
  if (const size_t rank = from.sizes.size(); rank > 1) {
    const size_t a = node.dim(first, rank), b = node.dim(second, rank);
    std::swap(from.sizes[a], from.sizes[b]);
    std::swap(from.strides[a], from.strides[b]);
  }
  plan.copy(from, *to);
  return {};
}

OpTensor without(OpTensor tensor, size_t dim) {
  tensor.sizes.erase(tensor.sizes.begin() + static_cast<std::ptrdiff_t>(dim));
  tensor.strides.erase(tensor.strides.begin() + static_cast<std::ptrdiff_t>(dim));
  return tensor;
}

// Splits a dim into consecutive pieces of the given sizes; the last size repeats. `drops`: each piece is one element,
// and the dim is removed.
Status copy_pieces(OpNode& node, PlanBuilder& plan, const std::vector<int64_t>& sizes, bool drops = false) {
  const auto self = node.tensor("self");
  if (!self || self->sizes.empty() || sizes.empty()) return unsupported("of a number");
  const size_t dim = node.dim(node.integer("dim"), self->sizes.size());
  if (node.ir_node().results.empty()) return unsupported("into given tensors");
  const ir::Arg& results = node.ir_node().results[0];  // There is one for each piece.
  int64_t begin = 0;
  for (size_t i = 0; begin < self->sizes[dim] && i < results.items.size(); ++i) {
    const int64_t wanted = sizes[std::min(i, sizes.size() - 1)], size = std::min(wanted, self->sizes[dim] - begin);
    if (wanted <= 0 && i >= sizes.size()) return unsupported("into pieces without elements");
    const OpTensor from = slice(*self, dim, begin, size);
    node.require(from.sizes[dim] == size);
    begin += size;
    if (const auto to = node.listed_result(0, i)) plan.copy(drops ? without(from, dim) : from, *to);
  }
  return {};
}

}  // namespace

// Only sizes change; the order of elements stays.
Status view_plans::copy_elements(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->count() != to->count()) return unsupported("of other sizes");
  copy_all(plan, *self, *to);
  return {};
}

Status view_plans::copy_expanded(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->sizes.size() > to->sizes.size()) return unsupported("of other sizes");
  plan.copy(*self, *to);
  return {};
}

Status view_plans::copy_strided(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  const std::vector<int64_t> strides = node.integers("stride");
  if (!self || !to || strides.size() != to->sizes.size()) return unsupported("of other sizes");
  OpTensor from = *self;
  from.sizes = to->sizes;
  from.strides = strides;
  if (node.has("storage_offset")) {
    from.location.offset = static_cast<uint64_t>(node.integer("storage_offset")) * ir::item_size(from.dtype);
  }
  plan.copy(from, *to);
  return {};
}

// Copies `self` and overwrites a strided view of it with `src`.
Status view_plans::scatter_strided(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), from = node.tensor("src"), to = node.result(0);
  const std::vector<int64_t> strides = node.integers("stride");
  if (!self || !from || !to || strides.size() != from->sizes.size()) return unsupported("of other sizes");
  const bool alike = self->location.offset == 0 && to->location.offset == 0 && self->strides == to->strides;
  if (!alike || !to->is_packed()) return unsupported("of parts of memory");
  plan.copy(*self, *to);
  OpTensor part = *to;
  part.sizes = from->sizes;
  part.strides = strides;
  part.location.offset = static_cast<uint64_t>(node.integer("storage_offset")) * ir::item_size(part.dtype);
  plan.copy(*from, part);
  return {};
}

Status view_plans::copy_permuted(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  const std::vector<int64_t> dims = node.integers("dims");
  if (!self || !to || dims.size() != self->sizes.size()) return unsupported("of other sizes");
  OpTensor from = *self;
  for (size_t d = 0; d < dims.size(); ++d) {
    const size_t at = node.dim(dims[d], dims.size());
    from.sizes[d] = self->sizes[at];
    from.strides[d] = self->strides[at];
  }
  plan.copy(from, *to);
  return {};
}

Status view_plans::copy_transposed(OpNode& node, PlanBuilder& plan) {
  return copy_with_exchanged(node, plan, node.integer("dim0"), node.integer("dim1"));
}
Status view_plans::copy_matrix_transposed(OpNode& node, PlanBuilder& plan) {
  return copy_with_exchanged(node, plan, 0, 1);
}

// `[start, start + length)` of a dim, or a single index, whose dim is removed.
Status view_plans::copy_narrow(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->sizes.empty()) return unsupported("of other sizes");
  const size_t dim = node.dim(node.integer("dim"), self->sizes.size());
  if (to->sizes.size() != self->sizes.size()) return unsupported("of other sizes");
  const int64_t start = node.integer("start"), begin = start < 0 ? start + self->sizes[dim] : start;
  plan.copy(slice(*self, dim, begin, to->sizes[dim]), *to);
  return {};
}

Status view_plans::copy_slice(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->sizes.empty()) return unsupported("of other sizes");
  const size_t dim = node.dim(node.integer("dim"), self->sizes.size());
  if (to->sizes.size() != self->sizes.size()) return unsupported("of other sizes");
  const int64_t size = self->sizes[dim], start = node.integer("start", 0);
  const int64_t begin = std::clamp<int64_t>(start < 0 ? start + size : start, 0, size);
  plan.copy(slice(*self, dim, begin, to->sizes[dim], node.integer("step", 1)), *to);
  return {};
}

Status view_plans::copy_selected(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->sizes.empty()) return unsupported("of other sizes");
  const size_t dim = node.dim(node.integer("dim"), self->sizes.size());
  const int64_t index = node.integer("index");
  const OpTensor one = slice(*self, dim, index < 0 ? index + self->sizes[dim] : index, 1);
  node.require(one.sizes[dim] == 1);
  plan.copy(without(one, dim), *to);
  return {};
}

// Windows along a dim; their elements are the last dim.
Status view_plans::copy_unfolded(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  const int64_t size = node.integer("size"), step = node.integer("step");
  if (!self || !to || step <= 0) return unsupported("without a result");
  OpTensor from = *self;
  if (from.sizes.empty()) {
    from.sizes = {size};
    from.strides = {1};
  } else {
    const size_t dim = node.dim(node.integer("dimension"), from.sizes.size());
    if (size < 0 || size > from.sizes[dim]) return unsupported("into windows of this size");
    const int64_t stride = from.strides[dim];
    from.sizes[dim] = (from.sizes[dim] - size) / step + 1;
    from.strides[dim] = stride * step;
    from.sizes.push_back(size);
    from.strides.push_back(stride);
  }
  plan.copy(from, *to);
  return {};
}

Status view_plans::copy_split(OpNode& node, PlanBuilder& plan) {
  return copy_pieces(node, plan, {node.integer("split_size")});
}
Status view_plans::copy_split_with_sizes(OpNode& node, PlanBuilder& plan) {
  return copy_pieces(node, plan, node.integers("split_sizes"));
}
Status view_plans::copy_unbound(OpNode& node, PlanBuilder& plan) { return copy_pieces(node, plan, {1}, true); }

// _chunk_cat: splits each tensor along a dim into num_chunks chunks of one size, padded with zeros. Chunks with the
// same number are flattened and concatenated.
Status view_plans::join_chunks(OpNode& node, PlanBuilder& plan) {
  const ir::Arg* const list = node.argument("tensors");
  const auto to = node.result(0);
  const int64_t chunks = node.integer("num_chunks");
  if (list == nullptr || !to || to->sizes.size() < 2 || chunks <= 0 || to->sizes[to->sizes.size() - 2] != chunks) {
    return unsupported("of such dims");
  }
  const size_t dim = to->sizes.size() - 2;
  const OpTensor all = plan.output_tensor(*to);
  plan.zero(all.location, all.nbytes());
  int64_t begin = 0;
  for (const ir::Arg& item : list->items) {
    if (item.tag != ir::ArgTag::kView) return unsupported("of numbers");
    const OpTensor from = node.tensor_of(item.a);
    if (from.sizes.size() <= dim) return unsupported("of such dims");
    const int64_t size = from.sizes[dim], length = (size + chunks - 1) / chunks;
    const std::vector<int64_t> behind(from.sizes.begin() + static_cast<ptrdiff_t>(dim) + 1, from.sizes.end());
    const std::vector<int64_t> strides = packed_strides(behind);
    int64_t inner = 1;
    for (const int64_t one : behind) inner *= one;
    for (int64_t i = 0; i < chunks && i * length < size; ++i) {
      const OpTensor piece = slice(from, dim, i * length, std::min(length, size - i * length));
      OpTensor made = all;
      made.sizes = piece.sizes;
      made.strides.resize(dim);
      made.strides.push_back(inner);
      made.strides.insert(made.strides.end(), strides.begin(), strides.end());
      made.location.offset += static_cast<uint64_t>(i * all.strides[dim] + begin) * ir::item_size(all.dtype);
      plan.copy(piece, made);
    }
    begin += length * inner;
  }
  return {};
}

OpTensor broadcast_and_roll(PlanBuilder& plan, const OpTensor& from, const OpTensor& to, ir::DType dtype, size_t dim,
                            int64_t by) {
  OpTensor all = from;
  const size_t missing = to.sizes.size() - from.sizes.size();
  all.sizes = to.sizes;
  all.strides.assign(to.sizes.size(), 0);
  for (size_t d = missing; d < to.sizes.size(); ++d) {
    if (from.sizes[d - missing] != 1) all.strides[d] = from.strides[d - missing];
  }
  const OpTensor made = plan.scratch_tensor(dtype, to.sizes);
  const int64_t size = to.sizes[dim];
  plan.copy(slice(all, dim, by, size - by), slice(made, dim, 0, size - by));
  plan.copy(slice(all, dim, 0, by), slice(made, dim, size - by, by));
  return made;
}

}  // namespace torch_remote::worker::cuda

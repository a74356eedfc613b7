#include "worker/targets/cuda/ops/op_sort.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Sorting, and ops that take elements of sorted rows.
namespace torch_remote::worker::cuda {

Sorted sort_rows(PlanBuilder& plan, Location keys, int64_t rows, int64_t length) {
  const auto count = static_cast<uint64_t>(rows * length);
  Location positions = plan.scratch(4 * count);
  const int64_t chunk = std::clamp<int64_t>(
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(length, 2)))), 2, kSortChunk);
  const int64_t chunks = (length + chunk - 1) / chunk;
  plan.launch(KernelFile::kSort, "sort_chunks", SortChunksArguments{.rows = rows, .length = length, .chunk = chunk},
              rows * chunks, static_cast<unsigned>(std::clamp<int64_t>(chunk / 2, 32, 256)))
      .at(&SortChunksArguments::keys, keys)
      .at(&SortChunksArguments::positions, positions);
  if (chunks <= 1) return {keys, positions};
  Location other_keys = plan.scratch(8 * count), other_places = plan.scratch(4 * count);
  for (int64_t width = chunk; width < length; width *= 2) {
    plan.launch(KernelFile::kSort, "sort_merge", SortMergeArguments{.rows = rows, .length = length, .width = width},
                blocks_for(rows * length))
        .at(&SortMergeArguments::keys, keys)
        .at(&SortMergeArguments::positions, positions)
        .at(&SortMergeArguments::out_keys, other_keys)
        .at(&SortMergeArguments::out_positions, other_places);
    std::swap(keys, other_keys);
    std::swap(positions, other_places);
  }
  return {keys, positions};
}

Status sort_tensor(PlanBuilder& plan, const OpTensor& tensor, Location packed, const OuterLengthInner& dims,
                   bool descending, Sorted* sorted) {
  const int64_t rows = dims.outer * dims.inner, chunks = (dims.length + kSortChunk - 1) / kSortChunk;
  if (dims.length >= (int64_t{1} << 31) || rows * std::max<int64_t>(chunks, 1) >= (int64_t{1} << 31)) {
    return unsupported("more elements than are sorted at once");
  }
  const Location keys = plan.scratch(8 * static_cast<uint64_t>(tensor.count()));
  plan.launch(KernelFile::kSort, "sort_keys",
              SortKeysArguments{.outer = dims.outer,
                                .length = dims.length,
                                .inner = dims.inner,
                                .dtype = static_cast<i64>(tensor.dtype),
                                .descending = descending ? 1 : 0},
              blocks_for(tensor.count()))
      .at(&SortKeysArguments::in, packed)
      .at(&SortKeysArguments::keys, keys);
  *sorted = sort_rows(plan, keys, rows, dims.length);
  return {};
}

namespace {

// Elements [first, first + count) of each sorted line, and their original positions.
Status take(OpNode& node, PlanBuilder& plan, bool descending, int64_t first, int64_t count) {
  const std::optional<OpTensor> self = node.tensor("self");
  const std::optional<OpTensor> values = node.result(0), indices = node.result(1);
  if (!self) return unsupported("without a tensor");
  const OuterLengthInner dims = split(self->sizes, node.integer("dim", -1));
  if (first < 0 || count < 0 || count > dims.length || first > dims.length - count) {
    return {ErrorCode::kOpFailed, "selected index k out of range", "RuntimeError"};
  }
  const int64_t taken = count_of(std::vector<int64_t>{dims.outer, count, dims.inner});
  if (!is_of(values, self->dtype, taken) || !is_of(indices, ir::DType::kInt64, taken)) {
    return unsupported("into another size");
  }
  const Location in = plan.packed(*self);
  Sorted sorted;
  if (Status status = sort_tensor(plan, *self, in, dims, descending, &sorted); !status.ok()) return status;
  plan.launch(KernelFile::kSort, "sort_take",
              SortTakeArguments{.outer = dims.outer,
                                .length = dims.length,
                                .inner = dims.inner,
                                .first = first,
                                .count = count,
                                .item = ir::item_size(self->dtype)},
              blocks_for(dims.outer * count * dims.inner))
      .at(&SortTakeArguments::in, in)
      .at(&SortTakeArguments::positions, sorted.positions)
      .at(&SortTakeArguments::values, values ? plan.output(*values) : Location{})
      .at(&SortTakeArguments::indices, indices ? plan.output(*indices) : Location{});
  return {};
}

int64_t length_of(OpNode& node) {
  const std::optional<OpTensor> self = node.tensor("self");
  return self ? split(self->sizes, node.integer("dim", -1)).length : 0;
}

}  // namespace

Status sort_plans::sort(OpNode& node, PlanBuilder& plan) {
  return take(node, plan, node.flag("descending"), 0, length_of(node));
}
Status sort_plans::topk(OpNode& node, PlanBuilder& plan) {
  return take(node, plan, node.flag("largest", true), 0, node.integer("k"));
}
Status sort_plans::kthvalue(OpNode& node, PlanBuilder& plan) {
  return take(node, plan, false, std::max<int64_t>(node.integer("k"), 0) - 1, 1);
}

}  // namespace torch_remote::worker::cuda

#include "worker/targets/cuda/ops/index_points.h"

#include <span>
#include <string>
#include <vector>

#include "worker/targets/cuda/ops/op_sort.h"

namespace torch_remote::worker::cuda {

using ir::DType;

size_t IndexedPoints::add_dim(int64_t size, int64_t self_stride, int64_t value_stride) {
  const auto d = static_cast<size_t>(arguments_.rank++);
  if (d >= kMaxDims) return d;
  arguments_.sizes[d] = size;
  arguments_.self_strides[d] = self_stride;
  arguments_.value_strides[d] = value_stride;
  return d;
}

void IndexedPoints::add_index(const OpTensor& given, int64_t dim, size_t first, size_t rank) {
  const auto k = static_cast<size_t>(arguments_.indices++);
  if (k >= kMaxIndices || arguments_.rank > kMaxDims) return;
  OpTensor index = given;
  if (given.dtype != DType::kInt64) {
    index.location = plan_.packed(given, DType::kInt64);
    index.strides = packed_strides(given.sizes);
  } else {
    index = plan_.without_overlap(given, self_);
  }
  const auto own = static_cast<size_t>(dim);
  const bool is_number = self_.sizes.empty();
  fits_ &= index.sizes.size() <= rank && first <= kMaxDims && rank <= kMaxDims - first &&
           (is_number || own < self_.sizes.size());
  if (!fits_) return;
  locations_[k] = index.location;
  for (size_t d = 0; d < index.sizes.size(); ++d) {
    const size_t to = first + rank - index.sizes.size() + d;
    arguments_.index_strides[k][to] = index.sizes[d] == 1 ? 0 : index.strides[d];
  }
  arguments_.steps[k] = is_number ? 1 : self_.strides[own];
  arguments_.bounds[k] = is_number ? 1 : self_.sizes[own];
  plan_.add_operand(dim);
}

// Also checks that all points, with all indices in their bounds, access memory of the tensors only.
Status IndexedPoints::check(Location values) const {
  if (arguments_.rank > kMaxDims) return unsupported("more than " + std::to_string(kMaxDims) + " dims");
  if (arguments_.indices > kMaxIndices) return unsupported("more than " + std::to_string(kMaxIndices) + " indices");
  if (!fits_) return unsupported("indices of other dims");
  const auto rank = static_cast<size_t>(arguments_.rank), indices = static_cast<size_t>(arguments_.indices);
  const auto of = [&](const i64* list) { return std::span<const int64_t>(list, rank); };
  const std::span<const int64_t> sizes = of(arguments_.sizes);
  bool inside = plan_.is_inside(values, arguments_.item, sizes, of(arguments_.value_strides));
  for (size_t k = 0; k < indices; ++k) {
    inside = inside && plan_.is_inside(locations_[k], sizeof(int64_t), sizes, of(arguments_.index_strides[k]));
  }
  std::vector<int64_t> all_sizes(sizes.begin(), sizes.end());
  std::vector<int64_t> strides(arguments_.self_strides, arguments_.self_strides + rank);
  all_sizes.insert(all_sizes.end(), arguments_.bounds, arguments_.bounds + indices);
  strides.insert(strides.end(), arguments_.steps, arguments_.steps + indices);
  inside = inside && plan_.is_inside(self_.location, arguments_.item, all_sizes, strides);
  return inside ? Status() : unsupported("of sizes that do not match");
}

// Views complex numbers as a further dim of two parts.
void IndexedPoints::split_parts() {
  for (i64& step : arguments_.steps) step *= 2;
  for (size_t d = 0; d < static_cast<size_t>(arguments_.rank); ++d) {
    arguments_.self_strides[d] *= 2;
    arguments_.value_strides[d] *= 2;
  }
  arguments_.item /= 2;
  add_dim(2, 1, 1);
}

void IndexedPoints::count() {
  arguments_.count = 1;
  for (i64 d = 0; d < arguments_.rank; ++d) arguments_.count *= arguments_.sizes[d];
}

Status IndexedPoints::launch(const char* kernel, Location values) {
  if (Status status = check(values); !status.ok()) return status;
  count();
  plan_.launch(KernelFile::kIndex, kernel, arguments_, blocks_for(arguments_.count))
      .at(&IndexArguments::self, self_.location)
      .at(&IndexArguments::values, values)
      .at_words([](const IndexArguments& words) { return &words.index[0]; }, locations())
      .failure([](const IndexArguments& words) { return &words.failure; }, arguments_.indices != 0);
  return {};
}

Status IndexedPoints::apply(Location values, int64_t key_dims, IndexApplyArguments apply) {
  const bool combines = apply.combine != Combine::kSet, of_parts = combines && ir::is_complex(self_.dtype);
  if (combines && !of_parts && !is_kernel_dtype(self_.dtype)) return unsupported("of these dtypes");
  if (Status status = check(values); !status.ok()) return status;
  if (of_parts) {
    if (apply.combine != Combine::kSum) return unsupported("of complex numbers, but for sums");
    split_parts();
    if (Status status = check(values); !status.ok()) return status;
  }
  count();
  apply.key_dims = key_dims;
  apply.key_count = 1;
  for (i64 d = 0; d < key_dims; ++d) apply.key_count *= arguments_.sizes[d];
  if (apply.key_count >= (int64_t{1} << 31)) return unsupported("more indices than are sorted at once");
  if (arguments_.count == 0) return {};
  const IndexKeysArguments keys{.index = arguments_, .key_dims = key_dims, .key_count = apply.key_count};
  const Location location = plan_.scratch(8 * static_cast<uint64_t>(apply.key_count));
  plan_.launch(KernelFile::kIndex, "index_keys", keys, blocks_for(apply.key_count))
      .at(&IndexKeysArguments::keys, location)
      .at_words([](const IndexKeysArguments& words) { return &words.index.index[0]; }, locations())
      .failure([](const IndexKeysArguments& words) { return &words.index.failure; });
  const Sorted sorted = sort_rows(plan_, location, 1, apply.key_count);
  apply.index = arguments_;
  apply.dtype = static_cast<i64>(part_of(self_.dtype));
  plan_.launch(KernelFile::kIndex, "index_apply", apply, blocks_for(arguments_.count))
      .at(&IndexApplyArguments::keys, sorted.keys)
      .at(&IndexApplyArguments::positions, sorted.positions)
      .at_word([](const IndexApplyArguments& words) { return &words.index.self; }, self_.location)
      .at_word([](const IndexApplyArguments& words) { return &words.index.values; }, values);
  return {};
}

}  // namespace torch_remote::worker::cuda

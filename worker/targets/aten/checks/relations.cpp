#include "worker/targets/aten/checks/relations.h"

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <limits>

#include "worker/targets/aten/checks/indices.h"

namespace torch_remote::worker::aten::relations {
namespace {

bool empty(const at::Tensor& tensor) { return !tensor.defined() || tensor.numel() == 0; }

template <class F>
bool for_all(const IValue& value, F&& f) {
  if (value.isNone()) return true;
  if (value.isTensor()) return !value.toTensor().defined() || f(value.toTensor());
  return std::ranges::all_of(value.toListRef(), [&](const IValue& each) { return for_all(each, f); });
}

}  // namespace

bool defined(const IValue& value) { return value.isTensor() && value.toTensor().defined(); }

int64_t dim(const IValue& tensor) { return defined(tensor) ? tensor.toTensor().dim() : 0; }

int64_t size(const IValue& tensor, int64_t d) {
  const int64_t rank = dim(tensor);
  if (d < 0) d += rank;
  return d >= 0 && d < rank ? tensor.toTensor().sizes()[static_cast<size_t>(d)] : -1;
}

int64_t numel(const IValue& tensor) { return defined(tensor) ? tensor.toTensor().numel() : 0; }

int64_t count(const IValue& list) { return list.isNone() ? 0 : static_cast<int64_t>(list.toListRef().size()); }

int64_t product(const IValue& list) {
  int64_t result = 1;
  for (const int64_t factor : list.toIntVector()) {
    if (__builtin_mul_overflow(result, factor, &result)) return -1;
  }
  return result;
}

int64_t item(const IValue& list, int64_t index) { return list.toIntVector().at(static_cast<size_t>(index)); }

bool same(const IValue& a, const IValue& b) {
  if (a.isTensor() && b.isTensor()) {
    return defined(a) && defined(b) && a.toTensor().sizes() == b.toTensor().sizes();
  }
  if (!a.isList() || !b.isList()) return false;
  return std::ranges::equal(a.toListRef(), b.toListRef(), same);
}

bool same_leading_sizes(const IValue& a, int64_t without_a, const IValue& b, int64_t without_b) {
  const int64_t rank = dim(a) - without_a;
  if (!defined(a) || !defined(b) || rank < 0 || rank != dim(b) - without_b) return false;
  const auto first = static_cast<size_t>(rank);
  return a.toTensor().sizes().slice(0, first) == b.toTensor().sizes().slice(0, first);
}

bool same_dtype(const IValue& a, const IValue& b) {
  return defined(a) && defined(b) && a.toTensor().scalar_type() == b.toTensor().scalar_type();
}

bool in_range(const IValue& tensor, int64_t size) {
  return empty(tensor.toTensor()) || all_in_range(tensor.toTensor(), size);
}

bool labels(const IValue& tensor, int64_t size, int64_t ignored) {
  const at::Tensor& target = tensor.toTensor();
  if (empty(target)) return true;
  if (ignored >= 0 && ignored < size) return all_in_range(target, size);
  if (all_in_range(target, size)) return true;
  return all_in_range(target.masked_fill(target.eq(ignored), 0), size);
}

bool pivots_in_range(const IValue& tensor, int64_t size) {
  const at::Tensor& all = tensor.toTensor();
  return empty(all) || (not_lowest(tensor) && all_in_range(all.abs().sub(1), size));
}

bool finite(const IValue& tensor) {
  return empty(tensor.toTensor()) || tensor.toTensor().isfinite().all().item<bool>();
}

bool not_lowest(const IValue& tensor) {
  const at::Tensor& all = tensor.toTensor();
  if (empty(all) || (all.scalar_type() != at::kLong && all.scalar_type() != at::kInt)) return true;
  const int64_t least =
      all.scalar_type() == at::kLong ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int32_t>::min();
  return !all.eq(least).any().item<bool>();
}

bool fits(const IValue& value, const IValue& sizes, const IValue& strides) {
  const at::Tensor& tensor = value.toTensor();
  const std::vector<int64_t> all = sizes.toIntVector(), steps = strides.toIntVector();
  if (!tensor.defined() || all.size() != steps.size()) return false;
  int64_t last = tensor.storage_offset();
  for (size_t d = 0; d < all.size(); ++d) {
    int64_t reach = 0;
    if (all[d] < 0 || steps[d] < 0) return false;
    if (all[d] == 0) return true;
    if (__builtin_mul_overflow(all[d] - 1, steps[d], &reach) || __builtin_add_overflow(last, reach, &last))
      return false;
  }
  return last < static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
}

bool all_same_sizes(const IValue& list) {
  const auto all = list.toListRef();
  return std::ranges::all_of(all, [&](const IValue& tensor) { return same(tensor, all[0]); });
}

bool dense(const IValue& list) {
  return for_all(list, [](const at::Tensor& tensor) { return !shares_memory(tensor); });
}

bool batched(const IValue& value) {
  const at::Tensor& tensor = value.toTensor();
  if (!tensor.defined() || tensor.dim() < 3 || tensor.numel() == 0) return true;
  const int64_t step = tensor.stride(-3);
  int64_t count = 1;
  for (int64_t d = tensor.dim() - 3; d >= 0; --d) {
    if (tensor.size(d) != 1 && tensor.stride(d) != step * count) return false;
    count *= tensor.size(d);
  }
  return step > 0 || count == 1;
}

bool each_has(const IValue& list, int64_t elements) {
  return for_all(list, [&](const at::Tensor& tensor) { return tensor.numel() >= elements; });
}

bool below_2_31(const IValue& list) {
  constexpr int64_t kMost = int64_t{1} << 31;
  return std::ranges::all_of(list.toIntVector(), [](int64_t each) { return each > -kMost && each < kMost; });
}

void pack(IValue& tensor) {
  if (defined(tensor) && shares_memory(tensor.toTensor())) tensor = tensor.toTensor().contiguous();
}

void pack_rows(IValue& tensor) {
  if (!defined(tensor)) return;
  const at::Tensor& of = tensor.toTensor();
  if (shares_memory(of) || (of.dim() > 0 && of.size(-1) > 1 && of.stride(-1) != 1)) tensor = of.contiguous();
}

void pack_format(IValue& tensor) {
  if (defined(tensor)) tensor = tensor.toTensor().contiguous(tensor.toTensor().suggest_memory_format());
}

bool wrap(IValue& dims, int64_t rank) {
  std::vector<int64_t> all = dims.toIntVector();
  for (int64_t& d : all) {
    if (d < -rank || d >= rank) return false;
    if (d < 0) d += rank;
  }
  std::vector<int64_t> sorted = all;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) return false;
  dims = all;
  return true;
}

bool shares_memory(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const int64_t elements = c10::multiply_integers(sizes);
  if (elements == 0) return false;
  int64_t reach = 1;
  for (size_t d = 0; d < sizes.size(); ++d) reach += (sizes[d] - 1) * strides[d];
  return elements > reach;
}

}  // namespace torch_remote::worker::aten::relations

#include "ir/fusion/kernel_dims.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace torch_remote::ir {
namespace {

// The length of a row when a reduction over all elements is cut into rows.
constexpr int64_t kPiece = 4096;

Status unsupported(const char* what) { return {ErrorCode::kUnsupported, what}; }

}  // namespace

Status KernelDims::find() {
  bool over_rows = false, over_all = false;
  for (const IterationDomain::Member& member : domain_.members()) {
    over_all |= member.reduces == ReductionKind::kAll;
    over_rows |= member.reduces == ReductionKind::kAll || member.reduces == ReductionKind::kRows;
    for (const IterationDomain::Access& access : member.accesses) over_rows |= access.part.reduces_other_axes;
  }
  find_reference();
  if (domain_.columns() != 0) {
    columns = merge(domain_.columns());
    outer = merge(domain_.all() & ~domain_.columns() & ~domain_.unreduced_rows());
  } else {
    outer = merge(domain_.all());
    if (!outer.empty()) {
      columns = {outer.back()};
      outer.pop_back();
    }
    if (over_all && outer.size() == 1 && columns.size() == 1) {
      // The two dims already give a row and columns.
    } else if (over_all && outer.empty() && !columns.empty()) {
      cut();
    }
  }
  if (columns.size() > kMaxColumnDims) return unsupported("the kernel has more than two column dims");
  if (!outer.empty()) {
    row = {outer.back()};
    outer.pop_back();
  }
  if (over_rows && !outer.empty()) return unsupported("the kernel reduces over rows of several dims");
  if (domain_.unreduced_rows() != 0) outer = merge(domain_.unreduced_rows());
  return {};
}

// Finds the access with the most dims, preferably one that writes. The kernel walks memory in its order.
void KernelDims::find_reference() {
  for (const bool writes : {true, false}) {
    for (const IterationDomain::Member& member : domain_.members()) {
      for (const IterationDomain::Access& access : member.accesses) {
        if (access.part.writes != writes) continue;
        if (reference_ == nullptr || std::popcount(access.dims) > std::popcount(reference_->dims)) reference_ = &access;
      }
    }
  }
}

std::vector<MergedDims> KernelDims::merge(DimMask mask) const {
  std::vector<uint32_t> dims;
  for (uint32_t d = 0; d < domain_.sizes().size(); ++d) {
    if ((mask >> d & 1) != 0) dims.push_back(d);
  }
  if (reference_ != nullptr) {
    // Sorts the dims along which the reference varies among their positions. The other dims stay where they are.
    std::vector<uint32_t> varying;
    std::ranges::copy_if(dims, std::back_inserter(varying), [&](uint32_t d) { return reference_->strides[d] != 0; });
    std::ranges::sort(varying, [&](uint32_t a, uint32_t b) {
      const int64_t of_a = reference_->strides[a], of_b = reference_->strides[b];
      return of_a != of_b ? of_a > of_b : a < b;
    });
    auto next = varying.begin();
    for (uint32_t& d : dims) {
      if (reference_->strides[d] != 0) d = *next++;
    }
  }
  std::vector<MergedDims> merged;
  for (const uint32_t d : dims) {
    if (!merged.empty() && joins(merged.back(), d)) {
      merged.back().dims.push_back(d);
      merged.back().size *= domain_.sizes()[d];
    } else {
      merged.push_back({{d}, domain_.sizes()[d]});
    }
  }
  return merged;
}

// Whether, in all views, the last element along `d` is followed by the next element of the outer dim.
bool KernelDims::joins(const MergedDims& outer_dim, uint32_t d) const {
  for (const IterationDomain::Member& member : domain_.members()) {
    for (const IterationDomain::Access& access : member.accesses) {
      if (outer_dim.stride(access) != access.strides[d] * domain_.sizes()[d]) return false;
    }
  }
  return true;
}

// Cuts the only dim into rows. A short dim becomes one row, so that short and long dims have the same kernel.
void KernelDims::cut() {
  const int64_t size = columns[0].size;
  row_length = std::clamp<int64_t>(size, 1, kPiece);
  remainder = size % row_length;
  row = {{columns[0].dims, size / row_length}};
  columns[0].size = row_length;
  outer = row;
}

}  // namespace torch_remote::ir

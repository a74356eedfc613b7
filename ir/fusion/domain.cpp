#include "ir/fusion/domain.h"

#include <algorithm>
#include <numeric>

namespace torch_remote::ir {
namespace {

// Limits the number of points, so that no multiplication of sizes and strides overflows.
constexpr int64_t kMaxPoints = int64_t{1} << 40;

DimMask split_mask(DimMask mask, uint32_t dim) {
  const DimMask below = mask & ((2u << dim) - 1);
  const DimMask above = (mask >> (dim + 1)) << (dim + 2);
  return below | above | ((mask >> dim & 1) << (dim + 1));
}

DimMask unsplit_mask(DimMask mask, uint32_t dim) {
  const DimMask below = mask & ((2u << dim) - 1);
  const DimMask above = (mask >> (dim + 2)) << (dim + 1);
  return below | above;
}

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

bool same_place(const IterationDomain::Access& a, const IterationDomain::Access& b) {
  return a.offset == b.offset && a.strides == b.strides && a.indexed.empty() && b.indexed.empty();
}

// Whether each combination of point and index writes another element.
bool is_injective(const IterationDomain::Access& access, const std::vector<int64_t>& sizes) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (access.strides[d] != 0) dims.emplace_back(access.strides[d], sizes[d]);
  }
  for (const IterationDomain::IndexedDim& dim : access.indexed) {
    if (dim.size > 1) dims.emplace_back(dim.stride, dim.size);
  }
  std::ranges::sort(dims);
  int64_t reach = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < reach) return false;
    reach = stride * size;
  }
  return true;
}

// Whether neighboring elements are each written where their own index says. Such a kernel writes element by element;
// ATen is as fast.
bool chooses_columns(const IterationDomain::Member& member) {
  if (std::ranges::none_of(member.accesses,
                           [](const IterationDomain::Access& access) { return access.part.in_order; })) {
    return false;
  }
  const auto space = std::ranges::find_if(member.accesses, [&](const IterationDomain::Access& access) {
    return access.part.reads && access.indexed.empty() && access.dims != 0 && !access.part.is_index;
  });
  if (space == member.accesses.end()) return true;
  uint32_t inner = 0;
  for (uint32_t d = 1; d < space->strides.size(); ++d) {
    const int64_t stride = space->strides[d];
    if (stride != 0 && (space->strides[inner] == 0 || stride < space->strides[inner])) inner = d;
  }
  return std::ranges::any_of(member.accesses, [&](const IterationDomain::Access& access) {
    return access.part.is_index && access.strides[inner] != 0;
  });
}

}  // namespace

// A range of elements: along a dim of the domain, or along an axis of a node's space.
struct IterationDomain::Axis {
  uint32_t index = 0;
  int64_t size = 1;
  int64_t stride = -1;  // -1: not compared
};

int64_t IterationDomain::points() const { return product(sizes_); }

bool IterationDomain::add(uint32_t node) {
  const Marks marks = marks_;
  const size_t members = members_.size();
  splits_.clear();
  if (try_add(node)) return true;
  members_.resize(members);
  undo_splits(0);
  if (members == 0) sizes_.clear();
  marks_ = marks;
  return false;
}

bool IterationDomain::try_add(uint32_t node) {
  Member member;
  member.node = node;
  if (!find_form(*graph_, graph_->nodes[node], item_, &member.form, checks_divisors())) return false;
  if (!std::ranges::all_of(member.form.parts,
                           [&](const Part& part) { return strides_cannot_overflow(graph_->views[part.view]); })) {
    return false;
  }
  // Alone, an NLL loss reads one element per row. So it joins only a group that computes all elements anyway.
  if (member.form.expansion == Expansion::kNllLoss && last_writer(graph_->views[member.form.space].buffer) == nullptr) {
    return false;
  }
  std::vector<std::vector<uint32_t>> dims_of_axis;
  if (!map_axes(member.form, &dims_of_axis) || !compute_strides(member, dims_of_axis) ||
      !find_reduction(member, dims_of_axis) || !innermost_column_is_reduced(member) ||
      !accesses_are_compatible(member)) {
    return false;
  }
  members_.push_back(std::move(member));
  return has_one_layout() && has_one_partitioning();
}

// A reduction over rows partitions the rows among threads. A write at indices needs all rows in one thread, and
// partitions the columns. One kernel cannot do both.
bool IterationDomain::has_one_partitioning() const {
  bool in_order = false, reduces = false;
  for (const Member& member : members_) {
    if (chooses_columns(member)) return false;
    reduces |= member.reduces != ReductionKind::kNothing;
    for (const Part& part : member.form.parts) {
      in_order |= part.in_order;
      reduces |= part.reduces_other_axes;
    }
  }
  return !in_order || !reduces;
}

// Whether all elements are near enough that sums and products of strides cannot overflow. Sizes and strides are
// arbitrary if they do not come from a checked run.
bool IterationDomain::strides_cannot_overflow(const View& view) const {
  constexpr int64_t kFarthest = int64_t{1} << 48;
  int64_t reach = 0;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    const int64_t size = value(view.sizes[d]), stride = value(view.strides[d]);
    if (size < 0 || size > kFarthest || stride < -kFarthest || stride > kFarthest ||
        __builtin_mul_overflow(size, stride, &reach) || reach > kFarthest || reach < -kFarthest) {
      return false;
    }
  }
  return value(view.offset) >= -kFarthest && value(view.offset) <= kFarthest;
}

// Finds the dims for each axis of the node's space. Splits dims where the space is finer.
bool IterationDomain::map_axes(const KernelForm& form, std::vector<std::vector<uint32_t>>* dims_of_axis) {
  int64_t points = 1;
  std::vector<int64_t> sizes;
  if (!find_sizes(*graph_, form, values_, &sizes)) return false;
  const auto is_reduced = [&](uint32_t axis) { return (form.reduced >> axis & 1) != 0; };
  bool reduces_one = kind_ != DomainKind::kGroup;  // all reduced axes have size 1, so one of them is kept
  uint32_t last_reduced = 0;
  for (uint32_t a = 0; a < sizes.size(); ++a) {
    if (!is_reduced(a)) continue;
    reduces_one = reduces_one && sizes[a] == 1;
    last_reduced = a;
  }
  reduces_one = reduces_one && form.reduced != 0;
  std::vector<Axis> axes;
  for (uint32_t a = 0; a < sizes.size(); ++a) {
    const int64_t size = sizes[a];
    // Sizes of expanded views may be arbitrarily large.
    if (size < (kind_ == DomainKind::kGroup ? 1 : 0) || __builtin_mul_overflow(points, size, &points) ||
        points > kMaxPoints)
      return false;
    if (size != 1 || (reduces_one && a == last_reduced)) axes.push_back({a, size, -1});
  }
  dims_of_axis->assign(sizes.size(), {});
  if (members_.empty()) {
    if (axes.size() > kMaxDomainDims) return false;
    for (const Axis& axis : axes) {
      (*dims_of_axis)[axis.index] = {static_cast<uint32_t>(sizes_.size())};
      sizes_.push_back(axis.size);
    }
    return true;
  }
  if (map_by_operand(form, sizes, dims_of_axis)) return true;
  if (points != this->points()) return false;
  std::vector<Axis> dims(sizes_.size());
  for (uint32_t d = 0; d < sizes_.size(); ++d) dims[d] = {d, sizes_[d], -1};
  return match(std::move(dims), std::move(axes), dims_of_axis);
}

// Maps the axes by an operand that an earlier member wrote: equal strides mean equal elements. This also covers
// operands that were transposed in between, and spaces with fewer dims than the domain.
bool IterationDomain::map_by_operand(const KernelForm& form, const std::vector<int64_t>& sizes,
                                     std::vector<std::vector<uint32_t>>* dims_of_axis) {
  std::vector<AxisRange> axes;
  for (const Part& part : form.parts) {
    if (!part.reads || is_at_indices(part) || !find_axes(*graph_, form, part, &axes)) continue;
    const View& view = graph_->views[part.view];
    const Access* const made = last_writer(view.buffer);
    if (made == nullptr || graph_->views[made->part.view].dtype != view.dtype) continue;
    std::vector<Axis> wanted, dims;
    for (uint32_t d = 0; d < axes.size(); ++d) {
      int64_t size = value(view.sizes[d]), stride = value(view.strides[d]);
      for (uint32_t a = axes[d].first + axes[d].count; a-- > axes[d].first;) {
        const int64_t part = a == axes[d].first ? size : sizes[a];
        if (size % part != 0) return false;
        if (part != 1) wanted.push_back({a, part, stride});
        size /= part;
        stride *= part;
      }
    }
    // All axes of the space with more than one position must be found.
    int64_t covered = 1, points = 1;
    for (const Axis& axis : wanted) covered *= axis.size;
    for (const int64_t size : sizes) points *= size;
    if (covered != points) continue;
    for (uint32_t d = 0; d < sizes_.size(); ++d) {
      if (made->strides[d] != 0) dims.push_back({d, sizes_[d], made->strides[d]});
    }
    const auto outer_first = [](const Axis& a, const Axis& b) { return a.stride > b.stride; };
    std::ranges::sort(wanted, outer_first);
    std::ranges::sort(dims, outer_first);
    const size_t before = splits_.size();
    if (match(std::move(dims), std::move(wanted), dims_of_axis)) return true;
    undo_splits(before);
    dims_of_axis->assign(sizes.size(), {});
  }
  return false;
}

// Both lists describe the same elements, outer ranges first. Where an axis ends inside of a dim, the dim is split.
bool IterationDomain::match(std::vector<Axis> dims, std::vector<Axis> axes,
                            std::vector<std::vector<uint32_t>>* dims_of_axis) {
  while (!dims.empty() && !axes.empty()) {
    Axis& dim = dims.back();
    Axis& axis = axes.back();
    if (dim.stride != axis.stride) return false;
    std::vector<uint32_t>& found = (*dims_of_axis)[axis.index];
    if (dim.size <= axis.size) {
      if (axis.size % dim.size != 0) return false;
      found.insert(found.begin(), dim.index);
      const int64_t size = dim.size;
      dims.pop_back();
      axis.size /= size;
      if (axis.stride > 0) axis.stride *= size;
      if (axis.size == 1) axes.pop_back();
      continue;
    }
    if (dim.size % axis.size != 0 || sizes_.size() == kMaxDomainDims) return false;
    // The inner part belongs to this axis; the outer part is matched next.
    const uint32_t at = dim.index;
    const int64_t size = axis.size;
    split(at, size);
    for (Axis& other : dims) other.index += other.index > at;
    for (std::vector<uint32_t>& known : *dims_of_axis) {
      for (uint32_t& d : known) d += d > at;
    }
    found.insert(found.begin(), at + 1);
    dim.size /= size;
    if (dim.stride > 0) dim.stride *= size;
    axes.pop_back();
  }
  return axes.empty() && dims.empty();
}

template <typename Change>
void IterationDomain::change_masks(const Change& change) {
  for (DimMask* mask : {&marks_.columns, &marks_.unreduced_rows, &marks_.reduced_columns}) *mask = change(*mask);
  for (Member& member : members_) {
    member.space = change(member.space);
    for (DimMask& axis : member.axes) axis = change(axis);
    for (Access& access : member.accesses) access.dims = change(access.dims);
  }
}

// Splits a dim into an outer dim and an inner dim of size `inner`, which follows it.
void IterationDomain::split(uint32_t dim, int64_t inner) {
  splits_.push_back(dim);
  sizes_[dim] /= inner;
  sizes_.insert(sizes_.begin() + dim + 1, inner);
  change_masks([&](DimMask mask) { return split_mask(mask, dim); });
  for (Member& member : members_) {
    for (Access& access : member.accesses) {
      access.strides.insert(access.strides.begin() + dim + 1, access.strides[dim]);
      access.strides[dim] *= inner;
    }
  }
}

// Undoes all splits but the first `left`.
void IterationDomain::undo_splits(size_t left) {
  for (; splits_.size() > left; splits_.pop_back()) {
    const uint32_t dim = splits_.back();
    sizes_[dim] *= sizes_[dim + 1];
    sizes_.erase(sizes_.begin() + dim + 1);
    change_masks([&](DimMask mask) { return unsplit_mask(mask, dim); });
    for (Member& member : members_) {
      for (Access& access : member.accesses) access.strides.erase(access.strides.begin() + dim);
    }
  }
}

// Computes the strides of the node's views along the domain's dims.
bool IterationDomain::compute_strides(Member& member, const std::vector<std::vector<uint32_t>>& dims_of_axis) {
  const KernelForm& form = member.form;
  for (const auto& dims : dims_of_axis) {
    DimMask axis = 0;
    for (const uint32_t d : dims) axis |= 1u << d;
    member.axes.push_back(axis);
    member.space |= axis;
  }
  std::vector<int64_t> sizes;
  if (!find_sizes(*graph_, form, values_, &sizes)) return false;
  std::vector<AxisRange> axes;
  for (const Part& part : form.parts) {
    const View& view = graph_->views[part.view];
    if (!find_axes(*graph_, form, part, &axes)) return false;
    Access access{part, value(view.offset), std::vector<int64_t>(sizes_.size()), {}, 0};
    for (size_t d = 0; d < axes.size(); ++d) {
      int64_t size = value(view.sizes[d]), stride = value(view.strides[d]);
      if (part.is_by_index(d)) access.indexed.push_back({size, stride});
      if (part.mapping == AxisMapping::kNamed && axes[d].count == 1) {
        if (size < sizes[axes[d].first]) return false;
        size = sizes[axes[d].first];
      }
      for (uint32_t a = axes[d].first + axes[d].count; a-- > axes[d].first;) {
        if (a == axes[d].first || sizes[a] == 0 ? size != sizes[a] : size % sizes[a] != 0) return false;
        if (sizes[a] != 0) size /= sizes[a];
        for (const uint32_t dim : std::vector(dims_of_axis[a].rbegin(), dims_of_axis[a].rend())) {
          access.strides[dim] = stride;
          if (stride != 0) access.dims |= 1u << dim;
          stride *= sizes_[dim];
        }
      }
    }
    if (part.writes && (part.in_order == access.indexed.empty() || !is_injective(access, sizes_))) return false;
    member.accesses.push_back(std::move(access));
  }
  return true;
}

// Finds what the member reduces over, and when its results are available.
bool IterationDomain::find_reduction(Member& member, const std::vector<std::vector<uint32_t>>& dims_of_axis) {
  bool late = false, early = false;  // it reads results that need all rows, or other results of earlier members
  for (const Access& access : member.accesses) {
    if (!access.part.reads) continue;
    if (const Access* made = last_writer(graph_->views[access.part.view].buffer))
      (made->available_after_all_rows ? late : early) = true;
  }
  DimMask reduced = 0;
  for (size_t axis = 0; axis < dims_of_axis.size(); ++axis) {
    if ((member.form.reduced >> axis & 1) == 0) continue;
    for (const uint32_t dim : dims_of_axis[axis]) reduced |= 1u << dim;
  }
  if (member.form.reduced == 0) {
    if (late && (early || (member.space & ~marks_.columns) != 0)) return false;
    for (Access& access : member.accesses) access.available_after_all_rows = late && access.part.writes;
    return true;
  }
  if (late || reduced == 0) return false;
  // A matmul that would add up rows is left to a library: a kernel is no faster there.
  const bool may_reduce_rows =
      kind_ != DomainKind::kNodeByRows &&
      ((member.form.expansion >= Expansion::kSum && member.form.expansion != Expansion::kMatmul) ||
       is_loss(member.form.expansion));
  const bool of_all = may_reduce_rows && reduced == all() && member.space == all() && marks_.columns != all();
  if (!of_all && !choose_columns(member, reduced, may_reduce_rows)) return false;
  if (of_all) {
    member.reduces = ReductionKind::kAll;
  } else if (reduced == marks_.columns && member.space == all()) {
    member.reduces = ReductionKind::kColumns;
  } else if (may_reduce_rows && reduced == (all() & ~marks_.columns)) {
    member.reduces = ReductionKind::kRows;
  } else {
    return false;
  }
  for (Access& access : member.accesses) {
    access.available_after_all_rows =
        access.part.writes && (member.reduces != ReductionKind::kColumns || access.part.reduces_other_axes);
    if (access.available_after_all_rows && !record_row_reduction(member, access)) return false;
  }
  return true;
}

// All reductions over rows in a group reduce the same rows; each position in the kept rows is computed on its own. Such
// a result has all columns or none, or it also reduces the inner columns.
bool IterationDomain::record_row_reduction(const Member& member, const Access& result) {
  const DimMask rows = result.dims & ~marks_.columns, columns = result.dims & marks_.columns;
  if (marks_.has_row_reductions && marks_.unreduced_rows != rows) return false;
  marks_.has_row_reductions = true;
  marks_.unreduced_rows = rows;
  if (columns == 0 || columns == marks_.columns) return true;
  const DimMask lines = marks_.columns & ~columns;
  if (marks_.reduced_columns != 0 && marks_.reduced_columns != lines) return false;
  marks_.reduced_columns = lines;
  return std::ranges::all_of(members_, [&](const Member& other) { return innermost_column_is_reduced(other); }) &&
         innermost_column_is_reduced(member);
}

// If channels are in groups, all accesses that cover all points must have the same strides. Torch's group norm backward
// assumes that the incoming gradient has the input's strides. Where it has others, torch executes the node, so that the
// results are torch's.
bool IterationDomain::has_one_layout() const {
  const Access* first = nullptr;
  bool pieces = false, same = true;
  for (const Member& member : members_) {
    pieces |= member.form.channel_groups != 0;
    for (const Access& access : member.accesses) {
      if (access.dims != all()) continue;
      if (first == nullptr) first = &access;
      same &= access.strides == first->strides;
    }
  }
  return same || !pieces;
}

// If some sums run over lines, the innermost column of each access that covers all points must be in a line.
bool IterationDomain::innermost_column_is_reduced(const Member& member) const {
  if (marks_.reduced_columns == 0) return true;
  return std::ranges::all_of(member.accesses, [&](const Access& access) {
    uint32_t inner = kMaxDomainDims;
    for (uint32_t d = 0; d < sizes_.size(); ++d) {
      const bool least = inner == kMaxDomainDims || access.strides[d] < access.strides[inner];
      if ((marks_.columns >> d & 1) != 0 && access.strides[d] != 0 && least) inner = d;
    }
    return access.dims != all() || (marks_.reduced_columns >> inner & 1) != 0;
  });
}

// The first reduction determines the columns: the dims that it reduces if the innermost dim is among them, otherwise
// the other dims.
bool IterationDomain::choose_columns(const Member& member, DimMask reduced, bool may_reduce_rows) {
  if (marks_.columns != 0) return true;
  if (member.space != all()) return false;
  if (kind_ == DomainKind::kNodeByRows) {
    marks_.columns = reduced;
    return true;
  }
  const auto of_space = std::ranges::find_if(member.accesses, [&](const Access& access) {
    return access.part.view == member.form.space && access.part.mapping == AxisMapping::kLast;
  });
  if (of_space == member.accesses.end()) return false;
  uint32_t inner = 0;
  for (uint32_t d = 1; d < sizes_.size(); ++d) {
    if (of_space->strides[d] != 0 && (of_space->strides[inner] == 0 || of_space->strides[d] < of_space->strides[inner]))
      inner = d;
  }
  if ((reduced >> inner & 1) != 0) {
    marks_.columns = reduced;
  } else if (may_reduce_rows) {
    marks_.columns = all() & ~reduced;
  } else {
    return false;
  }
  return true;
}

// The last access by which a member creates or writes the buffer; null if there is none.
const IterationDomain::Access* IterationDomain::last_writer(uint32_t buffer) const {
  const Access* made = nullptr;
  for (const Member& other : members_) {
    for (const Access& known : other.accesses) {
      if (known.part.writes && graph_->views[known.part.view].buffer == buffer) made = &known;
    }
  }
  return made;
}

// Whether a buffer that a member writes is accessed at the same elements only.
bool IterationDomain::accesses_are_compatible(const Member& member) const {
  for (const Access& access : member.accesses) {
    const View& view = graph_->views[access.part.view];
    const auto clashes = [&](const Access& other) {
      const View& known = graph_->views[other.part.view];
      if (known.buffer != view.buffer || (!other.part.writes && !access.part.writes) || &other == &access) return false;
      return known.dtype != view.dtype || !same_place(access, other);
    };
    for (const Member& other : members_) {
      if (std::ranges::any_of(other.accesses, clashes)) return false;
    }
    if (std::ranges::any_of(member.accesses, clashes)) return false;
  }
  return true;
}

}  // namespace torch_remote::ir

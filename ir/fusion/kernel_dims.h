#pragma once

#include <cstdint>
#include <vector>

#include "ir/fusion/domain.h"
#include "ir/status.h"

// The dims that the kernel of a domain has. Passes check that they exist, and code generation uses them, so that both
// agree.
namespace torch_remote::ir {

// The most dims of columns. A kernel's columns are the loops inside of a row.
inline constexpr size_t kMaxColumnDims = 2;

// Dims of the domain that are merged into one dim of the kernel, outer dims first.
struct MergedDims {
  std::vector<uint32_t> dims;
  int64_t size = 1;
  // The access's stride along the merged dim, in elements.
  int64_t stride(const IterationDomain::Access& access) const { return dims.empty() ? 0 : access.strides[dims.back()]; }
};

// Finds the kernel's dims. They are sorted by the strides of the access that varies along the most dims, largest first.
class KernelDims {
 public:
  // `domain` must outlive this object.
  explicit KernelDims(const IterationDomain& domain) : domain_(domain) {}

  // Call it once. Returns kUnsupported if no kernel has that many dims.
  Status find();

  // The kernel's loops, from outside to inside: all dims of `outer`, then of `row` (at most one), then of `columns`.
  std::vector<MergedDims> outer, row, columns;
  // If the kernel reduces over all of a domain that has one dim after merging, that dim is cut into rows of this
  // length. `row` and `columns` then both have that dim, and the stride between rows is row_length times stride().
  // Otherwise row_length is 0.
  int64_t row_length = 0;
  int64_t remainder = 0;  // points after the last whole row

 private:
  void find_reference();
  std::vector<MergedDims> merge(DimMask mask) const;
  bool joins(const MergedDims& outer_dim, uint32_t d) const;
  void cut();

  const IterationDomain& domain_;
  const IterationDomain::Access* reference_ = nullptr;
};

}  // namespace torch_remote::ir

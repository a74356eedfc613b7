#pragma once

#include <cstdint>
#include <vector>

#include "ir/fusion/domain.h"
#include "ir/status.h"

// The dims that a kernel of a domain has. Passes ask whether there are such, code generation takes them, so that both
// agree.
namespace torch_remote::ir {

// A kernel's columns are the loops inside of a row.
inline constexpr size_t kMostColumnDims = 2;

// Dims of the domain that are one dim of the kernel: outer ones first.
struct Merged {
  std::vector<uint32_t> dims;
  int64_t size = 1;
  int64_t stride(const Domain::Access& access) const { return dims.empty() ? 0 : access.strides[dims.back()]; }
};

// Which dims the kernel has, in the order of memory, so that the last one is that of neighbours.
class Arrangement {
 public:
  explicit Arrangement(const Domain& domain) : domain_(domain) {}

  // kUnsupported: no kernel has so many dims.
  Status find();

  std::vector<Merged> outer, row, columns;  // at most one row
  int64_t piece = 0;                        // the columns are so many of the only dim, which the row goes along, too
  int64_t rest = 0;

 private:
  void find_reference();
  std::vector<Merged> merge(DimMask mask) const;
  bool joins(const Merged& outer_dim, uint32_t d) const;
  void cut();

  const Domain& domain_;
  const Domain::Access* reference_ = nullptr;
};

}  // namespace torch_remote::ir

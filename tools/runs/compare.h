#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ir/dtype.h"

// Comparing tensors' bytes.
namespace torch_remote::tools {

// Elements agree if their bits do, or |a - b| <= atol + rtol * |b|, or both are NaN. With both 0, bits decide: NaN and
// the sign of zero count.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

struct Difference {
  uint64_t differing = 0;  // elements that do not agree
  uint64_t elements = 0;
  uint64_t first = 0;  // index of the first one, row-major
  // Over the elements that do not agree, and only if their type has a number: NaN and infinity count as infinitely far.
  double max_abs = 0;
  double max_rel = 0;
  std::string a, b;  // the first one's values
};

// Packed elements of one type. Empty if all agree. What is not as many bytes is different altogether.
std::optional<Difference> compare(ir::DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                                  const Tolerance& tolerance);

// "12 of 400 elements differ, at most by 3.1e-05 (relative 2e-06); element 17: 0.25 and 0.125".
std::string to_string(const Difference& difference);

}  // namespace torch_remote::tools

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ir/dtype.h"

// Compares tensors' bytes.
namespace torch_remote::ir {

// Two elements agree if their bits are equal, or |a - b| <= atol + rtol * |b|, or both are NaN. An infinite element
// agrees only with the same infinity. Complex numbers agree if both parts do. Elements of float8 types agree only if
// their bits are equal. If both tolerances are 0, only equal bits agree: NaN payloads and the sign of zero count.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
  bool nonfinite = false;  // elements that are infinite or NaN agree with each other
};

struct Difference {
  uint64_t differing = 0;  // number of elements that do not agree
  uint64_t elements = 0;   // number of all elements
  uint64_t first = 0;      // row-major index of the first element that does not agree
  // Maxima of |a - b| and |a - b| / |b| over the elements that do not agree; 0 for float8 types. The distance is
  // infinite if only one of the two is NaN or infinite.
  double max_abs = 0;
  double max_rel = 0;
  std::string a, b;  // The values of element `first`. If the numbers of bytes differ: "12 bytes" and "16 bytes".
};

// Compares contiguous elements of one dtype; `b` has the expected values. Returns nothing if all agree. If the numbers
// of bytes differ, all elements of the longer one count as differing, and both maxima are 0.
std::optional<Difference> compare(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                                  const Tolerance& tolerance);

// The largest absolute value of a finite element, or part of a complex one. 0 for float8 types, and if there is none.
double largest(DType dtype, std::span<const std::byte> elements);

// For example "12 of 400 elements differ, at most by 3.1e-05 (relative 2e-06); element 17: 0.25 and 0.125".
std::string to_string(const Difference& difference);

}  // namespace torch_remote::ir

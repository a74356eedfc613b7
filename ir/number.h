#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>

#include "ir/graph.h"

namespace torch_remote::ir {

// The argument's value in a run: a float, an integer, or 1 for true. Empty if the argument is not a number, or is
// complex. `values` holds the values of all symbols.
inline std::optional<double> number_of(const Arg& arg, std::span<const int64_t> values) {
  switch (arg.tag) {
    case ArgTag::kFloat:
      return std::bit_cast<double>(values[arg.a]);
    case ArgTag::kInt:
    case ArgTag::kBool:
      return static_cast<double>(values[arg.a]);
    default:
      return std::nullopt;
  }
}

}  // namespace torch_remote::ir

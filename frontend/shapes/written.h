#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/DimVector.h>

#include <optional>

// What is written into a tensor: does it fit?
namespace torch_remote::frontend {

// Raises if the dtype cannot hold the number.
void check_fits(c10::ScalarType dtype, const c10::Scalar& number);

// Sizes of self[indices], of the arguments of index_put and its like; none if only data can tell (a mask). Raises if
// the indices do not fit together.
std::optional<c10::DimVector> indexed_sizes(const c10::IValue* args);

}  // namespace torch_remote::frontend

#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/DimVector.h>

#include <optional>

// Checks whether values fit into the tensor that they are written to.
namespace torch_remote::frontend {

// Raises if the dtype cannot hold the number.
void check_fits(c10::ScalarType dtype, const c10::Scalar& number);

// Raises if the argument `indices` of index_put and similar ops is invalid: too many indices, indices of other dtypes,
// or masks that do not have the sizes of `self`.
void check_indices(const c10::IValue* args);

// The sizes of self[indices], from the arguments of index_put and similar ops. Nothing if they depend on data (a mask).
// Raises if the indices do not broadcast.
std::optional<c10::DimVector> indexed_sizes(const c10::IValue* args);

}  // namespace torch_remote::frontend

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torch_remote::worker::aten {

// Whether all elements of `index`, a tensor of any integer dtype and any strides, are in [0, size).
bool all_in_range(const at::Tensor& index, int64_t size);

}  // namespace torch_remote::worker::aten

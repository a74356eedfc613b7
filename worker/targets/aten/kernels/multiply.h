#pragma once

#include <ATen/core/Tensor.h>

#include "worker/runner/plugin.h"

namespace torch_remote::worker::aten {

// Does the product, on the threads that are in use. False: not in this way, and nothing was written. Throws what torch
// throws.
bool run_product(const tr_product& product);

// Whom multiply_into asks which library is faster, for the process; null: nobody, and torch's own is. It outlives that.
void ask_for_products(const tr_host* host);

// result = left @ right, matrices of one dtype, or what is there and that; by the faster library.
void multiply_into(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right, bool adds = false);

}  // namespace torch_remote::worker::aten

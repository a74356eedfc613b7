#pragma once

#include <ATen/core/Tensor.h>

#include "worker/runner/plugin.h"

namespace torch_remote::worker::aten {

// Computes the GEMM on the threads that are in use. Returns false, with nothing written, if the requested library does
// not support it. Throws torch's errors.
bool run_gemm(const tr_matmul& matmul);

// Sets, for the whole process, the plugin's host (tr_host). gemm_into asks it which library is faster. Null: gemm_into
// uses torch's own. The host must live until it is replaced.
void set_gemm_host(const tr_host* host);

// result = left @ right, or result += left @ right if `adds`, for matrices of one dtype. Uses the faster library.
void gemm_into(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right, bool adds = false);

}  // namespace torch_remote::worker::aten

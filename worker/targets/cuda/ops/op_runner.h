#pragma once

#include <memory>

#include "worker/runner/runner.h"
#include "worker/targets/cuda/ops/op_kernels.h"

namespace torch_remote::worker::cuda {

// The runner of ops that have hand-written kernels: random fills, scans, sorting, indexing, concatenation, reductions,
// and ops whose results' sizes depend on data.
std::unique_ptr<Runner> make_op_runner(std::shared_ptr<OpKernels> kernels);

}  // namespace torch_remote::worker::cuda

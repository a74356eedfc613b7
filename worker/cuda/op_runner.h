#pragma once

#include <memory>

#include "worker/cuda/cuda_device.h"
#include "worker/cuda/kernel_images.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::cuda {

// The runner of ops that have kernels written by hand: random fills, scans, sorting, indices, joins, and results whose
// size depends on data. `kernels` lives as long as the runner.
std::unique_ptr<Runner> make_op_runner(CudaDevice& device, KernelArchive kernels);

}  // namespace torch_remote::worker::cuda

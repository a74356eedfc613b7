#pragma once

#include <cstdint>
#include <memory>

#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"

namespace torch_remote::worker::cuda {

// The runner of compiled kernels on a GPU, for groups and for single nodes. A kernel is compiled when it is first
// needed, and the run waits for it.
std::unique_ptr<Runner> make_cuda_runner(CudaDevice& device);

// The kinds of groups that the runner accepts, as bits of ir::Capabilities::group_kind_mask.
uint32_t group_kind_mask();

}  // namespace torch_remote::worker::cuda

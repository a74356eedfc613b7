#pragma once

#include <cstdint>
#include <memory>

#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/ops/op_runner.h"

namespace torch_remote::worker::cuda {

// The runner of compiled kernels on a GPU: it does groups, and single nodes that a kernel can do. Kernels are compiled
// when they are needed first; the caller waits, as nobody else could do their nodes. A single node that it has no
// kernel for is done by `others`, if these have one.
std::unique_ptr<Runner> make_cuda_runner(CudaDevice& device, std::shared_ptr<WrittenUnits> others = nullptr);

// The kinds of groups and the dtypes that it may be given, as bits of ir::Capabilities.
uint32_t group_kinds();
uint64_t dtypes();

}  // namespace torch_remote::worker::cuda

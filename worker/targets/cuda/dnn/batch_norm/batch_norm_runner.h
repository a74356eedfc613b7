#pragma once

#include <memory>
#include <string>

#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/cudnn_table.h"
#include "worker/targets/cuda/ops/op_kernels.h"

namespace torch_remote::worker::cuda {

// The runner of batch norm in training mode with cuDNN, for f16, bf16 and f32 in channels-last layout. `folder`: where
// it stores which algorithms are fastest; empty: nowhere. The device must outlive it.
std::unique_ptr<Runner> make_batch_norm_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table,
                                               std::string folder, std::shared_ptr<OpKernels> kernels);

}  // namespace torch_remote::worker::cuda

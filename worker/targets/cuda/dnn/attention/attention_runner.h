#pragma once

#include <memory>
#include <string>

#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/cudnn_table.h"
#include "worker/targets/cuda/ops/op_kernels.h"

namespace torch_remote::worker::cuda {

// The runner of attention and its gradients in half types, with cuDNN. `folder`: where the runner stores which
// algorithms are fastest; empty: nowhere.
std::unique_ptr<Runner> make_attention_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
                                              std::shared_ptr<OpKernels> kernels);

}  // namespace torch_remote::worker::cuda

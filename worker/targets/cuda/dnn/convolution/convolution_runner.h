#pragma once

#include <memory>
#include <string>

#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/cudnn_table.h"

namespace torch_remote::worker::cuda {

// The runner of convolutions and their gradients, with cuDNN. Without cuDNN, convolutions fail with the error of its
// loading. `folder`: where it stores which algorithms are fastest; empty: nowhere.
std::unique_ptr<Runner> make_convolution_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table,
                                                std::string folder);

}  // namespace torch_remote::worker::cuda

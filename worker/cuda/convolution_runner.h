#pragma once

#include <memory>
#include <string>

#include "worker/cuda/cuda_device.h"
#include "worker/cuda/cudnn_table.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::cuda {

// The runner of convolutions and their gradients, by cuDNN. Where there is none, convolutions fail with its error.
// `folder`: where it keeps what is fastest; empty: nowhere.
std::unique_ptr<Runner> make_convolution_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table,
                                                std::string folder);

}  // namespace torch_remote::worker::cuda

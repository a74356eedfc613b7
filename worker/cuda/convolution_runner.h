#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ir/status.h"
#include "worker/cuda/cuda_device.h"
#include "worker/cuda/cudnn.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::cuda {

// Fills the table. Called once, by any thread.
using OpenConvolutions = std::function<Status(dnn::Table* table)>;

// The runner of convolutions and their gradients, by cuDNN. The library is opened beside what the caller does; where
// there is none, convolutions fail with its error. `folder`: where it keeps what is fastest; empty: nowhere.
std::unique_ptr<Runner> make_convolution_runner(CudaDevice& device, OpenConvolutions open, std::string folder);

}  // namespace torch_remote::worker::cuda

#pragma once

#include <memory>

#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/cudnn_table.h"

namespace torch_remote::worker::cuda {

// The runner of recurrent layers and their gradients, with cuDNN. The device must outlive it.
std::unique_ptr<Runner> make_rnn_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table);

}  // namespace torch_remote::worker::cuda

#pragma once

#include <memory>
#include <string>

#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/cudnn_table.h"
#include "worker/targets/cuda/ops/op_runner.h"

namespace torch_remote::worker::cuda {

// Written kernels, but for what cuDNN does better: batch norm that trains, of images that lie channels last, and
// recurrent layers. Those
// kernels do what cuDNN refuses, and all of it where there is no cuDNN. `folder`: where it keeps what is fastest;
// empty: nowhere. The device lives longer.
std::shared_ptr<WrittenUnits> make_cudnn_units(CudaDevice& device, std::shared_ptr<CudnnTable> table,
                                               std::string folder, std::shared_ptr<WrittenUnits> written);

}  // namespace torch_remote::worker::cuda

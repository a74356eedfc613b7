#pragma once

#include <memory>
#include <string>

#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/cudnn_table.h"
#include "worker/targets/cuda/ops/op_runner.h"

namespace torch_remote::worker::cuda {

// The runner of attention and its gradients in half types: by cuDNN as soon as it has a plan, until then, and where it
// does no such thing or is not there, by kernels written by hand. (In deterministic mode it is waited for, as results
// may not depend on when it is ready.) `folder`: where it keeps what is fastest; empty: nowhere.
std::unique_ptr<Runner> make_attention_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
                                              std::shared_ptr<WrittenUnits> units);

}  // namespace torch_remote::worker::cuda

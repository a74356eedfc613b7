#pragma once

#include <memory>
#include <string>

#include "worker/runner/runner.h"
#include "worker/targets/cuda/aten_runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/cudnn_table.h"
#include "worker/targets/cuda/gemm/gemm_runner.h"
#include "worker/targets/cuda/kernels/kernel_images.h"

namespace torch_remote::worker::cuda {

struct RunnerSources {
  OpenCublasLt cublaslt;
  std::shared_ptr<CudnnTable> cudnn;
  KernelArchive kernels;  // Hand-written; must outlive the runners.
  AtenSource aten;
  std::string folder = {};  // Where the fastest algorithms of libraries are stored; empty: nowhere.
};

// The runners of a GPU, in the order in which they are asked: compiled kernels, cuBLASLt, cuDNN (convolutions,
// attention, batch norm, recurrent layers), hand-written kernels, ATen. The device must outlive them.
Runners make_runners(CudaDevice& device, RunnerSources sources);

}  // namespace torch_remote::worker::cuda

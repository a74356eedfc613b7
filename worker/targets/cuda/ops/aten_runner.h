#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ir/status.h"
#include "worker/runner/plugin.h"
#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"

namespace torch_remote::worker::cuda {

struct AtenSource {
  // Opens the plugin. Null: there is no libtorch for CUDA.
  std::function<Status(const tr_runner_api** api)> open;
  std::string library;  // with its kernels; empty: libtorch_cuda.so beside the libtorch_cpu.so of the plugin
  std::string found;    // its path, for people
  std::string missing;  // why there is none; behind "; " what to do
};

// The one in the folder of torch's libraries. `plugin`: path of the plugin.
AtenSource find_aten(const std::string& folder, const std::string& plugin);

// The runner of all ops that torch has CUDA kernels for: the ATen plugin (worker/targets/aten), where a libtorch for
// CUDA lies next to it. It is opened by the first op that no other runner takes, which takes seconds.
std::unique_ptr<Runner> make_aten_runner(CudaDevice& device, AtenSource source);

}  // namespace torch_remote::worker::cuda

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
  // The library with torch's CUDA kernels; empty: libtorch_cuda.so next to the plugin's libtorch_cpu.so.
  std::string library;
  std::string found;    // The library's path, for messages.
  std::string missing;  // For errors: "<why there is none>; <what to do>".
};

// Looks for the library in the folder of torch's libraries. `plugin`: the plugin's path.
AtenSource find_aten(const std::string& folder, const std::string& plugin);

// The runner of all ops for which torch has CUDA kernels: the ATen plugin (worker/targets/aten), if a libtorch for CUDA
// lies next to it. The first op that no other runner takes opens it, which takes seconds.
std::unique_ptr<Runner> make_aten_runner(CudaDevice& device, AtenSource source);

}  // namespace torch_remote::worker::cuda

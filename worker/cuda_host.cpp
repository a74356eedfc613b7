#include "worker/cuda_host.h"

#include <memory>
#include <string>

#include "worker/cuda/compiler.h"
#include "worker/cuda/cuda_device.h"
#include "worker/cuda/cuda_runner.h"

namespace torch_remote::worker {

DeviceOpener cuda_device_opener(int ordinal) {
  return [ordinal](remote::Transport&, const ServerOptions& options, std::function<tr_client()>, OpenDevice* opened) {
    cuda::CudaDevice::Options device_options;
    device_options.ordinal = ordinal;
    device_options.limit = options.memory_limit;
    Status status = cuda::open_driver(cuda::kDriverLibrary, &device_options.driver);
    if (status.ok()) status = cuda::open_gpu_compiler(options.codegen, &device_options.compile);
    std::unique_ptr<cuda::CudaDevice> device;
    if (status.ok()) status = cuda::CudaDevice::open(device_options, &device);
    if (!status.ok()) return status;
    opened->runners.push_back(cuda::make_cuda_runner(*device));
    opened->targets = {"sm_" + std::to_string(device->gpu().sm())};
    opened->group_kinds = cuda::group_kinds();
    opened->dtypes = cuda::dtypes();
    opened->device = std::move(device);
    return status;
  };
}

}  // namespace torch_remote::worker

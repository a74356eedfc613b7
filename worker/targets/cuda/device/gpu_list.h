#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"

// The GPUs that the driver shows to this process, without a context on any of them. The driver numbers them by speed or
// by bus ($CUDA_DEVICE_ORDER) and leaves out those that $CUDA_VISIBLE_DEVICES does not name. So a number here may be
// another GPU than the same number in nvidia-smi or /proc. A UUID is the same everywhere.
namespace torch_remote::worker::cuda {

struct ListedGpu {
  int ordinal = 0;   // The N of cuda:N.
  std::string name;  // "NVIDIA A100-SXM4-80GB"
  std::string uuid;  // As uuid_text().
};

// "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", as nvidia-smi -L prints it; for a part of a GPU (MIG): "MIG-...". The
// driver's table has cuDeviceGetUuid of CUDA 11.4 or later, which returns the UUID of the part, not of the whole GPU.
// Empty if the driver does not return it.
std::string uuid_text(const Driver& driver, DeviceNumber device);

Status list_gpus(const Driver& driver, std::vector<ListedGpu>* gpus);

// Whether the text may be the id of a GPU: a UUID, or its beginning with at least one hexadecimal digit.
bool is_gpu_id(std::string_view text);

// The ordinal of a GPU. `id`: a number, or what is_gpu_id() accepts. An error lists the GPUs that there are.
Status find_gpu(const Driver& driver, std::string_view id, int* ordinal);

}  // namespace torch_remote::worker::cuda

#pragma once

#include <functional>
#include <memory>

#include "worker/collectives/device_collectives.h"
#include "worker/targets/cuda/device/gpu.h"
#include "worker/targets/cuda/device/nccl.h"

namespace torch_remote::worker::cuda {

// Fills the table. Called once, by any thread.
using OpenNccl = std::function<Status(nccl::Table* table)>;

// Collective ops by NCCL, on the GPU's work stream. Sums and products of f32, f64, half types and integers but i16,
// averages of the former, minima and maxima of the latter (NCCL's of floats lose NaNs); what only moves bytes of any
// type.
std::shared_ptr<DeviceCollectives> make_nccl_collectives(std::shared_ptr<Gpu> gpu, OpenNccl open);

}  // namespace torch_remote::worker::cuda

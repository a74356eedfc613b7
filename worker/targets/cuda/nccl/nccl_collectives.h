#pragma once

#include <functional>
#include <memory>

#include "worker/collectives/device_collectives.h"
#include "worker/targets/cuda/device/gpu.h"
#include "worker/targets/cuda/nccl/nccl.h"

namespace torch_remote::worker::cuda {

// Fills the table. Called once, on any thread.
using OpenNccl = std::function<Status(nccl::Table* table)>;

// Collective ops with NCCL, on the GPU's work stream. Sums and products: f32, f64, half types, and integers except i16.
// Averages: floats only. Minima and maxima: integers only, as NCCL's lose NaNs. Ops that only move bytes: any dtype.
std::shared_ptr<DeviceCollectives> make_nccl_collectives(std::shared_ptr<Gpu> gpu, OpenNccl open);

}  // namespace torch_remote::worker::cuda

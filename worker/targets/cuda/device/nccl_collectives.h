#pragma once

#include <functional>
#include <memory>

#include "worker/collectives/device_collectives.h"
#include "worker/targets/cuda/device/gpu.h"
#include "worker/targets/cuda/device/nccl.h"

namespace torch_remote::worker::cuda {

// Fills the table. Called once, on any thread.
using OpenNccl = std::function<Status(nccl::Table* table)>;

// Collective ops with NCCL. Each group has a stream of its own. So ops overlap with work on the work stream, are never
// captured into its graphs, and do not wait for ops of other groups. Sums and products: f32, f64, half types, and
// integers except i16. Averages: floats only. Minima and maxima: integers only, as NCCL's lose NaNs. Ops that only move
// bytes: any dtype.
std::shared_ptr<DeviceCollectives> make_nccl_collectives(std::shared_ptr<Gpu> gpu, OpenNccl open);

}  // namespace torch_remote::worker::cuda

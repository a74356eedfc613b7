#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ir/status.h"
#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/gemm/cublaslt.h"

namespace torch_remote::worker::cuda {

// Fills the table. Called once, by any thread.
using OpenProducts = std::function<Status(lt::Table* table)>;

// The runner of matrix products, by cuBLASLt: nodes that are one, and groups of one and an activation. The library is
// opened beside what the caller does; where there is none, products fail with its error. `folder`: where it is kept
// which of the library's ways are fastest; empty: nowhere.
std::unique_ptr<Runner> make_product_runner(CudaDevice& device, OpenProducts open, std::string folder);

// The kinds of groups that it may be given, as bits of ir::Capabilities.
uint32_t product_group_kinds();

}  // namespace torch_remote::worker::cuda

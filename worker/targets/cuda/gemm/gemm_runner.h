#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ir/status.h"
#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/gemm/cublaslt.h"

namespace torch_remote::worker::cuda {

// Fills the table. Called once, on any thread.
using OpenCublasLt = std::function<Status(lt::Table* table)>;

// The runner of GEMMs, with cuBLASLt: single nodes, and groups of a GEMM and an activation. A background thread opens
// the library. If that fails, the runner declines all GEMMs, and gives the error as the reason. `folder`: where it
// stores which algorithms are fastest; empty: nowhere.
std::unique_ptr<Runner> make_gemm_runner(CudaDevice& device, OpenCublasLt open, std::string folder);

// The kinds of groups that the runner accepts, as bits of ir::Capabilities::group_kind_mask.
uint32_t gemm_group_kind_mask();

}  // namespace torch_remote::worker::cuda

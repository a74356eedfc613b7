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

// The runner of GEMMs, with cuBLASLt: single nodes, and groups of a GEMM and an activation. The library is opened by
// another thread in the background; if there is none, GEMMs fail with its error. `folder`: where it stores which
// algorithms are fastest; empty: nowhere.
std::unique_ptr<Runner> make_gemm_runner(CudaDevice& device, OpenCublasLt open, std::string folder);

// The kinds of groups that it may be given, as bits of ir::Capabilities.
uint32_t gemm_group_kinds();

}  // namespace torch_remote::worker::cuda

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include "ir/status.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/kernels/kernel_images.h"
#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/ops/plan/op_plan.h"

namespace torch_remote::worker::cuda {

// The hand-written kernels of one GPU. A module is loaded when one of its kernels is first launched. Used by one
// thread, with the GPU's context current. The device and the archive must outlive it.
class OpKernels {
 public:
  OpKernels(CudaDevice& device, KernelArchive archive) : device_(device), archive_(archive) {}
  ~OpKernels();
  OpKernels(const OpKernels&) = delete;
  OpKernels& operator=(const OpKernels&) = delete;

  CudaDevice& device() { return device_; }

  // Queues a kernel. `record`: where it records indices that are out of bounds, or 0. `values`: the run's symbols, for
  // launches with parameters.
  Status launch(const OpLaunch& launch, const RunMemory& memory, uint64_t record, std::span<const int64_t> values);

  // Waits for all queued work, and reads a number from GPU memory.
  Status read(DevicePointer from, int64_t* count);

 private:
  Gpu& gpu() { return device_.gpu(); }
  Status find(KernelFile file, const char* name, Function* function);
  Status load(KernelFile file, Module* module);

  CudaDevice& device_;
  const KernelArchive archive_;
  std::array<Module, kKernelFiles> modules_ = {};
  std::map<std::string_view, Function> functions_;
  int64_t* count_ = nullptr;  // Pinned memory.
};

}  // namespace torch_remote::worker::cuda

#pragma once

#include <cstdint>
#include <span>

#include "codegen/loop/loop_ir.h"
#include "ir/dtype.h"
#include "ir/status.h"
#include "worker/targets/cuda/device/kernel_store.h"

namespace torch_remote::worker::cuda {

// Elements from one view to another one, which does not overlap it. Strides are elements.
struct StridedCopy {
  DevicePointer from = 0, to = 0;
  ir::DType from_type = ir::DType::kUInt8, to_type = ir::DType::kUInt8;
  std::span<const int64_t> sizes, from_strides, to_strides;  // at most codegen::kMaxRows + 1 dims
};

// A kernel of one load, one store and a conversion between them.
codegen::Kernel make_copy_kernel(const StridedCopy& copy);

// Queues it; the GPU's context is current. Elements that no kernel has a type for are copied as they are; then both
// types are the same. An error if the kernel cannot be compiled.
Status queue_copy(Gpu& gpu, KernelStore& kernels, const StridedCopy& copy);

// An integer type of kernels for elements of so many bytes; those of 16 are two of 8.
ir::DType bits_type(uint32_t item_size);

}  // namespace torch_remote::worker::cuda

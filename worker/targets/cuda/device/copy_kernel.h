#pragma once

#include <cstdint>
#include <span>

#include "codegen/loop/loop_ir.h"
#include "ir/dtype.h"
#include "ir/status.h"
#include "worker/targets/cuda/device/kernel_store.h"

namespace torch_remote::worker::cuda {

// A copy of elements from one strided view to another one that does not overlap it. Strides are in elements.
struct StridedCopy {
  DevicePointer from = 0, to = 0;
  ir::DType from_type = ir::DType::kUInt8, to_type = ir::DType::kUInt8;
  std::span<const int64_t> sizes, from_strides, to_strides;
};

// A kernel with one load, one store and a conversion between them. The copy must have 1 to codegen::kMaxRows + 1 dims.
codegen::Kernel make_copy_kernel(const StridedCopy& copy);

// Queues the copy; the GPU's context must be current. Elements of types that kernels lack are copied as bits; both
// types must then be the same. If there are more dims than a kernel has, the smallest ones become several launches.
// Fails if the kernel cannot be compiled.
Status queue_copy(Gpu& gpu, KernelStore& kernels, const StridedCopy& copy);

// The integer dtype with which kernels copy elements of this many bytes. Elements of 16 bytes are copied as two of 8.
ir::DType bits_type(uint32_t item_size);

}  // namespace torch_remote::worker::cuda

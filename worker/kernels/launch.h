#pragma once

#include <span>

#include "codegen/lower/launch.h"
#include "worker/device/buffer.h"
#include "worker/device/strided_copy.h"
#include "worker/kernels/kernel_cache.h"

namespace torch_remote::worker::kernels {

// Runs a kernel that is ready. `buffers` are those of the graph. What it is cut into depends on sizes only, so that
// sums do too: `parallel` decides nothing but who does what. An index out of its bounds: *failure says which.
void run(const codegen::Launch& launch, const CompiledKernel& kernel, std::span<const tr_buffer> buffers,
         const ParallelFor& parallel, codegen::cpu::IndexRecord* failure);

}  // namespace torch_remote::worker::kernels

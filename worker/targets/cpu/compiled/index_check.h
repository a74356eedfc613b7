#pragma once

#include <span>

#include "codegen/cpu/call.h"
#include "codegen/lower/launch.h"
#include "worker/device/buffer.h"

namespace torch_remote::worker::kernels {

// Checks all indices before anything is computed. Returns false if one is out of bounds; *failure then describes the
// first such index. `buffers`: one per buffer of the graph.
bool are_inside(const codegen::IndexCheck& check, std::span<const tr_buffer> buffers,
                codegen::cpu::IndexRecord* failure);

}  // namespace torch_remote::worker::kernels

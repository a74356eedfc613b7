#pragma once

#include <span>

#include "codegen/cpu/call.h"
#include "codegen/lower/launch.h"
#include "worker/device/buffer.h"

namespace torch_remote::worker::kernels {

// Looks at all indices before anything is done. False: *failure has the first one that is out of its bounds. `buffers`
// are those of the graph.
bool are_inside(const codegen::IndexCheck& check, std::span<const tr_buffer> buffers,
                codegen::cpu::IndexRecord* failure);

}  // namespace torch_remote::worker::kernels

#pragma once

#include <cstdint>
#include <vector>

namespace torch_remote::codegen::cpu {

// Position-independent machine code without external references. Its constants follow the code. It has one or two
// functions, whose types RowsFunction and FinishFunction are in codegen/cpu/call.h.
struct Code {
  std::vector<uint8_t> bytes;  // must be placed at a multiple of 64
  uint32_t rows = 0;           // offset of the RowsFunction in bytes
  uint32_t finish = 0;         // offset of the FinishFunction in bytes; equals `rows` if the kernel has none
};

}  // namespace torch_remote::codegen::cpu

#pragma once

#include <cstdint>
#include <vector>

namespace torch_remote::codegen::cpu {

// Code that can lie anywhere: it names nothing outside, and its constants lie behind it.
struct Code {
  std::vector<uint8_t> bytes;  // to be placed at a multiple of 64
  uint32_t rows = 0;           // where RowsFunction begins
  uint32_t finish = 0;         // where FinishFunction begins; as `rows` if the kernel has none
};

}  // namespace torch_remote::codegen::cpu

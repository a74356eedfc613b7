#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/gpu/launch.h"

namespace torch_remote::codegen::gpu {

// What a function needs of the machine, as the assembler tells it.
struct FunctionFacts {
  Function function = Function::kPoints;
  uint32_t registers = 0;     // of a thread
  uint32_t spills = 0;        // bytes of a thread's memory that registers went to
  uint32_t stack = 0;         // bytes of a thread's memory
  uint32_t shared_bytes = 0;  // of a block
};

struct GpuCode {
  std::string ptx;
  std::vector<uint8_t> cubin;  // empty if there was no assembler
  std::vector<Function> functions;
  std::vector<FunctionFacts> facts;  // of each function, with the cubin
  std::string log;                   // of the assembler
  Recipe recipe;
};

}  // namespace torch_remote::codegen::gpu

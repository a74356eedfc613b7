#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/gpu/launch.h"

namespace torch_remote::codegen::gpu {

// Resources that a function needs, as the assembler reports them.
struct FunctionFacts {
  Function function = Function::kPoints;
  uint32_t registers = 0;     // per thread
  uint32_t spills = 0;        // bytes of memory per thread for spilled registers
  uint32_t stack = 0;         // bytes of memory per thread
  uint32_t shared_bytes = 0;  // per block
};

struct GpuCode {
  std::string ptx;
  std::vector<uint8_t> cubin;  // empty if there was no assembler
  std::vector<Function> functions;
  std::vector<FunctionFacts> facts;  // of each function, if there is a cubin
  std::string log;                   // output of the assembler
  Recipe recipe;
};

}  // namespace torch_remote::codegen::gpu

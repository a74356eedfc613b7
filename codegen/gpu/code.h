#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/gpu/launch.h"

namespace torch_remote::codegen::gpu {

struct GpuCode {
  std::string ptx;
  std::vector<uint8_t> cubin;  // set by the assembler
  std::vector<Function> functions;
  std::string log;  // the assembler's output
  Recipe recipe;
};

}  // namespace torch_remote::codegen::gpu

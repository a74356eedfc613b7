#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codegen/gpu/code.h"
#include "ir/status.h"

namespace torch_remote::codegen::gpu {

// Makes machine code of PTX, by NVIDIA's libnvJitLink (12 or later), which needs no GPU. Any number of threads at once.
class Assembler {
 public:
  // `path`: of the library, or its name where the system finds it.
  static Status open(const std::string& path, std::unique_ptr<Assembler>* assembler);
  virtual ~Assembler() = default;

  // For processors of that number (80, 90, 100); fills cubin and facts of code->functions.
  virtual Status assemble(uint32_t sm, GpuCode* code) const = 0;
};

}  // namespace torch_remote::codegen::gpu

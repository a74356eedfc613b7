#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codegen/gpu/code.h"
#include "ir/status.h"

namespace torch_remote::codegen::gpu {

// Makes machine code of PTX with NVIDIA's libnvJitLink (12 or later), which needs no GPU. Any number of threads may use
// it at once.
class Assembler {
 public:
  // `path` is the library's path, or its name if the dynamic linker finds it.
  static Status open(const std::string& path, std::unique_ptr<Assembler>* assembler);
  virtual ~Assembler() = default;

  // Assembles for compute capability `sm` (75, 80, 90, 100, ...). Sets `cubin` and `log` of *code.
  virtual Status assemble(uint32_t sm, GpuCode* code) const = 0;
};

}  // namespace torch_remote::codegen::gpu

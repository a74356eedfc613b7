#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "codegen/gpu/compile.h"
#include "codegen/gpu/launch.h"
#include "codegen/loop/loop_ir.h"
#include "tests/emulated_gpu/emulator/emulator.h"

// Runs compiled kernels on the GPU emulator.
namespace torch_remote::codegen::gpu::testing {

class Emulated {
 public:
  static Status make(const Kernel& kernel, const GpuTarget& target, std::unique_ptr<Emulated>* made);

  // Copies `buffers`, in which arguments.data points, to the emulated GPU, runs the kernel there, and copies them back.
  // `rest`: Call::remainder_columns. `elsewhere`: the kernel must read the scalars and the failure's address from
  // memory, as in a CUDA graph. The scalars that it gets by value are then wrong on purpose.
  Status run(const Arguments& arguments, std::span<const std::span<uint8_t>> buffers,
             const emulator::LaunchOptions& options, IndexRecord* failure, int64_t rest = 0, bool elsewhere = false);

  const Recipe& recipe() const { return recipe_; }

 private:
  Status launch(const Call& call, const emulator::LaunchOptions& options);

  Recipe recipe_;
  std::unique_ptr<emulator::Device> device_;
  std::unique_ptr<emulator::Module> module_;
};

}  // namespace torch_remote::codegen::gpu::testing

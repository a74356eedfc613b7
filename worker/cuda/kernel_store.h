#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "codegen/gpu/launch.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"
#include "worker/cuda/gpu.h"

namespace torch_remote::worker::cuda {

// What a compiler makes of a kernel.
struct CompiledKernel {
  std::vector<uint8_t> image;  // as the driver takes it: a cubin, or PTX that ends with 0
  codegen::gpu::Recipe recipe;
};

// LoopIR's text, for a GPU of that number (90). kUnsupported: it makes no code of such a kernel.
using Compile = std::function<Status(std::string_view text, uint32_t sm, CompiledKernel* compiled)>;

// A kernel on the GPU. Never moves while its store lives.
struct LoadedKernel {
  codegen::gpu::Recipe recipe;
  Module module = nullptr;
  std::array<Function, 4> functions = {};  // by codegen::gpu::Function
};

// Kernels by their text; used by one thread.
class KernelStore {
 public:
  KernelStore(std::shared_ptr<Gpu> gpu, Compile compile) : gpu_(std::move(gpu)), compile_(std::move(compile)) {}
  ~KernelStore();

  // Compiles and loads it if nobody has asked for it before. kUnsupported stays so; after other errors it is tried
  // again.
  Status get(const codegen::Kernel& kernel, const LoadedKernel** loaded);
  uint64_t compiled() const { return compiled_; }

 private:
  struct Entry {
    LoadedKernel kernel;
    Status status;
  };
  Status load(const std::string& text, LoadedKernel* kernel);

  const std::shared_ptr<Gpu> gpu_;
  const Compile compile_;
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries_;
  uint64_t compiled_ = 0;
};

// Queues a call of the kernel on the GPU's work; its context is current. False: the GPU is lost.
bool launch(Gpu& gpu, const LoadedKernel& kernel, const codegen::gpu::Call& call);

}  // namespace torch_remote::worker::cuda

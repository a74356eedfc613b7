#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "codegen/gpu/launch.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"
#include "worker/runner/kernel_files.h"
#include "worker/targets/cuda/device/gpu.h"

namespace torch_remote::worker::cuda {

// What a compiler makes of a kernel.
struct CompiledKernel {
  std::vector<uint8_t> image;  // as the driver takes it: a cubin, or PTX that ends with 0
  codegen::gpu::Recipe recipe;
};

// LoopIR's text, for a GPU of that number (90). kUnsupported: it makes no code of such a kernel. Any number of threads
// at once.
using Compile = std::function<Status(std::string_view text, uint32_t sm, CompiledKernel* compiled)>;

struct KernelOptions {
  Compile compile;
  std::string folder = {};     // where compiled ones are kept; empty: nowhere
  std::string version = {};    // of the compiler, and of what makes machine code
  uint64_t limit = 256 << 20;  // bytes there
  uint32_t threads = 0;        // that compile; 0: half of the machine's
};

// A kernel on the GPU. Never moves while its store lives.
struct LoadedKernel {
  codegen::gpu::Recipe recipe;
  Module module = nullptr;
  std::array<Function, 4> functions = {};  // by codegen::gpu::Function
  // Of parameters, as Work has them.
  size_t numbers = 0, number_count = 0;
  std::optional<size_t> failure = {};
};

// Kernels by their text: on the GPU, on disk, or to be compiled, by threads of its own. Used by one thread.
class KernelStore {
 public:
  // One that was asked for. Lives as long as the store.
  class Asked;

  KernelStore(std::shared_ptr<Gpu> gpu, KernelOptions options);
  ~KernelStore();

  // Has it compiled if nobody has asked for it before; returns at once.
  Asked* ask(const codegen::Kernel& kernel);
  // Loads it when it is compiled. The caller compiles it itself if no thread has begun. kUnsupported stays so; after
  // other errors it is tried again.
  Status get(Asked& asked, const LoadedKernel** loaded);
  Status get(const codegen::Kernel& kernel, const LoadedKernel** loaded) { return get(*ask(kernel), loaded); }

  uint64_t compiled() const { return compiled_.load(std::memory_order_relaxed); }

 private:
  void work();
  void make(Asked& asked);
  Status load(const Asked& asked, LoadedKernel* kernel) const;

  const std::shared_ptr<Gpu> gpu_;
  const KernelOptions options_;
  const kernels::KernelFiles files_;
  std::unordered_map<std::string, std::unique_ptr<Asked>> all_;  // by text
  std::atomic<uint64_t> compiled_ = 0;
  std::mutex mutex_;  // of what follows, and of their states
  std::deque<Asked*> queue_;
  std::condition_variable wake_, done_;
  bool ends_ = false;
  std::vector<std::thread> threads_;  // started when they are needed
};

// Queues a call of the kernel on the GPU's work; its context is current. False: the GPU is lost.
bool launch(Gpu& gpu, const LoadedKernel& kernel, const codegen::gpu::Call& call);

}  // namespace torch_remote::worker::cuda

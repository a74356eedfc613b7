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
#include <span>
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

// The compiler's output for one kernel.
struct CompiledKernel {
  std::vector<uint8_t> image;  // For cuModuleLoadDataEx: a cubin, or NUL-terminated PTX.
  std::vector<uint8_t> ptx;    // The NUL-terminated PTX of a cubin; empty if `image` is PTX, or was read from disk.
  codegen::gpu::Recipe recipe;
};

// Compiles LoopIR text for compute capability `sm` (90: 9.0). kUnsupported: the compiler does not support the kernel.
// Must be thread safe.
using Compile = std::function<Status(std::string_view text, uint32_t sm, CompiledKernel* compiled)>;

// Makes machine code for compute capability `sm` of PTX, which has no terminating NUL. Must be thread safe.
using Assemble = std::function<Status(std::string_view ptx, uint32_t sm, std::vector<uint8_t>* cubin)>;

struct KernelOptions {
  Compile compile;
  Assemble assemble = {};                             // Empty: the driver translates PTX at each load.
  std::function<void(const std::string&)> warn = {};  // Gets a sentence for the log; empty: it is dropped.
  std::string folder = {};                            // The folder of the disk cache; empty: none.
  std::string version = {};    // Identifies the compiler and what makes machine code; part of the cache key.
  uint64_t limit = 256 << 20;  // Bytes of the disk cache.
  uint32_t threads = 0;        // The most compiler threads; 0: half of the machine's hardware threads, at least one.
};

// A kernel that is loaded on the GPU. Its address is stable while its store lives.
struct LoadedKernel {
  codegen::gpu::Recipe recipe;
  Module module = nullptr;
  std::array<Function, 4> functions = {};  // Indexed by codegen::gpu::Function.
  // Positions of parameters, as in WorkItem.
  size_t scalars_word = 0, scalar_count = 0;
  std::optional<size_t> failure = {};
};

// Kernels by their text: loaded on the GPU, cached on disk, or compiled by background threads. Used by one thread. Only
// compiled() is thread safe.
class KernelStore {
 public:
  // A requested kernel. Lives as long as the store.
  class Request;

  KernelStore(std::shared_ptr<Gpu> gpu, KernelOptions options);
  ~KernelStore();

  // Returns without waiting for a compilation. If the kernel was not requested before, or its last compilation or
  // loading failed for another reason than kUnsupported, reads it from the disk cache. If it is not there, queues its
  // compilation.
  Request* request(const codegen::Kernel& kernel);
  // Waits until the kernel is compiled, and loads it. If no thread has begun to compile it, the caller does. *loaded is
  // valid only without an error; the store owns it. kUnsupported is final. After another error of the compiler, the
  // next request() compiles the kernel again.
  Status get(Request& request, const LoadedKernel** loaded);
  Status get(const codegen::Kernel& kernel, const LoadedKernel** loaded) { return get(*request(kernel), loaded); }

  // Loads a module that the store did not compile; the caller unloads it. Tries machine code first, if `code` is not
  // empty. If the driver refuses it, tries machine code that the assembler makes of `ptx` (NUL-terminated), from the
  // disk cache if possible. As a last resort the driver translates `ptx`. An error names each attempt.
  Status load(std::span<const uint8_t> code, std::span<const uint8_t> ptx, Module* module);

  // Number of kernels that were compiled, without those from the disk cache.
  uint64_t compiled() const { return compiled_.load(std::memory_order_relaxed); }

 private:
  void work();
  void make(Request& request);
  Status load(Request& request, LoadedKernel* kernel);
  Status load_image(Request& request, Module* module);
  Status assemble(std::string_view ptx, std::vector<uint8_t>* cubin);

  const std::shared_ptr<Gpu> gpu_;
  const KernelOptions options_;
  const kernels::KernelFiles files_;
  std::unordered_map<std::string, std::unique_ptr<Request>> all_;  // By kernel text.
  bool warned_ = false;  // A warning that the driver refuses machine code was printed.
  std::atomic<uint64_t> compiled_ = 0;
  std::mutex mutex_;  // Guards the members below and the states of all requests.
  std::deque<Request*> queue_;
  std::condition_variable wake_, done_;
  size_t compiling_ = 0;  // number of threads that compile
  bool ends_ = false;
  std::vector<std::thread> threads_;  // Started on demand.
};

// Adds the launches of the kernel for one call to Gpu::queue(); the GPU's context must be current. False: the GPU is
// lost. A call that does not fit the kernel loses the GPU, too.
bool launch(Gpu& gpu, const LoadedKernel& kernel, const codegen::gpu::Call& call);

}  // namespace torch_remote::worker::cuda

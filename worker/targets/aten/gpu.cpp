#include "worker/targets/aten/gpu.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ir/math_modes.h"
#include "worker/targets/aten/host_memory.h"

struct CUstream_st;  // CUDA's stream; we only need its name in types

namespace torch_remote::worker::aten {
namespace {

constexpr size_t kMostGpus = 64;

// The host that provides the memory of each GPU; null if there is none.
std::array<std::atomic<const tr_host*>, kMostGpus>& hosts() {
  static std::array<std::atomic<const tr_host*>, kMostGpus> all{};
  return all;
}

void* allocate_on_gpu(size_t nbytes, int device, CUstream_st*) {
  const tr_host* host = hosts().at(static_cast<size_t>(device)).load(std::memory_order_acquire);
  TORCH_CHECK(host != nullptr, "remote: there is no allocator for GPU ", device);
  return allocate_memory(*host, nbytes);
}
void free_on_gpu(void* data, size_t, int, CUstream_st*) { free_memory(data); }

// Path of a library in the directory of the libtorch_cpu.so that this plugin uses.
std::string beside_torch(const char* name) {
  Dl_info found{};
  const auto* address = reinterpret_cast<const void*>(&at::globalContext);
  TORCH_CHECK(::dladdr(address, &found) != 0 && found.dli_fname != nullptr,
              "remote: cannot find the path of libtorch_cpu.so");
  return std::filesystem::path(found.dli_fname).parent_path() / name;
}

template <typename F>
F* find_function(void* library, const std::string& path, const char* name) {
  auto* const found = reinterpret_cast<F*>(::dlsym(library, name));
  TORCH_CHECK(found != nullptr, "remote: ", path, " has no ", name, "; install the torch that this was built for");
  return found;
}

// Makes torch allocate GPU memory from the host. torch::cuda::CUDAPluggableAllocator is torch's interface for other
// allocators. Its shared pointer to an allocator is passed on unchanged, so we need not know the pointee's type.
void give_memory_to_torch(void* library, const std::string& path) {
  using Allocate = void*(size_t, int, CUstream_st*);
  using Free = void(void*, size_t, int, CUstream_st*);
  auto* const create = find_function<std::shared_ptr<void>(std::function<Allocate>, std::function<Free>)>(
      library, path,
      "_ZN5torch4cuda22CUDAPluggableAllocator21createCustomAllocatorESt8functionIFPvmiP11CUstream_stEES2_IFvS3_miS5_"
      "EE");
  auto* const change = find_function<void(const std::shared_ptr<void>&)>(
      library, path,
      "_ZN5torch4cuda22CUDAPluggableAllocator22changeCurrentAllocatorERKSt10shared_ptrIN3c104cuda20CUDACachingAllocator"
      "13CUDAAllocatorEE");
  change(create(allocate_on_gpu, free_on_gpu));  // torch accepts another allocator only before it is initialized
}

// Runs once per process; the library stays open.
void open_library(const tr_host& host) {
  static std::mutex mutex;
  static bool opened = false;
  const std::lock_guard lock(mutex);
  if (opened) return;
  const std::string path =
      host.torch_cuda_library != nullptr ? std::string(host.torch_cuda_library) : beside_torch("libtorch_cuda.so");
  // Its registrations refer to the libtorch_cpu.so of this process, hence RTLD_GLOBAL.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    TORCH_CHECK(false, "remote: CUDA's libtorch cannot be opened: ", why != nullptr ? why : path);
  }
  give_memory_to_torch(library, path);
  // otherwise torch refuses GEMMs in deterministic mode
  (void)::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  opened = true;
}

c10::Stream stream_of(const tr_host& host) {
  // As in c10::cuda::getStreamFromExternal: the id of a stream that torch did not create is its address.
  return c10::Stream(c10::Stream::UNSAFE, target_of(host).device, reinterpret_cast<int64_t>(host.gpu_stream));
}

void set_math_modes(uint32_t math_modes) {
  at::Context& context = at::globalContext();
  thread_local std::optional<uint32_t> last;
  if (last == math_modes) return;
  last = math_modes;
  const bool deterministic = (math_modes & ir::kDeterministic) != 0;
  context.setAllowTF32CuBLAS((math_modes & ir::kTf32Matmuls) != 0);
  context.setAllowTF32CuDNN((math_modes & ir::kTf32Convolutions) != 0);
  context.setDeterministicCuDNN(deterministic);
  context.setDeterministicAlgorithms(deterministic, (math_modes & ir::kDeterministicWarnOnly) != 0);
}

bool has_gpu(const tr_host& host) { return host.has_gpu != 0; }

}  // namespace

Target target_of(const tr_host& host) {
  if (!has_gpu(host)) return {};
  return {c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(host.gpu)), c10::DispatchKey::CUDA};
}

void open_gpu(const tr_host& host) {
  TORCH_CHECK(host.gpu >= 0 && static_cast<size_t>(host.gpu) < kMostGpus, "remote: there is no GPU ", host.gpu);
  hosts()[static_cast<size_t>(host.gpu)].store(&host, std::memory_order_release);
  try {
    open_library(host);
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    TORCH_CHECK(host.gpu < guard.deviceCount(), "remote: CUDA's libtorch sees ", static_cast<int>(guard.deviceCount()),
                " GPUs, but the worker uses GPU ", host.gpu);
  } catch (...) {
    close_gpu(host);
    throw;
  }
}

void close_gpu(const tr_host& host) {
  if (has_gpu(host)) hosts()[static_cast<size_t>(host.gpu)].store(nullptr, std::memory_order_release);
}

MathModeScope::MathModeScope(const tr_host& host, uint32_t math_modes)
    : is_gpu_(has_gpu(host)), stream_(c10::Stream::DEFAULT, c10::Device(c10::kCPU)) {
  set_math_modes(math_modes);
  if (!is_gpu_) return;
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  device_ = guard.exchangeDevice(target_of(host).device);
  stream_ = guard.exchangeStream(stream_of(host));
}

MathModeScope::~MathModeScope() {
  if (!is_gpu_) return;
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  (void)guard.exchangeStream(stream_);
  guard.uncheckedSetDevice(device_);
}

}  // namespace torch_remote::worker::aten

// For tests: an emulated libtorch_cuda.so. Its CUDA kernels copy their inputs from the memory of the emulated driver
// (tests/emulated_gpu), call the CPU kernels, and copy the results back. All of this happens on the thread's current
// stream. It also defines everything else of torch's library that the plugin uses, under the same names: dispatcher
// registrations, a device guard, hooks, pluggable allocators. An op has such a kernel if the CPU has one; torch's
// choice differs.
//
// It checks strictly: tensors must be on the current device, a stream must have been set, and all memory must come from
// the pluggable allocator.
#include "tests/emulated_gpu/libtorch/torch_cuda.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct CUstream_st;

// --- pluggable allocators, under torch's names -----------------------------------------------------------------------

namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocator {
 public:
  std::function<void*(size_t, int, CUstream_st*)> allocate;
  std::function<void(void*, size_t, int, CUstream_st*)> free;
};
}  // namespace c10::cuda::CUDACachingAllocator

namespace torch::cuda::CUDAPluggableAllocator {
using c10::cuda::CUDACachingAllocator::CUDAAllocator;

static std::shared_ptr<CUDAAllocator>& current() {
  static auto* allocator = new std::shared_ptr<CUDAAllocator>;
  return *allocator;
}
static bool initialised = false;

__attribute__((visibility("default"))) std::shared_ptr<CUDAAllocator> createCustomAllocator(
    std::function<void*(size_t, int, CUstream_st*)> allocate,
    std::function<void(void*, size_t, int, CUstream_st*)> free) {
  return std::make_shared<CUDAAllocator>(CUDAAllocator{std::move(allocate), std::move(free)});
}
__attribute__((visibility("default"))) void changeCurrentAllocator(const std::shared_ptr<CUDAAllocator>& allocator) {
  TORCH_CHECK(!initialised, "Can't swap an already initialized allocator");
  current() = allocator;
}
}  // namespace torch::cuda::CUDAPluggableAllocator

namespace torch_remote::worker::aten {
namespace {

TorchCudaDriver driver_of_tests{};

void check(bool good, const char* what) { TORCH_CHECK(good, "CUDA in software: ", what); }

// --- devices and streams ---------------------------------------------------------------------------------------------

struct ThreadState {
  c10::DeviceIndex device = 0;
  std::map<c10::DeviceIndex, int64_t> streams;  // by device; streams are addresses
};
ThreadState& here() {
  thread_local ThreadState state;
  return state;
}
void* stream_here() {
  const auto found = here().streams.find(here().device);
  check(found != here().streams.end() && found->second != 0, "no stream was set: work would go to the default one");
  return reinterpret_cast<void*>(found->second);  // NOLINT(performance-no-int-to-ptr): an address, as torch has it
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, here().device}; }
  void setDevice(c10::Device device) const override {
    check(device.index() >= 0 && device.index() < deviceCount(), "no such device");
    here().device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { here().device = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    const auto found = here().streams.find(device.index());
    return c10::Stream(c10::Stream::UNSAFE, device, found == here().streams.end() ? 0 : found->second);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    here().streams[stream.device_index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(driver_of_tests.devices);
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace
}  // namespace torch_remote::worker::aten

namespace at {
namespace {
// Torch looks for this class name.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {
    TORCH_CHECK(torch_remote::worker::aten::driver_of_tests.read != nullptr, "CUDA in software: no driver");
    torch::cuda::CUDAPluggableAllocator::initialised = true;
  }
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
};
}  // namespace
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

namespace torch_remote::worker::aten {
namespace {

// --- kernels ---------------------------------------------------------------------------------------------------------

// Allocates with the pluggable allocator.
c10::DataPtr allocate(size_t nbytes) {
  const c10::Device device(c10::kCUDA, here().device);
  if (nbytes == 0) return {nullptr, device};
  const auto allocator = torch::cuda::CUDAPluggableAllocator::current();
  check(allocator != nullptr, "nobody brought an allocator");
  auto* const stream = static_cast<CUstream_st*>(stream_here());
  struct Block {
    decltype(allocator) owner;
    void* data;
    size_t nbytes;
    int device;
    CUstream_st* stream;
  };
  auto* const block =
      new Block{allocator, allocator->allocate(nbytes, device.index(), stream), nbytes, device.index(), stream};
  return {block->data, block,
          [](void* context) {
            const std::unique_ptr<Block> block(static_cast<Block*>(context));
            block->owner->free(block->data, block->nbytes, block->device, block->stream);
          },
          device};
}

// CPU copies of the tensors that a call reads and writes. There is one copy per storage, so aliasing is preserved.
class Mirror {
 public:
  at::Tensor to_cpu(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    check(tensor.device().index() == here().device, "a tensor is on another device than the current one");
    Held& held = storages_[tensor.storage().unsafeGetStorageImpl()];
    if (!held.cpu) {
      held.gpu = tensor.storage();
      held.nbytes = tensor.storage().nbytes();
      held.cpu = c10::Storage(c10::Storage::use_byte_size_t(), held.nbytes, c10::GetDefaultCPUAllocator(), false);
      if (held.nbytes != 0) {
        driver_of_tests.read(held.cpu.mutable_data(), held.gpu.data(), held.nbytes, stream_here());
      }
    }
    at::Tensor mirror = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(held.cpu), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    mirror.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    mirror._set_conj(tensor.is_conj());
    mirror._set_neg(tensor.is_neg());
    originals_.emplace_back(mirror, tensor);
    return mirror;
  }

  // Converts a result back. If it is an argument or a view of one, it aliases that argument; otherwise it is new
  // memory.
  at::Tensor to_gpu(const at::Tensor& result) {
    if (!result.defined()) return result;
    for (const auto& [mirror, original] : originals_) {
      if (mirror.is_same(result)) return original;
    }
    c10::Storage storage;
    for (const auto& [impl, held] : storages_) {
      if (held.cpu.is_alias_of(result.storage())) storage = held.gpu;
    }
    at::Tensor packed = result;
    if (!storage) {
      if (!result.is_non_overlapping_and_dense() || result.storage_offset() != 0) packed = result.contiguous();
      const size_t nbytes = packed.storage().nbytes();
      storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                                   allocate(nbytes), nullptr, false));
      if (nbytes != 0) driver_of_tests.write(storage.mutable_data(), packed.storage().data(), nbytes, stream_here());
    }
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), packed.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(packed.sizes(), packed.strides(), packed.storage_offset());
    made._set_conj(packed.is_conj());
    made._set_neg(packed.is_neg());
    return made;
  }

  // Copies what the call wrote to an argument back to the GPU.
  void write_back(const at::Tensor& tensor) {
    for (const auto& [mirror, original] : originals_) {
      if (!mirror.is_same(tensor)) continue;
      Held& held = storages_.at(original.storage().unsafeGetStorageImpl());
      TORCH_CHECK(mirror.sizes() == original.sizes() && mirror.storage().is_alias_of(held.cpu),
                  "CUDA in software: it does not resize what is written");
      original._set_conj(mirror.is_conj());
      original._set_neg(mirror.is_neg());
      if (held.nbytes != 0) {
        driver_of_tests.write(held.gpu.mutable_data(), held.cpu.data(), held.nbytes, stream_here());
      }
    }
  }

 private:
  struct Held {
    c10::Storage gpu, cpu;
    size_t nbytes = 0;
  };
  std::map<c10::StorageImpl*, Held> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> originals_;  // a mirror, and the tensor that it mirrors
};

template <typename F>
void for_each_tensor(c10::IValue& value, F&& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorList().vec()) changed.push_back(change(tensor));
    value = changed;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec()) {
      changed.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    }
    value = changed;
  }
}

void run_kernel(const c10::OperatorHandle& op, c10::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  Mirror mirror;
  const auto arguments = stack->end() - static_cast<ptrdiff_t>(count);
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = arguments[static_cast<ptrdiff_t>(i)];
    if (value.isDevice()) value = c10::Device(c10::kCPU);
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      at::Tensor copy = mirror.to_cpu(tensor);
      if (alias != nullptr && alias->isWrite()) written.push_back(copy);
      return copy;
    });
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (const at::Tensor& tensor : written) mirror.write_back(tensor);
  const size_t results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) {
    for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) { return mirror.to_gpu(tensor); });
  }
}

// Registers all aten ops that have a CPU kernel, and those that have a kernel for every device and return something.
// Kernels for every device without a result only call other ops.
const bool registered = [] {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    const bool for_all =
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) && !op->schema().returns().empty();
    if (!for_all && !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    const std::string text = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    library->impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_kernel>());
  }
  return true;
}();

}  // namespace
}  // namespace torch_remote::worker::aten

extern "C" __attribute__((visibility("default"))) void torch_remote_set_driver(const TorchCudaDriver* driver) {
  torch_remote::worker::aten::driver_of_tests = *driver;
}

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/emulated_gpu/machine.h"

// Devices and their contexts.
namespace torch_remote::worker::cuda::emulated {
namespace {

struct Named {
  Result result;
  const char *name, *text;
};
constexpr Named kResults[] = {
    {Result::kSuccess, "CUDA_SUCCESS", "no error"},
    {Result::kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {Result::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {Result::kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {Result::kDeinitialized, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {Result::kDeviceUnavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {Result::kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {Result::kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {Result::kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {Result::kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {Result::kNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {Result::kInvalidPtx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {Result::kUnsupportedPtxVersion, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {Result::kAlreadyMapped, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {Result::kPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {Result::kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {Result::kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {Result::kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {Result::kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {Result::kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {Result::kLaunchOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {Result::kLaunchTimeout, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {Result::kPeerAccessAlreadyEnabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {Result::kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {Result::kMisalignedAddress, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {Result::kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {Result::kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {Result::kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {Result::kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {Result::kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {Result::kCaptureMerge, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {Result::kCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream"},
    {Result::kCaptureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {Result::kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {Result::kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in capture"},
    {Result::kCaptureWrongThread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "capture was begun in another thread"},
    {Result::kGraphExecUpdateFailure, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed"},
};

const Named* find_result(Result result) {
  const auto* found = std::ranges::find(kResults, result, &Named::result);
  return found == std::end(kResults) ? nullptr : found;
}

Result get_error_name(Result error, const char** name) {
  const Named* found = find_result(error);
  *name = found != nullptr ? found->name : nullptr;
  return found != nullptr ? Result::kSuccess : Result::kInvalidValue;
}

Result get_error_string(Result error, const char** text) {
  const Named* found = find_result(error);
  *text = found != nullptr ? found->text : nullptr;
  return found != nullptr ? Result::kSuccess : Result::kInvalidValue;
}

Result init(unsigned flags) {
  Call call("cuInit");
  if (call.machine == nullptr) return call.error;
  if (flags != 0) return Result::kInvalidValue;
  if (call.machine->gpus.empty()) return Result::kNoDevice;
  call.machine->initialized = true;
  return Result::kSuccess;
}

Result driver_get_version(int* version) {
  Call call("cuDriverGetVersion");
  if (call.machine == nullptr) return call.error;
  *version = call.machine->options.driver;
  return Result::kSuccess;
}

Gpu* find_device(Call& call, DeviceNumber device) {
  if (!call.is_up()) return nullptr;
  if (device < 0 || static_cast<size_t>(device) >= call.machine->gpus.size()) {
    call.error = Result::kInvalidDevice;
    return nullptr;
  }
  return call.machine->gpus[device].get();
}

Result device_get_count(int* count) {
  Call call("cuDeviceGetCount");
  if (!call.is_up()) return call.error;
  *count = static_cast<int>(call.machine->gpus.size());
  return Result::kSuccess;
}

Result device_get(DeviceNumber* device, int ordinal) {
  Call call("cuDeviceGet");
  if (find_device(call, ordinal) == nullptr) return call.error;
  *device = ordinal;
  return Result::kSuccess;
}

Result device_get_name(char* name, int size, DeviceNumber device) {
  Call call("cuDeviceGetName");
  if (find_device(call, device) == nullptr) return call.error;
  if (size <= 0) return Result::kInvalidValue;
  std::snprintf(name, static_cast<size_t>(size), "GPU in software %d", device);
  return Result::kSuccess;
}

Result device_get_uuid(Uuid* uuid, DeviceNumber device) {
  Call call("cuDeviceGetUuid");
  if (find_device(call, device) == nullptr) return call.error;
  std::memset(uuid->bytes, 0xE0 + device, sizeof(uuid->bytes));
  return Result::kSuccess;
}

Result device_total_mem(size_t* bytes, DeviceNumber device) {
  Call call("cuDeviceTotalMem");
  if (find_device(call, device) == nullptr) return call.error;
  *bytes = call.machine->options.memory;
  return Result::kSuccess;
}

Result device_get_attribute(int* value, DeviceAttribute attribute, DeviceNumber device) {
  Call call("cuDeviceGetAttribute");
  if (find_device(call, device) == nullptr) return call.error;
  switch (attribute) {
    case DeviceAttribute::kMaxThreadsPerBlock:
      *value = 1024;
      return Result::kSuccess;
    case DeviceAttribute::kMaxSharedPerBlock:
      *value = 48 << 10;
      return Result::kSuccess;
    case DeviceAttribute::kWarpSize:
      *value = 32;
      return Result::kSuccess;
    case DeviceAttribute::kMultiprocessors:
      *value = call.machine->options.processors;
      return Result::kSuccess;
    case DeviceAttribute::kComputeMode:
      *value = static_cast<int>(call.machine->options.compute_mode);
      return Result::kSuccess;
    case DeviceAttribute::kUnifiedAddressing:
      *value = 1;
      return Result::kSuccess;
    case DeviceAttribute::kMemoryPools:
      *value = call.machine->options.memory_pools ? 1 : 0;
      return Result::kSuccess;
    case DeviceAttribute::kMajor:
      *value = static_cast<int>(call.machine->options.sm / 10);
      return Result::kSuccess;
    case DeviceAttribute::kMinor:
      *value = static_cast<int>(call.machine->options.sm % 10);
      return Result::kSuccess;
    case DeviceAttribute::kMaxSharedPerBlockOptin:
      *value = 227 << 10;
      return Result::kSuccess;
  }
  return Result::kInvalidValue;
}

Result device_can_access_peer(int* can, DeviceNumber device, DeviceNumber peer) {
  Call call("cuDeviceCanAccessPeer");
  if (find_device(call, device) == nullptr || find_device(call, peer) == nullptr) return call.error;
  *can = device != peer ? 1 : 0;
  return Result::kSuccess;
}

// --- contexts

Result primary_ctx_retain(Context* context, DeviceNumber device) {
  Call call("cuDevicePrimaryCtxRetain");
  Gpu* gpu = find_device(call, device);
  if (gpu == nullptr) return call.error;
  const Options& options = call.machine->options;
  const bool is_refused = options.compute_mode == ComputeMode::kProhibited ||
                          (options.compute_mode == ComputeMode::kExclusiveProcess && options.used_elsewhere);
  if (is_refused) return Result::kDeviceUnavailable;
  if (gpu->retained++ == 0) {
    // The machine owns the GPU; the handle ends with the context.
    gpu->context = call.machine->contexts.add(std::shared_ptr<Gpu>(gpu, [](Gpu*) {}));
  }
  *context = gpu->context;
  return Result::kSuccess;
}

template <typename Handle, typename T>
void forget(Handles<Handle, T>& handles, const Gpu* gpu) {
  std::vector<uint64_t> gone;
  for (const auto& [handle, object] : handles.all()) {
    if (object->gpu == gpu) gone.push_back(handle);
  }
  for (const uint64_t handle : gone) handles.take(reinterpret_cast<Handle>(handle));
}

// Destroys the objects that were created in the context.
void end_context(Call& call, Gpu& gpu) {
  Machine& machine = *call.machine;
  call.wait([&] {
    return std::ranges::all_of(machine.streams.all(),
                               [&](const auto& entry) { return entry.second->gpu != &gpu || entry.second->idle(); });
  });
  for (const auto& [handle, stream] : machine.streams.all()) {
    if (stream->gpu != &gpu) continue;
    stream->closing = true;
    machine.closing_streams.push_back(stream);
  }
  machine.changed.notify_all();
  std::vector<DevicePointer> memory;
  for (const auto& [address, allocation] : machine.allocations) {
    if (allocation.gpu == &gpu) memory.push_back(address);
  }
  for (const DevicePointer address : memory) machine.release(address);
  forget(machine.streams, &gpu);
  forget(machine.events, &gpu);
  forget(machine.pools, &gpu);
  for (const auto& [handle, module] : machine.modules.all()) {
    if (module->gpu != &gpu) continue;
    for (const Function function : module->functions) machine.functions.take(function);
  }
  forget(machine.modules, &gpu);
  machine.contexts.take(gpu.context);
  gpu.context = nullptr;
  gpu.peers.clear();
  gpu.error = Result::kSuccess;
}

Result primary_ctx_release(DeviceNumber device) {
  Call call("cuDevicePrimaryCtxRelease");
  Gpu* gpu = find_device(call, device);
  if (gpu == nullptr) return call.error;
  if (gpu->retained == 0) return Result::kInvalidContext;
  if (--gpu->retained == 0) end_context(call, *gpu);
  return Result::kSuccess;
}

bool is_context(Call& call, Context context) {
  if (!call.is_up()) return false;
  if (call.machine->contexts.find(context) == nullptr) call.error = Result::kInvalidContext;
  return call.error == Result::kSuccess;
}

Result ctx_set_current(Context context) {
  Call call("cuCtxSetCurrent");
  if (!call.is_up() || (context != nullptr && !is_context(call, context))) return call.error;
  std::vector<Context>& stack = context_stack(*call.machine);
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
  return Result::kSuccess;
}

Result ctx_get_current(Context* context) {
  Call call("cuCtxGetCurrent");
  if (!call.is_up()) return call.error;
  const std::vector<Context>& stack = context_stack(*call.machine);
  *context = stack.empty() ? nullptr : stack.back();
  return Result::kSuccess;
}

Result ctx_push_current(Context context) {
  Call call("cuCtxPushCurrent");
  if (!is_context(call, context)) return call.error;
  context_stack(*call.machine).push_back(context);
  return Result::kSuccess;
}

Result ctx_pop_current(Context* context) {
  Call call("cuCtxPopCurrent");
  if (!call.is_up()) return call.error;
  std::vector<Context>& stack = context_stack(*call.machine);
  if (stack.empty()) return Result::kInvalidContext;
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return Result::kSuccess;
}

Result ctx_synchronize() {
  Call call("cuCtxSynchronize");
  if (!call.ready() || !call.may_synchronize()) return call.error;
  call.wait([&] {
    return std::ranges::all_of(call.machine->streams.all(), [&](const auto& entry) {
      return entry.second->gpu != call.gpu || entry.second->idle();
    });
  });
  return call.after_wait();
}

Result ctx_enable_peer_access(Context peer, unsigned flags) {
  Call call("cuCtxEnablePeerAccess");
  if (!call.ready()) return call.error;
  const auto other = call.machine->contexts.find(peer);
  if (other == nullptr) return Result::kInvalidContext;
  if (flags != 0) return Result::kInvalidValue;
  if (other.get() == call.gpu) return Result::kInvalidDevice;
  return call.gpu->peers.insert(other->ordinal).second ? Result::kSuccess : Result::kPeerAccessAlreadyEnabled;
}

}  // namespace

void add_device_functions(Driver& driver) {
  driver.init = init;
  driver.driver_get_version = driver_get_version;
  driver.get_error_name = get_error_name;
  driver.get_error_string = get_error_string;
  driver.device_get_count = device_get_count;
  driver.device_get = device_get;
  driver.device_get_name = device_get_name;
  driver.device_get_uuid = device_get_uuid;
  driver.device_total_mem = device_total_mem;
  driver.device_get_attribute = device_get_attribute;
  driver.device_can_access_peer = device_can_access_peer;
  driver.primary_ctx_retain = primary_ctx_retain;
  driver.primary_ctx_release = primary_ctx_release;
  driver.ctx_set_current = ctx_set_current;
  driver.ctx_get_current = ctx_get_current;
  driver.ctx_push_current = ctx_push_current;
  driver.ctx_pop_current = ctx_pop_current;
  driver.ctx_synchronize = ctx_synchronize;
  driver.ctx_enable_peer_access = ctx_enable_peer_access;
}

}  // namespace torch_remote::worker::cuda::emulated

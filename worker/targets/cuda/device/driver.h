#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ir/status.h"

// NVIDIA's driver, as a table of the functions that we call. No NVIDIA code is linked or included: libcuda.so.1 is
// opened at run time, and its few types are declared here. driver_types_test compares them with NVIDIA's header. Tests
// fill the table with the driver of the GPU emulator (tests/emulated_gpu/emulated_driver.h).
namespace torch_remote::worker::cuda {

// CUresult: what the table's functions return. CUDA defines more values.
enum class Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kAlreadyMapped = 208,
  kNoBinaryForGpu = 209,
  kEccUncorrectable = 214,
  kPeerAccessUnsupported = 217,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchTimeout = 702,
  kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705,
  kContextIsDestroyed = 709,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kMisalignedAddress = 716,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
  kGraphExecUpdateFailure = 910,
};

// Handles: CUcontext, CUstream, ...
using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using MemoryPool = struct MemoryPoolHandle*;
using Graph = struct GraphHandle*;
using GraphExec = struct GraphExecHandle*;
using GraphNode = struct GraphNodeHandle*;

using DeviceNumber = int;        // CUdevice
using DevicePointer = uint64_t;  // CUdeviceptr
using HostFunction = void (*)(void* data);

inline DevicePointer to_pointer(const void* address) { return reinterpret_cast<DevicePointer>(address); }

struct Uuid {
  uint8_t bytes[16];
};

// CUipcMemHandle: lets other processes open memory of cuMemAlloc.
struct IpcMemoryHandle {
  uint8_t bytes[64] = {};
};

// CUmemPoolProps. The defaults make a pool in one device's memory that cannot be exported.
struct MemoryPoolProperties {
  int allocation_type = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED, the only one.
  int handle_types = 0;
  int location_type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int location = 0;       // The device's number.
  void* security = nullptr;
  size_t max_size = 0;  // 0: limited by the device only.
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};

// CUDA_KERNEL_NODE_PARAMS_v2
struct KernelNodeParameters {
  Function function = nullptr;
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  void** parameters = nullptr;
  void** extra = nullptr;
  void* kernel = nullptr;
  Context context = nullptr;
};

// CUgraphExecUpdateResultInfo
struct GraphUpdateInfo {
  int result = 0;
  GraphNode error_node = nullptr;
  GraphNode error_from_node = nullptr;
};

enum class DeviceAttribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxSharedPerBlock = 8,
  kWarpSize = 10,
  kMultiprocessors = 16,
  kComputeMode = 20,
  kUnifiedAddressing = 41,
  kMajor = 75,
  kMinor = 76,
  kMaxSharedPerBlockOptin = 97,
  kMemoryPools = 115,
};
enum class ComputeMode : int { kDefault = 0, kProhibited = 2, kExclusiveProcess = 3 };
enum class FunctionAttribute : int {
  kMaxThreadsPerBlock = 0,
  kSharedBytes = 1,
  kRegisters = 4,
  kMaxDynamicShared = 8,  // Settable; the others are read-only.
};
enum class PoolAttribute : int { kReleaseThreshold = 4, kReserved = 5, kUsed = 7 };  // Values are uint64_t.
enum class JitOption : int { kErrorLog = 5, kErrorLogBytes = 6 };
enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };
enum class NodeType : int { kKernel = 0, kMemcpy = 1, kMemset = 2, kHost = 3, kEmpty = 5 };

inline constexpr unsigned kStreamNonBlocking = 1;  // Does not synchronize with the default stream.
// Enables access to another GPU's memory on demand, where the hardware can.
inline constexpr unsigned kIpcLazyPeerAccess = 1;
// Registered memory: every context may copy from it; the process may only read it.
inline constexpr unsigned kHostRegisterPortable = 1, kHostRegisterReadOnly = 8;
inline constexpr unsigned kEventDefault = 0, kEventBlockingSync = 1, kEventDisableTiming = 2;

// Every function: member, the driver's name without a version suffix, parameters. The signatures are those of CUDA
// 12.0.
#define TORCH_REMOTE_CUDA_FUNCTIONS(F)                                                                               \
  F(init, cuInit, (unsigned flags))                                                                                  \
  F(driver_get_version, cuDriverGetVersion, (int* version))                                                          \
  F(get_error_name, cuGetErrorName, (Result error, const char** name))                                               \
  F(get_error_string, cuGetErrorString, (Result error, const char** text))                                           \
  F(device_get_count, cuDeviceGetCount, (int* count))                                                                \
  F(device_get, cuDeviceGet, (DeviceNumber * device, int ordinal))                                                   \
  F(device_get_name, cuDeviceGetName, (char* name, int size, DeviceNumber device))                                   \
  F(device_get_uuid, cuDeviceGetUuid, (Uuid * uuid, DeviceNumber device))                                            \
  F(device_total_mem, cuDeviceTotalMem, (size_t* bytes, DeviceNumber device))                                        \
  F(device_get_attribute, cuDeviceGetAttribute, (int* value, DeviceAttribute attribute, DeviceNumber device))        \
  F(device_can_access_peer, cuDeviceCanAccessPeer, (int* can, DeviceNumber device, DeviceNumber peer))               \
  F(primary_ctx_retain, cuDevicePrimaryCtxRetain, (Context * context, DeviceNumber device))                          \
  F(primary_ctx_release, cuDevicePrimaryCtxRelease, (DeviceNumber device))                                           \
  F(ctx_set_current, cuCtxSetCurrent, (Context context))                                                             \
  F(ctx_get_current, cuCtxGetCurrent, (Context * context))                                                           \
  F(ctx_push_current, cuCtxPushCurrent, (Context context))                                                           \
  F(ctx_pop_current, cuCtxPopCurrent, (Context * context))                                                           \
  F(ctx_synchronize, cuCtxSynchronize, ())                                                                           \
  F(ctx_enable_peer_access, cuCtxEnablePeerAccess, (Context peer, unsigned flags))                                   \
  F(mem_get_info, cuMemGetInfo, (size_t* unused, size_t* total))                                                     \
  F(mem_alloc, cuMemAlloc, (DevicePointer * address, size_t bytes))                                                  \
  F(mem_free, cuMemFree, (DevicePointer address))                                                                    \
  F(ipc_get_mem_handle, cuIpcGetMemHandle, (IpcMemoryHandle * handle, DevicePointer address))                        \
  F(ipc_open_mem_handle, cuIpcOpenMemHandle, (DevicePointer * address, IpcMemoryHandle handle, unsigned flags))      \
  F(ipc_close_mem_handle, cuIpcCloseMemHandle, (DevicePointer address))                                              \
  F(mem_host_alloc, cuMemHostAlloc, (void** address, size_t bytes, unsigned flags))                                  \
  F(mem_free_host, cuMemFreeHost, (void* address))                                                                   \
  F(mem_host_register, cuMemHostRegister, (void* address, size_t bytes, unsigned flags))                             \
  F(mem_host_unregister, cuMemHostUnregister, (void* address))                                                       \
  F(mem_pool_create, cuMemPoolCreate, (MemoryPool * pool, const MemoryPoolProperties* properties))                   \
  F(mem_pool_destroy, cuMemPoolDestroy, (MemoryPool pool))                                                           \
  F(mem_pool_set_attribute, cuMemPoolSetAttribute, (MemoryPool pool, PoolAttribute attribute, void* value))          \
  F(mem_pool_get_attribute, cuMemPoolGetAttribute, (MemoryPool pool, PoolAttribute attribute, void* value))          \
  F(mem_pool_trim_to, cuMemPoolTrimTo, (MemoryPool pool, size_t bytes))                                              \
  F(mem_alloc_from_pool_async, cuMemAllocFromPoolAsync,                                                              \
    (DevicePointer * address, size_t bytes, MemoryPool pool, Stream stream))                                         \
  F(mem_free_async, cuMemFreeAsync, (DevicePointer address, Stream stream))                                          \
  F(memcpy_htod_async, cuMemcpyHtoDAsync, (DevicePointer to, const void* from, size_t bytes, Stream stream))         \
  F(memcpy_dtoh_async, cuMemcpyDtoHAsync, (void* to, DevicePointer from, size_t bytes, Stream stream))               \
  F(memcpy_dtod_async, cuMemcpyDtoDAsync, (DevicePointer to, DevicePointer from, size_t bytes, Stream stream))       \
  F(memcpy_peer_async, cuMemcpyPeerAsync,                                                                            \
    (DevicePointer to, Context to_context, DevicePointer from, Context from_context, size_t bytes, Stream stream))   \
  F(memset_d8_async, cuMemsetD8Async, (DevicePointer to, unsigned char value, size_t count, Stream stream))          \
  F(memset_d32_async, cuMemsetD32Async, (DevicePointer to, unsigned value, size_t count, Stream stream))             \
  F(stream_create, cuStreamCreateWithPriority, (Stream * stream, unsigned flags, int priority))                      \
  F(stream_destroy, cuStreamDestroy, (Stream stream))                                                                \
  F(stream_query, cuStreamQuery, (Stream stream))                                                                    \
  F(stream_synchronize, cuStreamSynchronize, (Stream stream))                                                        \
  F(stream_wait_event, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                              \
  F(launch_host_func, cuLaunchHostFunc, (Stream stream, HostFunction function, void* data))                          \
  F(stream_begin_capture, cuStreamBeginCapture, (Stream stream, CaptureMode mode))                                   \
  F(stream_end_capture, cuStreamEndCapture, (Stream stream, Graph * graph))                                          \
  F(stream_is_capturing, cuStreamIsCapturing, (Stream stream, CaptureStatus * status))                               \
  F(stream_get_capture_info, cuStreamGetCaptureInfo,                                                                 \
    (Stream stream, CaptureStatus * status, uint64_t* id, Graph* graph, const GraphNode** last, size_t* count))      \
  F(event_create, cuEventCreate, (Event * event, unsigned flags))                                                    \
  F(event_destroy, cuEventDestroy, (Event event))                                                                    \
  F(event_record, cuEventRecord, (Event event, Stream stream))                                                       \
  F(event_query, cuEventQuery, (Event event))                                                                        \
  F(event_synchronize, cuEventSynchronize, (Event event))                                                            \
  F(event_elapsed_time, cuEventElapsedTime, (float* milliseconds, Event begin, Event end))                           \
  F(module_load_data_ex, cuModuleLoadDataEx,                                                                         \
    (Module * module, const void* image, unsigned count, JitOption* options, void** values))                         \
  F(module_unload, cuModuleUnload, (Module module))                                                                  \
  F(module_get_function, cuModuleGetFunction, (Function * function, Module module, const char* name))                \
  F(module_get_global, cuModuleGetGlobal, (DevicePointer * address, size_t* bytes, Module module, const char* name)) \
  F(func_get_attribute, cuFuncGetAttribute, (int* value, FunctionAttribute attribute, Function function))            \
  F(func_set_attribute, cuFuncSetAttribute, (Function function, FunctionAttribute attribute, int value))             \
  F(launch_kernel, cuLaunchKernel,                                                                                   \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
     unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void** extra))                       \
  F(graph_instantiate, cuGraphInstantiateWithFlags, (GraphExec * exec, Graph graph, unsigned long long flags))       \
  F(graph_exec_update, cuGraphExecUpdate, (GraphExec exec, Graph graph, GraphUpdateInfo * info))                     \
  F(graph_launch, cuGraphLaunch, (GraphExec exec, Stream stream))                                                    \
  F(graph_exec_destroy, cuGraphExecDestroy, (GraphExec exec))                                                        \
  F(graph_destroy, cuGraphDestroy, (Graph graph))                                                                    \
  F(graph_get_nodes, cuGraphGetNodes, (Graph graph, GraphNode * nodes, size_t* count))                               \
  F(graph_node_get_type, cuGraphNodeGetType, (GraphNode node, NodeType * type))                                      \
  F(graph_kernel_node_get_params, cuGraphKernelNodeGetParams, (GraphNode node, KernelNodeParameters * parameters))   \
  F(graph_exec_kernel_node_set_params, cuGraphExecKernelNodeSetParams,                                               \
    (GraphExec exec, GraphNode node, const KernelNodeParameters* parameters))

struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): they make a declaration
#define TORCH_REMOTE_CUDA_MEMBER(member, name, parameters) Result(*member) parameters = nullptr;
  TORCH_REMOTE_CUDA_FUNCTIONS(TORCH_REMOTE_CUDA_MEMBER)
#undef TORCH_REMOTE_CUDA_MEMBER
};

inline constexpr const char* kDriverLibrary = "libcuda.so.1";
inline constexpr int kDriverVersion = 12000;  // The oldest supported version: 1000 * major + 10 * minor of CUDA.

// Opens the library for the life of the process, fills the table and initializes the driver. An error says what to
// install.
Status open_driver(const std::string& library, Driver* driver);

// Ok, or an error in the driver's words: "cuda: cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY)". `what` is the
// function's name. Out of memory becomes kOutOfMemory; errors that leave the device unusable become kLost.
Status to_status(const Driver& driver, Result result, const char* what);

// After such an error, every further call on the device fails.
bool is_lost(Result result);

}  // namespace torch_remote::worker::cuda

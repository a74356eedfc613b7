// Compares our declarations with NVIDIA's cuda.h (12.0 or later). It does not compile without cuda.h on the include
// path: see docs/build.md.
#include <gtest/gtest.h>

#include <cstddef>

// Undoes the header's macros, so that each function has its own name. Where the macro selects a later version than we
// use, the name is mapped to the version of 12.0.
#include "cuda.h"
#undef cuStreamGetCaptureInfo
#define cuStreamGetCaptureInfo capture_info_of_12
static CUresult capture_info_of_12(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                                   size_t*);
#include "tests/emulated_gpu/same_declarations.h"
#include "worker/targets/cuda/device/driver.h"

namespace torch_remote::worker::cuda {
namespace {

#define TORCH_REMOTE_CUDA_COMPARE(member, name, parameters) \
  TORCH_REMOTE_SAME_FUNCTION(void, decltype(Driver::member), name)
TORCH_REMOTE_CUDA_FUNCTIONS(TORCH_REMOTE_CUDA_COMPARE)

TORCH_REMOTE_SAME(Result::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
TORCH_REMOTE_SAME(Result::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
TORCH_REMOTE_SAME(Result::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
TORCH_REMOTE_SAME(Result::kDeinitialized, CUDA_ERROR_DEINITIALIZED);
TORCH_REMOTE_SAME(Result::kNoDevice, CUDA_ERROR_NO_DEVICE);
TORCH_REMOTE_SAME(Result::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
TORCH_REMOTE_SAME(Result::kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
TORCH_REMOTE_SAME(Result::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
TORCH_REMOTE_SAME(Result::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
TORCH_REMOTE_SAME(Result::kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
TORCH_REMOTE_SAME(Result::kAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED);
TORCH_REMOTE_SAME(Result::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
TORCH_REMOTE_SAME(Result::kInvalidPtx, CUDA_ERROR_INVALID_PTX);
TORCH_REMOTE_SAME(Result::kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
TORCH_REMOTE_SAME(Result::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
TORCH_REMOTE_SAME(Result::kNotFound, CUDA_ERROR_NOT_FOUND);
TORCH_REMOTE_SAME(Result::kNotReady, CUDA_ERROR_NOT_READY);
TORCH_REMOTE_SAME(Result::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
TORCH_REMOTE_SAME(Result::kLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
TORCH_REMOTE_SAME(Result::kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
TORCH_REMOTE_SAME(Result::kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
TORCH_REMOTE_SAME(Result::kPeerAccessNotEnabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
TORCH_REMOTE_SAME(Result::kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
TORCH_REMOTE_SAME(Result::kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
TORCH_REMOTE_SAME(Result::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
TORCH_REMOTE_SAME(Result::kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
TORCH_REMOTE_SAME(Result::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
TORCH_REMOTE_SAME(Result::kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
TORCH_REMOTE_SAME(220, CUDA_ERROR_NVLINK_UNCORRECTABLE);
TORCH_REMOTE_SAME(714, CUDA_ERROR_HARDWARE_STACK_ERROR);
TORCH_REMOTE_SAME(715, CUDA_ERROR_ILLEGAL_INSTRUCTION);
TORCH_REMOTE_SAME(717, CUDA_ERROR_INVALID_ADDRESS_SPACE);
TORCH_REMOTE_SAME(718, CUDA_ERROR_INVALID_PC);
TORCH_REMOTE_SAME(Result::kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
TORCH_REMOTE_SAME(Result::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
TORCH_REMOTE_SAME(Result::kCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
TORCH_REMOTE_SAME(Result::kCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
TORCH_REMOTE_SAME(Result::kCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
TORCH_REMOTE_SAME(Result::kCaptureUnmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
TORCH_REMOTE_SAME(Result::kCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
TORCH_REMOTE_SAME(Result::kCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
TORCH_REMOTE_SAME(Result::kCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
TORCH_REMOTE_SAME(Result::kCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
TORCH_REMOTE_SAME(Result::kGraphExecUpdateFailure, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
TORCH_REMOTE_SAME(DeviceAttribute::kMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
TORCH_REMOTE_SAME(DeviceAttribute::kMaxSharedPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
TORCH_REMOTE_SAME(DeviceAttribute::kWarpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
TORCH_REMOTE_SAME(DeviceAttribute::kMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
TORCH_REMOTE_SAME(DeviceAttribute::kUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
TORCH_REMOTE_SAME(DeviceAttribute::kMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
TORCH_REMOTE_SAME(DeviceAttribute::kMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
TORCH_REMOTE_SAME(DeviceAttribute::kMaxSharedPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
TORCH_REMOTE_SAME(DeviceAttribute::kComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
TORCH_REMOTE_SAME(ComputeMode::kProhibited, CU_COMPUTEMODE_PROHIBITED);
TORCH_REMOTE_SAME(ComputeMode::kExclusiveProcess, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
TORCH_REMOTE_SAME(DeviceAttribute::kMemoryPools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
TORCH_REMOTE_SAME(FunctionAttribute::kMaxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
TORCH_REMOTE_SAME(FunctionAttribute::kSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
TORCH_REMOTE_SAME(FunctionAttribute::kRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
TORCH_REMOTE_SAME(FunctionAttribute::kMaxDynamicShared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
TORCH_REMOTE_SAME(PoolAttribute::kReleaseThreshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
TORCH_REMOTE_SAME(PoolAttribute::kReserved, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
TORCH_REMOTE_SAME(PoolAttribute::kUsed, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
TORCH_REMOTE_SAME(JitOption::kErrorLog, CU_JIT_ERROR_LOG_BUFFER);
TORCH_REMOTE_SAME(JitOption::kErrorLogBytes, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
TORCH_REMOTE_SAME(CaptureMode::kGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
TORCH_REMOTE_SAME(CaptureMode::kThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
TORCH_REMOTE_SAME(CaptureMode::kRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
TORCH_REMOTE_SAME(CaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
TORCH_REMOTE_SAME(CaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
TORCH_REMOTE_SAME(NodeType::kKernel, CU_GRAPH_NODE_TYPE_KERNEL);
TORCH_REMOTE_SAME(NodeType::kMemcpy, CU_GRAPH_NODE_TYPE_MEMCPY);
TORCH_REMOTE_SAME(NodeType::kMemset, CU_GRAPH_NODE_TYPE_MEMSET);
TORCH_REMOTE_SAME(NodeType::kHost, CU_GRAPH_NODE_TYPE_HOST);
TORCH_REMOTE_SAME(NodeType::kEmpty, CU_GRAPH_NODE_TYPE_EMPTY);
TORCH_REMOTE_SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
TORCH_REMOTE_SAME(kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
TORCH_REMOTE_SAME(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
TORCH_REMOTE_SAME(kHostRegisterReadOnly, CU_MEMHOSTREGISTER_READ_ONLY);
TORCH_REMOTE_SAME(kEventBlockingSync, CU_EVENT_BLOCKING_SYNC);
TORCH_REMOTE_SAME(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);

static_assert(sizeof(DevicePointer) == sizeof(CUdeviceptr) && sizeof(DeviceNumber) == sizeof(CUdevice));
static_assert(sizeof(Uuid) == sizeof(CUuuid));
static_assert(sizeof(IpcMemoryHandle) == sizeof(CUipcMemHandle));

#define TORCH_REMOTE_CUDA_FIELD(ours, our_field, theirs, their_field)         \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) && \
                    sizeof(ours::our_field) == sizeof(theirs::their_field),   \
                #our_field)
static_assert(sizeof(MemoryPoolProperties) == sizeof(CUmemPoolProps));
TORCH_REMOTE_CUDA_FIELD(MemoryPoolProperties, allocation_type, CUmemPoolProps, allocType);
TORCH_REMOTE_CUDA_FIELD(MemoryPoolProperties, handle_types, CUmemPoolProps, handleTypes);
TORCH_REMOTE_CUDA_FIELD(MemoryPoolProperties, security, CUmemPoolProps, win32SecurityAttributes);
// Before these versions of the header, the bytes were reserved and had to be 0, as ours are.
#if CUDA_VERSION >= 12020
TORCH_REMOTE_CUDA_FIELD(MemoryPoolProperties, max_size, CUmemPoolProps, maxSize);
#endif
#if CUDA_VERSION >= 12050
TORCH_REMOTE_CUDA_FIELD(MemoryPoolProperties, usage, CUmemPoolProps, usage);
#endif
// CUDA 13.5 gave the first of these bytes a meaning; 0 keeps the old behavior.
#if CUDA_VERSION >= 12050
static_assert(offsetof(MemoryPoolProperties, reserved) <= offsetof(CUmemPoolProps, reserved));
#endif
static_assert(offsetof(MemoryPoolProperties, location_type) ==
              offsetof(CUmemPoolProps, location) + offsetof(CUmemLocation, type));
static_assert(offsetof(MemoryPoolProperties, location) ==
              offsetof(CUmemPoolProps, location) + offsetof(CUmemLocation, id));
TORCH_REMOTE_SAME(MemoryPoolProperties().allocation_type, CU_MEM_ALLOCATION_TYPE_PINNED);
TORCH_REMOTE_SAME(MemoryPoolProperties().location_type, CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(sizeof(KernelNodeParameters) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
TORCH_REMOTE_CUDA_FIELD(KernelNodeParameters, grid_x, CUDA_KERNEL_NODE_PARAMS_v2, gridDimX);
TORCH_REMOTE_CUDA_FIELD(KernelNodeParameters, block_x, CUDA_KERNEL_NODE_PARAMS_v2, blockDimX);
TORCH_REMOTE_CUDA_FIELD(KernelNodeParameters, shared_bytes, CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes);
TORCH_REMOTE_CUDA_FIELD(KernelNodeParameters, parameters, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
TORCH_REMOTE_CUDA_FIELD(KernelNodeParameters, kernel, CUDA_KERNEL_NODE_PARAMS_v2, kern);
TORCH_REMOTE_CUDA_FIELD(KernelNodeParameters, context, CUDA_KERNEL_NODE_PARAMS_v2, ctx);
static_assert(sizeof(GraphUpdateInfo) == sizeof(CUgraphExecUpdateResultInfo));
TORCH_REMOTE_CUDA_FIELD(GraphUpdateInfo, error_node, CUgraphExecUpdateResultInfo, errorNode);

TEST(DriverTypes, AreThoseOfTheRealHeader) {}  // Compiling this file is the test.

}  // namespace
}  // namespace torch_remote::worker::cuda

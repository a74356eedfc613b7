#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"
#include "worker/targets/cuda/device/library.h"

// NCCL 2.18 or later, as a table of functions, opened at run time. The types are those of NVIDIA's nccl.h, under our
// names; nccl_types_test compares the values.
namespace torch_remote::worker::cuda::nccl {

// ncclResult_t
enum class Result : int {
  kSuccess = 0,
  kCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDataType_t
enum class Type : int {
  kInt8 = 0,
  kUInt8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};

// ncclRedOp_t
enum class Reduction : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4 };

// ncclUniqueId
struct Id {
  char bytes[128];
};

// ncclConfig_t of 2.18. Later versions append fields and check `size`.
struct Config {
  static constexpr int kUndefined = INT32_MIN;
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int clusters = kUndefined, least_blocks = kUndefined, most_blocks = kUndefined;
  const char* network = nullptr;
  int split_share = kUndefined;
};

using Group = struct GroupState*;  // ncclComm_t

// Every function: member, NCCL's name, return type, parameters.
#define TORCH_REMOTE_NCCL_FUNCTIONS(F)                                                                                \
  F(get_version, ncclGetVersion, Result, (int* version))                                                              \
  F(get_id, ncclGetUniqueId, Result, (Id * id))                                                                       \
  F(join, ncclCommInitRankConfig, Result, (Group * group, int size, Id id, int rank, Config* config))                 \
  F(abort, ncclCommAbort, Result, (Group group))                                                                      \
  F(get_error, ncclCommGetAsyncError, Result, (Group group, Result * error))                                          \
  F(get_error_string, ncclGetErrorString, const char*, (Result result))                                               \
  F(get_last_text, ncclGetLastError, const char*, (Group group))                                                      \
  F(all_reduce, ncclAllReduce, Result,                                                                                \
    (const void* from, void* to, size_t count, Type type, Reduction reduction, Group group, Stream stream))           \
  F(reduce, ncclReduce, Result,                                                                                       \
    (const void* from, void* to, size_t count, Type type, Reduction reduction, int root, Group group, Stream stream)) \
  F(broadcast, ncclBroadcast, Result,                                                                                 \
    (const void* from, void* to, size_t count, Type type, int root, Group group, Stream stream))                      \
  F(all_gather, ncclAllGather, Result,                                                                                \
    (const void* from, void* to, size_t count, Type type, Group group, Stream stream))                                \
  F(reduce_scatter, ncclReduceScatter, Result,                                                                        \
    (const void* from, void* to, size_t count, Type type, Reduction reduction, Group group, Stream stream))           \
  F(send, ncclSend, Result, (const void* from, size_t count, Type type, int peer, Group group, Stream stream))        \
  F(receive, ncclRecv, Result, (void* to, size_t count, Type type, int peer, Group group, Stream stream))             \
  F(begin, ncclGroupStart, Result, ())                                                                                \
  F(end, ncclGroupEnd, Result, ())

struct Table {
// NOLINTNEXTLINE(bugprone-macro-parentheses): they make a declaration
#define TORCH_REMOTE_NCCL_MEMBER(member, name, type, parameters) type(*member) parameters = nullptr;
  TORCH_REMOTE_NCCL_FUNCTIONS(TORCH_REMOTE_NCCL_MEMBER)
#undef TORCH_REMOTE_NCCL_MEMBER
};

// All CUDA versions share one soname; "2" is NCCL's own version.
inline constexpr Library kLibrary = {"NCCL", "libnccl.so", "nvidia-nccl", "nccl", "2"};

// Opens the library for the life of the process and fills the table. An error says what to install.
Status open(const LibrarySearchPath& search_path, Table* table);

// "2.32.3" for 23203.
std::string version_text(int version);

}  // namespace torch_remote::worker::cuda::nccl

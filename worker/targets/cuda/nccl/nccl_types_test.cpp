// Compares our declarations with NVIDIA's nccl.h (2.18 or later). It does not compile without nccl.h on the include
// path: see docs/build.md.
#include <gtest/gtest.h>
#include <nccl.h>  // NVIDIA's header, not ours in this folder.

#include <cstddef>
#include <cstdlib>

#include "tests/emulated_gpu/same_declarations.h"
#include "worker/targets/cuda/nccl/nccl.h"

namespace torch_remote::worker::cuda::nccl {
namespace {

#define TORCH_REMOTE_NCCL_COMPARE(member, name, type, parameters) \
  TORCH_REMOTE_SAME_FUNCTION(void, decltype(Table::member), name)
TORCH_REMOTE_NCCL_FUNCTIONS(TORCH_REMOTE_NCCL_COMPARE)

TORCH_REMOTE_SAME(Result::kSuccess, ncclSuccess);
TORCH_REMOTE_SAME(Result::kCudaError, ncclUnhandledCudaError);
TORCH_REMOTE_SAME(Result::kSystemError, ncclSystemError);
TORCH_REMOTE_SAME(Result::kInternalError, ncclInternalError);
TORCH_REMOTE_SAME(Result::kInvalidArgument, ncclInvalidArgument);
TORCH_REMOTE_SAME(Result::kInvalidUsage, ncclInvalidUsage);
TORCH_REMOTE_SAME(Result::kRemoteError, ncclRemoteError);
TORCH_REMOTE_SAME(Result::kInProgress, ncclInProgress);
TORCH_REMOTE_SAME(Type::kInt8, ncclInt8);
TORCH_REMOTE_SAME(Type::kUInt8, ncclUint8);
TORCH_REMOTE_SAME(Type::kInt32, ncclInt32);
TORCH_REMOTE_SAME(Type::kInt64, ncclInt64);
TORCH_REMOTE_SAME(Type::kFloat16, ncclFloat16);
TORCH_REMOTE_SAME(Type::kFloat32, ncclFloat32);
TORCH_REMOTE_SAME(Type::kFloat64, ncclFloat64);
TORCH_REMOTE_SAME(Type::kBFloat16, ncclBfloat16);
TORCH_REMOTE_SAME(Reduction::kSum, ncclSum);
TORCH_REMOTE_SAME(Reduction::kProduct, ncclProd);
TORCH_REMOTE_SAME(Reduction::kMax, ncclMax);
TORCH_REMOTE_SAME(Reduction::kMin, ncclMin);
TORCH_REMOTE_SAME(Reduction::kAverage, ncclAvg);
static_assert(sizeof(Id) == sizeof(ncclUniqueId));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, network) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(Config().magic == NCCL_API_MAGIC && Config::kUndefined == NCCL_CONFIG_UNDEF_INT);

// The library opens without a GPU and reports its version.
TEST(Nccl, Opens) {
  LibrarySearchPath search_path;
  search_path.driver = 13000;
  if (const char* folder = std::getenv("TORCH_REMOTE_CUDA_LIB")) search_path.folders = {folder};
  Table table;
  const Status status = open(search_path, &table);
  if (!status.ok()) GTEST_SKIP() << status.message();
  int version = 0;
  EXPECT_EQ(table.get_version(&version), Result::kSuccess);
  EXPECT_GE(version, 21800);
}

}  // namespace
}  // namespace torch_remote::worker::cuda::nccl

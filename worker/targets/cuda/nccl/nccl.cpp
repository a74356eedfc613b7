#include "worker/targets/cuda/nccl/nccl.h"

#include <string>

namespace torch_remote::worker::cuda::nccl {
namespace {

constexpr int kOldest = 21800;

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Status open(const LibrarySearchPath& search_path, Table* table) {
  OpenLibrary library;
  if (Status status = open_library(kLibrary, search_path, &library); !status.ok()) return status;
  std::string missing;
#define TORCH_REMOTE_NCCL_FIND(member, name, type, parameters)                    \
  table->member = reinterpret_cast<decltype(table->member)>(library.find(#name)); \
  if (table->member == nullptr) missing = #name;
  TORCH_REMOTE_NCCL_FUNCTIONS(TORCH_REMOTE_NCCL_FIND)
#undef TORCH_REMOTE_NCCL_FIND
  int version = 0;
  if (missing.empty() && table->get_version(&version) == Result::kSuccess && version >= kOldest) return {};
  const std::string what = missing.empty() ? "is NCCL " + version_text(version) : "has no " + missing;
  return {ErrorCode::kUnsupported, "cuda: " + library.path + " " + what +
                                       ", but 2.18 or later is required; update it: pip install -U nvidia-nccl-cu" +
                                       (search_path.driver >= 13000 ? "13" : "12")};
}

}  // namespace torch_remote::worker::cuda::nccl

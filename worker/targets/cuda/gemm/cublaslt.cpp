#include "worker/targets/cuda/gemm/cublaslt.h"

namespace torch_remote::worker::cuda::lt {

uint32_t item_size(Type type) {
  switch (type) {
    case Type::kInt8:
    case Type::kFloat8E4M3:
    case Type::kFloat8E5M2:
      return 1;
    case Type::kFloat16:
    case Type::kBFloat16:
      return 2;
    case Type::kFloat32:
    case Type::kInt32:
      return 4;
    case Type::kFloat64:
    case Type::kComplex64:
      return 8;
    case Type::kComplex128:
      return 16;
  }
  return 0;
}

Status open(const LibrarySearchPath& search_path, Table* table) {
  OpenLibrary library;
  if (Status status = open_library(kLibrary, search_path, &library); !status.ok()) return status;
  std::string missing;
#define TORCH_REMOTE_CUBLASLT_FIND(member, name, type, parameters)                \
  table->member = reinterpret_cast<decltype(table->member)>(library.find(#name)); \
  if (table->member == nullptr) missing = #name;
  TORCH_REMOTE_CUBLASLT_FUNCTIONS(TORCH_REMOTE_CUBLASLT_FIND)
#undef TORCH_REMOTE_CUBLASLT_FIND
  if (missing.empty()) return {};
  return {ErrorCode::kUnsupported,
          "cuda: " + library.path + " has no " + missing + "; cuBLASLt 12 or later is required"};
}

Status to_status(Result result, const char* what) {
  const auto error = [&](ErrorCode code, const char* why) {
    return Status(code, std::string("cublasLt: ") + what + ": " + why);
  };
  switch (result) {
    case Result::kSuccess:
      return {};
    case Result::kNotInitialized:
      return error(ErrorCode::kInternal, "not initialized (CUBLAS_STATUS_NOT_INITIALIZED)");
    case Result::kAllocFailed:
      return error(ErrorCode::kOutOfMemory, "no memory (CUBLAS_STATUS_ALLOC_FAILED)");
    case Result::kInvalidValue:
      return error(ErrorCode::kInternal, "invalid value (CUBLAS_STATUS_INVALID_VALUE)");
    case Result::kArchMismatch:
      return error(ErrorCode::kUnsupported, "not for this GPU (CUBLAS_STATUS_ARCH_MISMATCH)");
    case Result::kExecutionFailed:
      return error(ErrorCode::kInternal, "execution failed (CUBLAS_STATUS_EXECUTION_FAILED)");
    case Result::kInternalError:
      return error(ErrorCode::kInternal, "internal error (CUBLAS_STATUS_INTERNAL_ERROR)");
    case Result::kNotSupported:
      return error(ErrorCode::kUnsupported, "not supported (CUBLAS_STATUS_NOT_SUPPORTED)");
  }
  return error(ErrorCode::kInternal, ("error " + std::to_string(static_cast<int>(result))).c_str());
}

}  // namespace torch_remote::worker::cuda::lt

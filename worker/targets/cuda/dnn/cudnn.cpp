#include "worker/targets/cuda/dnn/cudnn.h"

#include <array>

#include "worker/targets/cuda/gemm/cublaslt.h"

namespace torch_remote::worker::cuda::dnn {

uint32_t item_size(Type type) {
  switch (type) {
    case Type::kFloat16:
    case Type::kBFloat16:
      return 2;
    case Type::kFloat32:
    case Type::kInt32:
      return 4;
    case Type::kFloat64:
      return 8;
    case Type::kBool:
      return 1;
  }
  return 0;
}

Status open(const LibrarySearchPath& search_path, Table* table) {
  OpenLibrary library;
  if (Status status = open_library(kLibrary, search_path, &library); !status.ok()) return status;
  std::string missing;
#define TORCH_REMOTE_CUDNN_FIND(member, name, type, parameters)                   \
  table->member = reinterpret_cast<decltype(table->member)>(library.find(#name)); \
  if (table->member == nullptr) missing = #name;
  TORCH_REMOTE_CUDNN_FUNCTIONS(TORCH_REMOTE_CUDNN_FIND)
#undef TORCH_REMOTE_CUDNN_FIND
  if (!missing.empty())
    return {ErrorCode::kUnsupported, "cuda: " + library.path + " has no " + missing + "; cuDNN 9 is required"};
  // The soname does not say for which CUDA version cuDNN was built.
  const int made_for = static_cast<int>(table->get_cudart_version()) / 1000, driver = search_path.driver / 1000;
  if (made_for <= driver) {
    // cuDNN loads the cuBLASLt of its own CUDA version, and aborts the process if there is none.
    LibrarySearchPath own = search_path;
    own.driver = made_for * 1000;
    OpenLibrary products;
    Status status = open_library(lt::kLibrary, own, &products);
    OpenLibrary compiler;
    if (open_library(kCompiler, own, &compiler).ok()) open_siblings(compiler, "libnvrtc-builtins.so");
    if (!status.ok() || products.major == made_for) return status;
    return {ErrorCode::kUnsupported, "cuda: " + library.path + " is made for CUDA " + std::to_string(made_for) + ", " +
                                         products.path + " is not; install cuBLASLt for it: pip install nvidia-cublas" +
                                         (made_for == 12 ? "-cu12" : "")};
  }
  return {ErrorCode::kUnsupported, "cuda: " + library.path + " is made for CUDA " + std::to_string(made_for) +
                                       ", and the driver for CUDA " + std::to_string(driver) +
                                       "; update the driver, or install cuDNN for it: pip install nvidia-cudnn-cu" +
                                       std::to_string(driver)};
}

std::optional<Type> type_of(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kFloat32:
      return Type::kFloat32;
    case ir::DType::kFloat64:
      return Type::kFloat64;
    case ir::DType::kFloat16:
      return Type::kFloat16;
    case ir::DType::kBFloat16:
      return Type::kBFloat16;
    default:
      return std::nullopt;
  }
}
std::optional<Type> narrow_type_of(ir::DType dtype) {
  return dtype == ir::DType::kFloat64 ? std::nullopt : type_of(dtype);
}

Status to_status(const Table& table, Result result, const char* what) {
  if (result == Result::kSuccess) return {};
  const int number = static_cast<int>(result);
  ErrorCode code = ErrorCode::kInternal;
  const char* why = "error";
  if (result == Result::kOutOfHostMemory || result == Result::kOutOfDeviceMemory) {
    code = ErrorCode::kOutOfMemory;
    why = "no memory";
  } else if (number / 1000 == 3) {
    code = ErrorCode::kUnsupported;
    why = "not supported";
  } else if (number / 1000 == 1) {
    why = "not initialized";
  } else if (number / 1000 == 2) {
    why = "bad parameter";
  } else if (number / 1000 == 4) {
    why = "internal error";
  } else if (number / 1000 == 5) {
    why = "execution failed";
  }
  std::string message = std::string("cudnn: ") + what + ": " + why + " (CUDNN_STATUS " + std::to_string(number) + ")";
  std::array<char, 512> said{};
  table.get_last_error(said.data(), said.size() - 1);
  if (said[0] != '\0') message += std::string(": ") + said.data();
  return {code, message};
}

}  // namespace torch_remote::worker::cuda::dnn

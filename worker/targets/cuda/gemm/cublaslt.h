#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"
#include "worker/targets/cuda/device/library.h"

// cuBLASLt, NVIDIA's GEMM library, as a table of the functions that we call. Nothing of it is linked or included: it is
// opened at run time, and its few types are declared here. cublaslt_types_test compares them with NVIDIA's header.
// Tests fill the table with the emulated cuBLASLt (tests/emulated_gpu).
namespace torch_remote::worker::cuda::lt {

// cublasStatus_t: what the table's functions return. cuBLAS defines more values.
enum class Result : int {
  kSuccess = 0,
  kNotInitialized = 1,
  kAllocFailed = 3,
  kInvalidValue = 7,
  kArchMismatch = 8,
  kExecutionFailed = 13,
  kInternalError = 14,
  kNotSupported = 15,
};

// cudaDataType
enum class Type : int {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kInt8 = 3,
  kComplex64 = 4,
  kComplex128 = 5,
  kInt32 = 10,
  kBFloat16 = 14,
  kFloat8E4M3 = 28,
  kFloat8E5M2 = 29,
};

// The size of an element in bytes.
uint32_t item_size(Type type);

// cublasComputeType_t: the accumulation type. kTf32: operands are rounded to tf32.
enum class Compute : int { kFloat32 = 68, kFloat64 = 70, kInt32 = 72, kTf32 = 77 };
// cublasOperation_t: applied to a matrix as it is stored.
enum class Operation : int32_t { kNone = 0, kTranspose = 1, kConjugate = 2 };
// cublasLtEpilogue_t: flags.
enum Epilogue : uint32_t { kDefault = 1, kRelu = 2, kBias = 4, kGelu = 32 };

// cublasLtMatrixLayoutAttribute_t, cublasLtMatmulDescAttributes_t and cublasLtMatmulPreferenceAttributes_t, with the
// type of each value.
enum class LayoutAttribute : int {
  kBatchCount = 5,   // int32_t
  kBatchStride = 6,  // int64_t: elements
};
enum class DescAttribute : int {
  kTransposeA = 3,   // Operation
  kTransposeB = 4,   // Operation
  kEpilogue = 7,     // uint32_t
  kBiasPointer = 8,  // DevicePointer, as are the next two.
  kAScalePointer = 17,
  kBScalePointer = 18,
  kFastAccumulation = 25,  // int8_t
  kBiasType = 26,          // int32_t: Type
};
enum class PreferenceAttribute : int {
  kWorkspaceBytes = 1,    // uint64_t
  kReductionSchemes = 3,  // uint32_t: flags
  kAlignmentA = 5,        // uint32_t: bytes, as are the next three.
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8,
};
// cublasLtReductionScheme_t: how parts of a split sum are combined. This one uses the compute type, in workspace
// memory, and always the same order.
inline constexpr uint32_t kReductionComputeType = 2;

using Handle = struct HandleState*;
using Desc = struct DescState*;
using Layout = struct LayoutState*;
using Preference = struct PreferenceState*;

// cublasLtMatmulAlgo_t: may be stored, for use with the same version of the library.
struct Algorithm {
  uint64_t data[8] = {};
};

// cublasLtMatmulHeuristicResult_t
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace = 0;  // bytes
  Result state = Result::kSuccess;
  float waves = 0;
  int reserved[4] = {};
};

// The alignment of a workspace in bytes.
inline constexpr size_t kWorkspaceAlignment = 256;

// Every function: member, cuBLASLt's name, return type, parameters.
#define TORCH_REMOTE_CUBLASLT_FUNCTIONS(F)                                                                             \
  F(get_version, cublasLtGetVersion, size_t, ())                                                                       \
  F(create, cublasLtCreate, Result, (Handle * handle))                                                                 \
  F(destroy, cublasLtDestroy, Result, (Handle handle))                                                                 \
  F(desc_create, cublasLtMatmulDescCreate, Result, (Desc * desc, Compute compute, Type scale))                         \
  F(desc_destroy, cublasLtMatmulDescDestroy, Result, (Desc desc))                                                      \
  F(desc_set_attribute, cublasLtMatmulDescSetAttribute, Result,                                                        \
    (Desc desc, DescAttribute attribute, const void* value, size_t bytes))                                             \
  F(layout_create, cublasLtMatrixLayoutCreate, Result,                                                                 \
    (Layout * layout, Type type, uint64_t rows, uint64_t columns, int64_t ld))                                         \
  F(layout_destroy, cublasLtMatrixLayoutDestroy, Result, (Layout layout))                                              \
  F(layout_set_attribute, cublasLtMatrixLayoutSetAttribute, Result,                                                    \
    (Layout layout, LayoutAttribute attribute, const void* value, size_t bytes))                                       \
  F(preference_create, cublasLtMatmulPreferenceCreate, Result, (Preference * preference))                              \
  F(preference_destroy, cublasLtMatmulPreferenceDestroy, Result, (Preference preference))                              \
  F(preference_set_attribute, cublasLtMatmulPreferenceSetAttribute, Result,                                            \
    (Preference preference, PreferenceAttribute attribute, const void* value, size_t bytes))                           \
  F(find_algorithms, cublasLtMatmulAlgoGetHeuristic, Result,                                                           \
    (Handle handle, Desc desc, Layout a, Layout b, Layout c, Layout d, Preference preference, int asked,               \
     HeuristicResult* candidates, int* count))                                                                         \
  F(check_algorithm, cublasLtMatmulAlgoCheck, Result,                                                                  \
    (Handle handle, Desc desc, Layout a, Layout b, Layout c, Layout d, const Algorithm* algorithm,                     \
     HeuristicResult* candidate))                                                                                      \
  F(matmul, cublasLtMatmul, Result,                                                                                    \
    (Handle handle, Desc desc, const void* alpha, DevicePointer a, Layout a_layout, DevicePointer b, Layout b_layout,  \
     const void* beta, DevicePointer c, Layout c_layout, DevicePointer d, Layout d_layout, const Algorithm* algorithm, \
     DevicePointer workspace, size_t workspace_bytes, Stream stream))

struct Table {
// NOLINTNEXTLINE(bugprone-macro-parentheses): they make a declaration
#define TORCH_REMOTE_CUBLASLT_MEMBER(member, name, type, parameters) type(*member) parameters = nullptr;
  TORCH_REMOTE_CUBLASLT_FUNCTIONS(TORCH_REMOTE_CUBLASLT_MEMBER)
#undef TORCH_REMOTE_CUBLASLT_MEMBER
};

inline constexpr Library kLibrary = {"cuBLASLt", "libcublasLt.so", "nvidia-cublas", "cublas"};

// Opens the library for the life of the process and fills the table. An error says what to install.
Status open(const LibrarySearchPath& search_path, Table* table);

// Ok, or "cublasLt: cublasLtMatmul: not supported (CUBLAS_STATUS_NOT_SUPPORTED)". Not supported becomes kUnsupported.
Status to_status(Result result, const char* what);

}  // namespace torch_remote::worker::cuda::lt

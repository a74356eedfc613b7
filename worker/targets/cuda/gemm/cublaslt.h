#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"
#include "worker/targets/cuda/device/library.h"

// cuBLASLt, NVIDIA's library of matrix products, as a table of the functions that are used of it. Nothing of it is
// linked or included: it is opened at run time, and its few types are declared here (cublaslt_types_test compares them
// with the real header). What fills the table in tests is a library in software (tests/emulated_gpu).
namespace torch_remote::worker::cuda::lt {

// cublasStatus_t. Functions of the table return these; there are others.
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

// Bytes of an element.
uint32_t item_size(Type type);

// cublasComputeType_t: what products are added up in.
enum class Compute : int { kFloat32 = 68, kFloat64 = 70, kInt32 = 72, kTf32 = 77 };  // kTf32: of operands rounded to it
// cublasOperation_t: of the matrix as it lies.
enum class Operation : int32_t { kNone = 0, kTranspose = 1, kConjugate = 2 };
// cublasLtEpilogue_t: flags.
enum Epilogue : uint32_t { kDefault = 1, kRelu = 2, kBias = 4, kGelu = 32 };

// cublasLtMatrixLayoutAttribute_t, cublasLtMatmulDescAttributes_t and cublasLtMatmulPreferenceAttributes_t; with the
// type of each.
enum class LayoutAttribute : int {
  kBatchCount = 5,   // int32_t
  kBatchStride = 6,  // int64_t: elements
};
enum class DescAttribute : int {
  kTransposeA = 3,   // Operation
  kTransposeB = 4,   // Operation
  kEpilogue = 7,     // uint32_t
  kBiasPointer = 8,  // DevicePointer, as the next two
  kAScalePointer = 17,
  kBScalePointer = 18,
  kFastAccumulation = 25,  // int8_t
  kBiasType = 26,          // int32_t: Type
};
enum class PreferenceAttribute : int {
  kWorkspaceBytes = 1,    // uint64_t
  kReductionSchemes = 3,  // uint32_t: flags
  kAlignmentA = 5,        // uint32_t: bytes, as the next three
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8,
};
// cublasLtReductionScheme_t: how parts of a long sum come together. In the type that it is computed in, in memory of
// its own, and always in the same order.
inline constexpr uint32_t kReductionComputeType = 2;

using Handle = struct HandleState*;
using Desc = struct DescState*;
using Layout = struct LayoutState*;
using Preference = struct PreferenceState*;

// cublasLtMatmulAlgo_t: may be kept, for the same version of the library.
struct Algorithm {
  uint64_t data[8] = {};
};

// cublasLtMatmulHeuristicResult_t
struct Candidate {
  Algorithm algorithm;
  size_t workspace = 0;  // bytes
  Result state = Result::kSuccess;
  float waves = 0;
  int reserved[4] = {};
};

// A workspace begins at a multiple of so many bytes.
inline constexpr size_t kWorkspaceAlignment = 256;

// Every function: member, cuBLASLt's name, what it returns, parameters.
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
     Candidate* candidates, int* count))                                                                               \
  F(check_algorithm, cublasLtMatmulAlgoCheck, Result,                                                                  \
    (Handle handle, Desc desc, Layout a, Layout b, Layout c, Layout d, const Algorithm* algorithm,                     \
     Candidate* candidate))                                                                                            \
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

// Opens the library, which stays open, and fills the table. An error names what is to be installed.
Status open(const LibraryPlaces& places, Table* table);

// Ok, or "cublasLt: cublasLtMatmul: not supported (CUBLAS_STATUS_NOT_SUPPORTED)". Not supported is kUnsupported.
Status to_status(Result result, const char* what);

}  // namespace torch_remote::worker::cuda::lt

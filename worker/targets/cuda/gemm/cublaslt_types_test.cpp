// Compares our declarations with NVIDIA's cublasLt.h (12 or later). It does not compile without cublasLt.h on the
// include path: see docs/build.md.
#include <gtest/gtest.h>

#include <cstddef>

#include "cublasLt.h"
#include "tests/emulated_gpu/same_declarations.h"
#include "worker/targets/cuda/gemm/cublaslt.h"

namespace torch_remote::worker::cuda::lt {
namespace {

// We declare addresses of GPU memory as integers.
#define TORCH_REMOTE_CUBLASLT_COMPARE(member, name, type, parameters) \
  TORCH_REMOTE_SAME_FUNCTION(DevicePointer, decltype(Table::member), name)
TORCH_REMOTE_CUBLASLT_FUNCTIONS(TORCH_REMOTE_CUBLASLT_COMPARE)

TORCH_REMOTE_SAME(Result::kSuccess, CUBLAS_STATUS_SUCCESS);
TORCH_REMOTE_SAME(Result::kNotInitialized, CUBLAS_STATUS_NOT_INITIALIZED);
TORCH_REMOTE_SAME(Result::kAllocFailed, CUBLAS_STATUS_ALLOC_FAILED);
TORCH_REMOTE_SAME(Result::kInvalidValue, CUBLAS_STATUS_INVALID_VALUE);
TORCH_REMOTE_SAME(Result::kArchMismatch, CUBLAS_STATUS_ARCH_MISMATCH);
TORCH_REMOTE_SAME(Result::kExecutionFailed, CUBLAS_STATUS_EXECUTION_FAILED);
TORCH_REMOTE_SAME(Result::kInternalError, CUBLAS_STATUS_INTERNAL_ERROR);
TORCH_REMOTE_SAME(Result::kNotSupported, CUBLAS_STATUS_NOT_SUPPORTED);
TORCH_REMOTE_SAME(Type::kFloat32, CUDA_R_32F);
TORCH_REMOTE_SAME(Type::kFloat64, CUDA_R_64F);
TORCH_REMOTE_SAME(Type::kFloat16, CUDA_R_16F);
TORCH_REMOTE_SAME(Type::kInt8, CUDA_R_8I);
TORCH_REMOTE_SAME(Type::kComplex64, CUDA_C_32F);
TORCH_REMOTE_SAME(Type::kComplex128, CUDA_C_64F);
TORCH_REMOTE_SAME(Type::kInt32, CUDA_R_32I);
TORCH_REMOTE_SAME(Type::kBFloat16, CUDA_R_16BF);
TORCH_REMOTE_SAME(Type::kFloat8E4M3, CUDA_R_8F_E4M3);
TORCH_REMOTE_SAME(Type::kFloat8E5M2, CUDA_R_8F_E5M2);
TORCH_REMOTE_SAME(Compute::kFloat32, CUBLAS_COMPUTE_32F);
TORCH_REMOTE_SAME(Compute::kFloat64, CUBLAS_COMPUTE_64F);
TORCH_REMOTE_SAME(Compute::kInt32, CUBLAS_COMPUTE_32I);
TORCH_REMOTE_SAME(Compute::kTf32, CUBLAS_COMPUTE_32F_FAST_TF32);
TORCH_REMOTE_SAME(Operation::kNone, CUBLAS_OP_N);
TORCH_REMOTE_SAME(Operation::kTranspose, CUBLAS_OP_T);
TORCH_REMOTE_SAME(Operation::kConjugate, CUBLAS_OP_C);
TORCH_REMOTE_SAME(Epilogue::kDefault, CUBLASLT_EPILOGUE_DEFAULT);
TORCH_REMOTE_SAME(Epilogue::kRelu, CUBLASLT_EPILOGUE_RELU);
TORCH_REMOTE_SAME(Epilogue::kBias, CUBLASLT_EPILOGUE_BIAS);
TORCH_REMOTE_SAME(Epilogue::kGelu, CUBLASLT_EPILOGUE_GELU);
TORCH_REMOTE_SAME(Epilogue::kRelu | Epilogue::kBias, CUBLASLT_EPILOGUE_RELU_BIAS);
TORCH_REMOTE_SAME(Epilogue::kGelu | Epilogue::kBias, CUBLASLT_EPILOGUE_GELU_BIAS);
TORCH_REMOTE_SAME(LayoutAttribute::kBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
TORCH_REMOTE_SAME(LayoutAttribute::kBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
TORCH_REMOTE_SAME(DescAttribute::kTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
TORCH_REMOTE_SAME(DescAttribute::kTransposeB, CUBLASLT_MATMUL_DESC_TRANSB);
TORCH_REMOTE_SAME(DescAttribute::kEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
TORCH_REMOTE_SAME(DescAttribute::kBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
TORCH_REMOTE_SAME(DescAttribute::kAScalePointer, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
TORCH_REMOTE_SAME(DescAttribute::kBScalePointer, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
TORCH_REMOTE_SAME(DescAttribute::kFastAccumulation, CUBLASLT_MATMUL_DESC_FAST_ACCUM);
TORCH_REMOTE_SAME(DescAttribute::kBiasType, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
TORCH_REMOTE_SAME(PreferenceAttribute::kWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
TORCH_REMOTE_SAME(PreferenceAttribute::kReductionSchemes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
TORCH_REMOTE_SAME(PreferenceAttribute::kAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
TORCH_REMOTE_SAME(PreferenceAttribute::kAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
TORCH_REMOTE_SAME(PreferenceAttribute::kAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
TORCH_REMOTE_SAME(PreferenceAttribute::kAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
TORCH_REMOTE_SAME(kReductionComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);

static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(HeuristicResult, workspace) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(HeuristicResult, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(HeuristicResult, waves) == offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));

TEST(CublasLtTypes, AreThoseOfTheRealHeader) {}  // Compiling this file is the test.

// The real library (TORCH_REMOTE_CUDA_LIB) makes descriptors without a GPU. It accepts the sizes of our attributes.
TEST(CublasLtTypes, TheRealLibraryTakesTheAttributes) {
  const char* folder = std::getenv("TORCH_REMOTE_CUDA_LIB");
  if (folder == nullptr) GTEST_SKIP() << "TORCH_REMOTE_CUDA_LIB says where it is";
  Table table;
  const Status status = open({.folders = {folder}, .driver = 13000}, &table);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_GE(table.get_version(), 120000u);
  Desc desc = nullptr;
  ASSERT_EQ(table.desc_create(&desc, Compute::kFloat32, Type::kFloat32), Result::kSuccess);
  const auto set = [&]<typename T>(DescAttribute attribute, T value) {
    EXPECT_EQ(table.desc_set_attribute(desc, attribute, &value, sizeof(value)), Result::kSuccess)
        << static_cast<int>(attribute);
  };
  set(DescAttribute::kTransposeA, Operation::kTranspose);
  set(DescAttribute::kTransposeB, Operation::kNone);
  set(DescAttribute::kEpilogue, uint32_t{kRelu | kBias});
  set(DescAttribute::kBiasPointer, DevicePointer{256});
  set(DescAttribute::kAScalePointer, DevicePointer{256});
  set(DescAttribute::kBScalePointer, DevicePointer{256});
  set(DescAttribute::kFastAccumulation, int8_t{1});
  set(DescAttribute::kBiasType, static_cast<int32_t>(Type::kBFloat16));
  Layout layout = nullptr;
  ASSERT_EQ(table.layout_create(&layout, Type::kFloat32, 4, 5, 8), Result::kSuccess);
  const int32_t batch = 3;
  const int64_t stride = 40;
  EXPECT_EQ(table.layout_set_attribute(layout, LayoutAttribute::kBatchCount, &batch, sizeof(batch)), Result::kSuccess);
  EXPECT_EQ(table.layout_set_attribute(layout, LayoutAttribute::kBatchStride, &stride, sizeof(stride)),
            Result::kSuccess);
  Preference preference = nullptr;
  ASSERT_EQ(table.preference_create(&preference), Result::kSuccess);
  const uint64_t bytes = 32 << 20;
  EXPECT_EQ(table.preference_set_attribute(preference, PreferenceAttribute::kWorkspaceBytes, &bytes, sizeof(bytes)),
            Result::kSuccess);
  for (const PreferenceAttribute attribute :
       {PreferenceAttribute::kReductionSchemes, PreferenceAttribute::kAlignmentA, PreferenceAttribute::kAlignmentB,
        PreferenceAttribute::kAlignmentC, PreferenceAttribute::kAlignmentD}) {
    const uint32_t value = 2;
    EXPECT_EQ(table.preference_set_attribute(preference, attribute, &value, sizeof(value)), Result::kSuccess);
  }
  table.preference_destroy(preference);
  table.layout_destroy(layout);
  table.desc_destroy(desc);
}

}  // namespace
}  // namespace torch_remote::worker::cuda::lt

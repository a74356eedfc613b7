// Compares our declarations with NVIDIA's cudnn_graph.h (9 or later). It does not compile without cudnn_graph.h on the
// include path: see docs/build.md.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>

#include "cudnn_adv.h"
#include "cudnn_graph.h"
#include "ir/rnn.h"
#include "tests/emulated_gpu/same_declarations.h"
#include "worker/targets/cuda/dnn/cudnn.h"

namespace torch_remote::worker::cuda::dnn {
namespace {

#define TORCH_REMOTE_CUDNN_COMPARE(member, name, type, parameters) \
  TORCH_REMOTE_SAME_FUNCTION(void, decltype(Table::member), name)
TORCH_REMOTE_CUDNN_FUNCTIONS(TORCH_REMOTE_CUDNN_COMPARE)

TORCH_REMOTE_SAME(Result::kSuccess, CUDNN_STATUS_SUCCESS);
TORCH_REMOTE_SAME(Result::kNotInitialized, CUDNN_STATUS_NOT_INITIALIZED);
TORCH_REMOTE_SAME(Result::kBadParam, CUDNN_STATUS_BAD_PARAM);
TORCH_REMOTE_SAME(Result::kBadParamNullPointer, CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
TORCH_REMOTE_SAME(Result::kBadParamMisalignedPointer, CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
TORCH_REMOTE_SAME(Result::kBadParamNotFinalized, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
TORCH_REMOTE_SAME(Result::kBadParamOutOfBound, CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
TORCH_REMOTE_SAME(Result::kBadParamSizeInsufficient, CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
TORCH_REMOTE_SAME(Result::kBadParamStreamMismatch, CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
TORCH_REMOTE_SAME(Result::kBadParamShapeMismatch, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
TORCH_REMOTE_SAME(Result::kBadParamDuplicatedEntries, CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
TORCH_REMOTE_SAME(Result::kBadParamAttributeType, CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
TORCH_REMOTE_SAME(Result::kBadParamDescriptorType, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
TORCH_REMOTE_SAME(Result::kNotSupported, CUDNN_STATUS_NOT_SUPPORTED);
TORCH_REMOTE_SAME(Result::kNotSupportedGraphPattern, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
TORCH_REMOTE_SAME(Result::kNotSupportedShape, CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
TORCH_REMOTE_SAME(Result::kNotSupportedDataType, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
TORCH_REMOTE_SAME(Result::kNotSupportedLayout, CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
TORCH_REMOTE_SAME(Result::kInternalError, CUDNN_STATUS_INTERNAL_ERROR);
TORCH_REMOTE_SAME(Result::kOutOfHostMemory, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
TORCH_REMOTE_SAME(Result::kOutOfDeviceMemory, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
TORCH_REMOTE_SAME(Result::kExecutionFailed, CUDNN_STATUS_EXECUTION_FAILED);
TORCH_REMOTE_SAME(Type::kFloat32, CUDNN_DATA_FLOAT);
TORCH_REMOTE_SAME(Type::kFloat64, CUDNN_DATA_DOUBLE);
TORCH_REMOTE_SAME(Type::kFloat16, CUDNN_DATA_HALF);
TORCH_REMOTE_SAME(Type::kBFloat16, CUDNN_DATA_BFLOAT16);
TORCH_REMOTE_SAME(Type::kInt32, CUDNN_DATA_INT32);
TORCH_REMOTE_SAME(Type::kBool, CUDNN_DATA_BOOLEAN);
TORCH_REMOTE_SAME(ConvolutionMode::kCrossCorrelation, CUDNN_CROSS_CORRELATION);
TORCH_REMOTE_SAME(PointwiseMode::kAdd, CUDNN_POINTWISE_ADD);
TORCH_REMOTE_SAME(PointwiseMode::kMultiply, CUDNN_POINTWISE_MUL);
TORCH_REMOTE_SAME(PointwiseMode::kDivide, CUDNN_POINTWISE_DIV);
TORCH_REMOTE_SAME(PointwiseMode::kSubtract, CUDNN_POINTWISE_SUB);
TORCH_REMOTE_SAME(PointwiseMode::kExp, CUDNN_POINTWISE_EXP);
TORCH_REMOTE_SAME(PointwiseMode::kLog, CUDNN_POINTWISE_LOG);
TORCH_REMOTE_SAME(PointwiseMode::kIdentity, CUDNN_POINTWISE_IDENTITY);
TORCH_REMOTE_SAME(PointwiseMode::kGreaterEqual, CUDNN_POINTWISE_CMP_GE);
TORCH_REMOTE_SAME(PointwiseMode::kIndex, CUDNN_POINTWISE_GEN_INDEX);
TORCH_REMOTE_SAME(PointwiseMode::kSelect, CUDNN_POINTWISE_BINARY_SELECT);
TORCH_REMOTE_SAME(ReductionMode::kAdd, CUDNN_REDUCE_TENSOR_ADD);
TORCH_REMOTE_SAME(ReductionMode::kMax, CUDNN_REDUCE_TENSOR_MAX);
TORCH_REMOTE_SAME(HeuristicsMode::kFallback, CUDNN_HEUR_MODE_FALLBACK);
TORCH_REMOTE_SAME(HeuristicsMode::kA, CUDNN_HEUR_MODE_A);
TORCH_REMOTE_SAME(NormMode::kBatch, CUDNN_BATCH_NORM);
TORCH_REMOTE_SAME(NormPhase::kTraining, CUDNN_NORM_FWD_TRAINING);
TORCH_REMOTE_SAME(NumericalNote::kTensorCore, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
TORCH_REMOTE_SAME(NumericalNote::kDownConvertInputs, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
TORCH_REMOTE_SAME(NumericalNote::kReducedPrecisionReduction, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
TORCH_REMOTE_SAME(NumericalNote::kFft, CUDNN_NUMERICAL_NOTE_FFT);
TORCH_REMOTE_SAME(NumericalNote::kNondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
TORCH_REMOTE_SAME(NumericalNote::kWinograd, CUDNN_NUMERICAL_NOTE_WINOGRAD);
static_assert(CUDNN_NUMERICAL_NOTE_TYPE_COUNT <= kMaxNotes);
TORCH_REMOTE_SAME(DescriptorType::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kConvolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kHeuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kForward, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kBackwardFilter, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kBackwardData, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kPointwiseOperation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kMatmulOperation, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kReductionOperation, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kNormForward, CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kNormBackward, CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
TORCH_REMOTE_SAME(DescriptorType::kReshapeOperation, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
TORCH_REMOTE_SAME(AttributeType::kHandle, CUDNN_TYPE_HANDLE);
TORCH_REMOTE_SAME(AttributeType::kDataType, CUDNN_TYPE_DATA_TYPE);
TORCH_REMOTE_SAME(AttributeType::kBool, CUDNN_TYPE_BOOLEAN);
TORCH_REMOTE_SAME(AttributeType::kInt64, CUDNN_TYPE_INT64);
TORCH_REMOTE_SAME(AttributeType::kFloat, CUDNN_TYPE_FLOAT);
TORCH_REMOTE_SAME(AttributeType::kDouble, CUDNN_TYPE_DOUBLE);
TORCH_REMOTE_SAME(AttributeType::kPointer, CUDNN_TYPE_VOID_PTR);
TORCH_REMOTE_SAME(AttributeType::kConvolutionMode, CUDNN_TYPE_CONVOLUTION_MODE);
TORCH_REMOTE_SAME(AttributeType::kHeuristicsMode, CUDNN_TYPE_HEUR_MODE);
TORCH_REMOTE_SAME(AttributeType::kNote, CUDNN_TYPE_NUMERICAL_NOTE);
TORCH_REMOTE_SAME(AttributeType::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
TORCH_REMOTE_SAME(AttributeType::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
TORCH_REMOTE_SAME(AttributeType::kReductionMode, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
TORCH_REMOTE_SAME(AttributeType::kNormMode, CUDNN_TYPE_NORM_MODE);
TORCH_REMOTE_SAME(AttributeType::kNormPhase, CUDNN_TYPE_NORM_FWD_PHASE);
TORCH_REMOTE_SAME(Attribute::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
TORCH_REMOTE_SAME(Attribute::kPointwisePrecision, CUDNN_ATTR_POINTWISE_MATH_PREC);
TORCH_REMOTE_SAME(Attribute::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS);
TORCH_REMOTE_SAME(Attribute::kConvolutionType, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
TORCH_REMOTE_SAME(Attribute::kConvolutionMode, CUDNN_ATTR_CONVOLUTION_CONV_MODE);
TORCH_REMOTE_SAME(Attribute::kConvolutionDilations, CUDNN_ATTR_CONVOLUTION_DILATIONS);
TORCH_REMOTE_SAME(Attribute::kConvolutionStrides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
TORCH_REMOTE_SAME(Attribute::kConvolutionPaddingsAfter, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
TORCH_REMOTE_SAME(Attribute::kConvolutionPaddings, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
TORCH_REMOTE_SAME(Attribute::kConvolutionDims, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
TORCH_REMOTE_SAME(Attribute::kHeuristicsMode, CUDNN_ATTR_ENGINEHEUR_MODE);
TORCH_REMOTE_SAME(Attribute::kHeuristicsGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
TORCH_REMOTE_SAME(Attribute::kHeuristicsResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
TORCH_REMOTE_SAME(Attribute::kConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE);
TORCH_REMOTE_SAME(Attribute::kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
TORCH_REMOTE_SAME(Attribute::kPlanConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
TORCH_REMOTE_SAME(Attribute::kPlanWorkspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
TORCH_REMOTE_SAME(Attribute::kForwardAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
TORCH_REMOTE_SAME(Attribute::kForwardBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
TORCH_REMOTE_SAME(Attribute::kForwardConvolution, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
TORCH_REMOTE_SAME(Attribute::kForwardFilter, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
TORCH_REMOTE_SAME(Attribute::kForwardImage, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
TORCH_REMOTE_SAME(Attribute::kForwardOutput, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
TORCH_REMOTE_SAME(Attribute::kBackwardDataAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
TORCH_REMOTE_SAME(Attribute::kBackwardDataBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
TORCH_REMOTE_SAME(Attribute::kBackwardDataConvolution, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC);
TORCH_REMOTE_SAME(Attribute::kBackwardDataFilter, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
TORCH_REMOTE_SAME(Attribute::kBackwardDataImage, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
TORCH_REMOTE_SAME(Attribute::kBackwardDataOutput, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
TORCH_REMOTE_SAME(Attribute::kBackwardFilterAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
TORCH_REMOTE_SAME(Attribute::kBackwardFilterBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
TORCH_REMOTE_SAME(Attribute::kBackwardFilterConvolution, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
TORCH_REMOTE_SAME(Attribute::kBackwardFilterFilter, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
TORCH_REMOTE_SAME(Attribute::kBackwardFilterImage, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
TORCH_REMOTE_SAME(Attribute::kBackwardFilterOutput, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
TORCH_REMOTE_SAME(Attribute::kPointwiseOperation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
TORCH_REMOTE_SAME(Attribute::kPointwiseLeft, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
TORCH_REMOTE_SAME(Attribute::kPointwiseRight, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
TORCH_REMOTE_SAME(Attribute::kPointwiseResult, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
TORCH_REMOTE_SAME(Attribute::kPointwiseThird, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
TORCH_REMOTE_SAME(Attribute::kGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
TORCH_REMOTE_SAME(Attribute::kGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
TORCH_REMOTE_SAME(Attribute::kTensorAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
TORCH_REMOTE_SAME(Attribute::kTensorType, CUDNN_ATTR_TENSOR_DATA_TYPE);
TORCH_REMOTE_SAME(Attribute::kTensorSizes, CUDNN_ATTR_TENSOR_DIMENSIONS);
TORCH_REMOTE_SAME(Attribute::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
TORCH_REMOTE_SAME(Attribute::kTensorId, CUDNN_ATTR_TENSOR_UNIQUE_ID);
TORCH_REMOTE_SAME(Attribute::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
TORCH_REMOTE_SAME(Attribute::kTensorIsNumber, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
TORCH_REMOTE_SAME(Attribute::kPackIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
TORCH_REMOTE_SAME(Attribute::kPackPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
TORCH_REMOTE_SAME(Attribute::kPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
TORCH_REMOTE_SAME(Attribute::kEngineNotes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
TORCH_REMOTE_SAME(Attribute::kMatmulPrecision, CUDNN_ATTR_MATMUL_COMP_TYPE);
TORCH_REMOTE_SAME(Attribute::kMatmulLeft, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
TORCH_REMOTE_SAME(Attribute::kMatmulRight, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
TORCH_REMOTE_SAME(Attribute::kMatmulResult, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
TORCH_REMOTE_SAME(Attribute::kMatmulDescriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC);
TORCH_REMOTE_SAME(Attribute::kReductionMode, CUDNN_ATTR_REDUCTION_OPERATOR);
TORCH_REMOTE_SAME(Attribute::kReductionPrecision, CUDNN_ATTR_REDUCTION_COMP_TYPE);
TORCH_REMOTE_SAME(Attribute::kReductionFrom, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
TORCH_REMOTE_SAME(Attribute::kReductionTo, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
TORCH_REMOTE_SAME(Attribute::kReductionDescriptor, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardMode, CUDNN_ATTR_OPERATION_NORM_FWD_MODE);
TORCH_REMOTE_SAME(Attribute::kNormForwardPhase, CUDNN_ATTR_OPERATION_NORM_FWD_PHASE);
TORCH_REMOTE_SAME(Attribute::kNormForwardFrom, CUDNN_ATTR_OPERATION_NORM_FWD_XDESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardMean, CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardInverseStd, CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardScale, CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardBias, CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardEpsilon, CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardMomentum, CUDNN_ATTR_OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardMeanBefore, CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardVarianceBefore, CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardMeanAfter, CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardVarianceAfter, CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC);
TORCH_REMOTE_SAME(Attribute::kNormForwardTo, CUDNN_ATTR_OPERATION_NORM_FWD_YDESC);
TORCH_REMOTE_SAME(Attribute::kNormBackwardMode, CUDNN_ATTR_OPERATION_NORM_BWD_MODE);
TORCH_REMOTE_SAME(Attribute::kNormBackwardFrom, CUDNN_ATTR_OPERATION_NORM_BWD_XDESC);
TORCH_REMOTE_SAME(Attribute::kNormBackwardMean, CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC);
TORCH_REMOTE_SAME(Attribute::kNormBackwardInverseStd, CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC);
TORCH_REMOTE_SAME(Attribute::kNormBackwardGrad, CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC);
TORCH_REMOTE_SAME(Attribute::kNormBackwardScale, CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC);
TORCH_REMOTE_SAME(Attribute::kNormBackwardGradScale, CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC);
TORCH_REMOTE_SAME(Attribute::kNormBackwardGradBias, CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC);
TORCH_REMOTE_SAME(Attribute::kNormBackwardTo, CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC);
TORCH_REMOTE_SAME(Attribute::kReshapeFrom, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
TORCH_REMOTE_SAME(Attribute::kReshapeTo, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
TORCH_REMOTE_SAME(ir::RnnMode::kRelu, CUDNN_RNN_RELU);
TORCH_REMOTE_SAME(ir::RnnMode::kTanh, CUDNN_RNN_TANH);
TORCH_REMOTE_SAME(ir::RnnMode::kLstm, CUDNN_LSTM);
TORCH_REMOTE_SAME(ir::RnnMode::kGru, CUDNN_GRU);
TORCH_REMOTE_SAME(RnnAlgorithm::kStandard, CUDNN_RNN_ALGO_STANDARD);
TORCH_REMOTE_SAME(RnnBias::kNone, CUDNN_RNN_NO_BIAS);
TORCH_REMOTE_SAME(RnnBias::kDouble, CUDNN_RNN_DOUBLE_BIAS);
TORCH_REMOTE_SAME(RnnDirection::kOne, CUDNN_UNIDIRECTIONAL);
TORCH_REMOTE_SAME(RnnDirection::kBoth, CUDNN_BIDIRECTIONAL);
TORCH_REMOTE_SAME(RnnInput::kLinear, CUDNN_LINEAR_INPUT);
TORCH_REMOTE_SAME(RnnLayout::kSteps, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED);
TORCH_REMOTE_SAME(ForwardMode::kInference, CUDNN_FWD_MODE_INFERENCE);
TORCH_REMOTE_SAME(ForwardMode::kTraining, CUDNN_FWD_MODE_TRAINING);
TORCH_REMOTE_SAME(MathType::kTensorCores, CUDNN_TENSOR_OP_MATH);
TORCH_REMOTE_SAME(MathType::kExact, CUDNN_FMA_MATH);
TORCH_REMOTE_SAME(GradMode::kAdd, CUDNN_WGRAD_MODE_ADD);
static_assert(kRnnPaddedIo == CUDNN_RNN_PADDED_IO_ENABLED);

// Recurrent layers of all types that we use can be described without a GPU.
TEST(Cudnn, TakesRecurrentLayers) {
  LibrarySearchPath search_path;
  search_path.driver = 13000;
  if (const char* folder = std::getenv("TORCH_REMOTE_CUDA_LIB")) search_path.folders = {folder};
  Table table;
  const Status status = open(search_path, &table);
  if (!status.ok()) GTEST_SKIP() << status.message();
  for (const Type type : {Type::kFloat32, Type::kFloat16, Type::kBFloat16}) {
    for (const int mode : {0, 1, 2, 3}) {
      for (const auto direction : {RnnDirection::kOne, RnnDirection::kBoth}) {
        RnnDescriptor rnn = nullptr;
        ASSERT_EQ(table.rnn_create(&rnn), Result::kSuccess);
        const MathType math = type == Type::kFloat32 ? MathType::kExact : MathType::kTensorCores;
        const Status set = to_status(
            table,
            table.rnn_set(rnn, RnnAlgorithm::kStandard, mode, mode == 0 ? RnnBias::kNone : RnnBias::kDouble, direction,
                          RnnInput::kLinear, type, Type::kFloat32, math, 5, 7, 7, 1, nullptr, kRnnPaddedIo),
            "cudnnSetRNNDescriptor_v8");
        EXPECT_TRUE(set.ok()) << set.message();
        EXPECT_EQ(table.rnn_destroy(rnn), Result::kSuccess);
      }
    }
    RnnDataDescriptor data = nullptr;
    ASSERT_EQ(table.rnn_data_create(&data), Result::kSuccess);
    const int lengths[] = {4, 4, 4};
    EXPECT_EQ(table.rnn_data_set(data, type, RnnLayout::kSteps, 4, 3, 5, lengths, nullptr), Result::kSuccess);
    EXPECT_EQ(table.rnn_data_destroy(data), Result::kSuccess);
  }
}

// Descriptors can be made without a GPU, and report errors.
TEST(Cudnn, TakesDescriptions) {
  LibrarySearchPath search_path;
  search_path.driver = 13000;
  if (const char* folder = std::getenv("TORCH_REMOTE_CUDA_LIB")) search_path.folders = {folder};
  Table table;
  const Status status = open(search_path, &table);
  if (!status.ok()) GTEST_SKIP() << status.message();
  EXPECT_GE(table.get_version(), 90000u);
  Descriptor tensor = nullptr;
  ASSERT_EQ(table.descriptor_create(DescriptorType::kTensor, &tensor), Result::kSuccess);
  const auto set = [&]<typename T>(Attribute attribute, AttributeType type, std::initializer_list<T> values) {
    EXPECT_EQ(table.set_attribute(tensor, attribute, type, static_cast<int64_t>(values.size()), values.begin()),
              Result::kSuccess);
  };
  set(Attribute::kTensorType, AttributeType::kDataType, {Type::kFloat32});
  set(Attribute::kTensorSizes, AttributeType::kInt64, {int64_t{2}, int64_t{3}, int64_t{4}, int64_t{5}});
  set(Attribute::kTensorStrides, AttributeType::kInt64, {int64_t{60}, int64_t{20}, int64_t{5}, int64_t{1}});
  set(Attribute::kTensorId, AttributeType::kInt64, {int64_t{1}});
  // It has no alignment.
  EXPECT_FALSE(to_status(table, table.descriptor_finalize(tensor), "cudnnBackendFinalize").ok());
  set(Attribute::kTensorAlignment, AttributeType::kInt64, {int64_t{16}});
  EXPECT_TRUE(to_status(table, table.descriptor_finalize(tensor), "cudnnBackendFinalize").ok());
  EXPECT_EQ(table.descriptor_destroy(tensor), Result::kSuccess);
}

}  // namespace
}  // namespace torch_remote::worker::cuda::dnn

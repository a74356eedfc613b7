#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ir/dtype.h"
#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"
#include "worker/targets/cuda/device/library.h"

// cuDNN 9 as a table of the functions that we call: its operation graphs (the "backend API") and recurrent layers.
// Nothing of it is linked or included: it is opened at run time, and its few types are declared here. cudnn_types_test
// compares them with NVIDIA's header. Tests fill the table with the emulated cuDNN (tests/emulated_gpu).
namespace torch_remote::worker::cuda::dnn {

// cudnnStatus_t. Each thousand is a category; cuDNN defines more values.
enum class Result : int {
  kSuccess = 0,
  kNotInitialized = 1001,
  kBadParam = 2000,
  kBadParamNullPointer = 2002,
  kBadParamMisalignedPointer = 2003,
  kBadParamNotFinalized = 2004,
  kBadParamOutOfBound = 2005,
  kBadParamSizeInsufficient = 2006,
  kBadParamStreamMismatch = 2007,
  kBadParamShapeMismatch = 2008,
  kBadParamDuplicatedEntries = 2009,
  kBadParamAttributeType = 2010,
  kBadParamDescriptorType = 2012,
  kNotSupported = 3000,
  kNotSupportedGraphPattern = 3001,
  kNotSupportedShape = 3002,
  kNotSupportedDataType = 3003,
  kNotSupportedLayout = 3004,
  kInternalError = 4000,
  kOutOfHostMemory = 4003,
  kOutOfDeviceMemory = 4004,
  kExecutionFailed = 5000,
};

// cudnnDataType_t
enum class Type : int { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kInt32 = 4, kBFloat16 = 9, kBool = 11 };
// Bytes of an element.
uint32_t item_size(Type type);
// The type of a float dtype. narrow_type_of excludes f64, which only convolutions support.
std::optional<Type> type_of(ir::DType dtype);
std::optional<Type> narrow_type_of(ir::DType dtype);
// The alignment in bytes that all our graphs declare. Tensors with less are copied.
inline constexpr int64_t kAlignment = 16;

// The values that we use of cudnnConvolutionMode_t, cudnnPointwiseMode_t, cudnnReduceTensorOp_t and
// cudnnBackendHeurMode_t.
enum class ConvolutionMode : int { kCrossCorrelation = 1 };
enum class PointwiseMode : int {
  kAdd = 0,
  kMultiply = 1,
  kDivide = 6,
  kSubtract = 9,
  kExp = 13,
  kLog = 15,
  kIdentity = 21,
  kGreaterEqual = 303,
  kIndex = 501,   // An element's index along an axis.
  kSelect = 601,  // The left operand where the third one is true, else the right one.
};
enum class ReductionMode : int { kAdd = 0, kMax = 3 };
enum class HeuristicsMode : int { kFallback = 2, kA = 3 };
// cudnnBackendNormMode_t, cudnnBackendNormFwdPhase_t
enum class NormMode : int { kBatch = 2 };
enum class NormPhase : int { kTraining = 1 };
// cudnnBackendNumericalNote_t: an engine's numerical properties.
enum class NumericalNote : int {
  kTensorCore = 0,
  kDownConvertInputs = 1,  // f32 is rounded to tf32 or less.
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
};
inline constexpr int kMaxNotes = 16;

// cudnnBackendDescriptorType_t
enum class DescriptorType : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kForward = 10,  // Convolution operations.
  kBackwardFilter = 11,
  kBackwardData = 12,
  kPointwiseOperation = 13,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kNormForward = 29,
  kNormBackward = 30,
  kReshapeOperation = 31,
};

// cudnnBackendAttributeType_t, and the C++ type of each value.
enum class AttributeType : int {
  kHandle = 0,    // Handle
  kDataType = 1,  // Type
  kBool = 2,      // bool
  kInt64 = 3,
  kFloat = 4,
  kDouble = 5,
  kPointer = 6,          // void*
  kConvolutionMode = 7,  // ConvolutionMode
  kHeuristicsMode = 8,   // HeuristicsMode
  kNote = 11,            // NumericalNote
  kPointwiseMode = 14,   // PointwiseMode
  kDescriptor = 15,      // Descriptor
  kReductionMode = 18,   // ReductionMode
  kNormMode = 27,        // NormMode
  kNormPhase = 28,       // NormPhase
};

// cudnnBackendAttributeName_t
enum class Attribute : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseAxis = 9,      // For kIndex.
  kConvolutionType = 100,  // The accumulation type.
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPaddingsAfter = 104,
  kConvolutionPaddings = 105,
  kConvolutionDims = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  // Six for each convolution operation, in this order.
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardFilter = 703,
  kForwardImage = 704,
  kForwardOutput = 705,
  kBackwardDataAlpha = 706,
  kBackwardDataBeta = 707,
  kBackwardDataConvolution = 708,
  kBackwardDataFilter = 709,
  kBackwardDataImage = 710,
  kBackwardDataOutput = 711,
  kBackwardFilterAlpha = 712,
  kBackwardFilterBeta = 713,
  kBackwardFilterConvolution = 714,
  kBackwardFilterFilter = 715,
  kBackwardFilterImage = 716,
  kBackwardFilterOutput = 717,
  kPointwiseOperation = 750,
  kPointwiseLeft = 751,
  kPointwiseRight = 752,
  kPointwiseResult = 753,
  kPointwiseThird = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsNumber = 908,  // By value: the address is on the host.
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNotes = 1303,
  kMatmulPrecision = 1500,
  kMatmulLeft = 1520,
  kMatmulRight = 1521,
  kMatmulResult = 1522,
  kMatmulDescriptor = 1523,
  kReductionMode = 1600,
  kReductionPrecision = 1601,
  kReductionFrom = 1610,
  kReductionTo = 1611,
  kReductionDescriptor = 1612,
  kNormForwardMode = 2000,
  kNormForwardPhase = 2001,
  kNormForwardFrom = 2002,
  kNormForwardMean = 2003,
  kNormForwardInverseStd = 2004,  // 1 / sqrt(variance + epsilon)
  kNormForwardScale = 2005,
  kNormForwardBias = 2006,
  kNormForwardEpsilon = 2007,
  kNormForwardMomentum = 2008,
  kNormForwardMeanBefore = 2009,
  kNormForwardVarianceBefore = 2010,
  kNormForwardMeanAfter = 2011,
  kNormForwardVarianceAfter = 2012,
  kNormForwardTo = 2013,
  kNormBackwardMode = 2100,
  kNormBackwardFrom = 2101,
  kNormBackwardMean = 2102,
  kNormBackwardInverseStd = 2103,
  kNormBackwardGrad = 2104,
  kNormBackwardScale = 2105,
  kNormBackwardGradScale = 2107,
  kNormBackwardGradBias = 2108,
  kNormBackwardTo = 2109,
  kReshapeFrom = 2200,
  kReshapeTo = 2201,
};

// For recurrent layers, which are not graphs. ir::RnnMode has the values of cudnnRNNMode_t.
enum class RnnAlgorithm : int { kStandard = 0 };        // cudnnRNNAlgo_t
enum class RnnBias : int { kNone = 0, kDouble = 2 };    // cudnnRNNBiasMode_t
enum class RnnDirection : int { kOne = 0, kBoth = 1 };  // cudnnDirectionMode_t
enum class RnnInput : int { kLinear = 0 };              // cudnnRNNInputMode_t
enum class RnnLayout : int { kSteps = 0 };              // cudnnRNNDataLayout_t: [step, batch, element]
enum class ForwardMode : int { kInference = 0, kTraining = 1 };
enum class MathType : int { kTensorCores = 1, kExact = 3 };  // cudnnMathType_t; kExact: no tf32.
enum class GradMode : int { kAdd = 0 };                      // cudnnWgradMode_t
inline constexpr uint32_t kRnnPaddedIo = 1;                  // CUDNN_RNN_PADDED_IO_ENABLED

using Handle = struct HandleState*;
using Descriptor = struct DescriptorState*;
using RnnDescriptor = struct RnnDescriptorState*;
using RnnDataDescriptor = struct RnnDataDescriptorState*;
using TensorDescriptor = struct TensorDescriptorState*;

// Every function: member, cuDNN's name, return type, parameters.
#define TORCH_REMOTE_CUDNN_FUNCTIONS(F)                                                                                \
  F(get_version, cudnnGetVersion, size_t, ())                                                                          \
  F(get_cudart_version, cudnnGetCudartVersion, size_t, ())                                                             \
  F(create, cudnnCreate, Result, (Handle * handle))                                                                    \
  F(destroy, cudnnDestroy, Result, (Handle handle))                                                                    \
  F(set_stream, cudnnSetStream, Result, (Handle handle, Stream stream))                                                \
  F(get_last_error, cudnnGetLastErrorString, void, (char* message, size_t size))                                       \
  F(descriptor_create, cudnnBackendCreateDescriptor, Result, (DescriptorType kind, Descriptor * descriptor))           \
  F(descriptor_destroy, cudnnBackendDestroyDescriptor, Result, (Descriptor descriptor))                                \
  F(descriptor_finalize, cudnnBackendFinalize, Result, (Descriptor descriptor))                                        \
  F(set_attribute, cudnnBackendSetAttribute, Result,                                                                   \
    (Descriptor descriptor, Attribute attribute, AttributeType type, int64_t count, const void* elements))             \
  F(get_attribute, cudnnBackendGetAttribute, Result,                                                                   \
    (Descriptor descriptor, Attribute attribute, AttributeType type, int64_t asked, int64_t* count, void* elements))   \
  F(execute, cudnnBackendExecute, Result, (Handle handle, Descriptor plan, Descriptor pack))                           \
  F(tensor_create, cudnnCreateTensorDescriptor, Result, (TensorDescriptor * descriptor))                               \
  F(tensor_destroy, cudnnDestroyTensorDescriptor, Result, (TensorDescriptor descriptor))                               \
  F(tensor_set, cudnnSetTensorNdDescriptor, Result,                                                                    \
    (TensorDescriptor descriptor, Type type, int dims, const int* sizes, const int* strides))                          \
  F(rnn_create, cudnnCreateRNNDescriptor, Result, (RnnDescriptor * descriptor))                                        \
  F(rnn_destroy, cudnnDestroyRNNDescriptor, Result, (RnnDescriptor descriptor))                                        \
  F(rnn_set, cudnnSetRNNDescriptor_v8, Result,                                                                         \
    (RnnDescriptor descriptor, RnnAlgorithm algorithm, int mode, RnnBias bias, RnnDirection direction, RnnInput input, \
     Type type, Type precision, MathType math, int32_t inputs, int32_t units, int32_t projected, int32_t layers,       \
     void* dropout, uint32_t flags))                                                                                   \
  F(rnn_data_create, cudnnCreateRNNDataDescriptor, Result, (RnnDataDescriptor * descriptor))                           \
  F(rnn_data_destroy, cudnnDestroyRNNDataDescriptor, Result, (RnnDataDescriptor descriptor))                           \
  F(rnn_data_set, cudnnSetRNNDataDescriptor, Result,                                                                   \
    (RnnDataDescriptor descriptor, Type type, RnnLayout layout, int steps, int batch, int elements,                    \
     const int* lengths, void* padding))                                                                               \
  F(rnn_sizes, cudnnGetRNNTempSpaceSizes, Result,                                                                      \
    (Handle handle, RnnDescriptor rnn, ForwardMode mode, RnnDataDescriptor input, size_t* workspace, size_t* reserve)) \
  F(rnn_weight_size, cudnnGetRNNWeightSpaceSize, Result, (Handle handle, RnnDescriptor rnn, size_t* bytes))            \
  F(rnn_weight_params, cudnnGetRNNWeightParams, Result,                                                                \
    (Handle handle, RnnDescriptor rnn, int32_t direction, size_t bytes, const void* weights, int32_t linear,           \
     TensorDescriptor of_matrix, void** matrix, TensorDescriptor of_bias, void** bias))                                \
  F(rnn_forward, cudnnRNNForward, Result,                                                                              \
    (Handle handle, RnnDescriptor rnn, ForwardMode mode, const int32_t* lengths, RnnDataDescriptor of_input,           \
     const void* input, RnnDataDescriptor of_output, void* output, TensorDescriptor of_hidden, const void* hx,         \
     void* hy, TensorDescriptor of_cell, const void* cx, void* cy, size_t weight_bytes, const void* weights,           \
     size_t workspace_bytes, void* workspace, size_t reserve_bytes, void* reserve))                                    \
  F(rnn_backward_data, cudnnRNNBackwardData_v8, Result,                                                                \
    (Handle handle, RnnDescriptor rnn, const int32_t* lengths, RnnDataDescriptor of_output, const void* output,        \
     const void* grad_output, RnnDataDescriptor of_input, void* grad_input, TensorDescriptor of_hidden,                \
     const void* hx, const void* grad_hy, void* grad_hx, TensorDescriptor of_cell, const void* cx,                     \
     const void* grad_cy, void* grad_cx, size_t weight_bytes, const void* weights, size_t workspace_bytes,             \
     void* workspace, size_t reserve_bytes, void* reserve))                                                            \
  F(rnn_backward_weights, cudnnRNNBackwardWeights_v8, Result,                                                          \
    (Handle handle, RnnDescriptor rnn, GradMode mode, const int32_t* lengths, RnnDataDescriptor of_input,              \
     const void* input, TensorDescriptor of_hidden, const void* hx, RnnDataDescriptor of_output, const void* output,   \
     size_t weight_bytes, void* grad_weights, size_t workspace_bytes, void* workspace, size_t reserve_bytes,           \
     void* reserve))

struct Table {
// NOLINTNEXTLINE(bugprone-macro-parentheses): they make a declaration
#define TORCH_REMOTE_CUDNN_MEMBER(member, name, type, parameters) type(*member) parameters = nullptr;
  TORCH_REMOTE_CUDNN_FUNCTIONS(TORCH_REMOTE_CUDNN_MEMBER)
#undef TORCH_REMOTE_CUDNN_MEMBER
};

// All CUDA versions share one soname; "9" is cuDNN's own version.
inline constexpr Library kLibrary = {"cuDNN", "libcudnn.so", "nvidia-cudnn", "cudnn", "9"};

// NVIDIA's runtime compiler, with which cuDNN compiles attention kernels.
inline constexpr Library kCompiler = {"NVRTC", "libnvrtc.so", "nvidia-cuda-nvrtc", "cuda_nvrtc"};

// Opens cuDNN, cuBLASLt, which it needs, and NVRTC, if it is there, for the life of the process. Fills the table. An
// error says what to install.
Status open(const LibrarySearchPath& search_path, Table* table);

// Ok, or "cudnn: cudnnBackendFinalize: not supported (CUDNN_STATUS 3004)" with the library's message. Not supported
// becomes kUnsupported.
Status to_status(const Table& table, Result result, const char* what);

}  // namespace torch_remote::worker::cuda::dnn

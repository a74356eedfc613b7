#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ir/ops/scalar_tree.h"

// The op table: the only place that lists ops. Its entries are data (ir/ops/*.toml, one file per family); a generator
// checks them against the schemas that ship with torch and writes `op_table_generated.{h,cpp}`.
//
// One entry captures several ATen overloads (functional, in-place, out); each overload is one *opcode* and one OpDesc.
// ATen overloads that no entry lists get an opcode of the second kind at run time (`register_opaque`): the same OpDesc,
// made from the schema, with every argument that is not an operand treated as a value.
namespace torch_remote::ir {

// Index of an OpDesc. Below kFirstOpaque: generated, the same in every process with the same fingerprint. From there
// on: assigned by this process, never on the wire and never on disk (there, an op is named by its schema name).
using Opcode = uint32_t;
inline constexpr Opcode kFirstOpaque = 0x4000;
inline constexpr Opcode kInvalidOpcode = 0xFFFFFFFF;

enum class Family : uint8_t {
  kPointwise,
  kReduction,
  kView,
  kMatmul,
  kConv,
  kIndex,
  kScatter,
  kRng,
  kFactory,
  kCopy,
  kMultiTensor,
  kNorm,
  kAttention,
  kComposite,
  kOpaque,
};

// What the schema says an argument is.
enum class ArgKind : uint8_t {
  kTensor,              // Tensor
  kOptionalTensor,      // Tensor?
  kTensorList,          // Tensor[]
  kOptionalTensorList,  // Tensor?[]
  kInt,                 // int, SymInt
  kOptionalInt,
  kIntList,  // int[], SymInt[], int[N]
  kOptionalIntList,
  kFloat,
  kOptionalFloat,
  kFloatList,
  kOptionalFloatList,
  kBool,
  kOptionalBool,
  kBoolList,
  kScalar,  // Scalar: int, float, bool or complex, decided at the call
  kOptionalScalar,
  kScalarList,
  kString,
  kOptionalString,
  kDType,  // ScalarType or ScalarType?
  kLayout,
  kDevice,
  kMemoryFormat,
  kGenerator,
  kUnsupported,  // anything else; such an overload cannot be recorded
};

enum class ArgRole : uint8_t {
  kOperand,     // a tensor: a view of a buffer
  kStructural,  // goes into the key: reduction dims, keepdim, permutation, dtype, training flag
  kValue,       // a run-time parameter: sizes, slice bounds, scalars, p, eps
  kRandom,      // a generator: two parameters, Philox seed and offset
  kIgnored,     // layout, device, pin_memory: decided when the record is made
};

struct ArgDesc {
  std::string_view name;
  ArgKind kind;
  ArgRole role;
  bool writes;        // the op writes this operand, annotated in the schema or not (batch norm's running stats)
  bool keyword_only;  // for printing
  bool overwrites;    // writes all of its elements without reading one (fill_, copy_, out=)
};

enum class ResultKind : uint8_t { kTensor, kTensorList, kInt, kFloat, kBool, kScalar };

struct ResultDesc {
  ResultKind kind;
  int8_t alias;  // >= 0: this result is that argument (in-place, out=); such results make no view
};

// What an op does beyond its schema's arguments and results.
enum OpFlags : uint32_t {
  kOpRandom = 1u << 0,          // draws random numbers; if the schema has no generator argument, `args` ends with one
  kOpDynamicShape = 1u << 1,    // a result's size depends on data: one round trip
  kOpHostResult = 1u << 2,      // a result is a number of the host's: one round trip
  kOpInPlace = 1u << 3,         // writes its first argument
  kOpOut = 1u << 4,             // writes `out` arguments
  kOpPure = 1u << 5,            // no writes, not random: may be merged (cse) and dropped (dce)
  kOpHiddenMutation = 1u << 6,  // writes what the schema does not annotate
  kOpCommutative = 1u << 7,     // the first two operands may be exchanged
  kOpIntoFirst = 1u << 8,       // its result may take the first operand's memory, and is quicker for it
};

// What the recorder must know of a call of it.
enum OpFacts : uint32_t {
  kFactTakesNumbers = 1u << 0,       // a 0-dim tensor of the CPU may stand for an operand
  kFactTakesHostIndices = 1u << 1,   // its index tensors may be the CPU's; they are uploaded
  kFactWrapsNumber = 1u << 2,        // elementwise, and torch makes its number an operand of rank 0
  kFactMayOverlap = 1u << 3,         // in place, and may write an element twice: overlap is not checked
  kFactResizesSelf = 1u << 4,        // in place, and gives `self` the size of its functional overload's result
  kFactPerTensor = 1u << 5,          // multi-tensor, and CPU may do each tensor for itself: see `single`
  kFactKeepsIntegers = 1u << 6,      // in place, CPU leaves integers alone, and looks at nothing
  kFactKeepsReals = 1u << 7,         // the same of real numbers
  kFactMetaNeedsElements = 1u << 8,  // torch's structured meta is wrong for operands without elements
  kFactOfCpuAlone = 1u << 9,         // torch has a kernel of CPUs only: elsewhere it is other ops, as on CUDA
};

// How shapes of results follow from those of operands, as passes see it.
enum class ShapeRule : uint8_t {
  kNone,        // not said
  kPointwise,   // TensorIterator: broadcast, promote, keep the inputs' permutation; functions make floats of integers
  kComparison,  // broadcast; the result is bool
  kInPlace,     // no new results
  kReduction,
  kMatmul,
  kBmm,
  kAddmm,
  kLike,  // as the first operand, preserve_format
  kEmbedding,
  kSoftmax,
  kLayerNorm,
  kBatchNorm,
  kGroupNorm,
  kForeach,  // a list of results, each like the first list's
  kCumulative,
};

// The client's function that finds dtypes, sizes and strides of the results (frontend/shapes/shape_rules*.cpp).
enum class ShapeFunction : uint8_t {
  kNone,  // none of ours: torch's structured metas, then the dispatcher's Meta key
  // shape_rules.cpp
  kPointwise,
  kPointwiseAny,  // integers stay integers too
  kPromoted,      // operands of several dtypes
  kLerp,
  kAddcdiv,
  kClamp,
  kGelu,
  kGeluBackward,
  kWhere,
  kLike,
  kLikeNumber,
  kLikeFloat,
  kComparison,
  kComparisonAny,  // also of complex numbers
  kFrexp,
  kAngle,
  kReduction,  // the dtype stays
  kSum,        // integers become int64
  kAnyAll,
  kArgReduction,
  kMm,
  kBmm,
  kAddmm,
  kCat,
  kStack,
  kIndexSelect,
  kViewBackward,
  kCumulative,
  kViewCopy,
  kRoll,
  kPad,
  kForeach,
  kForeachNorm,
  kCopiedLists,
  kNumberIsIn,
  kArange,
  // shape_rules_nn.cpp
  kConvolution,
  kConvolutionBackward,
  kEmbedding,
  kEmbeddingBackward,
  kEmbeddingBag,
  kEmbeddingBagForwardOnly,
  kSoftmax,
  kLayerNorm,
  kLayerNormBackward,
  kBatchNorm,
  kBatchNormNoStats,
  kBatchNormNoTraining,
  kBatchNormNoUpdate,
  kBatchNormFunctional,
  kBatchNormWithUpdate,
  kBatchNormWithUpdateFunctional,
  kBatchNormBackward,
  kGroupNorm,
  kGroupNormBackward,
  kDropout,
  kDropoutBackward,
  kNormal,
  kLossBackward,
  kLossWithLogits,
  kLogSigmoid,
  kLogSigmoidBackward,
  kPreluBackward,
  kChannelShuffle,
  // shape_rules_linalg.cpp
  kFftC2c,
  kFftR2c,
  kFftC2r,
  kLinalgEig,
  kHistogramEdges,
};

struct OpDesc {
  std::string_view name;  // "aten::add.Tensor"; the default overload has no dot: "aten::relu"
  Family family;
  ShapeRule shape_rule;
  ShapeFunction shape_function;
  uint32_t flags;  // OpFlags
  uint32_t facts;  // OpFacts
  Opcode opcode;
  Opcode functional;  // for in-place and out overloads the functional sibling's opcode, else `opcode` itself
  Opcode single;      // kFactPerTensor: what CPU calls for each tensor; kInvalidOpcode: nothing that is recorded
  // The argument whose memory format CPU's kernel gives to the first result, whatever the meta says; -1: the meta is
  // right.
  int8_t layout_of;
  std::span<const ArgDesc> args;
  std::span<const ResultDesc> results;
  // What computes one element of the result, in the notation that docs/operators.md describes; else empty. Pointwise
  // ops, and multi-tensor ones, where it is over the lists' elements.
  std::string_view expression;
  std::span<const ScalarNode> tree;  // the expression; empty if there is none
  std::string_view doc;              // one line
};

// The generated part.
std::span<const OpDesc> op_table();
// Hash over everything in the table that client and worker must agree on.
uint64_t op_table_fingerprint();
// Version string of the table, for the message of a mismatch: "<ops> ops, <fingerprint in hex>".
std::string op_table_version();

// Any opcode, generated or opaque. The reference lives as long as the process. Undefined for an unknown opcode.
const OpDesc& op_desc(Opcode opcode);
// kInvalidOpcode if neither the table nor an opaque registration has this schema name.
Opcode find_op(std::string_view name);

struct OpaqueArg {
  std::string name;
  ArgKind kind;
  bool writes = false;
  bool keyword_only = false;
};

// Gives an ATen (or custom) overload outside the table an opcode; the same name again returns the same opcode. Roles
// are default_role's. Thread safe; takes a lock, so it is called at registration and load time only.
Opcode register_opaque(std::string_view name, std::span<const OpaqueArg> args, std::span<const ResultDesc> results,
                       uint32_t flags);

// The role that an argument of this kind has unless the table says otherwise: tensors are operands, generators random,
// bools, strings, dtypes and memory formats structural, layouts and devices ignored, every number a value.
ArgRole default_role(ArgKind kind);

// Whether torch's kernel of the op writes each element at its strides, and so stays within a tensor whose elements
// share memory. CPU refuses some such tensors before it writes them, and so do the kernels themselves.
bool writes_by_strides(const OpDesc& desc);

}  // namespace torch_remote::ir

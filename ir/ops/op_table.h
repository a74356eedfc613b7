#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ir/ops/scalar_tree.h"

// The op table: the only place that lists ops. Its entries are data (ir/ops/*.toml, one file per family). A generator
// checks them against the schemas that ship with torch and writes `op_table_generated.{h,cpp}`.
//
// One entry captures several ATen overloads (functional, in-place, out). Each overload is one *opcode* and one OpDesc.
// ATen overloads that no entry lists get an *opaque* opcode at run time (`register_opaque`). Their OpDesc is made from
// the schema, and the arguments' roles are those of default_role.
namespace torch_remote::ir {

// Index of an OpDesc. Opcodes below kFirstOpaque are generated; opcodes from kFirstOpaque on are assigned by this
// process. Opcodes are never sent or stored; a schema name stands for the op there.
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

// The type of an argument in the schema.
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
  kClientOnly,  // layout, device, pin_memory: decided when the record is made
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

// Properties of an op beyond its schema's arguments and results.
enum OpFlags : uint32_t {
  kOpRandom = 1u << 0,          // draws random numbers; `args` has a generator: a last one if the schema has none
  kOpDynamicShape = 1u << 1,    // a result's size depends on data: costs a round trip
  kOpHostResult = 1u << 2,      // a result is a number on the host: costs a round trip
  kOpInPlace = 1u << 3,         // writes its first argument
  kOpOut = 1u << 4,             // writes `out` arguments
  kOpPure = 1u << 5,            // no writes, not random: may be merged (cse) and dropped (dce)
  kOpHiddenMutation = 1u << 6,  // writes what the schema does not annotate
  kOpCommutative = 1u << 7,     // the first two operands may be exchanged
  kOpMayReuseFirst = 1u << 8,   // its result may take over the first operand's memory, which makes the op faster
  kOpFailsByData = 1u << 9,     // elements that it reads can make it fail, although its family does not say so
};

// Facts about an op that the recorder needs.
enum OpFacts : uint32_t {
  kFactAcceptsCpuScalars = 1u << 0,  // a 0-dim CPU tensor may stand for an operand
  kFactAcceptsCpuIndices = 1u << 1,  // its index tensors may be on the CPU; they are uploaded
  kFactWrapsNumber = 1u << 2,        // elementwise, and torch makes its number an operand of rank 0
  kFactSkipsOverlapCheck = 1u << 3,  // in place, and may write an element twice: overlap is not checked
  kFactResizesSelf = 1u << 4,        // in place, and gives `self` the size of its functional overload's result
  kFactPerTensor = 1u << 5,          // multi-tensor, and CPU may process each tensor separately: see `per_tensor_op`
  kFactNoopForIntegers = 1u << 6,    // in place; CPU leaves integers unchanged and checks nothing
  kFactNoopForReals = 1u << 7,       // in place; CPU leaves real numbers unchanged and checks nothing
  kFactMetaWrongIfEmpty = 1u << 8,   // torch's structured meta is wrong for operands without elements
  kFactCpuOnly = 1u << 9,       // torch has a kernel for CPUs only; other devices, like CUDA, compose it of other ops
  kFactInCallOrder = 1u << 10,  // all ranks execute such ops in the order of the calls, whichever threads make them
};

// The namespace of the ops that communicate with other ranks: collectives, messages and copies between devices. They
// have kFactInCallOrder.
inline constexpr std::string_view kCollectiveNamespace = "remote_c10d::";

// The relation of result shapes to operand shapes, as passes know it.
enum class ShapeRule : uint8_t {
  kNone,        // not specified
  kPointwise,   // TensorIterator: sizes broadcast, dtypes promote, the inputs' order of dims is kept
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

// The client's function that computes dtypes, sizes and strides of the results (frontend/shapes/shape_rules*.cpp).
enum class ShapeFunction : uint8_t {
  kNone,  // no function of the client: torch's structured metas, then the dispatcher's Meta key
  // shape_rules.cpp
  kPointwise,
  kPointwiseAny,  // integers stay integers
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
  kComparisonAny,  // also for complex numbers
  kFrexp,
  kAngle,
  kReduction,  // keeps the dtype
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
  Opcode functional;  // for in-place and out overloads the functional sibling's opcode, otherwise `opcode` itself
  // kFactPerTensor: the op that CPU calls for each tensor; kInvalidOpcode if that is not recorded.
  Opcode per_tensor_op;
  // The argument whose memory format CPU's kernel gives to the first result, although torch's meta function gives
  // another. -1: the meta function is right.
  int8_t memory_format_from;
  // Hash over what client and worker must agree on: name, flags, arguments with their roles, and results. 0 for opaque
  // ops, whose signatures are sent.
  uint64_t signature_hash;
  std::span<const ArgDesc> args;
  std::span<const ResultDesc> results;
  // The formula of one element of the result, in the notation of docs/operators.md; empty if there is none. Only
  // pointwise and multi-tensor ops have one; for the latter it is over the lists' elements.
  std::string_view expression;
  std::span<const ScalarNode> tree;  // the expression; empty if there is none
  std::string_view doc;              // one line
};

// Defined in the generated source.
std::span<const OpDesc> op_table();
// Describes the table, for people: "<ops> ops, <hash of all signatures in hex>".
std::string op_table_version();

// Any opcode, generated or opaque. The reference lives as long as the process. Undefined for an unknown opcode.
const OpDesc& op_desc(Opcode opcode);
// Returns kInvalidOpcode if neither the table nor an opaque registration has this schema name. Thread safe; takes a
// lock.
Opcode find_op(std::string_view name);

struct OpaqueArg {
  std::string name;
  ArgKind kind;
  bool writes = false;
  bool keyword_only = false;
};

// Gives an ATen (or custom) overload outside the table an opcode. Roles are those of default_role. If the table or an
// earlier registration has the name, it returns that opcode, even if the signature differs (see declare_opaque).
// Returns kInvalidOpcode if too many are registered, or if their signatures take too much memory. Thread safe; takes a
// lock, so it is called at registration and load time only.
Opcode register_opaque(std::string_view name, std::span<const OpaqueArg> args, std::span<const ResultDesc> results,
                       uint32_t flags);

// The role of an argument of this kind unless the table gives another. Tensors are operands, and generators are random.
// Bools, strings, dtypes and memory formats are structural. Layouts and devices are ignored. Every number is a value.
ArgRole default_role(ArgKind kind);

// Whether torch's kernel of the op writes each element at its strides. Such a kernel never writes outside of a tensor
// whose elements overlap in memory, though CPU refuses some of these tensors.
bool writes_by_strides(const OpDesc& desc);

}  // namespace torch_remote::ir

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

// What kernels can do: for passes, which say what one kernel is to do, and for code generation, which makes it.
namespace torch_remote::ir {

// What a kernel computes for a node (ir/ops/fusion.toml).
enum class Expansion : uint8_t {
  kNone,        // no kernel does it
  kExpression,  // OpDesc::tree
  kCopy,
  kFill,
  kGelu,
  kGeluBackward,
  kClamp,
  kClampByTensors,
  kNanToNum,
  kLogSigmoid,
  kPreluBackward,
  kDropout,
  kEluBackward,
  kLogit,
  kLogitBackward,
  kLogSigmoidBackward,
  kMseLoss,
  kMseLossBackward,
  kSmoothL1Loss,
  kSmoothL1LossBackward,
  kHuberLoss,
  kHuberLossBackward,
  kSoftMarginLoss,
  kSoftMarginLossBackward,
  kBceWithLogits,
  kBceBackward,
  kSoftmax,
  kLogSoftmax,
  kSoftmaxBackward,
  kLogSoftmaxBackward,
  kLayerNorm,
  kLayerNormBackward,
  kGroupNorm,
  kGroupNormBackward,
  kBatchNorm,
  kBatchNormBackward,
  kVar,
  kStd,
  kVarMean,
  kStdMean,
  kLogSumExp,
  kCumsum,
  kCumprod,
  kLogCumSumExp,
  kNllLoss,
  kNllLossBackward,
  kSum,
  kMean,
  kMax,
  kMin,
  kProduct,
  kAny,
  kAll,
  kVectorNorm,
  kNanSum,
  kCountNonzero,
  kArgMax,
  kArgMin,
  kMaxWithIndex,
  kMinWithIndex,
  kEmbedding,
  kEmbeddingBackward,
  kIndexSelect,
  kGather,
  kTake,
  kIndex,
  kIndexAdd,
  kIndexCopy,
  kIndexPut,
  kScatter,
  kScatterAdd,
  kMatmul,  // of one row and a matrix
  kFusedAdam,
  kFusedAdamW,
  kFusedSgd,
  // Joins: copies, where a group is cut into sections (ir/fusion/sections.h).
  kCat,
  kStack,
  kSliceBackward,
  kSelectBackward,
};
Expansion expansion_of(Opcode opcode);
// Sums or means of what is lost at each point, if they are wanted.
bool is_loss(Expansion expansion);
// Whether it goes along a row, or from row to row, in their order. Threads of a GPU do rows and their parts at the same
// time: there is no code for it.
bool goes_in_order(Expansion expansion);

// How dims of a view lie along the axes of the space that a node is computed over.
enum class Along : uint8_t {
  kLast,     // the last dim along the last axis, and so on; a dim of size 1 is every place (broadcasting)
  kFirst,    // the first dim along the first axis, and so on
  kRest,     // its dims, in order, along the axes that are not reduced
  kReduced,  // the last dim along the reduced axis; the others are of size 1
  kChannel,  // its only dim along axis 1, which may be split
  kNamed,    // as Part::axes says; of a dim that is longer than its axis, the first places
};

// In Part::axes: along none, but where an index says.
inline constexpr uint32_t kByIndex = 0xFFFFFFFF;
// Dims of a view that indices may choose.
inline constexpr uint32_t kMostIndexed = 4;

// A view that the node reads or writes.
struct Part {
  uint32_t view = 0;
  Along along = Along::kLast;
  bool reads = false;
  bool writes = false;
  bool over_rows =
      false;              // a sum over what is not reduced elsewhere in the node: gradients of a norm's weight and bias
  bool in_order = false;  // written at indices, row after row: several may have one place; if not read, from zero on
  std::vector<uint32_t> axes = {};  // Along::kNamed: of each dim
  bool is_index = false;            // its elements are places

  bool is_by_index(size_t dim) const { return along == Along::kNamed && axes[dim] == kByIndex; }
};

// Whether indices say which of its elements are meant.
bool is_at_indices(const Part& part);

// A node as a kernel sees it: at each point of a space something is computed from the parts' elements there, and over
// some of its axes something may be reduced.
struct Form {
  Expansion expansion = Expansion::kNone;
  uint32_t space = 0;    // the view whose sizes are those of the space
  uint64_t reduced = 0;  // bit d: axis d
  // Axis 1 of the view is two axes of the space, 1 and 2: so many pieces, and the places of a piece (groups of
  // channels). 0: it is one.
  int64_t pieces = 0;
  std::vector<Part> parts;
};

// The node's form; of an op over lists of tensors, that of their `item`-th. False: no kernel does this node.
bool find_form(const Graph& graph, const Node& node, uint32_t item, Form* form);

// Rows of a product that loops for few rows may do (GroupKind::kMatmulEpilogue): libraries are faster with more.
inline constexpr int64_t kMostProductRows = 48;
// Multiplications of a product, in the run that is known, from which on a worker may want to choose a library for it in
// some run.
inline constexpr double kFewestLibraryMultiplications = 1 << 15;

// Whether the node may fail, as an index of its operands may be out of bounds: only the data tell.
bool checks_indices(const Form& form);

// Who does these nodes may find an index out of bounds when others are done, and do them all again: all that they write
// they make, or there are no indices.
bool may_be_repeated(const Graph& graph, std::span<const uint32_t> nodes);

// None of them makes an index that one of them reads: who does them can look at all indices first.
bool knows_indices(const Graph& graph, std::span<const uint32_t> nodes);

// How many tensors an op over lists does; 1 of any other op.
uint32_t count_items(const Node& node);

// Of an op over lists, the item-th of an argument that is a list; any other argument as it is.
const Arg& item_of(const Arg& arg, uint32_t item);

// Neighbouring axes of the space; none: `count` is 0.
struct AxisRange {
  uint32_t first = 0, count = 0;
};

// The axes of the space that each dim of the part lies along: one, two if it is split, none if the dim is indexed, or
// of size 1 and every place. False if it does not fit.
bool find_axes(const Graph& graph, const Form& form, const Part& part, std::vector<AxisRange>* axes);

// The sizes of the space's axes, given the values of the graph's symbols. False if the pieces are not equal.
bool find_sizes(const Graph& graph, const Form& form, std::span<const int64_t> values, std::vector<int64_t>* sizes);

}  // namespace torch_remote::ir

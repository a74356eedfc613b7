#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

// Describes what kernels can compute. Passes use this to group the nodes of one kernel, and code generation to make the
// kernel.
namespace torch_remote::ir {

// The computation that a kernel does for a node (ir/ops/fusion.toml).
enum class Expansion : uint8_t {
  kNone,        // no kernel computes it
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
  kMatmul,  // one row times a matrix
  kFusedAdam,
  kFusedAdamW,
  kFusedSgd,
  // Joins become copies when a group is cut into sections (ir/fusion/sections.h).
  kCat,
  kStack,
  kSliceBackward,
  kSelectBackward,
};
Expansion expansion_of(Opcode opcode);
// Whether the op is a loss with an argument `reduction`: none, mean or sum.
bool is_loss(Expansion expansion);
// Whether the kernel must process the elements of a row, or the rows, in order. The threads of a GPU process rows and
// parts of rows at the same time, so there is no GPU code for these expansions.
bool is_sequential(Expansion expansion);

// The mapping of a view's dims to the axes of the space over which a node is computed.
enum class AxisMapping : uint8_t {
  // With every mapping, a dim whose size is the constant 1 is broadcast and has no axis.
  kLast,     // the last dim maps to the last axis, and so on
  kFirst,    // the first dim maps to the first axis, and so on
  kRest,     // the dims map, in order, to the axes that are not reduced
  kReduced,  // the last dim maps to the reduced axis; the other dims have size 1
  kChannel,  // the only dim maps to axis 1, which may be split
  kNamed,    // Part::axes has the axis of each dim; if a dim is longer than its axis, only its first positions are used
};

// Entry of Part::axes for a dim without an axis: an index tensor gives the position along it.
inline constexpr uint32_t kByIndex = 0xFFFFFFFF;
// Maximum number of such dims of a view.
inline constexpr uint32_t kMaxIndexedDims = 4;

// A view that the node reads or writes.
struct Part {
  uint32_t view = 0;
  AxisMapping mapping = AxisMapping::kLast;
  bool reads = false;
  bool writes = false;
  // the part is a sum over axes that are not in KernelForm::reduced: the gradients of a norm's weight and bias
  bool reduces_other_axes = false;
  // written at indices, one row after the other, because two rows may write the same element; the view is filled with
  // zeros first unless `reads`
  bool in_order = false;
  std::vector<uint32_t> axes = {};  // for AxisMapping::kNamed: the axis of each dim
  bool is_index = false;            // its elements are indices

  bool is_by_index(size_t dim) const { return mapping == AxisMapping::kNamed && axes[dim] == kByIndex; }
};

// Whether index tensors choose which elements of the part are accessed.
bool is_at_indices(const Part& part);

// A node as a kernel sees it. At each point of a space, it computes something from the parts' elements there. It may
// reduce over some axes of the space.
struct KernelForm {
  Expansion expansion = Expansion::kNone;
  uint32_t space = 0;    // the view whose sizes are the space's sizes
  uint64_t reduced = 0;  // bit d: axis d is reduced
  // If not 0, dim 1 (the channels) of the view `space` becomes axes 1 and 2 of the space. Axis 1 has this number of
  // groups of channels, and axis 2 the channels of a group.
  int64_t channel_groups = 0;
  std::vector<Part> parts;
};

// Finds the node's form; for a multi-tensor op, the form of the `item`-th tensors. Returns false if no kernel computes
// the node; *form is then undefined. `checks_divisors`: the kernel reports an integer division by zero; compiled code
// does not.
bool find_form(const Graph& graph, const Node& node, uint32_t item, KernelForm* form, bool checks_divisors = false);

// Maximum number of rows of a matmul that our loops compute. With more rows, libraries are faster. A GroupKind::kMatmul
// may have more rows: a CPU worker then chooses among libraries.
inline constexpr int64_t kMaxMatmulRows = 48;
// From this number of multiplications on, a worker may prefer a library for a matmul. It is computed with the sizes of
// the run for which the groups were made.
inline constexpr double kMinLibraryMultiplications = 1 << 15;

// Whether the node may fail because an index is out of bounds. Only the data decide whether it does.
bool checks_indices(const KernelForm& form);

// Whether the nodes may all be executed again after an index was found to be out of bounds. True if no node checks
// indices. Also true if every buffer that they write is fresh, and one of them is the first node to use it.
bool can_reexecute(const Graph& graph, std::span<const uint32_t> nodes);

// Whether none of the nodes writes an index that one of them reads, so that a runner can check all indices first.
bool indices_exist_before(const Graph& graph, std::span<const uint32_t> nodes);

// The number of tensors that a multi-tensor op processes; 1 for any other op.
uint32_t count_items(const Node& node);

// Returns element `item` of a list. Returns `arg` itself if it is no list, or has no such element.
const Arg& item_of(const Arg& arg, uint32_t item);

// Adjacent axes of the space; `count` is 0 for none.
struct AxisRange {
  uint32_t first = 0, count = 0;
};

// Finds the axes of the space for each dim of the part: one, or two if the axis is split. A dim has none if it is
// indexed, or is broadcast. Returns false if the part does not fit.
bool find_axes(const Graph& graph, const KernelForm& form, const Part& part, std::vector<AxisRange>* axes);

// Computes the sizes of the space's axes from the values of the graph's symbols. Returns false if the channels cannot
// be divided into KernelForm::channel_groups equal groups.
bool find_sizes(const Graph& graph, const KernelForm& form, std::span<const int64_t> values,
                std::vector<int64_t>* sizes);

}  // namespace torch_remote::ir

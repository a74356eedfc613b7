#include <algorithm>
#include <array>
#include <optional>

#include "ir/fusion/form_builder.h"
#include "ir/fusion/fusion.h"

namespace torch_remote::ir {
namespace {

class FormFinder : FormBuilder {
 public:
  FormFinder(const Graph& graph, const Node& node, uint32_t item, KernelForm* form, bool checks_divisors)
      : FormBuilder(graph, node, form), item_(item), checks_divisors_(checks_divisors) {}

  bool find() {
    form_ = {};
    form_.expansion = expansion_of(node_.opcode);
    for (const ResultDesc& result : desc_.results) {
      if (result.kind != ResultKind::kTensor && result.kind != ResultKind::kTensorList) return false;
    }
    if (!parts()) return false;
    return std::ranges::all_of(form_.parts, [&](const Part& part) {
      return !graph_.views[part.view].dynamic && is_kernel_dtype(graph_.views[part.view].dtype);
    });
  }

 private:
  // The mask of axes 0 to count - 1, for at most 64 axes.
  static_assert(kMaxRank <= 64);
  static uint64_t first_axes(size_t count) { return count == 0 ? 0 : ~uint64_t{0} >> (64 - count); }

  bool parts() {
    switch (form_.expansion) {
      case Expansion::kNone:
      case Expansion::kCat:
      case Expansion::kStack:
      case Expansion::kSliceBackward:
      case Expansion::kSelectBackward:
        return false;
      case Expansion::kExpression:
        return (checks_divisors_ || !divides_integers_by_elements()) && pointwise();
      case Expansion::kCopy:
      case Expansion::kFill:
      case Expansion::kGelu:
      case Expansion::kGeluBackward:
      case Expansion::kLogit:
      case Expansion::kLogitBackward:
      case Expansion::kClamp:
      case Expansion::kClampByTensors:
      case Expansion::kNanToNum:
      case Expansion::kLogSigmoid:
      case Expansion::kPreluBackward:
        return pointwise();
      case Expansion::kEluBackward:
        return constant("is_result").has_value() && pointwise();
      case Expansion::kLogSigmoidBackward:  // the buffer of the forward op is not needed
        return reads("grad_output") && reads("self") && result(0, AxisMapping::kLast) && space_of_result();
      case Expansion::kDropout:
        return constant("train").value_or(0) != 0 && pointwise();
      case Expansion::kMseLoss:
      case Expansion::kSmoothL1Loss:
      case Expansion::kHuberLoss:
      case Expansion::kSoftMarginLoss:
        if (constant("reduction").value_or(-1) == 0) return pointwise();
        return reads("self") && reads("target") && space("self") && reduces_all() && result(0, AxisMapping::kRest);
      case Expansion::kBceWithLogits: {
        if (!reads("self") || !reads("target") || !reads("weight") || !reads("pos_weight") || !space("self"))
          return false;
        if (constant("reduction").value_or(-1) == 0) return result(0, AxisMapping::kLast);
        return reduces_all() && result(0, AxisMapping::kRest);
      }
      case Expansion::kMseLossBackward:
      case Expansion::kSmoothL1LossBackward:
      case Expansion::kHuberLossBackward:
      case Expansion::kSoftMarginLossBackward:
        return reads("grad_output") && reads("self") && reads("target") && result(0, AxisMapping::kLast) &&
               space_of_result();
      case Expansion::kBceBackward:
        return reads("grad_output") && reads("self") && reads("target") && reads("weight") &&
               result(0, AxisMapping::kLast) && space_of_result();
      case Expansion::kLogCumSumExp:
        if (!is_float_argument("self")) return false;
        [[fallthrough]];
      case Expansion::kSoftmax:
      case Expansion::kLogSoftmax:
      case Expansion::kCumsum:
      case Expansion::kCumprod:
        return reads("self") && space("self") && reduces_dim() && result(0, AxisMapping::kLast);
      case Expansion::kSoftmaxBackward:
      case Expansion::kLogSoftmaxBackward:
        return reads("grad_output") && reads("output") && space("output") && reduces_dim() &&
               result(0, AxisMapping::kLast);
      case Expansion::kLayerNorm:
        return reads("input") && reads("weight") && reads("bias") && space("input") && reduces_last() &&
               result(0, AxisMapping::kLast) && result(1, AxisMapping::kLast) && result(2, AxisMapping::kLast);
      case Expansion::kLayerNormBackward:
        return reads("grad_out") && reads("input") && reads("mean") && reads("rstd") && reads("weight") &&
               space("input") && reduces_last() && result(0, AxisMapping::kLast) &&
               result(1, AxisMapping::kLast, true) && result(2, AxisMapping::kLast, true);
      case Expansion::kGroupNorm:
        return group_norm();
      case Expansion::kGroupNormBackward:
        return group_norm_backward();
      case Expansion::kBatchNorm:
        return batch_norm();
      case Expansion::kBatchNormBackward:
        return batch_norm_backward();
      case Expansion::kNllLoss:
        return nll_loss();
      case Expansion::kNllLossBackward:
        return nll_loss_backward();
      case Expansion::kVar:
      case Expansion::kStd:
      case Expansion::kVarMean:
      case Expansion::kStdMean:
      case Expansion::kLogSumExp:
        return is_float_argument("self") && reduction();
      case Expansion::kSum:
      case Expansion::kMean:
      case Expansion::kMax:
      case Expansion::kMin:
      case Expansion::kProduct:
      case Expansion::kAny:
      case Expansion::kAll:
      case Expansion::kVectorNorm:
      case Expansion::kNanSum:
      case Expansion::kCountNonzero:
      case Expansion::kArgMax:
      case Expansion::kArgMin:
      case Expansion::kMaxWithIndex:
      case Expansion::kMinWithIndex:
        return reduction();
      case Expansion::kMatmul:
        return matmul();
      case Expansion::kFusedAdam:
      case Expansion::kFusedAdamW:
        return optimizer_step() && list_item("exp_avgs", true) && list_item("exp_avg_sqs", true) &&
               list_item("max_exp_avg_sqs", true) && list_item("state_steps", false);
      case Expansion::kFusedSgd:
        // Half-precision `_fused_sgd_` runs on ATen, whose kernel does not compute an SGD step there; results must be
        // torch's.
        return optimizer_step() && item_size(graph_.views[form_.space].dtype) >= 4 &&
               list_item("momentum_buffer_list", true);
      case Expansion::kEmbedding:
      case Expansion::kEmbeddingBackward:
      case Expansion::kIndexSelect:
      case Expansion::kGather:
      case Expansion::kTake:
      case Expansion::kIndex:
      case Expansion::kIndexAdd:
      case Expansion::kIndexCopy:
      case Expansion::kIndexPut:
      case Expansion::kScatter:
      case Expansion::kScatterAdd:
        return find_index_form(graph_, node_, &form_);
    }
    return false;
  }

  // A division of integers by zero is an error, which compiled code does not report. (Divisors that are scalars are
  // checked when a run is lowered.)
  bool divides_integers_by_elements() const {
    bool divides = false, floats = false;
    for (const ScalarNode& node : desc_.tree) {
      if (node.op == ScalarOp::kArgument) {
        const Arg& arg = item_of(node_.args[node.a], item_);
        floats |= arg.tag == ArgTag::kFloat || (arg.tag == ArgTag::kView && is_float(graph_.views[arg.a].dtype)) ||
                  (arg.tag == ArgTag::kScalarTensor && is_float(static_cast<DType>(arg.b & 0xFF)));
      }
      if (!divides_integers(node.op)) continue;
      const ScalarNode* divisor = &desc_.tree[node.b];
      if (divisor->op == ScalarOp::kToCompute) divisor = &desc_.tree[divisor->a];
      divides |= divisor->op != ScalarOp::kArgument || item_of(node_.args[divisor->a], item_).tag == ArgTag::kView;
    }
    return divides && !floats;
  }

  // The parts are all tensor arguments, broadcast, and the results.
  bool pointwise() {
    for (const ScalarNode& node : desc_.tree) {
      if (node.op != ScalarOp::kArgument) continue;
      const ArgTag tag = item_of(node_.args[node.a], item_).tag;
      if (tag == ArgTag::kNone || tag == ArgTag::kComplex) return false;
    }
    bool any = false;
    for (size_t i = 0; i < node_.args.size(); ++i) {
      const ArgDesc& desc = desc_.args[i];
      const Arg& arg = item_of(node_.args[i], item_);
      if (desc.role != ArgRole::kOperand || arg.tag == ArgTag::kScalarTensor) continue;
      if (arg.tag != ArgTag::kView) return false;
      form_.parts.push_back({arg.a, AxisMapping::kLast, !desc.overwrites, desc.writes, false});
      if (!desc.writes) continue;
      form_.space = arg.a;
      any = true;
    }
    for (const Arg& arg : node_.results) {
      const Arg& result = item_of(arg, item_);
      if (result.tag == ArgTag::kNone) continue;
      if (result.tag != ArgTag::kView) return false;
      form_.parts.push_back({result.a, AxisMapping::kLast, false, true, false});
      form_.space = result.a;
      any = true;
    }
    return any;
  }

  bool reduction() {
    if (!reads("self") || !space("self")) return false;
    const size_t rank = graph_.views[form_.space].sizes.size();
    const Arg* dims = argument("dim");
    // With an empty list, any and all reduce nothing; other ops reduce all dims.
    const bool is_truth = form_.expansion == Expansion::kAny || form_.expansion == Expansion::kAll;
    if (is_truth && dims != nullptr && dims->tag == ArgTag::kList && dims->items.empty()) return false;
    if (dims == nullptr || dims->tag == ArgTag::kNone || (dims->tag == ArgTag::kList && dims->items.empty())) {
      const bool finds = form_.expansion == Expansion::kArgMax || form_.expansion == Expansion::kArgMin;
      if ((finds && rank > 1) || !reduces_all()) return false;
    } else if (dims->tag == ArgTag::kList) {
      for (const Arg& dim : dims->items) {
        if (!reduces(dim)) return false;
      }
    } else if (!reduces(*dims)) {
      return false;
    }
    const bool keeps = constant("keepdim").value_or(0) != 0;
    for (size_t i = 0; i < node_.results.size(); ++i) {
      if (!result(i, keeps ? AxisMapping::kLast : AxisMapping::kRest)) return false;
    }
    return true;
  }

  // A row is one group of channels of one image.
  bool group_norm() {
    return reads("input") && reads("weight", AxisMapping::kChannel) && reads("bias", AxisMapping::kChannel) &&
           space("input") && reduces_groups() && result(0, AxisMapping::kLast) && result(1, AxisMapping::kFirst) &&
           result(2, AxisMapping::kFirst);
  }

  bool group_norm_backward() {
    return reads("grad_out") && reads("input") && reads("mean", AxisMapping::kFirst) &&
           reads("rstd", AxisMapping::kFirst) && reads("weight", AxisMapping::kChannel) && space("input") &&
           reduces_groups() && result(0, AxisMapping::kLast) && result(1, AxisMapping::kChannel, true) &&
           result(2, AxisMapping::kChannel, true);
  }

  bool reduces_groups() {
    const size_t rank = graph_.views[form_.space].sizes.size();
    form_.channel_groups = constant("group").value_or(0);
    // The space has rank + 1 axes, and `reduced` has 64 bits.
    if (form_.channel_groups <= 0 || rank < 2 || rank >= 64) return false;
    form_.reduced = first_axes(rank + 1) & ~uint64_t{0b11};
    return true;
  }

  // A row is one channel of all images. In eval mode the statistics are given: nothing is reduced, and no statistics
  // are computed.
  bool batch_norm() {
    const Arg* training = argument("training");
    const bool trains = training != nullptr && constant("training").value_or(1) != 0;
    if (!reads("input") || !reads("weight", AxisMapping::kChannel) || !reads("bias", AxisMapping::kChannel) ||
        !space("input") || !has_channels()) {
      return false;
    }
    for (const std::string_view name : {"running_mean", "running_var"}) {
      const Arg* running = argument(name);
      if (running == nullptr || (!trains && running->tag == ArgTag::kNone)) return false;
      if (running->tag == ArgTag::kNone) continue;
      if (running->tag != ArgTag::kView) return false;
      form_.parts.push_back({running->a, AxisMapping::kChannel, true, trains, false});
    }
    if (!result(0, AxisMapping::kLast)) return false;
    if (!trains) return true;
    form_.reduced = all_but_channels();
    return result(1, AxisMapping::kChannel) && result(2, AxisMapping::kChannel);
  }

  bool batch_norm_backward() {
    const bool trains = constant("train").value_or(1) != 0;
    if (!reads("grad_out") || !reads("input") || !reads("weight", AxisMapping::kChannel) || !space("input") ||
        !has_channels()) {
      return false;
    }
    for (const std::string_view name :
         trains ? std::array{"save_mean", "save_invstd"} : std::array{"running_mean", "running_var"}) {
      const Arg* statistics = argument(name);
      if (statistics == nullptr || statistics->tag != ArgTag::kView || !reads(name, AxisMapping::kChannel))
        return false;
    }
    form_.reduced = all_but_channels();
    return result(0, AxisMapping::kLast) && result(1, AxisMapping::kChannel) && result(2, AxisMapping::kChannel);
  }

  bool has_channels() const { return graph_.views[form_.space].sizes.size() >= 2; }
  uint64_t all_but_channels() const { return first_axes(graph_.views[form_.space].sizes.size()) & ~uint64_t{0b10}; }

  // Computes the sum of each row's element at its label, and the total weight of the labels.
  bool nll_loss() {
    return reads("weight", AxisMapping::kChannel) && constant("reduction").value_or(0) != 0 && reads("self") &&
           is_float_argument("self") && reads_index("target", AxisMapping::kFirst) && space("self") &&
           graph_.views[form_.space].sizes.size() == 2 && reduces_all() && result(0, AxisMapping::kRest) &&
           result(1, AxisMapping::kRest);
  }

  // Writes a number at each row's label, and zero elsewhere.
  bool nll_loss_backward() {
    if (!reads("weight", AxisMapping::kChannel)) return false;
    const bool whole = constant("reduction").value_or(0) != 0;
    if (!reads("grad_output", whole ? AxisMapping::kLast : AxisMapping::kFirst) ||
        !reads("target", AxisMapping::kFirst) || !reads("total_weight") || !result(0, AxisMapping::kLast)) {
      return false;
    }
    return space_of_result() && graph_.views[form_.space].sizes.size() == 2;
  }

  // One parameter of an optimizer's step. Gradient scaling and skipped steps are left to ATen.
  bool optimizer_step() {
    for (const std::string_view name : {"grad_scale", "found_inf"}) {
      if (argument(name) == nullptr || argument(name)->tag != ArgTag::kNone) return false;
    }
    if (!list_item("self", true) || form_.parts.empty()) return false;
    form_.space = form_.parts[0].view;
    return is_float(graph_.views[form_.space].dtype) && list_item("grads", false);
  }

  // Adds the item's tensor of a list; adds nothing if the list is empty.
  bool list_item(std::string_view name, bool writes) {
    const Arg* list = argument(name);
    if (list == nullptr || list->tag != ArgTag::kList) return false;
    if (list->items.empty()) return true;
    if (item_ >= list->items.size() || list->items[item_].tag != ArgTag::kView) return false;
    form_.parts.push_back({list->items[item_].a, AxisMapping::kLast, true, writes});
    return true;
  }

  // One row times a matrix: each element of the matrix is read once, so that memory bandwidth is the only cost. Larger
  // matmuls are left to a library.
  bool matmul() {
    const bool adds = argument("mat1") != nullptr;  // addmm(self, mat1, mat2)
    const std::string_view left = adds ? "mat1" : "self";
    if ((adds && !reads("self")) || !reads(left, AxisMapping::kReduced) || !reads("mat2") || !space("mat2"))
      return false;
    if (argument(left)->tag != ArgTag::kView) return false;
    const View& row = graph_.views[argument(left)->a];
    if (row.sizes.size() != 2 || graph_.views[form_.space].sizes.size() != 2) return false;
    if (!is_one(row.sizes[0]) || is_one(graph_.views[form_.space].sizes[1])) return false;
    form_.reduced = 1;
    return is_float(row.dtype) && result(0, AxisMapping::kLast);
  }

  bool reduces(const Arg& dim) {
    int64_t value = 0;
    if (dim.tag != ArgTag::kInt || !graph_.is_constant(dim.a, &value)) return false;
    const auto rank = static_cast<int64_t>(graph_.views[form_.space].sizes.size());
    if (value < 0) value += rank;
    if (value < 0 || value >= rank) return false;
    form_.reduced |= uint64_t{1} << value;
    return true;
  }

  bool reduces_dim() {
    const Arg* dim = argument("dim");
    return dim != nullptr && reduces(*dim);
  }

  bool reduces_all() {
    form_.reduced = first_axes(graph_.views[form_.space].sizes.size());
    return form_.reduced != 0;
  }

  bool reduces_last() {
    const Arg* shape = argument("normalized_shape");
    const size_t rank = graph_.views[form_.space].sizes.size();
    if (shape == nullptr || shape->tag != ArgTag::kList || shape->items.empty() || shape->items.size() > rank) {
      return false;
    }
    form_.reduced = first_axes(rank) & ~first_axes(rank - shape->items.size());
    return true;
  }

  const uint32_t item_;
  const bool checks_divisors_;
};

}  // namespace

uint32_t count_items(const Node& node) {
  const OpDesc& desc = op_desc(node.opcode);
  if (desc.family != Family::kMultiTensor) return 1;
  const auto list = std::ranges::find(node.args, ArgTag::kList, &Arg::tag);
  return list != node.args.end() ? static_cast<uint32_t>(list->items.size()) : 1;
}

const Arg& item_of(const Arg& arg, uint32_t item) {
  return arg.tag == ArgTag::kList && item < arg.items.size() ? arg.items[item] : arg;
}

bool find_form(const Graph& graph, const Node& node, uint32_t item, KernelForm* form, bool checks_divisors) {
  return FormFinder(graph, node, item, form, checks_divisors).find();
}

}  // namespace torch_remote::ir

#include <algorithm>
#include <cstring>

#include "tests/emulated_gpu/cudnn_parts.h"

// The attributes that each kind of descriptor accepts and requires.
namespace torch_remote::worker::cuda::emulated {
namespace {

using dnn::Attribute;
using dnn::Descriptor;
using dnn::Is;
using dnn::Kind;
using dnn::Value;
using Status = dnn::Result;

// An attribute of a descriptor: its type, its element count (0: any), and whether it is required.
struct Rule {
  Kind kind;
  Attribute attribute;
  Is type;
  int32_t count;
  bool must;
};
constexpr Rule kRules[] = {
    {Kind::kTensor, Attribute::kTensorType, Is::kDataType, 1, true},
    {Kind::kTensor, Attribute::kTensorSizes, Is::kInt64, 0, true},
    {Kind::kTensor, Attribute::kTensorStrides, Is::kInt64, 0, true},
    {Kind::kTensor, Attribute::kTensorId, Is::kInt64, 1, true},
    {Kind::kTensor, Attribute::kTensorAlignment, Is::kInt64, 1, true},
    {Kind::kTensor, Attribute::kTensorIsVirtual, Is::kBool, 1, false},
    {Kind::kTensor, Attribute::kTensorIsNumber, Is::kBool, 1, false},
    {Kind::kConvolution, Attribute::kConvolutionType, Is::kDataType, 1, true},
    {Kind::kConvolution, Attribute::kConvolutionMode, Is::kConvolutionMode, 1, true},
    {Kind::kConvolution, Attribute::kConvolutionDims, Is::kInt64, 1, true},
    {Kind::kConvolution, Attribute::kConvolutionDilations, Is::kInt64, 0, true},
    {Kind::kConvolution, Attribute::kConvolutionStrides, Is::kInt64, 0, true},
    {Kind::kConvolution, Attribute::kConvolutionPaddings, Is::kInt64, 0, true},
    {Kind::kConvolution, Attribute::kConvolutionPaddingsAfter, Is::kInt64, 0, true},
    {Kind::kPointwise, Attribute::kPointwiseMode, Is::kPointwiseMode, 1, true},
    {Kind::kPointwise, Attribute::kPointwisePrecision, Is::kDataType, 1, true},
    {Kind::kPointwiseOperation, Attribute::kPointwiseOperation, Is::kDescriptor, 1, true},
    {Kind::kPointwiseOperation, Attribute::kPointwiseLeft, Is::kDescriptor, 1, true},
    {Kind::kPointwise, Attribute::kPointwiseAxis, Is::kInt64, 1, false},
    {Kind::kPointwiseOperation, Attribute::kPointwiseRight, Is::kDescriptor, 1, false},
    {Kind::kPointwiseOperation, Attribute::kPointwiseThird, Is::kDescriptor, 1, false},
    {Kind::kPointwiseOperation, Attribute::kPointwiseResult, Is::kDescriptor, 1, true},
    {Kind::kMatmul, Attribute::kMatmulPrecision, Is::kDataType, 1, true},
    {Kind::kMatmulOperation, Attribute::kMatmulLeft, Is::kDescriptor, 1, true},
    {Kind::kMatmulOperation, Attribute::kMatmulRight, Is::kDescriptor, 1, true},
    {Kind::kMatmulOperation, Attribute::kMatmulResult, Is::kDescriptor, 1, true},
    {Kind::kMatmulOperation, Attribute::kMatmulDescriptor, Is::kDescriptor, 1, true},
    {Kind::kReduction, Attribute::kReductionMode, Is::kReductionMode, 1, true},
    {Kind::kReduction, Attribute::kReductionPrecision, Is::kDataType, 1, true},
    {Kind::kReductionOperation, Attribute::kReductionFrom, Is::kDescriptor, 1, true},
    {Kind::kReductionOperation, Attribute::kReductionTo, Is::kDescriptor, 1, true},
    {Kind::kReductionOperation, Attribute::kReductionDescriptor, Is::kDescriptor, 1, true},
    {Kind::kReshapeOperation, Attribute::kReshapeFrom, Is::kDescriptor, 1, true},
    {Kind::kReshapeOperation, Attribute::kReshapeTo, Is::kDescriptor, 1, true},
    {Kind::kNormForward, Attribute::kNormForwardMode, Is::kNormMode, 1, true},
    {Kind::kNormForward, Attribute::kNormForwardPhase, Is::kNormPhase, 1, true},
    {Kind::kNormForward, Attribute::kNormForwardFrom, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardMean, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardDeviation, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardScale, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardBias, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardEpsilon, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardMomentum, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardMeanBefore, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardVarianceBefore, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardMeanAfter, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardVarianceAfter, Is::kDescriptor, 1, false},
    {Kind::kNormForward, Attribute::kNormForwardTo, Is::kDescriptor, 1, false},
    {Kind::kNormBackward, Attribute::kNormBackwardMode, Is::kNormMode, 1, true},
    {Kind::kNormBackward, Attribute::kNormBackwardFrom, Is::kDescriptor, 1, false},
    {Kind::kNormBackward, Attribute::kNormBackwardMean, Is::kDescriptor, 1, false},
    {Kind::kNormBackward, Attribute::kNormBackwardDeviation, Is::kDescriptor, 1, false},
    {Kind::kNormBackward, Attribute::kNormBackwardGrad, Is::kDescriptor, 1, false},
    {Kind::kNormBackward, Attribute::kNormBackwardScale, Is::kDescriptor, 1, false},
    {Kind::kNormBackward, Attribute::kNormBackwardGradScale, Is::kDescriptor, 1, false},
    {Kind::kNormBackward, Attribute::kNormBackwardGradBias, Is::kDescriptor, 1, false},
    {Kind::kNormBackward, Attribute::kNormBackwardTo, Is::kDescriptor, 1, false},
    {Kind::kGraph, Attribute::kGraphHandle, Is::kHandle, 1, true},
    {Kind::kGraph, Attribute::kGraphOperations, Is::kDescriptor, 0, true},
    {Kind::kHeuristics, Attribute::kHeuristicsGraph, Is::kDescriptor, 1, true},
    {Kind::kHeuristics, Attribute::kHeuristicsMode, Is::kHeuristicsMode, 1, true},
    {Kind::kPlan, Attribute::kPlanHandle, Is::kHandle, 1, true},
    {Kind::kPlan, Attribute::kPlanConfig, Is::kDescriptor, 1, true},
    {Kind::kVariantPack, Attribute::kPackIds, Is::kInt64, 0, true},
    {Kind::kVariantPack, Attribute::kPackPointers, Is::kPointer, 0, true},
    {Kind::kVariantPack, Attribute::kPackWorkspace, Is::kPointer, 1, true},
};

size_t bytes_of(Is type) {
  switch (type) {
    case Is::kBool:
      return 1;
    case Is::kDataType:
    case Is::kFloat:
    case Is::kConvolutionMode:
    case Is::kHeuristicsMode:
    case Is::kNote:
    case Is::kPointwiseMode:
    case Is::kReductionMode:
    case Is::kNormMode:
    case Is::kNormPhase:
      return 4;
    default:
      return 8;
  }
}

}  // namespace

std::optional<Attribute> first_attribute(Kind kind) {
  if (kind == Kind::kForward) return Attribute::kForwardAlpha;
  if (kind == Kind::kBackwardData) return Attribute::kBackwardDataAlpha;
  if (kind == Kind::kBackwardFilter) return Attribute::kBackwardFilterAlpha;
  return std::nullopt;
}

bool is_complete(Descriptor descriptor) {
  if (!exists(descriptor) || !descriptor->finalized) return false;
  for (const auto& [attribute, value] : descriptor->values) {
    if (value.type != Is::kDescriptor) continue;
    const auto others = get_list<Descriptor>(*descriptor, attribute);
    if (!std::ranges::all_of(others, is_complete)) return false;
  }
  return true;
}

Status set_attribute(Descriptor descriptor, Attribute attribute, Is type, int64_t count, const void* elements) {
  if (!exists(descriptor)) return fail(Status::kBadParam, "no such descriptor");
  if (elements == nullptr) return fail(Status::kBadParamNullPointer, "no elements");
  if (descriptor->finalized) return fail(Status::kBadParam, "it is finalized");
  const auto rule = std::ranges::find_if(
      kRules, [&](const Rule& each) { return each.kind == descriptor->kind && each.attribute == attribute; });
  Is wanted = Is::kDescriptor;
  int64_t most = 1;
  if (const auto first = first_attribute(descriptor->kind)) {
    const int place = static_cast<int>(attribute) - static_cast<int>(*first);
    if (place < 0 || place > 5) return fail(Status::kBadParam, "not of this operation");
    if (place < 2) wanted = type == Is::kDouble ? Is::kDouble : Is::kFloat;
  } else if (rule == std::end(kRules)) {
    return fail(Status::kBadParam, "not of this kind of descriptor");
  } else {
    wanted = rule->type;
    most = rule->count;
  }
  if (type != wanted) return fail(Status::kBadParamAttributeType, "of another type");
  if (count < 1 || (most != 0 && count != most)) return fail(Status::kBadParamOutOfBound, "another number of elements");
  const size_t bytes = static_cast<size_t>(count) * bytes_of(type);
  Value& value = descriptor->values[attribute];
  value = {type, count, std::vector<std::byte>(bytes)};
  std::memcpy(value.bytes.data(), elements, bytes);
  if (type == Is::kDescriptor) {
    const auto others = get_list<Descriptor>(*descriptor, attribute);
    if (!std::ranges::all_of(others, is_complete))
      return fail(Status::kBadParamNotFinalized, "of one that is not whole");
  }
  if (type == Is::kHandle && !exists(get_scalar<dnn::Handle>(*descriptor, attribute)))
    return fail(Status::kBadParam, "no such handle");
  return Status::kSuccess;
}

Status check_attributes(const dnn::DescriptorState& state) {
  for (const Rule& rule : kRules) {
    if (rule.kind == state.kind && rule.must && find(state, rule.attribute) == nullptr)
      return fail(Status::kBadParam, "an attribute is missing");
  }
  return Status::kSuccess;
}

}  // namespace torch_remote::worker::cuda::emulated

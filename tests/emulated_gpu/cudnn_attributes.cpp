#include <algorithm>
#include <cstring>

#include "tests/emulated_gpu/cudnn_parts.h"

// The attributes that each kind of descriptor accepts and requires.
namespace torch_remote::worker::cuda::emulated {
namespace {

using dnn::Attribute;
using dnn::AttributeType;
using dnn::Descriptor;
using dnn::DescriptorType;
using dnn::Value;
using Status = dnn::Result;

// An attribute of a descriptor: its type, its element count (0: any), and whether it is required.
struct Rule {
  DescriptorType kind;
  Attribute attribute;
  AttributeType type;
  int32_t count;
  bool must;
};
constexpr Rule kRules[] = {
    {DescriptorType::kTensor, Attribute::kTensorType, AttributeType::kDataType, 1, true},
    {DescriptorType::kTensor, Attribute::kTensorSizes, AttributeType::kInt64, 0, true},
    {DescriptorType::kTensor, Attribute::kTensorStrides, AttributeType::kInt64, 0, true},
    {DescriptorType::kTensor, Attribute::kTensorId, AttributeType::kInt64, 1, true},
    {DescriptorType::kTensor, Attribute::kTensorAlignment, AttributeType::kInt64, 1, true},
    {DescriptorType::kTensor, Attribute::kTensorIsVirtual, AttributeType::kBool, 1, false},
    {DescriptorType::kTensor, Attribute::kTensorIsNumber, AttributeType::kBool, 1, false},
    {DescriptorType::kConvolution, Attribute::kConvolutionType, AttributeType::kDataType, 1, true},
    {DescriptorType::kConvolution, Attribute::kConvolutionMode, AttributeType::kConvolutionMode, 1, true},
    {DescriptorType::kConvolution, Attribute::kConvolutionDims, AttributeType::kInt64, 1, true},
    {DescriptorType::kConvolution, Attribute::kConvolutionDilations, AttributeType::kInt64, 0, true},
    {DescriptorType::kConvolution, Attribute::kConvolutionStrides, AttributeType::kInt64, 0, true},
    {DescriptorType::kConvolution, Attribute::kConvolutionPaddings, AttributeType::kInt64, 0, true},
    {DescriptorType::kConvolution, Attribute::kConvolutionPaddingsAfter, AttributeType::kInt64, 0, true},
    {DescriptorType::kPointwise, Attribute::kPointwiseMode, AttributeType::kPointwiseMode, 1, true},
    {DescriptorType::kPointwise, Attribute::kPointwisePrecision, AttributeType::kDataType, 1, true},
    {DescriptorType::kPointwiseOperation, Attribute::kPointwiseOperation, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kPointwiseOperation, Attribute::kPointwiseLeft, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kPointwise, Attribute::kPointwiseAxis, AttributeType::kInt64, 1, false},
    {DescriptorType::kPointwiseOperation, Attribute::kPointwiseRight, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kPointwiseOperation, Attribute::kPointwiseThird, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kPointwiseOperation, Attribute::kPointwiseResult, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kMatmul, Attribute::kMatmulPrecision, AttributeType::kDataType, 1, true},
    {DescriptorType::kMatmulOperation, Attribute::kMatmulLeft, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kMatmulOperation, Attribute::kMatmulRight, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kMatmulOperation, Attribute::kMatmulResult, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kMatmulOperation, Attribute::kMatmulDescriptor, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kReduction, Attribute::kReductionMode, AttributeType::kReductionMode, 1, true},
    {DescriptorType::kReduction, Attribute::kReductionPrecision, AttributeType::kDataType, 1, true},
    {DescriptorType::kReductionOperation, Attribute::kReductionFrom, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kReductionOperation, Attribute::kReductionTo, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kReductionOperation, Attribute::kReductionDescriptor, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kReshapeOperation, Attribute::kReshapeFrom, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kReshapeOperation, Attribute::kReshapeTo, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kNormForward, Attribute::kNormForwardMode, AttributeType::kNormMode, 1, true},
    {DescriptorType::kNormForward, Attribute::kNormForwardPhase, AttributeType::kNormPhase, 1, true},
    {DescriptorType::kNormForward, Attribute::kNormForwardFrom, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardMean, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardInverseStd, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardScale, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardBias, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardEpsilon, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardMomentum, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardMeanBefore, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardVarianceBefore, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardMeanAfter, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardVarianceAfter, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormForward, Attribute::kNormForwardTo, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormBackward, Attribute::kNormBackwardMode, AttributeType::kNormMode, 1, true},
    {DescriptorType::kNormBackward, Attribute::kNormBackwardFrom, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormBackward, Attribute::kNormBackwardMean, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormBackward, Attribute::kNormBackwardInverseStd, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormBackward, Attribute::kNormBackwardGrad, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormBackward, Attribute::kNormBackwardScale, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormBackward, Attribute::kNormBackwardGradScale, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormBackward, Attribute::kNormBackwardGradBias, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kNormBackward, Attribute::kNormBackwardTo, AttributeType::kDescriptor, 1, false},
    {DescriptorType::kGraph, Attribute::kGraphHandle, AttributeType::kHandle, 1, true},
    {DescriptorType::kGraph, Attribute::kGraphOperations, AttributeType::kDescriptor, 0, true},
    {DescriptorType::kHeuristics, Attribute::kHeuristicsGraph, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kHeuristics, Attribute::kHeuristicsMode, AttributeType::kHeuristicsMode, 1, true},
    {DescriptorType::kPlan, Attribute::kPlanHandle, AttributeType::kHandle, 1, true},
    {DescriptorType::kPlan, Attribute::kPlanConfig, AttributeType::kDescriptor, 1, true},
    {DescriptorType::kVariantPack, Attribute::kPackIds, AttributeType::kInt64, 0, true},
    {DescriptorType::kVariantPack, Attribute::kPackPointers, AttributeType::kPointer, 0, true},
    {DescriptorType::kVariantPack, Attribute::kPackWorkspace, AttributeType::kPointer, 1, true},
};

size_t bytes_of(AttributeType type) {
  switch (type) {
    case AttributeType::kBool:
      return 1;
    case AttributeType::kDataType:
    case AttributeType::kFloat:
    case AttributeType::kConvolutionMode:
    case AttributeType::kHeuristicsMode:
    case AttributeType::kNote:
    case AttributeType::kPointwiseMode:
    case AttributeType::kReductionMode:
    case AttributeType::kNormMode:
    case AttributeType::kNormPhase:
      return 4;
    default:
      return 8;
  }
}

}  // namespace

std::optional<Attribute> first_attribute(DescriptorType kind) {
  if (kind == DescriptorType::kForward) return Attribute::kForwardAlpha;
  if (kind == DescriptorType::kBackwardData) return Attribute::kBackwardDataAlpha;
  if (kind == DescriptorType::kBackwardFilter) return Attribute::kBackwardFilterAlpha;
  return std::nullopt;
}

bool is_complete(Descriptor descriptor) {
  if (!exists(descriptor) || !descriptor->finalized) return false;
  for (const auto& [attribute, value] : descriptor->values) {
    if (value.type != AttributeType::kDescriptor) continue;
    const auto others = get_list<Descriptor>(*descriptor, attribute);
    if (!std::ranges::all_of(others, is_complete)) return false;
  }
  return true;
}

Status set_attribute(Descriptor descriptor, Attribute attribute, AttributeType type, int64_t count,
                     const void* elements) {
  if (!exists(descriptor)) return fail(Status::kBadParam, "no such descriptor");
  if (elements == nullptr) return fail(Status::kBadParamNullPointer, "no elements");
  if (descriptor->finalized) return fail(Status::kBadParam, "it is finalized");
  const auto rule = std::ranges::find_if(
      kRules, [&](const Rule& each) { return each.kind == descriptor->kind && each.attribute == attribute; });
  AttributeType wanted = AttributeType::kDescriptor;
  int64_t most = 1;
  if (const auto first = first_attribute(descriptor->kind)) {
    const int place = static_cast<int>(attribute) - static_cast<int>(*first);
    if (place < 0 || place > 5) return fail(Status::kBadParam, "not of this operation");
    if (place < 2) wanted = type == AttributeType::kDouble ? AttributeType::kDouble : AttributeType::kFloat;
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
  if (type == AttributeType::kDescriptor) {
    const auto others = get_list<Descriptor>(*descriptor, attribute);
    if (!std::ranges::all_of(others, is_complete))
      return fail(Status::kBadParamNotFinalized, "of one that is not whole");
  }
  if (type == AttributeType::kHandle && !exists(get_scalar<dnn::Handle>(*descriptor, attribute)))
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

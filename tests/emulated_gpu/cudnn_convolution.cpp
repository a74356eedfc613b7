#include <algorithm>
#include <set>

#include "tests/emulated_gpu/cudnn_parts.h"

// Graphs of convolutions: which ones are supported, and which sizes must match.
namespace torch_remote::worker::cuda::emulated {

using dnn::Attribute;
using dnn::AttributeType;
using dnn::Descriptor;
using dnn::DescriptorType;
using dnn::Type;
using Status = dnn::Result;

const DnnTensor& DnnGraph::result() const {
  if (pass == dnn::DescriptorType::kBackwardData) return image;
  if (pass == dnn::DescriptorType::kBackwardFilter) return filter;
  return adds_bias ? sum : output;
}
std::vector<const DnnTensor*> DnnGraph::operands() const {
  if (pass == dnn::DescriptorType::kBackwardData) return {&filter, &output};
  if (pass == dnn::DescriptorType::kBackwardFilter) return {&image, &output};
  if (adds_bias) return {&image, &filter, &bias};
  return {&image, &filter};
}

Status check_tensor(const dnn::DescriptorState& state) {
  const DnnTensor tensor = tensor_of(state);
  if (tensor.sizes.size() != tensor.strides.size() || tensor.sizes.size() < 4 || tensor.sizes.size() > 5)
    return fail(Status::kBadParamShapeMismatch, "a tensor has 4 or 5 dims");
  const auto positive = [](int64_t number) { return number > 0; };
  if (!std::ranges::all_of(tensor.sizes, positive) || !std::ranges::all_of(tensor.strides, positive))
    return fail(Status::kBadParam, "sizes and strides are positive");
  const int64_t alignment = tensor.alignment;
  if (alignment <= 0 || (alignment & (alignment - 1)) != 0 || alignment < dnn::item_size(tensor.type))
    return fail(Status::kBadParam, "no alignment of such elements");
  return dnn::item_size(tensor.type) != 0 ? Status::kSuccess : fail(Status::kNotSupportedDataType, "no such type");
}

Status check_convolution(const dnn::DescriptorState& state) {
  const auto dims = static_cast<size_t>(get_scalar<int64_t>(state, Attribute::kConvolutionDims));
  for (const auto& [attribute, least] : {std::pair{Attribute::kConvolutionDilations, 1},
                                         {Attribute::kConvolutionStrides, 1},
                                         {Attribute::kConvolutionPaddings, 0},
                                         {Attribute::kConvolutionPaddingsAfter, 0}}) {
    const auto numbers = get_list<int64_t>(state, attribute);
    if (numbers.size() != dims) return fail(Status::kBadParamShapeMismatch, "a list has not as many numbers as dims");
    for (const int64_t number : numbers) {
      if (number < least) return fail(Status::kBadParam, "a number is too small");
    }
  }
  return Status::kSuccess;
}

namespace {

// The operands and the convolution descriptor of an operation.
struct Operation {
  DnnTensor image, filter, output;
  Descriptor convolution = nullptr;
};
Operation operation_of(const dnn::DescriptorState& state) {
  const Attribute first = *first_attribute(state.kind);
  const auto tensor = [&](int i) { return tensor_of(*get_scalar<Descriptor>(state, nth_attribute(first, i))); };
  return {tensor(4), tensor(3), tensor(5), get_scalar<Descriptor>(state, nth_attribute(first, 2))};
}

bool has_layout(const DnnTensor& tensor, bool channels_last) {
  const size_t rank = tensor.sizes.size();
  std::vector<size_t> order;
  if (channels_last) order.push_back(1);
  for (size_t d = rank; d-- > 2;) order.push_back(d);
  if (!channels_last) order.push_back(1);
  order.push_back(0);
  int64_t step = 1;
  for (const size_t d : order) {
    if (tensor.sizes[d] != 1 && tensor.strides[d] != step) return false;
    step *= tensor.sizes[d];
  }
  return true;
}

}  // namespace

Status check_operation(const dnn::DescriptorState& state) {
  const Attribute first = *first_attribute(state.kind);
  for (int i = 0; i < 6; ++i) {
    if (find(state, nth_attribute(first, i)) == nullptr) return fail(Status::kBadParam, "an attribute is missing");
    const DescriptorType wanted = i == 2 ? DescriptorType::kConvolution : DescriptorType::kTensor;
    if (i >= 2 && get_scalar<Descriptor>(state, nth_attribute(first, i))->kind != wanted)
      return fail(Status::kBadParamDescriptorType, "a descriptor of another kind");
  }
  const Operation op = operation_of(state);
  const auto& conv = *op.convolution;
  const Type precision = get_scalar<Type>(conv, Attribute::kConvolutionType);
  const bool wide = precision == Type::kFloat64;
  const AttributeType scalars = find(state, first)->type;
  if (wide != (scalars == AttributeType::kDouble) || find(state, nth_attribute(first, 1))->type != scalars)
    return fail(Status::kBadParam, "alpha and beta are of the type of sums");
  const Type type = op.filter.type;
  if (wide != (type == Type::kFloat64)) return fail(Status::kNotSupportedDataType, "sums of another precision");
  for (const DnnTensor* tensor : {&op.image, &op.output}) {
    if (tensor->type != type && !(tensor->is_virtual && tensor->type == precision))
      return fail(Status::kNotSupportedDataType, "types differ");
  }
  const auto padding = get_list<int64_t>(conv, Attribute::kConvolutionPaddings),
             after = get_list<int64_t>(conv, Attribute::kConvolutionPaddingsAfter),
             stride = get_list<int64_t>(conv, Attribute::kConvolutionStrides),
             dilation = get_list<int64_t>(conv, Attribute::kConvolutionDilations);
  const size_t rank = op.image.sizes.size();
  bool fits = op.filter.sizes.size() == rank && op.output.sizes.size() == rank && padding.size() == rank - 2 &&
              op.image.sizes[0] == op.output.sizes[0] && op.output.sizes[1] == op.filter.sizes[0] &&
              op.image.sizes[1] % op.filter.sizes[1] == 0;
  fits = fits && op.output.sizes[1] % (op.image.sizes[1] / op.filter.sizes[1]) == 0;
  for (size_t d = 0; fits && d < rank - 2; ++d) {
    const int64_t room = op.image.sizes[d + 2] + padding[d] + after[d] - dilation[d] * (op.filter.sizes[d + 2] - 1) - 1;
    fits = room >= 0 && room / stride[d] + 1 == op.output.sizes[d + 2];
  }
  return fits ? Status::kSuccess : fail(Status::kBadParamShapeMismatch, "sizes do not fit");
}

Status graph_of(const dnn::DescriptorState& state, DnnGraph* graph) {
  const auto operations = get_list<Descriptor>(state, Attribute::kGraphOperations);
  const auto& first = *operations[0];
  if (operations.size() > 2 || !first_attribute(first.kind))
    return fail(Status::kNotSupportedGraphPattern, "no graph of a convolution");
  const Operation op = operation_of(first);
  if (op.convolution == nullptr) return fail(Status::kBadParam, "an attribute is missing");
  graph->pass = first.kind;
  graph->image = op.image;
  graph->filter = op.filter;
  graph->output = op.output;
  graph->computes_in_f64 = get_scalar<Type>(*op.convolution, Attribute::kConvolutionType) == Type::kFloat64;
  graph->padding = get_list<int64_t>(*op.convolution, Attribute::kConvolutionPaddings);
  graph->padding_after = get_list<int64_t>(*op.convolution, Attribute::kConvolutionPaddingsAfter);
  graph->stride = get_list<int64_t>(*op.convolution, Attribute::kConvolutionStrides);
  graph->dilation = get_list<int64_t>(*op.convolution, Attribute::kConvolutionDilations);
  graph->adds_bias = operations.size() == 2;
  if (graph->adds_bias) {
    const auto& add = *operations[1];
    if (add.kind != DescriptorType::kPointwiseOperation || first.kind != DescriptorType::kForward)
      return fail(Status::kNotSupportedGraphPattern, "no bias behind a forward pass");
    const auto tensor = [&](Attribute attribute) { return tensor_of(*get_scalar<Descriptor>(add, attribute)); };
    graph->bias = tensor(Attribute::kPointwiseRight);
    graph->sum = tensor(Attribute::kPointwiseResult);
    if (tensor(Attribute::kPointwiseLeft).id != op.output.id || !op.output.is_virtual)
      return fail(Status::kNotSupportedGraphPattern, "what is added to is not what the convolution makes");
  }
  std::set<int64_t> ids = {graph->result().id};
  for (const DnnTensor* tensor : graph->operands()) {
    if (tensor->is_virtual) return fail(Status::kNotSupportedGraphPattern, "an operand without memory");
    if (!ids.insert(tensor->id).second) return fail(Status::kBadParamDuplicatedEntries, "an id twice");
  }
  if (graph->result().is_virtual) return fail(Status::kNotSupportedGraphPattern, "a result without memory");
  return Status::kSuccess;
}

Status supports(const DnnGraph& graph, Engine engine) {
  const auto lies = [&](bool last) {
    return has_layout(graph.image, last) && has_layout(graph.filter, last) && has_layout(graph.output, last);
  };
  if (!lies(false) && (graph.computes_in_f64 || !lies(true)))
    return fail(Status::kNotSupportedLayout, "no such layout");
  // As on a GPU: only engines for tensor cores fuse a bias, and those are for half types.
  if (graph.adds_bias && dnn::item_size(graph.filter.type) != 2)
    return fail(Status::kNotSupportedGraphPattern, "a bias behind a convolution of these types");
  const bool good = engine == Engine::kLowPrecision ? graph.filter.type == Type::kFloat32
                    : engine == Engine::kUnordered  ? graph.pass == DescriptorType::kBackwardFilter
                    : engine == Engine::kFallback   ? true
                                                    : !graph.computes_in_f64;
  return good ? Status::kSuccess : fail(Status::kNotSupported, "not of this engine");
}

}  // namespace torch_remote::worker::cuda::emulated

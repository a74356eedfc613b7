#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <thread>

#include "worker/cuda/emulated/cudnn_state.h"
#include "worker/cuda/emulated/machine.h"
#include "worker/cuda/emulated/objects.h"

namespace torch_remote::worker::cuda::emulated {

uint64_t DnnTensor::nbytes() const {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  return static_cast<uint64_t>(last + 1) * dnn::item_size(type);
}
int64_t DnnTensor::count() const {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}
DnnTensor tensor_of(const dnn::DescriptorState& state) {
  using dnn::Attribute;
  return {one<dnn::Type>(state, Attribute::kTensorType),    list<int64_t>(state, Attribute::kTensorSizes),
          list<int64_t>(state, Attribute::kTensorStrides),  one<int64_t>(state, Attribute::kTensorId),
          one<int64_t>(state, Attribute::kTensorAlignment), one<bool>(state, Attribute::kTensorIsVirtual),
          one<bool>(state, Attribute::kTensorIsNumber)};
}
const DnnTensor& DnnGraph::result() const {
  if (pass == dnn::Kind::kBackwardData) return image;
  if (pass == dnn::Kind::kBackwardFilter) return filter;
  return adds_bias ? sum : output;
}
std::vector<const DnnTensor*> DnnGraph::operands() const {
  if (pass == dnn::Kind::kBackwardData) return {&filter, &output};
  if (pass == dnn::Kind::kBackwardFilter) return {&image, &output};
  if (adds_bias) return {&image, &filter, &bias};
  return {&image, &filter};
}

namespace {

using dnn::Attribute;
using dnn::Descriptor;
using dnn::Is;
using dnn::Kind;
using dnn::Type;
using dnn::Value;
using Status = dnn::Result;

// Values that nobody sets.
constexpr auto kEngineNumber = static_cast<Attribute>(-1), kEngineGraph = static_cast<Attribute>(-2);
constexpr size_t kEngines = 5;
constexpr int64_t kWorkspaceBytes = 64 << 10;
constexpr uint64_t kWorkspaceAlignment = 16;

std::array<std::atomic<bool>, kEngines>& left_out() {
  static std::array<std::atomic<bool>, kEngines> out;
  return out;
}

template <typename State>
Status make(State** object, State state = {}) {
  *object = create(std::move(state));
  return Status::kSuccess;
}
template <typename State>
Status remove(State* object) {
  return destroy(object) ? Status::kSuccess : Status::kBadParam;
}

// What cudnnGetLastErrorString says.
std::string& message() {
  thread_local std::string text;
  return text;
}
Status fail(Status status, std::string why) {
  message() = std::move(why);
  return status;
}

std::optional<Call> enter(const char* name) {
  std::optional<Call> call(std::in_place, name);
  if (!call->ready()) call.reset();
  return call;
}

Status handle_create(dnn::Handle* handle) { return enter("cudnnCreate") ? make(handle) : Status::kNotInitialized; }
Status set_stream(dnn::Handle handle, Stream stream) {
  if (!is_there(handle)) return Status::kBadParam;
  handle->stream = stream;
  return Status::kSuccess;
}

// --- descriptors -----------------------------------------------------------------------------------------------------

// What may be set: of which type, how many (0: any number), whether it must be.
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

// The first attribute of an operation of convolutions, of six.
std::optional<Attribute> first_of(Kind kind) {
  if (kind == Kind::kForward) return Attribute::kForwardAlpha;
  if (kind == Kind::kBackwardData) return Attribute::kBackwardDataAlpha;
  if (kind == Kind::kBackwardFilter) return Attribute::kBackwardFilterAlpha;
  return std::nullopt;
}
Attribute nth(Attribute first, int i) { return static_cast<Attribute>(static_cast<int>(first) + i); }

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

template <typename T>
void put(dnn::DescriptorState& state, Attribute attribute, Is type, T value) {
  Value& to = state.values[attribute];
  to = {type, 1, std::vector<std::byte>(kItem<T>)};
  std::memcpy(to.bytes.data(), static_cast<const void*>(&value), kItem<T>);
}

// It is there and finalized, as is all that it refers to.
bool is_whole(Descriptor descriptor) {
  if (!is_there(descriptor) || !descriptor->finalized) return false;
  for (const auto& [attribute, value] : descriptor->values) {
    if (value.type != Is::kDescriptor) continue;
    const auto others = list<Descriptor>(*descriptor, attribute);
    if (!std::ranges::all_of(others, is_whole)) return false;
  }
  return true;
}

Status descriptor_create(Kind kind, Descriptor* descriptor) {
  if (!enter("cudnnBackendCreateDescriptor")) return Status::kNotInitialized;
  return make(descriptor, dnn::DescriptorState{.kind = kind, .values = {}});
}

Status set_attribute(Descriptor descriptor, Attribute attribute, Is type, int64_t count, const void* elements) {
  if (!is_there(descriptor)) return fail(Status::kBadParam, "no such descriptor");
  if (elements == nullptr) return fail(Status::kBadParamNullPointer, "no elements");
  if (descriptor->finalized) return fail(Status::kBadParam, "it is finalized");
  const auto rule = std::ranges::find_if(
      kRules, [&](const Rule& each) { return each.kind == descriptor->kind && each.attribute == attribute; });
  Is wanted = Is::kDescriptor;
  int64_t most = 1;
  if (const auto first = first_of(descriptor->kind)) {
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
    const auto others = list<Descriptor>(*descriptor, attribute);
    if (!std::ranges::all_of(others, is_whole)) return fail(Status::kBadParamNotFinalized, "of one that is not whole");
  }
  if (type == Is::kHandle && !is_there(one<dnn::Handle>(*descriptor, attribute)))
    return fail(Status::kBadParam, "no such handle");
  return Status::kSuccess;
}

// --- what a graph is -------------------------------------------------------------------------------------------------

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
  const auto dims = static_cast<size_t>(one<int64_t>(state, Attribute::kConvolutionDims));
  for (const auto& [attribute, least] : {std::pair{Attribute::kConvolutionDilations, 1},
                                         {Attribute::kConvolutionStrides, 1},
                                         {Attribute::kConvolutionPaddings, 0},
                                         {Attribute::kConvolutionPaddingsAfter, 0}}) {
    const auto numbers = list<int64_t>(state, attribute);
    if (numbers.size() != dims) return fail(Status::kBadParamShapeMismatch, "a list has not as many numbers as dims");
    for (const int64_t number : numbers) {
      if (number < least) return fail(Status::kBadParam, "a number is too small");
    }
  }
  return Status::kSuccess;
}

// The convolution of an operation, and its place.
struct Operation {
  DnnTensor image, filter, output;
  Descriptor convolution = nullptr;
};
Operation operation_of(const dnn::DescriptorState& state) {
  const Attribute first = *first_of(state.kind);
  const auto tensor = [&](int i) { return tensor_of(*one<Descriptor>(state, nth(first, i))); };
  return {tensor(4), tensor(3), tensor(5), one<Descriptor>(state, nth(first, 2))};
}

Status check_operation(const dnn::DescriptorState& state) {
  const Attribute first = *first_of(state.kind);
  for (int i = 0; i < 6; ++i) {
    if (find(state, nth(first, i)) == nullptr) return fail(Status::kBadParam, "an attribute is missing");
    const Kind wanted = i == 2 ? Kind::kConvolution : Kind::kTensor;
    if (i >= 2 && one<Descriptor>(state, nth(first, i))->kind != wanted)
      return fail(Status::kBadParamDescriptorType, "a descriptor of another kind");
  }
  const Operation op = operation_of(state);
  const auto& conv = *op.convolution;
  const Type precision = one<Type>(conv, Attribute::kConvolutionType);
  const bool wide = precision == Type::kFloat64;
  const Is scalars = find(state, first)->type;
  if (wide != (scalars == Is::kDouble) || find(state, nth(first, 1))->type != scalars)
    return fail(Status::kBadParam, "alpha and beta are of the type of sums");
  const Type type = op.filter.type;
  if (wide != (type == Type::kFloat64)) return fail(Status::kNotSupportedDataType, "sums of another precision");
  for (const DnnTensor* tensor : {&op.image, &op.output}) {
    if (tensor->type != type && !(tensor->is_virtual && tensor->type == precision))
      return fail(Status::kNotSupportedDataType, "types differ");
  }
  const auto padding = list<int64_t>(conv, Attribute::kConvolutionPaddings),
             after = list<int64_t>(conv, Attribute::kConvolutionPaddingsAfter),
             stride = list<int64_t>(conv, Attribute::kConvolutionStrides),
             dilation = list<int64_t>(conv, Attribute::kConvolutionDilations);
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

bool is_laid(const DnnTensor& tensor, bool channels_last) {
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

Status graph_of(const dnn::DescriptorState& state, DnnGraph* graph) {
  const auto operations = list<Descriptor>(state, Attribute::kGraphOperations);
  const auto& first = *operations[0];
  if (operations.size() > 2 || !first_of(first.kind))
    return fail(Status::kNotSupportedGraphPattern, "no graph of a convolution");
  const Operation op = operation_of(first);
  graph->pass = first.kind;
  graph->image = op.image;
  graph->filter = op.filter;
  graph->output = op.output;
  graph->wide = one<Type>(*op.convolution, Attribute::kConvolutionType) == Type::kFloat64;
  graph->padding = list<int64_t>(*op.convolution, Attribute::kConvolutionPaddings);
  graph->padding_after = list<int64_t>(*op.convolution, Attribute::kConvolutionPaddingsAfter);
  graph->stride = list<int64_t>(*op.convolution, Attribute::kConvolutionStrides);
  graph->dilation = list<int64_t>(*op.convolution, Attribute::kConvolutionDilations);
  graph->adds_bias = operations.size() == 2;
  if (graph->adds_bias) {
    const auto& add = *operations[1];
    if (add.kind != Kind::kPointwiseOperation || first.kind != Kind::kForward)
      return fail(Status::kNotSupportedGraphPattern, "no bias behind a forward pass");
    const auto tensor = [&](Attribute attribute) { return tensor_of(*one<Descriptor>(add, attribute)); };
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

bool is_convolution(const dnn::DescriptorState& graph) {
  return first_of(list<Descriptor>(graph, Attribute::kGraphOperations)[0]->kind).has_value();
}

bool is_norm_graph(const dnn::DescriptorState& graph) {
  return is_norm(list<Descriptor>(graph, Attribute::kGraphOperations)[0]->kind);
}

Status norm_of(const dnn::DescriptorState& graph, DnnNorm* norm) {
  const auto operations = list<Descriptor>(graph, Attribute::kGraphOperations);
  if (operations.size() != 1) return fail(Status::kNotSupportedGraphPattern, "more than a norm");
  std::string why;
  const Status status = read_norm(*operations[0], norm, &why);
  return status == Status::kSuccess ? status : fail(status, why);
}

// Any graph of other operations.
Status operations_of(const dnn::DescriptorState& graph, DnnOperations* operations) {
  std::string why;
  const Status status = read_operations(list<Descriptor>(graph, Attribute::kGraphOperations), operations, &why);
  return status == Status::kSuccess ? status : fail(status, why);
}

// --- engines ---------------------------------------------------------------------------------------------------------

Status can(const DnnGraph& graph, Engine engine) {
  const auto lies = [&](bool last) {
    return is_laid(graph.image, last) && is_laid(graph.filter, last) && is_laid(graph.output, last);
  };
  if (!lies(false) && (graph.wide || !lies(true))) return fail(Status::kNotSupportedLayout, "no such layout");
  // As on a GPU: only tensor cores have engines that go on, and these are for half types.
  if (graph.adds_bias && dnn::item_size(graph.filter.type) != 2)
    return fail(Status::kNotSupportedGraphPattern, "a bias behind a convolution of these types");
  const bool good = engine == Engine::kLowPrecision ? graph.filter.type == Type::kFloat32
                    : engine == Engine::kUnordered  ? graph.pass == Kind::kBackwardFilter
                    : engine == Engine::kPlain      ? true
                                                    : !graph.wide;
  return good ? Status::kSuccess : fail(Status::kNotSupported, "not of this engine");
}

// As of NVIDIA's there are several engines for attention, none of them a fallback for gradients.
Status can(const DnnOperations& graph, Engine engine, dnn::HeuristicsMode mode) {
  std::string why;
  const Status status = can_attend(graph, &why);
  if (status != Status::kSuccess) return fail(status, why);
  const bool backward = graph.operations[0].kind == Kind::kPointwiseOperation;
  const bool good = engine == Engine::kBroken || engine == Engine::kWorkspace ||
                    (engine == Engine::kPlain && !(backward && mode == dnn::HeuristicsMode::kFallback));
  return good ? Status::kSuccess : fail(Status::kNotSupported, "not of this engine");
}

Status can(const DnnNorm& norm, Engine engine) {
  std::string why;
  const Status status = can_norm(norm, &why);
  if (status != Status::kSuccess) return fail(status, why);
  const bool good = engine == Engine::kBroken || engine == Engine::kWorkspace || engine == Engine::kPlain;
  return good ? Status::kSuccess : fail(Status::kNotSupported, "not of this engine");
}

// A graph of any of the kinds.
struct Graph {
  std::optional<DnnGraph> convolution;
  std::optional<DnnNorm> norm;
  DnnOperations operations;  // of other graphs
};

Status read_graph(const dnn::DescriptorState& state, Graph* graph) {
  if (is_convolution(state)) return graph_of(state, &graph->convolution.emplace());
  if (is_norm_graph(state)) return norm_of(state, &graph->norm.emplace());
  return operations_of(state, &graph->operations);
}

Status can(const Graph& graph, Engine engine, dnn::HeuristicsMode mode) {
  if (graph.convolution) return can(*graph.convolution, engine);
  return graph.norm ? can(*graph.norm, engine) : can(graph.operations, engine, mode);
}

std::vector<dnn::Note> notes_of(Engine engine) {
  if (engine == Engine::kLowPrecision) return {dnn::Note::kTensorCore, dnn::Note::kDownConvertInputs};
  if (engine == Engine::kUnordered) return {dnn::Note::kNondeterministic};
  return {};
}

Engine engine_of(const dnn::DescriptorState& state) { return static_cast<Engine>(one<int64_t>(state, kEngineNumber)); }

Status descriptor_finalize(Descriptor descriptor) {
  if (!is_there(descriptor)) return fail(Status::kBadParam, "no such descriptor");
  dnn::DescriptorState& state = *descriptor;
  if (state.finalized) return fail(Status::kBadParam, "it is finalized");
  for (const Rule& rule : kRules) {
    if (rule.kind == state.kind && rule.must && find(state, rule.attribute) == nullptr)
      return fail(Status::kBadParam, "an attribute is missing");
  }
  Status status = Status::kSuccess;
  Graph graph;
  DnnNorm norm;
  switch (state.kind) {
    case Kind::kTensor:
      status = check_tensor(state);
      break;
    case Kind::kConvolution:
      status = check_convolution(state);
      break;
    case Kind::kForward:
    case Kind::kBackwardData:
    case Kind::kBackwardFilter:
      status = check_operation(state);
      break;
    case Kind::kPointwiseOperation:
    case Kind::kMatmulOperation:
    case Kind::kReductionOperation:
    case Kind::kReshapeOperation: {
      std::string why;
      status = check_alone(state, &why);
      if (status != Status::kSuccess) return fail(status, why);
      break;
    }
    case Kind::kNormForward:
    case Kind::kNormBackward: {
      std::string why;
      status = read_norm(state, &norm, &why);
      if (status != Status::kSuccess) return fail(status, why);
      break;
    }
    case Kind::kGraph:
      status = read_graph(state, &graph);
      break;
    case Kind::kPlan: {
      const Descriptor config = one<Descriptor>(state, Attribute::kPlanConfig);
      if (config->kind != Kind::kEngineConfig) return fail(Status::kBadParamDescriptorType, "no engine's config");
      if (engine_of(*config) == Engine::kBroken) return fail(Status::kNotSupported, "only proposed");
      break;
    }
    case Kind::kVariantPack: {
      const auto ids = list<int64_t>(state, Attribute::kPackIds);
      if (ids.size() != list<DevicePointer>(state, Attribute::kPackPointers).size())
        return fail(Status::kBadParamShapeMismatch, "as many ids as addresses");
      if (std::set<int64_t>(ids.begin(), ids.end()).size() != ids.size())
        return fail(Status::kBadParamDuplicatedEntries, "an id twice");
      break;
    }
    case Kind::kEngine:
    case Kind::kEngineConfig:
      return fail(Status::kNotSupported, "engines come from heuristics here");
    default:
      break;
  }
  state.finalized = status == Status::kSuccess;
  return status;
}

void fill(dnn::DescriptorState& state, Engine engine, Descriptor graph) {
  put(state, kEngineNumber, Is::kInt64, static_cast<int64_t>(engine));
  put(state, kEngineGraph, Is::kDescriptor, graph);
  state.finalized = true;
}

Status get_attribute(Descriptor descriptor, Attribute attribute, Is type, int64_t asked, int64_t* count,
                     void* elements) {
  if (!enter("cudnnBackendGetAttribute")) return Status::kNotInitialized;
  if (count == nullptr || elements == nullptr) return fail(Status::kBadParamNullPointer, "nowhere to put it");
  if (!is_whole(descriptor)) return fail(Status::kBadParamNotFinalized, "it is not whole");
  const dnn::DescriptorState& state = *descriptor;
  *count = 0;
  if (state.kind == Kind::kHeuristics && attribute == Attribute::kHeuristicsResults && type == Is::kDescriptor) {
    const Descriptor graph = one<Descriptor>(state, Attribute::kHeuristicsGraph);
    Graph what;
    if (const Status status = read_graph(*graph, &what); status != Status::kSuccess) return status;
    const auto mode = one<dnn::HeuristicsMode>(state, Attribute::kHeuristicsMode);
    Status status = Status::kSuccess;
    for (size_t i = 0; i < kEngines; ++i) {
      const auto engine = static_cast<Engine>(i);
      if (left_out()[i] || (mode == dnn::HeuristicsMode::kFallback && engine != Engine::kPlain)) continue;
      // Of f64 only the fallback knows something.
      if (mode != dnn::HeuristicsMode::kFallback && what.convolution && what.convolution->wide) continue;
      const Status able = can(what, engine, mode);
      if (able != Status::kSuccess) status = able;
      if (able != Status::kSuccess || *count >= asked) continue;
      const Descriptor to = static_cast<Descriptor*>(elements)[*count];
      if (!is_there(to) || to->finalized || to->kind != Kind::kEngineConfig)
        return fail(Status::kBadParam, "no empty config to fill");
      fill(*to, engine, graph);
      ++*count;
    }
    return *count == 0 ? status : Status::kSuccess;
  }
  if (state.kind == Kind::kEngineConfig && attribute == Attribute::kConfigEngine && type == Is::kDescriptor) {
    const Descriptor to = *static_cast<Descriptor*>(elements);
    if (asked != 1 || !is_there(to) || to->finalized || to->kind != Kind::kEngine)
      return fail(Status::kBadParam, "no empty engine to fill");
    fill(*to, engine_of(state), one<Descriptor>(state, kEngineGraph));
    *count = 1;
    return Status::kSuccess;
  }
  if (state.kind == Kind::kEngine && attribute == Attribute::kEngineNotes && type == Is::kNote) {
    for (const dnn::Note note : notes_of(engine_of(state))) {
      if (*count < asked) static_cast<dnn::Note*>(elements)[(*count)++] = note;
    }
    return Status::kSuccess;
  }
  if (state.kind == Kind::kPlan && attribute == Attribute::kPlanWorkspace && type == Is::kInt64 && asked >= 1) {
    const Engine engine = engine_of(*one<Descriptor>(state, Attribute::kPlanConfig));
    *static_cast<int64_t*>(elements) = engine == Engine::kWorkspace ? kWorkspaceBytes : 0;
    *count = 1;
    return Status::kSuccess;
  }
  return fail(Status::kBadParam, "nothing to be asked");
}

// --- a run -----------------------------------------------------------------------------------------------------------

std::array<std::atomic<int64_t>, kEngines>& delays() {
  static std::array<std::atomic<int64_t>, kEngines> delays;
  return delays;
}
std::array<std::atomic<uint64_t>, kEngines>& runs() {
  static std::array<std::atomic<uint64_t>, kEngines> runs;
  return runs;
}

bool is_written(const emulator::DeviceMemory& memory, const std::byte* data, uint64_t bytes, uint32_t item) {
  for (uint64_t at = 0; at < bytes; at += item) {
    if (memory.cells(data + at)->writer == emulator::kUninitialised) return false;
  }
  return true;
}

// A graph, and where its tensors are on this CPU.
struct Piece {
  Graph graph;
  std::vector<DnnTensor> reads, writes, of_host;
  std::map<int64_t, std::byte*> addresses;  // by their ids
  std::map<int64_t, float> numbers;
  std::byte* workspace = nullptr;
  Engine engine = Engine::kPlain;
};

Status read_piece(const dnn::DescriptorState& state, Piece* piece) {
  Graph& graph = piece->graph;
  if (const Status status = read_graph(state, &graph); status != Status::kSuccess) return status;
  const auto add = [&](const DnnTensor& tensor, bool is_made) {
    if (tensor.is_virtual) return;
    (tensor.is_number ? piece->of_host : is_made ? piece->writes : piece->reads).push_back(tensor);
  };
  if (graph.convolution) {
    for (const DnnTensor* tensor : graph.convolution->operands()) add(*tensor, false);
    add(graph.convolution->result(), true);
  } else if (graph.norm) {
    for (const auto& [attribute, tensor] : graph.norm->tensors) add(tensor, graph.norm->makes(attribute));
  } else {
    for (const auto& [id, tensor] : graph.operations.tensors) add(tensor, graph.operations.made.contains(id));
  }
  return Status::kSuccess;
}

void compute_piece(const Piece& piece) {
  if (piece.graph.norm) return compute(*piece.graph.norm, piece.addresses, piece.numbers);
  if (!piece.graph.convolution) return compute(piece.graph.operations, piece.addresses, piece.numbers);
  const DnnGraph& graph = *piece.graph.convolution;
  const auto at = [&](const DnnTensor& tensor) -> const std::byte* {
    const auto found = piece.addresses.find(tensor.id);
    return found != piece.addresses.end() ? found->second : nullptr;
  };
  compute(graph, piece.engine,
          {at(graph.image), at(graph.filter), at(graph.output), at(graph.bias), piece.addresses.at(graph.result().id)});
}

Result do_piece(Machine& machine, Gpu& gpu, const Piece& piece) {
  emulator::DeviceMemory& memory = gpu.device->memory();
  if (machine.options.checked) {
    memory.assume_written();
    bool good = true;
    for (const DnnTensor& tensor : piece.reads) {
      for_each_row(tensor, [&](uint64_t at, uint64_t bytes) {
        good = good && is_written(memory, piece.addresses.at(tensor.id) + at, bytes, dnn::item_size(tensor.type));
      });
    }
    if (!good) {
      const std::lock_guard lock(machine.mutex);
      machine.findings.emplace_back("cudnnBackendExecute reads uninitialised memory");
      return Result::kLaunchFailed;
    }
  }
  compute_piece(piece);
  if (machine.options.checked) {
    for (const DnnTensor& tensor : piece.writes) {
      for_each_row(tensor, [&](uint64_t at, uint64_t bytes) {
        (void)memory.written(piece.addresses.at(tensor.id) + at, bytes);
      });
    }
  }
  if (piece.workspace != nullptr) std::memset(piece.workspace, 0xFF, kWorkspaceBytes);
  ++runs()[static_cast<size_t>(piece.engine)];
  const std::chrono::microseconds delay(delays()[static_cast<size_t>(piece.engine)].load());
  if (delay.count() != 0) std::this_thread::sleep_for(delay);
  return Result::kSuccess;
}

// Whether they have a byte in common. (Rows of one may lie between those of the other one.)
bool overlap(const DnnTensor& a, const std::byte* at, const DnnTensor& b, const std::byte* other) {
  if (at >= other + b.nbytes() || other >= at + a.nbytes()) return false;
  std::set<std::pair<const std::byte*, const std::byte*>> rows;  // begins and ends
  for_each_row(a, [&](uint64_t offset, uint64_t bytes) { rows.emplace(at + offset, at + offset + bytes); });
  bool common = false;
  for_each_row(b, [&](uint64_t offset, uint64_t bytes) {
    const auto behind = rows.lower_bound({other + offset + bytes, nullptr});
    common = common || (behind != rows.begin() && std::prev(behind)->second > other + offset);
  });
  return common;
}

Status execute(dnn::Handle handle, Descriptor plan, Descriptor pack) {
  std::optional<Call> call = enter("cudnnBackendExecute");
  if (!call) return fail(Status::kExecutionFailed, "no GPU");
  if (!is_there(handle)) return fail(Status::kBadParam, "no such handle");
  if (!is_whole(plan) || !is_whole(pack)) return fail(Status::kBadParamNotFinalized, "a descriptor is not whole");
  if (plan->kind != Kind::kPlan || pack->kind != Kind::kVariantPack)
    return fail(Status::kBadParamDescriptorType, "no plan, or no pack");
  const auto& config = *one<Descriptor>(*plan, Attribute::kPlanConfig);
  Piece piece;
  piece.engine = engine_of(config);
  Status status = read_piece(*one<Descriptor>(config, kEngineGraph), &piece);
  if (status != Status::kSuccess) return status;
  StreamState* const stream = call->stream(handle->stream);
  if (stream == nullptr) return fail(Status::kBadParamStreamMismatch, "no such stream");
  const auto ids = list<int64_t>(*pack, Attribute::kPackIds);
  const auto pointers = list<DevicePointer>(*pack, Attribute::kPackPointers);
  const auto pointer_of = [&](const DnnTensor& tensor) {
    const auto place = std::ranges::find(ids, tensor.id);
    if (place == ids.end()) status = fail(Status::kBadParam, "a tensor has no address");
    return place == ids.end() ? 0 : pointers[static_cast<size_t>(place - ids.begin())];
  };
  for (const auto* tensors : {&piece.reads, &piece.writes}) {
    for (const DnnTensor& tensor : *tensors) {
      const DevicePointer pointer = pointer_of(tensor);
      if (pointer % static_cast<uint64_t>(tensor.alignment) != 0)
        status = fail(Status::kBadParamMisalignedPointer, "an address is not aligned");
      auto* const found = static_cast<std::byte*>(call->memory(pointer, tensor.nbytes()));
      if (found == nullptr) status = fail(Status::kBadParamOutOfBound, "an address of no such memory");
      piece.addresses[tensor.id] = found;
    }
  }
  for (const DnnTensor& tensor : piece.of_host) {
    const DevicePointer pointer = pointer_of(tensor);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the host's
    if (pointer != 0) std::memcpy(&piece.numbers[tensor.id], reinterpret_cast<const void*>(pointer), sizeof(float));
  }
  if (status != Status::kSuccess) return status;
  for (const DnnTensor& written : piece.writes) {
    for (const auto* tensors : {&piece.reads, &piece.writes}) {
      for (const DnnTensor& other : *tensors) {
        const std::byte *to = piece.addresses[written.id], *from = piece.addresses[other.id];
        if (written.id == other.id || !overlap(written, to, other, from)) continue;
        call->machine->findings.emplace_back("cudnnBackendExecute: what it writes overlaps what it reads");
        return fail(Status::kBadParam, "what it writes overlaps what it reads");
      }
    }
  }
  if (piece.engine == Engine::kWorkspace) {
    const auto workspace = one<DevicePointer>(*pack, Attribute::kPackWorkspace);
    piece.workspace = static_cast<std::byte*>(call->memory(workspace, kWorkspaceBytes));
    if (piece.workspace == nullptr || workspace % kWorkspaceAlignment != 0)
      return fail(Status::kBadParam, "no workspace");
  }
  const Result result = call->submit(*stream, {NodeType::kKernel,
                                               [machine = call->machine, gpu = call->gpu, piece = std::move(piece)] {
                                                 return do_piece(*machine, *gpu, piece);
                                               },
                                               nullptr});
  return result == Result::kSuccess ? Status::kSuccess : fail(Status::kExecutionFailed, "the stream refuses");
}

}  // namespace

dnn::Table cudnn() {
  dnn::Table table;
  table.get_version = [] { return size_t{92000}; };
  table.get_cudart_version = [] { return size_t{13020}; };
  table.create = handle_create;
  table.destroy = [](dnn::Handle handle) { return remove(handle); };
  table.set_stream = set_stream;
  table.get_last_error = [](char* text, size_t size) {
    const size_t length = std::min(message().size(), size - 1);
    std::memcpy(text, message().data(), length);
    text[length] = '\0';
    message().clear();
  };
  table.descriptor_create = descriptor_create;
  table.descriptor_destroy = [](Descriptor descriptor) { return remove(descriptor); };
  table.descriptor_finalize = descriptor_finalize;
  table.set_attribute = set_attribute;
  table.get_attribute = get_attribute;
  table.execute = execute;
  add_rnn_functions(table);
  return table;
}

void slow_down(Engine engine, std::chrono::microseconds delay) {
  delays()[static_cast<size_t>(engine)] = delay.count();
}
void leave_out(Engine engine, bool out) { left_out()[static_cast<size_t>(engine)] = out; }
uint64_t runs_of(Engine engine) { return runs()[static_cast<size_t>(engine)]; }

std::string cudnn_left() {
  std::string text;
  const auto tell = [&](size_t count, const char* what) {
    if (count == 0) return;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  tell(count_objects<dnn::HandleState>(), "handle");
  tell(count_objects<dnn::DescriptorState>(), "descriptor");
  tell(count_objects<dnn::RnnDescriptorState>() + count_objects<dnn::RnnDataDescriptorState>() +
           count_objects<dnn::TensorDescriptorState>(),
       "descriptor of a recurrent layer");
  return text;
}

}  // namespace torch_remote::worker::cuda::emulated

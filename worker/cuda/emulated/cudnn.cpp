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
    {Kind::kPointwiseOperation, Attribute::kPointwiseRight, Is::kDescriptor, 1, true},
    {Kind::kPointwiseOperation, Attribute::kPointwiseResult, Is::kDescriptor, 1, true},
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
      return 4;
    default:
      return 8;
  }
}

const Value* find(const dnn::DescriptorState& state, Attribute attribute) {
  const auto found = state.values.find(attribute);
  return found == state.values.end() ? nullptr : &found->second;
}
// Elements may be pointers: what is copied are these.
template <typename T>
constexpr size_t kItem = sizeof(T);  // NOLINT(bugprone-sizeof-expression)
template <typename T>
std::vector<T> list(const dnn::DescriptorState& state, Attribute attribute) {
  const Value* const value = find(state, attribute);
  if (value == nullptr) return {};
  std::vector<T> values(static_cast<size_t>(value->count));
  std::memcpy(static_cast<void*>(values.data()), value->bytes.data(), values.size() * kItem<T>);
  return values;
}
template <typename T>
T one(const dnn::DescriptorState& state, Attribute attribute) {
  const Value* const value = find(state, attribute);
  T first = {};
  if (value != nullptr && value->bytes.size() >= kItem<T>)
    std::memcpy(static_cast<void*>(&first), value->bytes.data(), kItem<T>);
  return first;
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

DnnTensor tensor_of(const dnn::DescriptorState& state) {
  return {one<Type>(state, Attribute::kTensorType),         list<int64_t>(state, Attribute::kTensorSizes),
          list<int64_t>(state, Attribute::kTensorStrides),  one<int64_t>(state, Attribute::kTensorId),
          one<int64_t>(state, Attribute::kTensorAlignment), one<bool>(state, Attribute::kTensorIsVirtual)};
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

Status check_pointwise(const dnn::DescriptorState& state) {
  const auto tensor = [&](Attribute attribute) { return tensor_of(*one<Descriptor>(state, attribute)); };
  const DnnTensor left = tensor(Attribute::kPointwiseLeft), right = tensor(Attribute::kPointwiseRight),
                  result = tensor(Attribute::kPointwiseResult);
  bool fits = left.sizes == result.sizes && right.sizes.size() == left.sizes.size();
  for (size_t d = 0; fits && d < left.sizes.size(); ++d) fits = right.sizes[d] == 1 || right.sizes[d] == left.sizes[d];
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
  DnnGraph graph;
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
      status = check_pointwise(state);
      break;
    case Kind::kGraph:
      status = graph_of(state, &graph);
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
    DnnGraph what;
    if (const Status status = graph_of(*graph, &what); status != Status::kSuccess) return status;
    const auto mode = one<dnn::HeuristicsMode>(state, Attribute::kHeuristicsMode);
    Status status = Status::kSuccess;
    for (size_t i = 0; i < kEngines; ++i) {
      const auto engine = static_cast<Engine>(i);
      if (left_out()[i] || (mode == dnn::HeuristicsMode::kFallback && engine != Engine::kPlain)) continue;
      // Of f64 only the fallback knows something.
      if (mode != dnn::HeuristicsMode::kFallback && what.wide) continue;
      const Status able = can(what, engine);
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

struct Piece {
  DnnGraph graph;
  DnnAddresses addresses;
  std::byte* workspace = nullptr;
  Engine engine = Engine::kPlain;
};

Result do_piece(Machine& machine, Gpu& gpu, const Piece& piece) {
  const DnnTensor& result = piece.graph.result();
  if (machine.options.checked) {
    emulator::DeviceMemory& memory = gpu.device->memory();
    memory.assume_written();
    bool good = true;
    for (const DnnTensor* tensor : piece.graph.operands()) {
      const std::byte* const data = tensor == &piece.graph.image    ? piece.addresses.image
                                    : tensor == &piece.graph.filter ? piece.addresses.filter
                                    : tensor == &piece.graph.output ? piece.addresses.output
                                                                    : piece.addresses.bias;
      good = good && is_written(memory, data, tensor->nbytes(), dnn::item_size(tensor->type));
    }
    if (!good) {
      const std::lock_guard lock(machine.mutex);
      machine.findings.emplace_back("cudnnBackendExecute reads uninitialised memory");
      return Result::kLaunchFailed;
    }
  }
  compute(piece.graph, piece.engine, piece.addresses);
  if (machine.options.checked) (void)gpu.device->memory().written(piece.addresses.result, result.nbytes());
  if (piece.workspace != nullptr) std::memset(piece.workspace, 0xFF, kWorkspaceBytes);
  ++runs()[static_cast<size_t>(piece.engine)];
  const std::chrono::microseconds delay(delays()[static_cast<size_t>(piece.engine)].load());
  if (delay.count() != 0) std::this_thread::sleep_for(delay);
  return Result::kSuccess;
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
  if (const Status status = graph_of(*one<Descriptor>(config, kEngineGraph), &piece.graph); status != Status::kSuccess)
    return status;
  StreamState* const stream = call->stream(handle->stream);
  if (stream == nullptr) return fail(Status::kBadParamStreamMismatch, "no such stream");
  const auto ids = list<int64_t>(*pack, Attribute::kPackIds);
  const auto pointers = list<DevicePointer>(*pack, Attribute::kPackPointers);
  Status status = Status::kSuccess;
  std::vector<std::pair<DevicePointer, uint64_t>> read;
  const auto address = [&](const DnnTensor& tensor) -> std::byte* {
    const auto place = std::ranges::find(ids, tensor.id);
    if (place == ids.end()) {
      status = fail(Status::kBadParam, "a tensor has no address");
      return nullptr;
    }
    const DevicePointer pointer = pointers[static_cast<size_t>(place - ids.begin())];
    if (pointer % static_cast<uint64_t>(tensor.alignment) != 0)
      status = fail(Status::kBadParamMisalignedPointer, "an address is not aligned");
    auto* const found = static_cast<std::byte*>(call->memory(pointer, tensor.nbytes()));
    if (found == nullptr) status = fail(Status::kBadParamOutOfBound, "an address of no such memory");
    read.emplace_back(pointer, tensor.nbytes());
    return found;
  };
  for (const DnnTensor* tensor : piece.graph.operands()) {
    std::byte* const found = address(*tensor);
    (tensor == &piece.graph.image    ? piece.addresses.image
     : tensor == &piece.graph.filter ? piece.addresses.filter
     : tensor == &piece.graph.output ? piece.addresses.output
                                     : piece.addresses.bias) = found;
  }
  piece.addresses.result = address(piece.graph.result());
  if (status != Status::kSuccess) return status;
  const auto [to, bytes] = read.back();
  read.pop_back();
  for (const auto& [from, size] : read) {
    if (from >= to + bytes || to >= from + size) continue;
    call->machine->findings.emplace_back("cudnnBackendExecute: what it writes overlaps what it reads");
    return fail(Status::kBadParam, "what it writes overlaps what it reads");
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
  return text;
}

}  // namespace torch_remote::worker::cuda::emulated

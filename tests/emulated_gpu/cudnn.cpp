#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <set>

#include "tests/emulated_gpu/cudnn_parts.h"

// Descriptors, and the engines of graphs.
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
  return {get_scalar<dnn::Type>(state, Attribute::kTensorType),    get_list<int64_t>(state, Attribute::kTensorSizes),
          get_list<int64_t>(state, Attribute::kTensorStrides),     get_scalar<int64_t>(state, Attribute::kTensorId),
          get_scalar<int64_t>(state, Attribute::kTensorAlignment), get_scalar<bool>(state, Attribute::kTensorIsVirtual),
          get_scalar<bool>(state, Attribute::kTensorIsNumber)};
}

std::string& message() {
  thread_local std::string text;
  return text;
}
dnn::Result fail(dnn::Result status, std::string why) {
  message() = std::move(why);
  return status;
}

std::optional<Call> enter(const char* name) {
  std::optional<Call> call(std::in_place, name);
  if (!call->ready()) call.reset();
  return call;
}

namespace {

using dnn::Attribute;
using dnn::AttributeType;
using dnn::Descriptor;
using dnn::DescriptorType;
using dnn::Value;
using Status = dnn::Result;

std::array<std::atomic<bool>, kEngines>& excluded() {
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

Status handle_create(dnn::Handle* handle) { return enter("cudnnCreate") ? make(handle) : Status::kNotInitialized; }
Status set_stream(dnn::Handle handle, Stream stream) {
  if (!exists(handle)) return Status::kBadParam;
  handle->stream = stream;
  return Status::kSuccess;
}

template <typename T>
void put(dnn::DescriptorState& state, Attribute attribute, AttributeType type, T value) {
  Value& to = state.values[attribute];
  to = {type, 1, std::vector<std::byte>(kItem<T>)};
  std::memcpy(to.bytes.data(), static_cast<const void*>(&value), kItem<T>);
}

Status descriptor_create(DescriptorType kind, Descriptor* descriptor) {
  if (!enter("cudnnBackendCreateDescriptor")) return Status::kNotInitialized;
  return make(descriptor, dnn::DescriptorState{.kind = kind, .values = {}});
}

bool is_convolution(const dnn::DescriptorState& graph) {
  return first_attribute(get_list<Descriptor>(graph, Attribute::kGraphOperations)[0]->kind).has_value();
}

bool is_norm_graph(const dnn::DescriptorState& graph) {
  return is_norm(get_list<Descriptor>(graph, Attribute::kGraphOperations)[0]->kind);
}

Status norm_of(const dnn::DescriptorState& graph, DnnNorm* norm) {
  const auto operations = get_list<Descriptor>(graph, Attribute::kGraphOperations);
  if (operations.size() != 1) return fail(Status::kNotSupportedGraphPattern, "more than a norm");
  std::string why;
  const Status status = read_norm(*operations[0], norm, &why);
  return status == Status::kSuccess ? status : fail(status, why);
}

// Reads a graph of any other operations.
Status operations_of(const dnn::DescriptorState& graph, DnnOperations* operations) {
  std::string why;
  const Status status = read_operations(get_list<Descriptor>(graph, Attribute::kGraphOperations), operations, &why);
  return status == Status::kSuccess ? status : fail(status, why);
}

// --- engines ---------------------------------------------------------------------------------------------------------

// As in NVIDIA's library, several engines support attention. None of them is a fallback for gradients.
Status supports(const DnnOperations& graph, Engine engine, dnn::HeuristicsMode mode) {
  std::string why;
  const Status status = supports_attention(graph, &why);
  if (status != Status::kSuccess) return fail(status, why);
  const bool backward = graph.operations[0].kind == DescriptorType::kPointwiseOperation;
  const bool good = engine == Engine::kBroken || engine == Engine::kWorkspace ||
                    (engine == Engine::kFallback && !(backward && mode == dnn::HeuristicsMode::kFallback));
  return good ? Status::kSuccess : fail(Status::kNotSupported, "not of this engine");
}

Status supports(const DnnNorm& norm, Engine engine) {
  std::string why;
  const Status status = supports_norm(norm, &why);
  if (status != Status::kSuccess) return fail(status, why);
  const bool good = engine == Engine::kBroken || engine == Engine::kWorkspace || engine == Engine::kFallback;
  return good ? Status::kSuccess : fail(Status::kNotSupported, "not of this engine");
}

Status supports(const Graph& graph, Engine engine, dnn::HeuristicsMode mode) {
  if (graph.convolution) return supports(*graph.convolution, engine);
  return graph.norm ? supports(*graph.norm, engine) : supports(graph.operations, engine, mode);
}

std::vector<dnn::NumericalNote> notes_of(Engine engine) {
  if (engine == Engine::kLowPrecision) return {dnn::NumericalNote::kTensorCore, dnn::NumericalNote::kDownConvertInputs};
  if (engine == Engine::kUnordered) return {dnn::NumericalNote::kNondeterministic};
  return {};
}

Status descriptor_finalize(Descriptor descriptor) {
  if (!exists(descriptor)) return fail(Status::kBadParam, "no such descriptor");
  dnn::DescriptorState& state = *descriptor;
  if (state.finalized) return fail(Status::kBadParam, "it is finalized");
  Status status = check_attributes(state);
  if (status != Status::kSuccess) return status;
  Graph graph;
  DnnNorm norm;
  switch (state.kind) {
    case DescriptorType::kTensor:
      status = check_tensor(state);
      break;
    case DescriptorType::kConvolution:
      status = check_convolution(state);
      break;
    case DescriptorType::kForward:
    case DescriptorType::kBackwardData:
    case DescriptorType::kBackwardFilter:
      status = check_operation(state);
      break;
    case DescriptorType::kPointwiseOperation:
    case DescriptorType::kMatmulOperation:
    case DescriptorType::kReductionOperation:
    case DescriptorType::kReshapeOperation: {
      std::string why;
      status = check_operation_sizes(state, &why);
      if (status != Status::kSuccess) return fail(status, why);
      break;
    }
    case DescriptorType::kNormForward:
    case DescriptorType::kNormBackward: {
      std::string why;
      status = read_norm(state, &norm, &why);
      if (status != Status::kSuccess) return fail(status, why);
      break;
    }
    case DescriptorType::kGraph:
      status = read_graph(state, &graph);
      break;
    case DescriptorType::kPlan: {
      const Descriptor config = get_scalar<Descriptor>(state, Attribute::kPlanConfig);
      if (config->kind != DescriptorType::kEngineConfig)
        return fail(Status::kBadParamDescriptorType, "no engine's config");
      if (engine_of(*config) == Engine::kBroken) return fail(Status::kNotSupported, "only proposed");
      break;
    }
    case DescriptorType::kVariantPack: {
      const auto ids = get_list<int64_t>(state, Attribute::kPackIds);
      if (ids.size() != get_list<DevicePointer>(state, Attribute::kPackPointers).size())
        return fail(Status::kBadParamShapeMismatch, "as many ids as addresses");
      if (std::set<int64_t>(ids.begin(), ids.end()).size() != ids.size())
        return fail(Status::kBadParamDuplicatedEntries, "an id twice");
      break;
    }
    case DescriptorType::kEngine:
    case DescriptorType::kEngineConfig:
      return fail(Status::kNotSupported, "engines come from heuristics here");
    default:
      break;
  }
  state.finalized = status == Status::kSuccess;
  return status;
}

void fill(dnn::DescriptorState& state, Engine engine, Descriptor graph) {
  put(state, kEngineNumber, AttributeType::kInt64, static_cast<int64_t>(engine));
  put(state, kEngineGraph, AttributeType::kDescriptor, graph);
  state.finalized = true;
}

Status get_attribute(Descriptor descriptor, Attribute attribute, AttributeType type, int64_t asked, int64_t* count,
                     void* elements) {
  if (!enter("cudnnBackendGetAttribute")) return Status::kNotInitialized;
  if (count == nullptr || elements == nullptr) return fail(Status::kBadParamNullPointer, "nowhere to put it");
  if (!is_complete(descriptor)) return fail(Status::kBadParamNotFinalized, "it is not whole");
  const dnn::DescriptorState& state = *descriptor;
  *count = 0;
  if (state.kind == DescriptorType::kHeuristics && attribute == Attribute::kHeuristicsResults &&
      type == AttributeType::kDescriptor) {
    const Descriptor graph = get_scalar<Descriptor>(state, Attribute::kHeuristicsGraph);
    Graph what;
    if (const Status status = read_graph(*graph, &what); status != Status::kSuccess) return status;
    const auto mode = get_scalar<dnn::HeuristicsMode>(state, Attribute::kHeuristicsMode);
    Status status = Status::kSuccess;
    for (size_t i = 0; i < kEngines; ++i) {
      const auto engine = static_cast<Engine>(i);
      if (excluded()[i] || (mode == dnn::HeuristicsMode::kFallback && engine != Engine::kFallback)) continue;
      // Only the fallback supports float64.
      if (mode != dnn::HeuristicsMode::kFallback && what.convolution && what.convolution->computes_in_f64) continue;
      const Status able = supports(what, engine, mode);
      if (able != Status::kSuccess) status = able;
      if (able != Status::kSuccess || *count >= asked) continue;
      const Descriptor to = static_cast<Descriptor*>(elements)[*count];
      if (!exists(to) || to->finalized || to->kind != DescriptorType::kEngineConfig)
        return fail(Status::kBadParam, "no empty config to fill");
      fill(*to, engine, graph);
      ++*count;
    }
    return *count == 0 ? status : Status::kSuccess;
  }
  if (state.kind == DescriptorType::kEngineConfig && attribute == Attribute::kConfigEngine &&
      type == AttributeType::kDescriptor) {
    const Descriptor to = *static_cast<Descriptor*>(elements);
    if (asked != 1 || !exists(to) || to->finalized || to->kind != DescriptorType::kEngine)
      return fail(Status::kBadParam, "no empty engine to fill");
    fill(*to, engine_of(state), get_scalar<Descriptor>(state, kEngineGraph));
    *count = 1;
    return Status::kSuccess;
  }
  if (state.kind == DescriptorType::kEngine && attribute == Attribute::kEngineNotes && type == AttributeType::kNote) {
    for (const dnn::NumericalNote note : notes_of(engine_of(state))) {
      if (*count < asked) static_cast<dnn::NumericalNote*>(elements)[(*count)++] = note;
    }
    return Status::kSuccess;
  }
  if (state.kind == DescriptorType::kPlan && attribute == Attribute::kPlanWorkspace && type == AttributeType::kInt64 &&
      asked >= 1) {
    const Engine engine = engine_of(*get_scalar<Descriptor>(state, Attribute::kPlanConfig));
    *static_cast<int64_t*>(elements) = engine == Engine::kWorkspace ? kWorkspaceBytes : 0;
    *count = 1;
    return Status::kSuccess;
  }
  return fail(Status::kBadParam, "nothing to be asked");
}

}  // namespace

Status read_graph(const dnn::DescriptorState& state, Graph* graph) {
  if (is_convolution(state)) return graph_of(state, &graph->convolution.emplace());
  if (is_norm_graph(state)) return norm_of(state, &graph->norm.emplace());
  return operations_of(state, &graph->operations);
}

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

void exclude_engine(Engine engine, bool out) { excluded()[static_cast<size_t>(engine)] = out; }

std::string cudnn_leaks() {
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

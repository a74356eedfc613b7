#pragma once

#include <optional>
#include <string>
#include <utility>

#include "tests/emulated_gpu/cudnn_state.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/objects.h"

// Declarations that the files of the emulated cuDNN's graph API share.
namespace torch_remote::worker::cuda::emulated {

inline constexpr size_t kEngines = 5;
inline constexpr int64_t kWorkspaceBytes = 64 << 10;
inline constexpr uint64_t kWorkspaceAlignment = 16;

// Attributes of our own, which no caller sets. Engines, engine configs and plans store them.
inline constexpr auto kEngineNumber = static_cast<dnn::Attribute>(-1), kEngineGraph = static_cast<dnn::Attribute>(-2);

// The text that cudnnGetLastErrorString returns.
std::string& message();
dnn::Result fail(dnn::Result status, std::string why);
// Begins a call of the emulated driver. Empty if there is no GPU.
std::optional<Call> enter(const char* name);

// -- attributes (cudnn_attributes.cpp)

dnn::Result set_attribute(dnn::Descriptor descriptor, dnn::Attribute attribute, dnn::AttributeType type, int64_t count,
                          const void* elements);
// Fails unless all required attributes are set.
dnn::Result check_attributes(const dnn::DescriptorState& state);
// Whether the descriptor exists and is finalized, and so is everything that it refers to.
bool is_complete(dnn::Descriptor descriptor);
// The first of the six attributes of a convolution operation; none for other kinds.
std::optional<dnn::Attribute> first_attribute(dnn::DescriptorType kind);
inline dnn::Attribute nth_attribute(dnn::Attribute first, int i) {
  return static_cast<dnn::Attribute>(static_cast<int>(first) + i);
}

// -- convolutions (cudnn_convolution.cpp)

dnn::Result check_tensor(const dnn::DescriptorState& state);
dnn::Result check_convolution(const dnn::DescriptorState& state);
dnn::Result check_operation(const dnn::DescriptorState& state);
dnn::Result graph_of(const dnn::DescriptorState& state, DnnGraph* graph);
dnn::Result supports(const DnnGraph& graph, Engine engine);

// -- graphs of all kinds (cudnn.cpp)

struct Graph {
  std::optional<DnnGraph> convolution;
  std::optional<DnnNorm> norm;
  DnnOperations operations;  // of graphs that are neither a convolution nor a batch norm
};
dnn::Result read_graph(const dnn::DescriptorState& state, Graph* graph);
inline Engine engine_of(const dnn::DescriptorState& state) {
  return static_cast<Engine>(get_scalar<int64_t>(state, kEngineNumber));
}

// -- execution of plans (cudnn_execute.cpp)

dnn::Result execute(dnn::Handle handle, dnn::Descriptor plan, dnn::Descriptor pack);

}  // namespace torch_remote::worker::cuda::emulated

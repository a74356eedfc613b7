#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

// torch.compile's way into the IR: nodes of an FX graph, as AOTAutograd makes it (functional but for writes to its
// inputs, with a fake tensor in each node's meta["val"]), become nodes of an ir::Graph. Sizes that Dynamo left symbolic
// are the graph's parameters; everything else that is known is a constant.
namespace torch_remote::frontend {

// An argument of a call. Symbols are those of CompiledGraphSpec::host.
struct GraphInput {
  enum class Kind : uint8_t {
    kTensor,
    kNumber,  // a 0-dim CPU tensor in a tensor's place: its value is a parameter
    kInt,
    kFloat,
    kBool,
  };
  Kind kind = Kind::kTensor;
  c10::ScalarType dtype = c10::ScalarType::Float;  // kTensor, kNumber
  // The parameter that the argument gives (complex numbers: two); of a tensor the storage offset.
  ir::Sym param = ir::kNoSym;
  bool written = false;                                   // kTensor
  std::vector<ir::Sym> sizes, strides;                    // kTensor: what the graph was made for
  std::vector<std::pair<uint32_t, ir::Sym>> size_params;  // kTensor: dims that give a parameter
};

// A result of a call.
struct GraphOutput {
  enum class Kind : uint8_t {
    kFresh,      // a view of the index-th new storage
    kInputView,  // a view of the index-th argument
    kInput,      // the index-th argument itself
    kInt,        // the number `offset`
    kObject,     // `object`: None or a constant
  };
  Kind kind = Kind::kObject;
  uint32_t index = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<ir::Sym> sizes, strides;
  ir::Sym offset = ir::kNoSym;  // kInputView: from the argument's own
  pybind11::object object;
};

// Random numbers that a call draws, in order: the parameters `seed` and seed + 1, for as many elements as the largest
// of these counts.
struct GraphRandom {
  ir::Sym seed;
  std::vector<ir::Sym> elements;
};

struct CompiledGraphSpec {
  c10::DeviceIndex device = 0;
  std::shared_ptr<const ir::Graph> graph;
  std::vector<ir::SourceRef> sources;  // of its nodes
  // The same parameters, and the expressions that a call needs to know on this side.
  ir::Graph host;
  std::vector<GraphInput> inputs;
  std::vector<GraphOutput> outputs;
  std::vector<GraphRandom> randoms;
  std::vector<ir::Sym> fresh_nbytes;  // of the new storages, in the order of their ids
};

// Builds one graph out of FX nodes, in their order. With the GIL.
class Lowering {
 public:
  // `trust_ranges`: see Symbols.
  Lowering(c10::DeviceIndex device, bool trust_ranges);
  ~Lowering();

  // A node whose value a call can be given: it becomes an input when a node, or a size, needs it.
  void offer(pybind11::object node);
  // A node that is always this 0-dim CPU tensor.
  void constant(const pybind11::object& node, const at::Tensor& value);
  // Takes a call_function node in. False if it cannot run in a program of this device (another device, data-dependent
  // sizes, numbers for Python, an op that the worker lacks); then nothing has changed, and why_not says why.
  bool add(pybind11::object node);
  const std::string& why_not() const;
  // Whether the node is a 0-dim CPU tensor that the program computes beside the CPU, for its own use: such a one cannot
  // be among the results.
  bool is_host(pybind11::handle node) const;
  size_t size() const;  // nodes of the graph

  // Ends it. `outputs`: nodes, or objects that a call returns as they are. The inputs that a call must be given, as
  // nodes, are then in `inputs()`.
  std::unique_ptr<CompiledGraphSpec> finish(const pybind11::list& outputs);
  pybind11::list inputs() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace torch_remote::frontend

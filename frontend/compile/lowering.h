#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "frontend/compile/compiled_graph_spec.h"

// torch.compile's way into the IR: nodes of an FX graph, as AOTAutograd makes it (functional but for writes to its
// inputs, with a fake tensor in each node's meta["val"]), become nodes of an ir::Graph. Sizes that Dynamo left symbolic
// are the graph's parameters; everything else that is known is a constant.
namespace torch_remote::frontend {

// Builds one graph out of FX nodes, in their order. With the GIL.
class Lowering {
 public:
  // `trust_ranges`: see Symbols.
  Lowering(c10::DeviceIndex device, bool trust_ranges);
  ~Lowering();

  // See CompiledGraphBuilder::offer.
  void offer(pybind11::object node, bool tells_size);
  // A node that is always this 0-dim CPU tensor.
  void constant(const pybind11::object& node, const at::Tensor& value);
  // Takes a call_function node in. False if it cannot run in a program of this device (another device, data-dependent
  // sizes, numbers for Python, an op that the worker lacks); then nothing has changed, and why_not says why.
  bool add(const pybind11::object& node);
  const std::string& why_not() const;
  // Whether the node is a 0-dim CPU tensor that the program computes too, for its own use.
  bool is_host(pybind11::handle node) const;
  // Whether the node can be among the results: none of the CPU's that the program computes for itself can. One that was
  // offered becomes an input if it must.
  bool returns(pybind11::handle node);
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

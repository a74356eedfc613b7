#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "frontend/compile/compiled_graph_spec.h"

// Lowers FX graphs of torch.compile to the IR. AOTAutograd makes these graphs: they are functional except for writes to
// their inputs, and each node has a fake tensor in meta["val"]. Sizes that Dynamo left symbolic become the graph's
// parameters. All other sizes are constants.
namespace torch_remote::frontend {

// Builds one graph from FX nodes, which are added in order. Requires the GIL.
class Lowering {
 public:
  // `trust_ranges`: see symbols.h.
  Lowering(c10::DeviceIndex device, bool trust_ranges);
  ~Lowering();

  // Offers a node whose value a call can provide. It becomes an input of the graph once an added node needs it.
  // `determines_size`: it also becomes an input once an added node needs a symbolic size that this node determines.
  void offer(pybind11::object node, bool determines_size);
  // Declares a node that always has the value of this 0-dim CPU tensor.
  void constant(const pybind11::object& node, const at::Tensor& value);
  // Adds a call_function node. Returns false if it cannot run in a program of this device. Reasons are a tensor of
  // another device, sizes that depend on data, results that Python needs as numbers, and an op that the worker lacks.
  // The graph then lacks the node, but offered nodes that it needed may have become inputs. why_not() gives the reason
  // of the last such node.
  bool add(const pybind11::object& node);
  const std::string& why_not() const;
  // Whether the node is a 0-dim CPU tensor. The program computes its value for other nodes of the program, but cannot
  // return it. If Python needs the tensor, the call computes it again in this process.
  bool is_host(pybind11::handle node) const;
  // Whether the node can be a result of the program. Nodes for which is_host() is true cannot. If the node was only
  // offered, this makes it an input.
  bool returns(pybind11::handle node);
  size_t size() const;  // number of nodes in the graph

  // Finishes the graph; call it last. `outputs` are nodes, or objects that a call returns unchanged. Raises if a node
  // cannot be a result. Afterwards `inputs()` has the nodes whose values a call must provide.
  std::unique_ptr<CompiledGraphSpec> finish(const pybind11::list& outputs);
  pybind11::list inputs() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace torch_remote::frontend

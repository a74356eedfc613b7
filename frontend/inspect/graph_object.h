#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontend/record/recorder.h"
#include "ir/graph.h"

namespace torch_remote::frontend {

// torch.remote.Graph: a graph that Python can read and run.
class GraphObject {
 public:
  // `params` are those of the recorded run, or empty if there was no run.
  GraphObject(ir::Graph graph, std::vector<ir::SourceRef> sources, std::vector<int64_t> params);

  // Parses and verifies a graph. Raises ValueError. Its message begins with "line:column: " if the text does not parse,
  // and names the node if the graph is not valid.
  static std::unique_ptr<GraphObject> from_text(const std::string& text);

  std::string to_text() const;
  pybind11::bytes to_program() const;
  // The graph after the passes, for a worker that compiles kernels of all kinds. It has groups if its params are known
  // and fusion is on.
  std::unique_ptr<GraphObject> optimized() const;
  // How often each op occurs, by name, in the order of first occurrence.
  std::vector<std::pair<std::string, size_t>> ops() const;
  const std::vector<int64_t>& params() const { return params_; }
  // Raises ValueError if the number of values is not the number of parameters. A float is given by its double's bits.
  void set_params(std::vector<int64_t> params);
  const ir::Graph& graph() const { return graph_; }

  // Runs the graph on tensors of one device, one for each input buffer, in order. `params` maps parameter numbers to
  // values, which override those of the recorded run. Raises RuntimeError if the tensors are on several devices. Raises
  // ValueError if the values contradict the tensors' sizes, strides and offsets, or if a parameter has no value. Raises
  // NotImplementedError if only a run determines the sizes of a result. Returns a tensor for each fresh buffer that
  // survives. Requires the GIL, and releases it while the run is sent.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::map<uint32_t, int64_t>& params);

 private:
  std::vector<int64_t> bind(const std::vector<at::Tensor>& inputs, const std::map<uint32_t, int64_t>& given) const;

  ir::Graph graph_;
  std::vector<ir::SourceRef> sources_;
  std::vector<int64_t> params_;
  RunnableGraph runnable_;
};

// Adds Graph, start_tracing and take_traced to the module.
void bind_graphs(pybind11::module& module);

}  // namespace torch_remote::frontend

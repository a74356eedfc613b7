#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <vector>

#include "frontend/compile/compiled_graph_spec.h"
#include "frontend/record/recorder.h"

namespace torch_remote::frontend {

// Returns the tensor, which is on a worker. If its contents were lost with a worker, restores them from `copy` first.
at::Tensor restored(at::Tensor tensor, const at::Tensor& copy);

// A lowered graph as a Python function. A call does not record the graph's nodes. It sends this thread's recorded ops,
// then the program if the worker does not have it, and then one Run message. Only copies of inputs are recorded.
class CompiledGraph {
 public:
  // The source of an input's value.
  struct InputSource {
    size_t position = 0;        // index among the arguments of a call
    pybind11::object constant;  // if set, the value at every call
    at::Tensor copy;            // copy of `constant` on the CPU; undefined if `constant` is not on a worker
    std::string name;           // its node's name, for errors; in an exported program, the argument's name
  };
  // `input_sources` has one entry per input of the graph.
  CompiledGraph(std::unique_ptr<CompiledGraphSpec> spec, std::vector<InputSource> input_sources,
                const remote::ProgramOptions& options);

  // Runs the graph, empties the list of arguments, so that their memory can be freed early, and returns the results as
  // a list. Raises for arguments that the graph does not support, and for inputs that were lost with a worker and are
  // read; the list is then unchanged. Requires the GIL, and releases it while the run is sent.
  pybind11::list call(pybind11::list& arguments);

 private:
  struct Call;
  pybind11::handle argument(const pybind11::list& arguments, size_t input) const;
  void take(Call& call, const pybind11::list& arguments);
  void take_tensor(Call& call, size_t index, pybind11::handle argument);
  void draw_random(Call& call);
  // Copies an input to the strides and the lazy conjugate or negative that the graph expects, if they differ.
  void fix_strides(Call& call, size_t index);
  // Substitutes new memory for inputs that were lost with a worker and that the graph does not read.
  void replace_lost(Call& call) const;
  pybind11::list results(Call& call, const pybind11::list& arguments);

  const std::unique_ptr<CompiledGraphSpec> spec_;
  const std::vector<InputSource> input_sources_;
  RunnableGraph runnable_;
};

}  // namespace torch_remote::frontend

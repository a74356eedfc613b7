#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <vector>

#include "frontend/compile/compiled_graph_spec.h"
#include "frontend/record/recorder.h"

namespace torch_remote::frontend {

// The tensor, whose contents are `copy`'s again if they were lost with a worker.
at::Tensor restored(at::Tensor tensor, const at::Tensor& copy);

// A lowered graph as a function of Python's. One message a call; nothing is recorded.
class CompiledGraph {
 public:
  // Where an input comes from.
  struct Place {
    size_t position = 0;     // among the arguments of a call
    pybind11::object fixed;  // instead: the same at every call
    at::Tensor copy;         // of that, on the CPU; undefined: it is not a worker's
    std::string name;        // of its node, for errors: of an exported program, the argument's own
  };
  // `places`: of the graph's inputs.
  CompiledGraph(std::unique_ptr<CompiledGraphSpec> spec, std::vector<Place> places,
                const remote::ProgramOptions& options);

  // Takes the arguments out of the list (so that their memory can go as soon as nobody else has them) and returns the
  // results as a list. Raises for arguments that the graph was not made for.
  pybind11::list call(pybind11::list& arguments);

 private:
  struct Call;
  pybind11::handle argument(const pybind11::list& arguments, size_t input) const;
  void take(Call& call, const pybind11::list& arguments);
  void take_tensor(Call& call, size_t index, pybind11::handle argument);
  void draw_random(Call& call);
  // Copies an input to the strides (and the lazy conjugate) that the graph was made for, if it has others.
  void fix_strides(Call& call, size_t index);
  // Puts new memory in the place of inputs that were lost with a worker and that the graph does not read.
  void replace_lost(Call& call) const;
  pybind11::list results(Call& call, const pybind11::list& arguments);

  const std::unique_ptr<CompiledGraphSpec> spec_;
  const std::vector<Place> places_;
  RunnableGraph runnable_;
};

}  // namespace torch_remote::frontend

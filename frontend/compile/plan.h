#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "frontend/compile/compiled_graph.h"

namespace torch_remote::frontend {

// Placeholder for a runtime value, in the arguments of a plan's steps and in its results.
struct Slot {
  size_t index = 0;
};

// The steps of a compiled graph that is more than one program: programs and Python calls, in order. A call of the plan
// takes a list of arguments and empties it. Values are released as soon as no later step needs them. Requires the GIL.
class Plan {
 public:
  // `arguments`: the number of arguments of a call, which are in the first slots.
  explicit Plan(size_t arguments) : arguments_(arguments) {}
  // Adds the next step. `call` is called with `args` and `kwargs`, in which each Slot is replaced by its value.
  // `results` has the slot of its result. If `call` is a program, it takes and returns lists, and `results` has the
  // slots of the items. `last` are slots that no step needs once this step has its arguments.
  void add(pybind11::object call, const pybind11::tuple& args, const pybind11::dict& kwargs,
           std::vector<size_t> results, std::vector<size_t> last);
  // Finishes the plan. A call returns `results`, in which each Slot is replaced by its value. `slots`: the number of
  // slots.
  void finish(size_t slots, pybind11::handle results);

  pybind11::object call(pybind11::list& arguments) const;

 private:
  using Values = std::vector<pybind11::object>;

  // An argument that may contain slots.
  class Argument {
   public:
    explicit Argument(pybind11::handle value);
    pybind11::object fill(const Values& values) const;
    bool is_constant() const { return kind_ == Kind::kConstant; }

   private:
    enum class Kind { kConstant, kSlot, kList, kTuple, kDict, kSlice };
    Kind kind_ = Kind::kConstant;
    pybind11::object constant_;  // for a dict, its keys
    size_t slot_ = 0;
    std::vector<Argument> items_;
  };

  struct Step {
    pybind11::object call;
    CompiledGraph* program = nullptr;  // `call`, if it is a program
    std::vector<Argument> args;        // keyword arguments last
    pybind11::tuple keywords;
    std::vector<size_t> results, last;
    // For an ATen op, which is called without Python. `constants` has its constant arguments, already converted.
    std::optional<c10::OperatorHandle> op;
    std::vector<c10::IValue> constants;
  };
  // Makes the step call its op without Python, if possible.
  static void use_op(Step& step, const pybind11::tuple& args, const pybind11::dict& kwargs);
  static pybind11::object call_op(const Step& step, const Values& args);

  std::vector<Step> steps_;
  std::vector<Argument> results_;  // exactly one
  size_t arguments_ = 0, slots_ = 0;
};

}  // namespace torch_remote::frontend

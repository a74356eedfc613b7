#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "frontend/compile/compiled_graph.h"

namespace torch_remote::frontend {

// Stands in the arguments of a plan's steps, and in its results, for a value that a call has.
struct Slot {
  size_t index = 0;
};

// What a call of a compiled graph runs where that is more than one program: programs and Python's calls, in order. A
// function of a list, which it empties; values die as soon as nothing needs them. With the GIL.
class Plan {
 public:
  // The arguments of a call are the values of the first slots.
  explicit Plan(size_t arguments) : arguments_(arguments) {}
  // The next step. `call` takes these arguments, with slots in them, and its result goes to a slot; of a program's,
  // which takes and returns lists, `results` are the items' slots. `last` are slots that nothing needs after its
  // arguments are taken.
  void add(pybind11::object call, const pybind11::tuple& args, const pybind11::dict& kwargs,
           std::vector<size_t> results, std::vector<size_t> last);
  // Ends it. `results`, with slots in them, are what a call returns.
  void finish(size_t slots, pybind11::handle results);

  pybind11::object call(pybind11::list& arguments) const;

 private:
  using Values = std::vector<pybind11::object>;

  // An argument with slots in it.
  class Argument {
   public:
    explicit Argument(pybind11::handle value);
    pybind11::object fill(const Values& values) const;
    bool is_constant() const { return kind_ == Kind::kConstant; }

   private:
    enum class Kind { kConstant, kSlot, kList, kTuple, kDict, kSlice };
    Kind kind_ = Kind::kConstant;
    pybind11::object constant_;  // of a dict, its keys
    size_t slot_ = 0;
    std::vector<Argument> items_;
  };

  struct Step {
    pybind11::object call;
    CompiledGraph* program = nullptr;  // `call`, if it is one
    std::vector<Argument> args;        // those by keyword last
    pybind11::tuple keywords;
    std::vector<size_t> results, last;
    // Of an ATen op, which is called without Python: what its arguments are, constants already as it takes them.
    std::optional<c10::OperatorHandle> op;
    std::vector<c10::IValue> constants;
  };
  // Makes the step one without Python, if it can be.
  static void use_op(Step& step, const pybind11::tuple& args, const pybind11::dict& kwargs);
  static pybind11::object call_op(const Step& step, const Values& args);

  std::vector<Step> steps_;
  std::vector<Argument> results_;  // one
  size_t arguments_ = 0, slots_ = 0;
};

}  // namespace torch_remote::frontend

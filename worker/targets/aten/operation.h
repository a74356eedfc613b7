#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "worker/targets/aten/casts.h"
#include "worker/targets/aten/checks/guard.h"
#include "worker/targets/aten/checks/hazard.h"
#include "worker/targets/aten/gpu.h"
#include "worker/targets/aten/kernels/special.h"

// One node, prepared: which kernel to call, and its arguments as IValues that are made once and changed only when the
// symbols they come from change.
namespace torch_remote::worker::aten {

class Operation {
 public:
  enum class Mode : uint8_t {
    kOut,         // the real out variant writes the results' memory
    kEffect,      // no new results: in-place, out=
    kFunctional,  // the op makes its results' memory
    kSpecial,     // computed here, into the results' memory
  };

  // Resolves the op and checks the node's arguments against its schema; throws. `tensor(arg)` gives the tensor of a
  // kView or kScalarTensor argument; it must stay the same object. On a GPU torch's kernels do all; what is made up for
  // here are those of the CPU.
  Operation(const ir::Node& node, const std::function<at::Tensor(const ir::Arg&)>& tensor, const ir::Graph& graph,
            const Target& target);

  Mode mode() const { return mode_; }
  bool makes_results() const { return mode_ == Mode::kFunctional; }

  // The symbols' values are new: makes the arguments that come from them again.
  void update(const int64_t* symbols);

  // Calls the kernel. The results are on the stack after it (kFunctional), or of no interest. If it throws, an op in
  // place has written nothing.
  void call(c10::Stack& stack);

  // Of the functional overload; the numbers are those of the last update.
  std::span<const c10::IValue> arguments() const { return arguments_; }

  // Another tensor for an argument that is one.
  void set_tensor(size_t argument, at::Tensor tensor) { arguments_[argument] = std::move(tensor); }

  // kOut: calls the functional overload instead, this once. Its results are on the stack after it.
  void call_functional(c10::Stack& stack);
  // The out variant is not fit for the results' memory as it is: call the functional overload from now on.
  void stop_using_out();

  const c10::FunctionSchema& schema() const { return functional_.schema(); }

 private:
  struct Number {  // an argument that comes from symbols
    uint32_t argument;
    const ir::Arg* source;
    std::vector<ir::Sym> symbols;
    std::vector<int64_t> values;  // of the last update
  };

  void call(const c10::OperatorHandle& op, c10::Stack& stack);
  void call_on_copy(c10::Stack& stack);
  void call_kernel(const c10::OperatorHandle& op, c10::Stack& stack);
  void add_argument(const ir::Arg& arg, const c10::Argument& argument,
                    const std::function<at::Tensor(const ir::Arg&)>& tensor);

  c10::IValue absent(const c10::Argument& argument) const;

  const Target target_;
  c10::OperatorHandle functional_;
  c10::OperatorHandle op_;  // what is called: functional_ or its out variant
  Mode mode_;
  Special special_ = nullptr;
  Hazard hazard_ = Hazard::kNone;
  Guard guard_;
  std::optional<Casts> casts_;
  bool has_kernel_ = false;     // torch has one for the target
  bool random_ = false;         // seeds before each call
  bool own_generator_ = false;  // the op has a Generator argument; else the default one is seeded
  bool updated_ = false;
  uint64_t seed_ = 0, offset_ = 0;
  ir::Sym seed_symbol_ = ir::kNoSym;
  at::Generator generator_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> results_;  // kOut: after the arguments; kSpecial: see SpecialCall
  std::vector<Number> numbers_;
  std::vector<uint32_t> copied_;  // arguments that kernels may write to: lists of optional tensors, given as they are
};

}  // namespace torch_remote::worker::aten

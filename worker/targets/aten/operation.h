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

// A prepared node: the kernel to call, and its arguments as IValues. The arguments are created once and change only
// when the symbols that they depend on change.
namespace torch_remote::worker::aten {

class Operation {
 public:
  enum class Mode : uint8_t {
    kOut,         // the op has an out variant, which writes the results' memory
    kEffect,      // the op has no new results: it works in place, or has `out=` arguments
    kFunctional,  // the op allocates its results
    kSpecial,     // this runner's own function (special.h) computes the op into the results' memory
  };

  // Resolves the op and checks the node's arguments against its schema; throws if they do not fit, or if the worker
  // does not run the op. The node must outlive this object. `tensor(arg)` returns the tensor of a kView or
  // kScalarTensor argument; for one argument it must always return the same object. On a GPU, torch's kernels execute
  // all ops: the special functions and casts are only for what the CPU's kernels lack.
  Operation(const ir::Node& node, const std::function<at::Tensor(const ir::Arg&)>& tensor, const ir::Graph& graph,
            const Target& target);

  Mode mode() const { return mode_; }
  bool makes_results() const { return mode_ == Mode::kFunctional; }

  // Updates the arguments that depend on symbols. Call this before the first call(), and when the values have changed.
  void update(const int64_t* symbols);

  // Calls the kernel. With kFunctional the results are on the stack afterwards; in other modes ignore the stack. If the
  // call throws on the CPU, an in-place op has written nothing (checks/hazard.h).
  void call(c10::Stack& stack);

  // The arguments of the functional overload, with the numbers of the last update. With kOut, the results' tensors
  // follow them.
  std::span<const c10::IValue> arguments() const { return arguments_; }

  // Replaces an argument that is a tensor.
  void set_tensor(size_t argument, at::Tensor tensor) { arguments_[argument] = std::move(tensor); }

  // For kOut: calls the functional overload once instead. Leaves its results on the stack.
  void call_functional(c10::Stack& stack);
  // For kOut, if the out variant cannot write the results' layout: uses the functional overload from now on. The mode
  // becomes kFunctional.
  void stop_using_out();

  const c10::FunctionSchema& schema() const { return functional_.schema(); }

 private:
  struct Number {  // an argument that depends on symbols
    uint32_t argument;
    const ir::Arg* source;
    std::vector<ir::Sym> symbols;
    std::vector<int64_t> values;  // the symbols' values at the last update
  };

  void call(const c10::OperatorHandle& op, c10::Stack& stack);
  void call_on_copy(c10::Stack& stack);
  void call_kernel(const c10::OperatorHandle& op, c10::Stack& stack);
  void add_argument(const ir::Arg& arg, const c10::Argument& argument,
                    const std::function<at::Tensor(const ir::Arg&)>& tensor);

  // The value of an argument that the node does not give: none, its default, or the target's device.
  c10::IValue absent(const c10::Argument& argument) const;

  const Target target_;
  c10::OperatorHandle functional_;
  c10::OperatorHandle op_;  // the overload that is called: functional_ or its out variant
  Mode mode_;
  Special special_ = nullptr;
  Hazard hazard_ = Hazard::kNone;
  Guard guard_;
  std::optional<Casts> casts_;
  bool has_kernel_ = false;              // torch has a kernel for the target
  bool random_ = false;                  // a generator is seeded before each call
  bool has_generator_argument_ = false;  // the op has a Generator argument; otherwise we seed the default generator
  bool updated_ = false;
  uint64_t seed_ = 0, offset_ = 0;
  ir::Sym seed_symbol_ = ir::kNoSym;
  at::Generator generator_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> results_;  // kOut: they follow the arguments; kSpecial: see SpecialCall
  std::vector<Number> numbers_;
  std::vector<uint32_t> copied_;  // lists of optional tensors: copied for each call, because kernels may modify them
};

}  // namespace torch_remote::worker::aten

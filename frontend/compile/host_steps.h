#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <vector>

#include "ir/graph.h"

namespace torch_remote::frontend {

// An op on the CPU's 0-dim tensors that a call of a compiled graph runs on this side, for a result that is on the CPU.
struct HostStep {
  // An argument that is known only at the call.
  struct Given {
    enum class Kind : uint8_t {
      kInput,  // the index-th input, a 0-dim tensor
      kStep,   // what the index-th step made
      kInt,    // the number `symbol`
      kFloat,
      kBool,
    };
    Kind kind = Kind::kInput;
    uint32_t argument = 0;
    uint32_t index = 0;
    ir::Sym symbol = ir::kNoSym;
  };
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // of its schema; those of `given` are none
  std::vector<Given> given;
};

struct GraphBuilder;

// The step that makes what a host node of the graph stands for, with those that it needs. Raises Refused if there can
// be none.
uint32_t host_step(GraphBuilder& builder, pybind11::handle node);

// What the steps make, in their order. `input`: the index-th input's tensor; `values`: of the graph's host symbols.
std::vector<at::Tensor> run_host_steps(const std::vector<HostStep>& steps,
                                       const std::function<at::Tensor(uint32_t)>& input,
                                       const std::vector<int64_t>& values);

}  // namespace torch_remote::frontend

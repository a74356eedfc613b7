#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <vector>

#include "frontend/compile/compiled_graph_spec.h"

namespace torch_remote::frontend {

struct GraphBuilder;

// The step that makes what a host node of the graph stands for, with those that it needs. Raises Refused if there can
// be none.
uint32_t host_step(GraphBuilder& builder, pybind11::handle node);

// What the steps make, in their order. `input`: the index-th input's tensor; `values`: of the graph's host symbols.
std::vector<at::Tensor> run_host_steps(const std::vector<HostStep>& steps,
                                       const std::function<at::Tensor(uint32_t)>& input,
                                       const std::vector<int64_t>& values);

}  // namespace torch_remote::frontend

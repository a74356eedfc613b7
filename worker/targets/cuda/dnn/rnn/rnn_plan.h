#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/dnn/rnn/rnn_library.h"
#include "worker/targets/cuda/launch/location.h"
#include "worker/targets/cuda/ops/plan/op_plan.h"

// Recurrent layers with cuDNN: which nodes it may execute, and with which call for given sizes and strides. Needs no
// GPU.
namespace torch_remote::worker::cuda {

// Whether cuDNN may support the node's op and dtypes. It is false if the tensors differ in dtype, or if one is dynamic.
bool is_rnn(const ir::Graph& graph, const ir::Node& node);
// Whether it may support nodes of the op.
bool is_rnn_op(ir::Opcode opcode);

// Describes the layer of a node for which is_rnn() is true, with the values of one run. *symbols receives the symbols
// whose values were read. kUnsupported: cuDNN cannot execute the node; the message says why.
Status find_rnn_problem(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, RnnProblem* problem,
                        std::vector<ir::Sym>* symbols);

// How to execute a node: the first `before` steps (copies and fills), the call, the remaining steps. A location that
// the call does not need is kNoLocation.
struct RnnPlan {
  OpPlan steps;
  size_t before = 0;
  bool backward = false;
  Location input, hx, cx, output, hy, cy, weights, workspace, reserve;
  Location grad_output, grad_hy, grad_cy, grad_input, grad_hx, grad_cx, grad_weights;
};

// Makes the plan for one run's values, those for which find_rnn_problem() returned this problem. `space`: that of the
// prepared problem. *symbols receives the symbols whose values were read. The program's buffer for intermediate state
// (ir/rnn.h) is filled with NaNs, as the backward pass does not use it. kUnsupported: that buffer is not contiguous.
Status plan_rnn(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, const RnnProblem& problem,
                const RnnSpace& space, RnnPlan* plan, std::vector<ir::Sym>* symbols);

}  // namespace torch_remote::worker::cuda

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/dnn/rnn_library.h"
#include "worker/targets/cuda/launch/place.h"
#include "worker/targets/cuda/ops/op_plan.h"

// Recurrent layers by cuDNN: which nodes may be, and which call does a node with given sizes and strides. No GPU here.
namespace torch_remote::worker::cuda {

// Whether there is something for the node's op and dtypes.
bool is_rnn(const ir::Graph& graph, const ir::Node& node);
// Whether nodes of the op may be.
bool is_rnn_op(ir::Opcode opcode);

// kUnsupported: the message says why.
Status find_rnn_problem(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, RnnProblem* problem,
                        std::vector<ir::Sym>* symbols);

// What is done for a node: the first `before` steps (moves and fills), the call, the other steps.
struct RnnPlan {
  OpPlan steps;
  size_t before = 0;
  bool backward = false;
  Place input, hx, cx, output, hy, cy, weights, workspace, reserve;
  Place grad_output, grad_hy, grad_cy, grad_input, grad_hx, grad_cx, grad_weights;
};

// The plan for one run's values (as OpPlanner has them), which are those of the problem. What the program has for what
// the forward pass keeps (ir/rnn.h) is filled with NaNs: the gradients are made without it.
Status plan_rnn(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, const RnnProblem& problem,
                const RnnSpace& space, RnnPlan* plan, std::vector<ir::Sym>* symbols);

}  // namespace torch_remote::worker::cuda

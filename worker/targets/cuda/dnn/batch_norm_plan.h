#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/dnn/batch_norm_graph.h"
#include "worker/targets/cuda/launch/place.h"
#include "worker/targets/cuda/ops/op_plan.h"

// Batch norm by cuDNN: which nodes may be, and which call does a node with given sizes and strides. No GPU here.
namespace torch_remote::worker::cuda {

// Whether there is something for the node's op and dtypes: one that trains, or its gradients.
bool is_batch_norm(const ir::Graph& graph, const ir::Node& node);
// Whether nodes of the op may be.
bool is_batch_norm_op(ir::Opcode opcode);

// What is done for a node: the first `before` steps, the call, the other steps.
struct BatchNormPlan {
  OpPlan steps;
  size_t before = 0;
  BatchNormProblem problem;
  float epsilon = 0, momentum = 0;
  Place input, output, scale, bias, mean, deviation;
  Place mean_before, variance_before, mean_after, variance_after;
  Place grad, grad_input, grad_scale, grad_bias;
};

// The plan for one run's values (as OpPlanner has them). kUnsupported: the message says why; so are images that do not
// lie channels last, which cuDNN would turn round first: compiled kernels read them as they are. `symbols` are all that
// the op has then, too.
Status plan_batch_norm(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, BatchNormPlan* plan,
                       std::vector<ir::Sym>* symbols);

}  // namespace torch_remote::worker::cuda

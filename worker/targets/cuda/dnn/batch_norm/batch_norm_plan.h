#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/dnn/batch_norm/batch_norm_graph.h"
#include "worker/targets/cuda/launch/location.h"
#include "worker/targets/cuda/ops/plan/op_plan.h"

// Batch norm with cuDNN: which nodes it may execute, and with which call for given sizes and strides. Needs no GPU.
namespace torch_remote::worker::cuda {

// Whether cuDNN may support the node's op and dtypes: batch norm in training mode, or its gradients.
bool is_batch_norm(const ir::Graph& graph, const ir::Node& node);
// Whether it may support nodes of the op.
bool is_batch_norm_op(ir::Opcode opcode);

// How to execute a node: the first `before` steps, the call, the remaining steps.
struct BatchNormPlan {
  OpPlan steps;
  size_t before = 0;
  BatchNormProblem problem;
  float epsilon = 0, momentum = 0;
  Location input, output, scale, bias, mean, inverse_std;
  Location mean_before, variance_before, mean_after, variance_after;
  Location grad, grad_input, grad_scale, grad_bias;
};

// Makes the plan for one run's values (as OpNode has them). kUnsupported: the message says why. Images that are not
// channels last are unsupported: cuDNN would transpose them first, while compiled kernels read them in place. Even
// then, `symbols` has everything that the op depends on.
Status plan_batch_norm(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, BatchNormPlan* plan,
                       std::vector<ir::Sym>* symbols);

}  // namespace torch_remote::worker::cuda

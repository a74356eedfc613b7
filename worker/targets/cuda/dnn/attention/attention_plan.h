#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/dnn/attention/attention_graph.h"
#include "worker/targets/cuda/launch/location.h"
#include "worker/targets/cuda/ops/plan/op_plan.h"

// Attention with cuDNN: which nodes it may execute, and with which call for given sizes and strides. Needs no GPU.
namespace torch_remote::worker::cuda {

bool is_attention_op(ir::Opcode opcode);
// Whether cuDNN may support the node's op and dtypes.
bool is_attention(const ir::Graph& graph, const ir::Node& node);

// How to execute a node: the first `before` steps, the call, the remaining steps.
struct AttentionPlan {
  OpPlan steps;
  size_t before = 0;
  AttentionProblem problem;
  float scale = 1;
  Location query, key, value, out, logsumexp, bias;
  Location grad, grad_query, grad_key, grad_value;
};

// Fewer queries are a decoder's step. A hand-written kernel that splits the keys is used for it.
inline constexpr int64_t kMinQueries = 8;

// Makes the plan for one run's values (as OpNode has them). kUnsupported: the message says why; even then, `symbols`
// has everything that the op depends on.
Status plan_attention(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, AttentionPlan* plan,
                      std::vector<ir::Sym>* symbols);

}  // namespace torch_remote::worker::cuda

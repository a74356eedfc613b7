#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/dnn/attention_graph.h"
#include "worker/targets/cuda/launch/place.h"
#include "worker/targets/cuda/ops/op_plan.h"

// Attention by cuDNN: which nodes may be, and which call does a node with given sizes and strides. No GPU here.
namespace torch_remote::worker::cuda {

bool is_attention_op(ir::Opcode opcode);
// Whether there is something for the node's op and dtypes.
bool is_attention(const ir::Graph& graph, const ir::Node& node);

// What is done for a node: the first `before` steps, the call, the other steps.
struct AttentionPlan {
  OpPlan steps;
  size_t before = 0;
  AttentionProblem problem;
  float scale = 1;
  Place query, key, value, out, logsumexp, bias;
  Place grad, grad_query, grad_key, grad_value;
};

// Fewer queries are a decoder's step, for which there is a kernel of our own that cuts the keys into pieces.
inline constexpr int64_t kFewestQueries = 8;

// The plan for one run's values (as OpPlanner has them). kUnsupported: the message says why; `symbols` are all that the
// op has then, too.
Status plan_attention(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, AttentionPlan* plan,
                      std::vector<ir::Sym>* symbols);

}  // namespace torch_remote::worker::cuda

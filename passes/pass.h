#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "ir/graph.h"

// Optimisations over ir::Graph. One pass a file; the pipeline lists them in order. A pass is idempotent, keeps the
// graph's meaning (every surviving buffer and every written input gets the same bytes), and never looks at a
// parameter's value: a graph serves all sizes.
namespace torch_remote::passes {

struct Pass {
  std::string_view name;
  std::string_view summary;  // one sentence
  Status (*run)(ir::Graph& graph);
};

// All passes, in pipeline order: lift, canonicalize, cse, dce, plan. (`emit` is ir::encode_program.)
std::span<const Pass> pipeline();
const Pass* find_pass(std::string_view name);

struct PipelineOptions {
  std::span<const Pass> passes = pipeline();
  bool verify = false;  // after each pass (tests, TORCH_REMOTE_VERIFY=1)
  // Called with the graph before the first and after each pass ("input", "lift", ...): TORCH_REMOTE_DUMP, remote-opt.
  std::function<void(std::string_view name, const ir::Graph& graph)> observe = {};
};

Status run_pipeline(ir::Graph& graph, const PipelineOptions& options = {});

Status lift(ir::Graph& graph);
Status canonicalize(ir::Graph& graph);
Status cse(ir::Graph& graph);
Status dce(ir::Graph& graph);
Status plan(ir::Graph& graph);

}  // namespace torch_remote::passes

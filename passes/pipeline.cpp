#include <string>

#include "passes/pass.h"

namespace torch_remote::passes {
namespace {

constexpr Pass kPipeline[] = {
    {"lift",
     "Finds buffers that hold one value for good, and turns in-place ops on fresh buffers into functional ones.", lift},
    {"canonicalize",
     "Says sizes and strides by those of the operands, drops ops that change nothing, merges equal views.",
     canonicalize},
    {"cse", "Merges equal pure ops on equal values.", cse},
    {"dce", "Removes ops whose results nobody can see, and what nothing names.", dce},
    {"plan", "Lifetimes of the buffers, and which one may take over the memory of which.", plan},
};

}  // namespace

std::span<const Pass> pipeline() { return kPipeline; }

const Pass* find_pass(std::string_view name) {
  for (const Pass& pass : kPipeline) {
    if (pass.name == name) return &pass;
  }
  return nullptr;
}

Status run_pipeline(ir::Graph& graph, const PipelineOptions& options) {
  if (options.observe) options.observe("input", graph);
  for (const Pass& pass : options.passes) {
    if (Status status = pass.run(graph); !status) return status;
    if (options.observe) options.observe(pass.name, graph);
    if (!options.verify) continue;
    if (Status status = ir::verify(graph); !status) {
      return Status::internal("remote: pass '" + std::string(pass.name) + "' broke the graph: " + status.message());
    }
  }
  return {};
}

}  // namespace torch_remote::passes

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "ir/capabilities.h"
#include "ir/graph.h"

// Optimizations over ir::Graph, one pass per file; the pipeline lists them in order. A pass is idempotent. It keeps the
// graph's meaning for all parameters, because one graph serves all sizes. Every surviving buffer and every written
// input gets the same bytes. Only passes with Pass::bits_depend_on_other_ops may change how results are rounded.
namespace torch_remote::passes {

// The input of passes in addition to the graph: the worker that the graph is for, and the user's choices.
struct PassContext {
  ir::Capabilities worker;  // the default is a worker that executes ops one by one
  bool fusion = true;       // TORCH_REMOTE_FUSION
  // On a CPU the bits of an op must depend on its operands alone. Passes that let other ops affect them are skipped.
  bool deterministic = false;
  // Values of options, like "fuse.limit". The value 0 switches a pass off ("cse").
  std::map<std::string, int64_t, std::less<>> options;
  // The parameters of the run in which the graph was recorded. Passes may use them to estimate what is faster, but not
  // to decide what is correct. Empty if they are unknown.
  std::span<const int64_t> sample;

  // The value of an option that the pipeline lists: the user's, or the default.
  int64_t option(std::string_view name) const;
  bool wants(std::string_view pass) const;
};

struct PassOption {
  std::string_view name;     // without the pass's name: "limit"
  std::string_view summary;  // a phrase
  int64_t default_value;     // the default
};

struct Pass {
  std::string_view name;
  std::string_view summary;  // one sentence
  Status (*run)(ir::Graph& graph, const PassContext& context);
  std::span<const PassOption> options = {};
  // With this pass, the bits of an op may depend on the graph's other ops. Where traces are cut depends on threads,
  // waits and earlier records, so these can then change bits, too.
  bool bits_depend_on_other_ops = false;
};

// All passes, in pipeline order: lift, canonicalize, cse, accumulate, dce, layout, fuse, plan. (`emit` is
// ir::encode_program.)
std::span<const Pass> pipeline();
const Pass* find_pass(std::string_view name);

// Reads "cse=0,fuse.limit=3" into context.options: a pass that is switched off, and an option of a pass. An error lists
// all options. TORCH_REMOTE_PASSES and remote-opt --options have this format.
Status parse_options(std::string_view text, PassContext* context);

struct PipelineOptions {
  std::span<const Pass> passes = pipeline();
  bool verify = false;  // after each pass (tests, TORCH_REMOTE_VERIFY=1)
  PassContext context = {};
  // Called with the graph before the first and after each pass ("input", "lift", ...): TORCH_REMOTE_DUMP, remote-opt.
  std::function<void(std::string_view name, const ir::Graph& graph)> observe = {};
};

Status run_pipeline(ir::Graph& graph, const PipelineOptions& options = {});

Status lift(ir::Graph& graph, const PassContext& context = {});
Status canonicalize(ir::Graph& graph, const PassContext& context = {});
Status cse(ir::Graph& graph, const PassContext& context = {});
Status accumulate(ir::Graph& graph, const PassContext& context = {});
Status dce(ir::Graph& graph, const PassContext& context = {});
Status layout(ir::Graph& graph, const PassContext& context = {});
Status fuse(ir::Graph& graph, const PassContext& context = {});
Status plan(ir::Graph& graph, const PassContext& context = {});

}  // namespace torch_remote::passes

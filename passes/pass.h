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
  // If set, and the worker computes on a CPU, the bits of an op's results must depend on its operands alone. Passes
  // with bits_depend_on_other_ops are then skipped.
  bool deterministic = false;
  // The user's options, see parse_options(). "fuse.limit": the value of that option of the pass `fuse`. "cse": 0
  // switches this pass off.
  std::map<std::string, int64_t, std::less<>> options;
  // The parameters of the run in which the graph was recorded. Passes may use them to estimate what is faster, but not
  // to decide what is correct. Empty if they are unknown.
  std::span<const int64_t> sample;

  // The value of an option like "fuse.limit": the user's, or the default. A pass of the pipeline must list the option.
  int64_t option(std::string_view name) const;
  // Whether the pass is to run.
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
  // With this pass, the bits of an op's results may depend on the graph's other ops. A graph has the ops of one trace,
  // and a trace's end depends on threads, waits and earlier records. So threads, waits and earlier records may change
  // bits, too.
  bool bits_depend_on_other_ops = false;
};

// All passes, in pipeline order: lift, canonicalize, cse, accumulate, dce, layout, fuse, plan. (`emit` is
// ir::encode_program.)
std::span<const Pass> pipeline();
const Pass* find_pass(std::string_view name);

// Adds a list like "cse=0,fuse.limit=3" to context->options. The first item switches a pass off, and the second one
// sets an option of a pass. TORCH_REMOTE_PASSES and remote-opt --options have this format. Returns kInvalid for an item
// that is wrong; the message lists all options.
Status parse_options(std::string_view text, PassContext* context);

struct PipelineOptions {
  std::span<const Pass> passes = pipeline();
  bool verify = false;  // verify the graph after each pass (tests, TORCH_REMOTE_VERIFY=1)
  PassContext context = {};
  // Called with the graph before the first and after each pass ("input", "lift", ...): TORCH_REMOTE_DUMP, remote-opt.
  std::function<void(std::string_view name, const ir::Graph& graph)> observe = {};
};

// Runs the passes that the context wants. Stops at the first error of a pass. Returns kInternal if the verifier refuses
// the graph that a pass made.
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

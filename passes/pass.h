#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "ir/capabilities.h"
#include "ir/graph.h"

// Optimisations over ir::Graph. One pass a file; the pipeline lists them in order. A pass is idempotent, keeps the
// graph's meaning (every surviving buffer and every written input gets the same bytes) whatever the parameters are: a
// graph serves all sizes.
namespace torch_remote::passes {

// What passes get beside the graph: whom it is for, and what the user wants.
struct PassContext {
  ir::Capabilities worker;  // as it is, one that runs ops one by one
  bool fusion = true;       // TORCH_REMOTE_FUSION
  // On a CPU the bits of an op must depend on its operands alone: passes that let neighbours change them are left out.
  bool deterministic = false;
  // Values of options, as "fuse.limit", and 0 for passes that are switched off ("cse").
  std::map<std::string, int64_t, std::less<>> options;
  // The parameters of a run of the graph, the one that it was recorded in: passes may guess by them what is worth
  // doing, never what is right. Empty: nobody knows one.
  std::span<const int64_t> sample;

  // What kernels are made for; empty: nothing.
  std::string_view target() const { return worker.targets.empty() ? std::string_view() : worker.targets[0]; }
  // Of a name that the pipeline lists: what is wanted, or else what it is by itself.
  int64_t option(std::string_view name) const;
  bool wants(std::string_view pass) const;
};

struct PassOption {
  std::string_view name;     // without the pass's: "limit"
  std::string_view summary;  // a phrase
  int64_t otherwise;         // if it is not given
};

struct Pass {
  std::string_view name;
  std::string_view summary;  // one sentence
  Status (*run)(ir::Graph& graph, const PassContext& context);
  std::span<const PassOption> options = {};
  // The bits of an op may depend on which other ops the graph has. (Graphs are cut where threads, waits and what came
  // before say so.)
  bool mixes_ops = false;
};

// All passes, in pipeline order: lift, canonicalize, cse, accumulate, dce, layout, fuse, plan. (`emit` is
// ir::encode_program.)
std::span<const Pass> pipeline();
const Pass* find_pass(std::string_view name);

// Reads "cse=0,fuse.limit=3" (a pass switched off; an option of a pass) into context.options. An error lists what
// there is. This is what TORCH_REMOTE_PASSES and remote-opt --options say.
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

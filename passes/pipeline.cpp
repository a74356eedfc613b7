#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

#include "passes/pass.h"

namespace torch_remote::passes {
namespace {

constexpr PassOption kFuseOptions[] = {
    {"limit", "maximum number of groups, to find a wrong one", std::numeric_limits<int64_t>::max()},
    {"nodes", "maximum number of nodes in a group", 64},
    {"joined", "maximum number of nodes in a group that joins tensors", 12},
};

constexpr Pass kPipeline[] = {
    {"lift", "Finds buffers that never change their value, and makes in-place ops on fresh buffers functional.", lift},
    {"canonicalize",
     "Expresses sizes and strides by those of the operands, removes ops without effect, merges equal views.",
     canonicalize},
    {"cse", "Merges equal pure ops on equal values.", cse},
    {"accumulate",
     "Makes sums of slice gradients add each slice at its position.",
     accumulate,
     {},
     /*bits_depend_on_other_ops=*/true},
    {"dce", "Removes ops with unused results, and unused views, buffers and symbols.", dce},
    {"layout",
     "Stores images between convolutions in channels-last order where that is faster and not observable.",
     layout,
     {},
     /*bits_depend_on_other_ops=*/true},
    {"fuse", "Groups nodes that the worker may compute with one kernel, and moves them next to each other.", fuse,
     kFuseOptions, /*bits_depend_on_other_ops=*/true},
    {"plan", "Computes the lifetimes of buffers, and which buffer may reuse the memory of which.", plan},
};

}  // namespace

std::span<const Pass> pipeline() { return kPipeline; }

const Pass* find_pass(std::string_view name) {
  for (const Pass& pass : kPipeline) {
    if (pass.name == name) return &pass;
  }
  return nullptr;
}

int64_t PassContext::option(std::string_view name) const {
  if (const auto found = options.find(name); found != options.end()) return found->second;
  const size_t dot = name.find('.');
  const std::span<const PassOption> listed = find_pass(name.substr(0, dot))->options;
  return std::ranges::find(listed, name.substr(dot + 1), &PassOption::name)->default_value;
}

bool PassContext::wants(std::string_view pass) const {
  if (deterministic && !worker.compiles_for_gpu()) {
    if (const Pass* known = find_pass(pass); known != nullptr && known->bits_depend_on_other_ops) return false;
  }
  const auto found = options.find(pass);
  return found == options.end() || found->second != 0;
}

Status parse_options(std::string_view text, PassContext* context) {
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (item.empty()) continue;
    const size_t equals = item.find('='), dot = item.find('.');
    const std::string_view name = item.substr(0, equals);
    const Pass* pass = find_pass(name.substr(0, dot));
    const auto names = [&](const PassOption& option) { return option.name == name.substr(dot + 1); };
    int64_t value = 0;
    bool good = pass != nullptr && equals != item.npos;
    if (good && dot < equals) {
      good = std::ranges::any_of(pass->options, names);
    }
    if (good) {
      const std::string_view number = item.substr(equals + 1);
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
      good = error == std::errc() && end == number.data() + number.size() && (dot < equals || value == 0 || value == 1);
    }
    if (!good) {
      std::string message = "'" + std::string(item) + "' is not an option of a pass; there are:";
      for (const Pass& known : kPipeline) {
        message.append(" ").append(known.name).append("=0");
        for (const PassOption& option : known.options) {
          message.append(" ").append(known.name).append(".").append(option.name).append("=number");
        }
      }
      return Status::invalid(message);
    }
    context->options.insert_or_assign(std::string(name), value);
  }
  return {};
}

Status run_pipeline(ir::Graph& graph, const PipelineOptions& options) {
  if (options.observe) options.observe("input", graph);
  for (const Pass& pass : options.passes) {
    if (!options.context.wants(pass.name)) continue;
    if (Status status = pass.run(graph, options.context); !status) return status;
    if (options.observe) options.observe(pass.name, graph);
    if (!options.verify) continue;
    if (Status status = ir::verify(graph); !status) {
      return Status::internal("remote: pass '" + std::string(pass.name) + "' broke the graph: " + status.message());
    }
  }
  return {};
}

}  // namespace torch_remote::passes

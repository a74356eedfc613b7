#include "worker/targets/reference/node_program.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "worker/device/monotonic_clock.h"
#include "worker/device/no_memory.h"

namespace torch_remote::worker::reference {

NodeProgram::NodeProgram(Device& device, const ir::Graph& graph, std::vector<std::unique_ptr<NodePlan>> plans)
    : device_(device), graph_(graph), ungrouped_graph_(graph) {
  // A node that is executed alone writes what its group would not.
  for (ir::Buffer& buffer : ungrouped_graph_.buffers) buffer.group_local = false;
  ungrouped_graph_.groups.clear();
  for (std::unique_ptr<NodePlan>& plan : plans) nodes_.push_back({std::move(plan), {}, {}});
}

const Status& NodeProgram::bind(uint32_t node, std::span<const int64_t> values) {
  Node& its = nodes_[node];
  if (!its.bound.has_value() || !std::ranges::equal(its.values, values)) {
    its.values.assign(values.begin(), values.end());
    its.bound = its.plan->bind(ungrouped_graph_, node, values);
  }
  return *its.bound;
}

bool NodeProgram::takes_node(uint32_t node, std::span<const int64_t> values, bool) {
  return nodes_[node].plan != nullptr && bind(node, values).code() != ErrorCode::kUnsupported;
}

std::string NodeProgram::why_not(uint32_t node) const {
  const std::optional<Status>& bound = nodes_[node].bound;
  return bound.has_value() ? bound->message() : "";
}

Status NodeProgram::allocate(tr_run& run, uint32_t node) {
  Status status;
  ir::for_each_view(graph_.nodes[node], [&](uint32_t view, bool) {
    const uint32_t buffer = graph_.views[view].buffer;
    if (!status.ok() || run.buffers[buffer].data != nullptr || graph_.buffers[buffer].kind != ir::BufferKind::kFresh) {
      return;
    }
    const auto nbytes = static_cast<uint64_t>(run.symbols[graph_.buffers[buffer].nbytes]);
    if (!device_.memory().allocate(nbytes, &run.buffers[buffer])) status = no_memory_for("a result", nbytes);
  });
  return status;
}

bool NodeProgram::run(tr_run& run, tr_error* error) {
  const std::span<const int64_t> values(run.symbols, graph_.symbols());
  run.result_word_count = 0;
  for (uint32_t n = run.first; n < run.last; ++n) {
    if (run.times != nullptr) run.times[n - run.first] = monotonic_ns();
    Status status = bind(n, values);
    if (status.ok()) status = allocate(run, n);
    if (status.ok()) status = nodes_[n].plan->run({run.buffers, run.buffer_count}, values);
    if (status.ok()) continue;
    error->node = n;
    std::snprintf(error->exception_type, sizeof(error->exception_type), "%s", status.exception_type().c_str());
    std::snprintf(error->message, sizeof(error->message), "%s", status.message().c_str());
    return false;
  }
  if (run.times != nullptr) run.times[run.last - run.first] = monotonic_ns();
  return true;
}

}  // namespace torch_remote::worker::reference

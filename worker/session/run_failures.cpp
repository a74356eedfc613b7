#include "worker/session/run_failures.h"

namespace torch_remote::worker {

void RunFailures::store_failures(uint32_t buffer, Buffers::Entry& entry) const {
  if (FailurePtr poison = poison_of(buffer)) {
    entry.failure = std::move(poison);
  } else if (!missing_updates_.empty()) {
    entry.failure = missing_updates_[buffer];
  }
  if (!failed_checks_.empty()) entry.check = failed_checks_[buffer];
}

void RunFailures::set_poison(uint32_t buffer, const FailurePtr& failure) {
  if (poison_.empty()) poison_.resize(program_.graph.buffers.size());
  if (!poison_[buffer]) poison_[buffer] = failure;
}

void RunFailures::add(ByBuffer& failures, uint32_t buffer, const FailurePtr& failure) {
  if (failures.empty()) failures.resize(program_.graph.buffers.size());
  failures[buffer] = earlier(failures[buffer], failure);
}

void RunFailures::repair(uint32_t buffer) {
  if (!poison_.empty()) poison_[buffer] = nullptr;
  if (!missing_updates_.empty()) missing_updates_[buffer] = nullptr;
}

FailurePtr RunFailures::blocked(uint32_t node) const {
  if (empty()) return nullptr;
  const ir::Graph& graph = program_.graph;
  FailurePtr first;
  ir::for_each_access(graph.nodes[node], [&](uint32_t view, ir::Access) {
    const uint32_t b = graph.views[view].buffer;
    FailurePtr failure = poison_of(b);
    if (!failure && is_unreported(missing_update_of(b))) failure = missing_updates_[b];
    if (!failure || (first && first->number <= failure->number) || overwrites_whole_buffer(node, b)) return;
    first = failure;
  });
  return first;
}

// Whether the node overwrites all of the buffer and reads nothing of it.
bool RunFailures::overwrites_whole_buffer(uint32_t node, uint32_t buffer) const {
  return overwrites_all(program_.graph, program_.values, program_.nbytes[buffer], node, buffer);
}

void RunFailures::pass_on_checks(uint32_t first, uint32_t last) {
  const ir::Graph& graph = program_.graph;
  if (failed_checks_.empty()) failed_checks_.resize(graph.buffers.size());
  for (uint32_t n = first; n < last; ++n) {
    FailurePtr check = check_;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      if (access == ir::Access::kReads || access == ir::Access::kUpdates) {
        check = earlier(check, failed_checks_[graph.views[view].buffer]);
      }
    });
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads) return;
      if (access == ir::Access::kCreates || overwrites_whole_buffer(n, b)) {
        failed_checks_[b] = check;
      } else {
        failed_checks_[b] = earlier(failed_checks_[b], check);
      }
    });
    if (n + 1 == graph.nodes.size() && is_unreported(check)) of_last_node_ = check;
  }
}

// Another result of the node that computed the check's operand may be invalid, too: for example a factorization, where
// the check reads the `info` output. Such results, and everything computed from them since, count as written after the
// check.
void RunFailures::check_failed(uint32_t node, const FailurePtr& failure) {
  if (!check_) check_ = failure;
  const ir::Graph& graph = program_.graph;
  std::vector<bool> looked_at(graph.buffers.size()), doubtful(graph.buffers.size());
  ir::for_each_access(graph.nodes[node],
                      [&](uint32_t view, ir::Access) { looked_at[graph.views[view].buffer] = true; });
  for (uint32_t n = 0; n < node; ++n) {
    bool doubt = false;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      doubt = doubt || doubtful[b] || (access == ir::Access::kCreates && looked_at[b]);
    });
    if (!doubt) continue;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads || looked_at[b]) return;
      doubtful[b] = true;
      add_failed_check(b, failure);
    });
  }
}

}  // namespace torch_remote::worker

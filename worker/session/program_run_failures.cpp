#include <algorithm>
#include <utility>

#include "worker/device/no_memory.h"
#include "worker/session/program_run.h"

// Handles nodes of a run that fail or cannot run.
namespace torch_remote::worker {
namespace {

bool creates(const LoadedProgram& program, uint32_t node, uint32_t buffer) {
  return program.graph.buffers[buffer].kind == ir::BufferKind::kFresh && program.lifetimes[buffer].first == node;
}

}  // namespace

FailurePtr ProgramRun::add_failure(Status why, uint32_t record) {
  return context_.failures.add({std::move(why), program_.number, record, request_.sequence});
}

// Runs a node. The buffers that it overwrites become valid if it succeeds.
void ProgramRun::call_and_repair(uint32_t index) {
  const ir::Graph& graph = program_.graph;
  const ir::Node& node = graph.nodes[index];
  bool memory = true;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    const uint32_t b = graph.views[view].buffer;
    if (!memory || !failures_.poison_of(b) || memory_.allocate(b)) return;
    memory = false;
    skip(index, add_failure(no_memory_for({}, program_.nbytes[b]), node.record));
  });
  if (!memory) return;
  if (const uint64_t failure = context_.failures.last_unreported()) save_older_contents(index, failure);
  if (!call(index, index + 1, /*alone=*/true)) return;
  ir::for_each_view(node, [&](uint32_t view, bool) { failures_.repair(graph.views[view].buffer); });
}

// The node is about to write, after this failure: copies the contents that it replaces, for skip_update().
void ProgramRun::save_older_contents(uint32_t index, uint64_t failure) {
  const ir::Graph& graph = program_.graph;
  const ir::Node& node = graph.nodes[index];
  if (older_contents_.empty()) older_contents_.resize(memory_.size());
  const auto save = [&](uint32_t older, uint32_t newer) {
    const void* const data = failures_.poison_of(older) ? nullptr : memory_[older].data;
    context_.older_contents.save(older_contents_[newer], data, program_.nbytes[older], failure,
                                 failures_.missing_update_of(older));
  };
  if (node.in_place) {
    const uint32_t from = graph.views[node.args[0].a].buffer, to = graph.views[node.results[0].a].buffer;
    if (!program_.outlives[to]) return;
    older_contents_[to] = std::move(older_contents_[from]);
    return save(from, to);
  }
  ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
    const uint32_t b = graph.views[view].buffer;
    const bool writes = access == ir::Access::kUpdates || access == ir::Access::kOverwrites;
    if (writes && !creates(program_, index, b) && program_.outlives[b]) save(b, b);
  });
}

// Skips the node. Buffers that it would have created are poisoned; those that it would have written keep their
// contents.
void ProgramRun::skip(uint32_t index, const FailurePtr& failure) {
  const ir::Graph& graph = program_.graph;
  const ir::Node& node = graph.nodes[index];
  notify_skipped(index, failure);
  if (index + 1 == graph.nodes.size()) failures_.set_of_last_node(failure);
  if (node.in_place) return copy_older_value(index, failure);
  ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
    const uint32_t b = graph.views[view].buffer;
    if (access == ir::Access::kReads || failures_.poison_of(b)) return;
    if (creates(program_, index, b)) {
      failures_.set_poison(b, failure);
    } else {
      skip_update(b, failure);
    }
  });
}

// An update of the buffer is skipped: restores the contents that the buffer had when the failure happened.
void ProgramRun::skip_update(uint32_t buffer, const FailurePtr& failure) {
  if (!older_contents_.empty()) {
    failures_.add_missing_update(
        buffer, context_.older_contents.restore(older_contents_[buffer], memory_[buffer].data, failure));
  }
  failures_.add_missing_update(buffer, failure);
  ++failure->skipped_updates;
}

// Copies the older value's bytes to the buffer that holds the newer one.
void ProgramRun::copy_older_value(uint32_t index, const FailurePtr& failure) {
  const ir::Graph& graph = program_.graph;
  const ir::Node& node = graph.nodes[index];
  const uint32_t from = graph.views[node.args[0].a].buffer, to = graph.views[node.results[0].a].buffer;
  if (const FailurePtr poison = failures_.poison_of(from)) return failures_.set_poison(to, poison);
  if (!memory_.allocate(to)) {
    return failures_.set_poison(to, add_failure(no_memory_for({}, program_.nbytes[to]), node.record));
  }
  if (memory_[to].data != memory_[from].data) {
    context_.device.copy(memory_[to].data, memory_[from].data, std::min(program_.nbytes[to], program_.nbytes[from]));
  }
  failures_.add_failed_check(to, failures_.failed_check_of(from));
  failures_.add_missing_update(to, failures_.missing_update_of(from));
  if (!older_contents_.empty()) older_contents_[to] = std::move(older_contents_[from]);
  skip_update(to, failure);
}

// Informs the background runner that the node does not run: another process may wait for it.
void ProgramRun::notify_skipped(uint32_t index, const FailurePtr& failure) const {
  if (context_.background_runner == kNoRunner) return;
  Runner& runner = *context_.runners[context_.background_runner];
  if (runner.accepts(program_.graph, index)) {
    runner.skip_node(program_.graph, index, program_.values.data(), failure->status);
  }
}

// None of the run's nodes ran: the buffers that they would have created are poisoned, and those that they would have
// written lack the update.
void ProgramRun::fail_all(const FailurePtr& failure) {
  const ir::Graph& graph = program_.graph;
  const bool sized = program_.evaluated || ir::evaluate(graph, program_.params.data(), &program_.values).ok();
  program_.nbytes.assign(graph.buffers.size(), kUnknownSize);
  for (uint32_t b = 0; sized && b < graph.buffers.size(); ++b) {
    const int64_t size = graph.buffers[b].nbytes == ir::kNoSym ? -1 : program_.values[graph.buffers[b].nbytes];
    if (size >= 0) program_.nbytes[b] = static_cast<uint64_t>(size);
  }
  program_.placed = false;
  for (const uint32_t b : program_.survivors) failures_.set_poison(b, failure);
  for (uint32_t n = 0; sized && n < graph.nodes.size(); ++n) notify_skipped(n, failure);
  for (const ir::Node& node : graph.nodes) {
    ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads || graph.buffers[b].kind != ir::BufferKind::kInput || failures_.poison_of(b))
        return;
      failures_.add_missing_update(b, failure);
      ++failure->skipped_updates;
    });
  }
  failures_.set_of_last_node(failure);
}

}  // namespace torch_remote::worker

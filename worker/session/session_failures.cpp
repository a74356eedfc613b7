#include <algorithm>
#include <limits>

#include "worker/device/no_memory.h"
#include "worker/session/session_run.h"

namespace torch_remote::worker {
namespace {

constexpr size_t kMaxUnreported = 64;

}  // namespace

Status out_of_memory(uint64_t nbytes) { return no_memory_for({}, nbytes); }

// A failure counts against the limit as long as it is referenced.
FailurePtr Session::make_failure(Failure failure) const {
  const uint64_t bytes = 2 * sizeof(Failure) + failure.status.message().size();
  auto shared = std::make_unique<Failure>(std::move(failure));
  memory_->charge_unchecked(bytes);
  return {shared.release(), [memory = memory_, bytes](Failure* failure) {
            memory->discharge(bytes);
            delete failure;
          }};
}

FailurePtr Session::note(Failure failure) {
  FailurePtr shared = make_failure(std::move(failure));
  shared->number = ++failures_;
  if (unreported_.size() < kMaxUnreported) {
    unreported_.push_back(shared);
  } else {
    ++unlisted_failures_;
  }
  if (shared->check && !is_unreported(check_)) check_ = shared;
  return shared;
}

FailurePtr Session::announce() {
  for (const FailurePtr& failure : unreported_) {
    if (!std::exchange(failure->announced, true)) return failure;
  }
  return nullptr;
}

void Session::mark_reported(const FailurePtr& failure) {
  failure->reported = true;
  std::erase(unreported_, failure);
  if (older_contents_.empty()) return;
  const auto first = std::ranges::find_if(unreported_, [](const FailurePtr& f) { return !f->check; });
  const uint64_t number = first == unreported_.end() ? std::numeric_limits<uint64_t>::max() : (*first)->number;
  for (auto& [id, contents] : older_contents_)
    std::erase_if(contents, [&](const OlderContents& k) { return k.failure < number; });
  std::erase_if(older_contents_, [](const auto& of_buffer) { return of_buffer.second.empty(); });
}

// The number of the last failure that the client does not know and that is not a failed check; 0: none.
uint64_t Session::last_unreported() const {
  for (size_t i = unreported_.size(); i-- > 0;) {
    if (!unreported_[i]->check) return unreported_[i]->number;
  }
  return 0;
}

std::vector<FailurePtr> Session::take_failures(uint64_t* more) {
  *more = std::exchange(unlisted_failures_, 0);
  return std::exchange(unreported_, {});
}

// The failure counts as known: the client asked for it.
FailurePtr Session::cancellation(uint64_t sequence) {
  FailurePtr failure = make_failure(
      {{ErrorCode::kOpFailed, "remote: cancelled by torch.remote.cancel()", "RuntimeError"}, 0, 0, sequence});
  failure->number = ++failures_;
  failure->reported = true;
  return failure;
}

// Returns the first failed check that the client does not know.
FailurePtr Session::pending_check() {
  if (check_ && check_->reported) {
    const auto next = std::ranges::find_if(unreported_, [](const FailurePtr& f) { return f->check; });
    check_ = next != unreported_.end() ? *next : nullptr;
  }
  return check_;
}

FailurePtr Session::no_such_buffer(uint64_t id, uint64_t sequence) const {
  if (undecoded_failure_ && id >= undecoded_base_) return undecoded_failure_;
  return make_failure({Status::invalid("remote: the worker has no buffer " + std::to_string(id)), 0, 0, sequence});
}

// The check at node `index` failed. Another result of the node that computed its operand may be invalid, too: for
// example a factorization, where the check reads the `info` output. Such results, and everything computed from them
// since, count as written after the check.
void Session::mark_results_doubtful(Run& run, uint32_t index, const FailurePtr& failure) {
  const ir::Graph& graph = run.program.graph;
  std::vector<bool> looked_at(graph.buffers.size()), doubtful(graph.buffers.size());
  ir::for_each_access(graph.nodes[index],
                      [&](uint32_t view, ir::Access) { looked_at[graph.views[view].buffer] = true; });
  for (uint32_t n = 0; n < index; ++n) {
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
      run.add_failed_check(b, failure);
    });
  }
}

// Returns the earliest failure that makes an operand of the node unusable; null: the node can run.
FailurePtr Session::blocked(const Run& run, uint32_t index) const {
  if (run.poison.empty() && run.missing_updates.empty()) return nullptr;
  const ir::Graph& graph = run.program.graph;
  FailurePtr first;
  ir::for_each_access(graph.nodes[index], [&](uint32_t view, ir::Access) {
    const uint32_t b = graph.views[view].buffer;
    FailurePtr failure = run.poison_of(b);
    if (!failure && is_unreported(run.missing_update_of(b))) failure = run.missing_updates[b];
    if (!failure || (first && first->number <= failure->number) || overwrites_whole_buffer(run, index, b)) return;
    first = failure;
  });
  return first;
}

// Whether the node overwrites all of the buffer and reads nothing of it.
bool Session::overwrites_whole_buffer(const Run& run, uint32_t index, uint32_t buffer) const {
  return overwrites_all(run.program.graph, run.program.values, nbytes_[buffer], index, buffer);
}

// Allocates memory for a buffer that was poisoned, before a node overwrites it. Returns false if there is none; the
// buffer then stays without memory.
bool Session::give_memory(Run& run, uint32_t buffer) {
  tr_buffer& memory = run.buffers[buffer];
  if (memory.data) return true;
  uint64_t nbytes = nbytes_[buffer];
  if (nbytes == kUnknownSize) nbytes = reach(run.program.graph, run.program.values, buffer);
  if (memory_->allocate(nbytes, &memory)) return true;
  memory = {nullptr, nbytes_[buffer], nullptr, nullptr};
  return false;
}

// Runs a node. The buffers that it overwrites become valid if it succeeds.
void Session::call_and_repair(Run& run, uint32_t index) {
  const ir::Graph& graph = run.program.graph;
  const ir::Node& node = graph.nodes[index];
  bool memory = true;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    const uint32_t b = graph.views[view].buffer;
    if (!memory || !run.poison_of(b) || give_memory(run, b)) return;
    memory = false;
    skip(run, index, note({out_of_memory(nbytes_[b]), run.program.number, node.source, run.request.sequence}));
  });
  if (!memory) return;
  if (const uint64_t failure = last_unreported()) save_older_contents(run, index, failure);
  if (!call(run, index, index + 1, /*alone=*/true)) return;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    const uint32_t b = graph.views[view].buffer;
    if (!run.poison.empty()) run.poison[b] = nullptr;
    if (!run.missing_updates.empty()) run.missing_updates[b] = nullptr;
  });
}

// The node is about to write, after this failure: copies the contents that it replaces, for restore_older_contents().
void Session::save_older_contents(Run& run, uint32_t index, uint64_t failure) {
  const LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  const ir::Node& node = graph.nodes[index];
  const auto save_one = [&](uint32_t older, uint32_t newer) {
    std::vector<OlderContents>& contents = run.older_contents_of(newer);
    if (contents.empty() || contents.back().failure < failure) contents.push_back(copy_of(run, older, failure));
  };
  if (node.in_place) {
    const uint32_t from = graph.views[node.args[0].a].buffer, to = graph.views[node.results[0].a].buffer;
    if (!program.outlives[to]) return;
    run.older_contents_of(to) = std::move(run.older_contents_of(from));
    return save_one(from, to);
  }
  ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
    const uint32_t b = graph.views[view].buffer;
    const bool writes = access == ir::Access::kUpdates || access == ir::Access::kOverwrites;
    const bool creates = graph.buffers[b].kind == ir::BufferKind::kFresh && program.lifetimes[b].first == index;
    if (writes && !creates && program.outlives[b]) save_one(b, b);
  });
}

// Makes a copy only if as much memory as it takes stays free. Otherwise there is no copy, and the update is not undone.
Session::OlderContents Session::copy_of(const Run& run, uint32_t buffer, uint64_t failure) {
  OlderContents contents{failure, nullptr, run.missing_update_of(buffer)};
  const uint64_t nbytes = nbytes_[buffer], used = memory_->stats().allocated.current, limit = memory_->limit();
  tr_buffer copy{};
  if (run.poison_of(buffer) || !run.buffers[buffer].data || used > limit || nbytes > (limit - used) / 2 ||
      !memory_->allocate(nbytes, &copy, Visibility::kPrivate)) {
    return contents;
  }
  device_->copy(copy.data, run.buffers[buffer].data, nbytes);
  contents.memory = std::make_shared<Memory>(copy);
  return contents;
}

// An update is skipped for this failure: restores the contents that the buffer had when the failure happened.
void Session::restore_older_contents(Run& run, uint32_t buffer, const FailurePtr& failure) {
  if (run.older_contents.empty() || !is_unreported(failure)) return;
  std::vector<OlderContents>& contents = run.older_contents[buffer];
  const auto first =
      std::ranges::find_if(contents, [&](const OlderContents& k) { return k.failure >= failure->number; });
  if (first == contents.end()) return;
  if (first->memory) {
    device_->copy(run.buffers[buffer].data, first->memory->data(), first->memory->nbytes());
    run.add_missing_update(buffer, first->missing_update);
  }
  contents.erase(first, contents.end());
}

// Informs the background runner that the node does not run: another process may wait for it.
void Session::notify_skipped(const LoadedProgram& program, uint32_t index, const FailurePtr& failure) const {
  if (background_runner_ == UINT32_MAX) return;
  Runner& runner = *(*runners_)[background_runner_];
  if (runner.accepts(program.graph, index)) {
    runner.skip_node(program.graph, index, program.values.data(), failure->status);
  }
}

// Skips the node. Buffers that it would have created are poisoned; those that it would have written keep their
// contents.
void Session::skip(Run& run, uint32_t index, const FailurePtr& failure) {
  const LoadedProgram& program = run.program;
  const ir::Node& node = program.graph.nodes[index];
  notify_skipped(program, index, failure);
  if (index + 1 == program.graph.nodes.size()) run.failure = failure;
  if (node.in_place) return copy_older_value(run, index, failure);
  ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
    const uint32_t b = program.graph.views[view].buffer;
    if (access == ir::Access::kReads || run.poison_of(b)) return;
    if (program.graph.buffers[b].kind == ir::BufferKind::kFresh && program.lifetimes[b].first == index) {
      run.set_poison(b, failure);
    } else {
      restore_older_contents(run, b, failure);
      run.add_missing_update(b, failure);
      ++failure->skipped;
    }
  });
}

// Copies the older value's bytes to the buffer that holds the newer one.
void Session::copy_older_value(Run& run, uint32_t index, const FailurePtr& failure) {
  const ir::Graph& graph = run.program.graph;
  const ir::Node& node = graph.nodes[index];
  const uint32_t from = graph.views[node.args[0].a].buffer, to = graph.views[node.results[0].a].buffer;
  if (const FailurePtr poison = run.poison_of(from)) return run.set_poison(to, poison);
  if (!give_memory(run, to)) {
    return run.set_poison(to,
                          note({out_of_memory(nbytes_[to]), run.program.number, node.source, run.request.sequence}));
  }
  if (run.buffers[to].data != run.buffers[from].data) {
    device_->copy(run.buffers[to].data, run.buffers[from].data, std::min(nbytes_[to], nbytes_[from]));
  }
  run.add_failed_check(to, run.failed_check_of(from));
  run.add_missing_update(to, run.missing_update_of(from));
  if (!run.older_contents.empty()) run.older_contents[to] = std::move(run.older_contents[from]);
  restore_older_contents(run, to, failure);
  run.add_missing_update(to, failure);
  ++failure->skipped;
}

// Nodes [first, last) ran: what they wrote inherits the failed checks of their operands.
void Session::pass_on(Run& run, uint32_t first, uint32_t last) const {
  const ir::Graph& graph = run.program.graph;
  if (run.failed_checks.empty()) run.failed_checks.resize(run.buffers.size());
  for (uint32_t n = first; n < last; ++n) {
    FailurePtr check = run.check;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      if (access == ir::Access::kReads || access == ir::Access::kUpdates) {
        check = earlier(check, run.failed_checks[graph.views[view].buffer]);
      }
    });
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads) return;
      if (access == ir::Access::kCreates || overwrites_whole_buffer(run, n, b)) {
        run.failed_checks[b] = check;
      } else {
        run.failed_checks[b] = earlier(run.failed_checks[b], check);
      }
    });
    if (n + 1 == graph.nodes.size() && is_unreported(check)) run.failure = check;
  }
}

// None of the run's nodes ran: the buffers that they would have created are poisoned, and those that they would have
// written lack the update.
void Session::fail_all(Run& run, const FailurePtr& failure) {
  LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  const bool sized = program.evaluated || ir::evaluate(graph, program.params.data(), &program.values).ok();
  nbytes_.assign(graph.buffers.size(), kUnknownSize);
  for (uint32_t b = 0; sized && b < graph.buffers.size(); ++b) {
    const int64_t size = graph.buffers[b].nbytes == ir::kNoSym ? -1 : program.values[graph.buffers[b].nbytes];
    if (size >= 0) nbytes_[b] = static_cast<uint64_t>(size);
  }
  program.nbytes = nbytes_;
  program.placed = false;
  for (const uint32_t b : program.survivors) run.set_poison(b, failure);
  for (uint32_t n = 0; sized && n < graph.nodes.size(); ++n) notify_skipped(program, n, failure);
  for (const ir::Node& node : graph.nodes) {
    ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads || graph.buffers[b].kind != ir::BufferKind::kInput || run.poison_of(b)) return;
      run.add_missing_update(b, failure);
      ++failure->skipped;
    });
  }
  run.failure = failure;
}

}  // namespace torch_remote::worker

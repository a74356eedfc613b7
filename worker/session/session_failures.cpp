#include <algorithm>
#include <limits>

#include "worker/device/no_memory.h"
#include "worker/session/session_run.h"

namespace torch_remote::worker {
namespace {

constexpr size_t kMaxUntold = 64;

}  // namespace

Status out_of_memory(uint64_t nbytes) { return no_memory_for({}, nbytes); }

// A failure counts against the limit as long as it is referenced.
FailurePtr Session::make_failure(Failure failure) const {
  const uint64_t bytes = 2 * sizeof(Failure) + failure.status.message().size();
  auto shared = std::make_unique<Failure>(std::move(failure));
  memory_->charge_anyway(bytes);
  return {shared.release(), [memory = memory_, bytes](Failure* failure) {
            memory->discharge(bytes);
            delete failure;
          }};
}

FailurePtr Session::note(Failure failure) {
  FailurePtr shared = make_failure(std::move(failure));
  shared->number = ++failures_;
  if (untold_.size() < kMaxUntold) {
    untold_.push_back(shared);
  } else {
    ++forgotten_;
  }
  if (shared->check && !untold(check_)) check_ = shared;
  return shared;
}

FailurePtr Session::announce() {
  for (const FailurePtr& failure : untold_) {
    if (!std::exchange(failure->announced, true)) return failure;
  }
  return nullptr;
}

void Session::tell(const FailurePtr& failure) {
  failure->told = true;
  std::erase(untold_, failure);
  if (kept_.empty()) return;
  const auto first = std::ranges::find_if(untold_, [](const FailurePtr& f) { return !f->check; });
  const uint64_t number = first == untold_.end() ? std::numeric_limits<uint64_t>::max() : (*first)->number;
  for (auto& [id, kept] : kept_) std::erase_if(kept, [&](const Kept& k) { return k.failure < number; });
  std::erase_if(kept_, [](const auto& of_buffer) { return of_buffer.second.empty(); });
}

// The number of the last failure that the client does not know and that is not a failed check; 0: none.
uint64_t Session::last_untold() const {
  for (size_t i = untold_.size(); i-- > 0;) {
    if (!untold_[i]->check) return untold_[i]->number;
  }
  return 0;
}

std::vector<FailurePtr> Session::take_failures(uint64_t* more) {
  *more = std::exchange(forgotten_, 0);
  return std::exchange(untold_, {});
}

// The failure counts as known: the client asked for it.
FailurePtr Session::cancellation(uint64_t sequence) {
  FailurePtr failure = make_failure(
      {{ErrorCode::kOpFailed, "remote: cancelled by torch.remote.cancel()", "RuntimeError"}, 0, 0, sequence});
  failure->number = ++failures_;
  failure->told = true;
  return failure;
}

// Returns the first failed check that the client does not know.
FailurePtr Session::pending_check() {
  if (check_ && check_->told) {
    const auto next = std::ranges::find_if(untold_, [](const FailurePtr& f) { return f->check; });
    check_ = next != untold_.end() ? *next : nullptr;
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
void Session::doubt_made_with(Run& run, uint32_t index, const FailurePtr& failure) {
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
      run.add_after(b, failure);
    });
  }
}

// Returns the earliest failure that makes an operand of the node unusable; null: the node can run.
FailurePtr Session::blocked(const Run& run, uint32_t index) const {
  if (run.poison.empty() && run.behind.empty()) return nullptr;
  const ir::Graph& graph = run.program.graph;
  FailurePtr first;
  ir::for_each_access(graph.nodes[index], [&](uint32_t view, ir::Access) {
    const uint32_t b = graph.views[view].buffer;
    FailurePtr failure = run.poison_of(b);
    if (!failure && untold(run.behind_of(b))) failure = run.behind[b];
    if (!failure || (first && first->number <= failure->number) || covers(run, index, b)) return;
    first = failure;
  });
  return first;
}

// Whether the node overwrites all of the buffer and reads nothing of it.
bool Session::covers(const Run& run, uint32_t index, uint32_t buffer) const {
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
  if (const uint64_t failure = last_untold()) keep(run, index, failure);
  if (!call(run, index, index + 1, /*alone=*/true)) return;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    const uint32_t b = graph.views[view].buffer;
    if (!run.poison.empty()) run.poison[b] = nullptr;
    if (!run.behind.empty()) run.behind[b] = nullptr;
  });
}

// The node is about to write, after this failure: copies the contents that it replaces, for put_back().
void Session::keep(Run& run, uint32_t index, uint64_t failure) {
  const LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  const ir::Node& node = graph.nodes[index];
  const auto keep_one = [&](uint32_t older, uint32_t newer) {
    std::vector<Kept>& kept = run.kept_of(newer);
    if (kept.empty() || kept.back().failure < failure) kept.push_back(copy_of(run, older, failure));
  };
  if (node.in_place) {
    const uint32_t from = graph.views[node.args[0].a].buffer, to = graph.views[node.results[0].a].buffer;
    if (!program.outlives[to]) return;
    run.kept_of(to) = std::move(run.kept_of(from));
    return keep_one(from, to);
  }
  ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
    const uint32_t b = graph.views[view].buffer;
    const bool writes = access == ir::Access::kUpdates || access == ir::Access::kOverwrites;
    const bool makes = graph.buffers[b].kind == ir::BufferKind::kFresh && program.lifetimes[b].first == index;
    if (writes && !makes && program.outlives[b]) keep_one(b, b);
  });
}

// Makes a copy only if as much memory as it takes stays free. Otherwise there is no copy, and the update is not undone.
Session::Kept Session::copy_of(const Run& run, uint32_t buffer, uint64_t failure) {
  Kept kept{failure, nullptr, run.behind_of(buffer)};
  const uint64_t nbytes = nbytes_[buffer], used = memory_->stats().allocated.current, limit = memory_->limit();
  tr_buffer copy{};
  if (run.poison_of(buffer) || !run.buffers[buffer].data || used > limit || nbytes > (limit - used) / 2 ||
      !memory_->allocate(nbytes, &copy, Reach::kOwn)) {
    return kept;
  }
  device_->copy(copy.data, run.buffers[buffer].data, nbytes);
  kept.memory = std::make_shared<Memory>(copy);
  return kept;
}

// An update is skipped for this failure: restores the contents that the buffer had when the failure happened.
void Session::put_back(Run& run, uint32_t buffer, const FailurePtr& failure) {
  if (run.kept.empty() || !untold(failure)) return;
  std::vector<Kept>& kept = run.kept[buffer];
  const auto first = std::ranges::find_if(kept, [&](const Kept& k) { return k.failure >= failure->number; });
  if (first == kept.end()) return;
  if (first->memory) {
    device_->copy(run.buffers[buffer].data, first->memory->data(), first->memory->nbytes());
    run.add_behind(buffer, first->behind);
  }
  kept.erase(first, kept.end());
}

// Informs the background runner that the node does not run: another process may wait for it.
void Session::leave_out(const LoadedProgram& program, uint32_t index, const FailurePtr& failure) const {
  if (background_runner_ == UINT32_MAX) return;
  Runner& runner = *(*runners_)[background_runner_];
  if (runner.accepts(program.graph, index)) {
    runner.leave_out(program.graph, index, program.values.data(), failure->status);
  }
}

// Skips the node. Buffers that it would have created are poisoned; those that it would have written keep their
// contents.
void Session::skip(Run& run, uint32_t index, const FailurePtr& failure) {
  const LoadedProgram& program = run.program;
  const ir::Node& node = program.graph.nodes[index];
  leave_out(program, index, failure);
  if (index + 1 == program.graph.nodes.size()) run.failure = failure;
  if (node.in_place) return keep_older_value(run, index, failure);
  ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
    const uint32_t b = program.graph.views[view].buffer;
    if (access == ir::Access::kReads || run.poison_of(b)) return;
    if (program.graph.buffers[b].kind == ir::BufferKind::kFresh && program.lifetimes[b].first == index) {
      run.set_poison(b, failure);
    } else {
      put_back(run, b, failure);
      run.add_behind(b, failure);
      ++failure->skipped;
    }
  });
}

// Copies the older value's bytes to the buffer that holds the newer one.
void Session::keep_older_value(Run& run, uint32_t index, const FailurePtr& failure) {
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
  run.add_after(to, run.after_of(from));
  run.add_behind(to, run.behind_of(from));
  if (!run.kept.empty()) run.kept[to] = std::move(run.kept[from]);
  put_back(run, to, failure);
  run.add_behind(to, failure);
  ++failure->skipped;
}

// Nodes [first, last) ran: what they wrote inherits the failed checks of their operands.
void Session::pass_on(Run& run, uint32_t first, uint32_t last) const {
  const ir::Graph& graph = run.program.graph;
  if (run.after.empty()) run.after.resize(run.buffers.size());
  for (uint32_t n = first; n < last; ++n) {
    FailurePtr check = run.check;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      if (access == ir::Access::kReads || access == ir::Access::kUpdates) {
        check = earlier(check, run.after[graph.views[view].buffer]);
      }
    });
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads) return;
      if (access == ir::Access::kCreates || covers(run, n, b)) {
        run.after[b] = check;
      } else {
        run.after[b] = earlier(run.after[b], check);
      }
    });
    if (n + 1 == graph.nodes.size() && untold(check)) run.failure = check;
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
  for (uint32_t n = 0; sized && n < graph.nodes.size(); ++n) leave_out(program, n, failure);
  for (const ir::Node& node : graph.nodes) {
    ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads || graph.buffers[b].kind != ir::BufferKind::kInput || run.poison_of(b)) return;
      run.add_behind(b, failure);
      ++failure->skipped;
    });
  }
  run.failure = failure;
}

}  // namespace torch_remote::worker

#include <algorithm>
#include <cstdio>
#include <utility>

#include "worker/device/monotonic_clock.h"
#include "worker/device/no_memory.h"
#include "worker/runner/plugin_runner.h"
#include "worker/session/program_run.h"

// How a run executes its nodes.
namespace torch_remote::worker {
namespace {

constexpr uint64_t kLookEvery = 2'000'000;  // Nanoseconds of a run between two looks for a cancellation.

// Returns false, for a node that fails for this reason.
bool fail(tr_error& error, uint32_t node, const Status& why) {
  error.node = node;
  error.retry_as_nodes = 0;
  std::snprintf(error.exception_type, sizeof(error.exception_type), "%s", why.exception_type().c_str());
  std::snprintf(error.message, sizeof(error.message), "%s", why.message().c_str());
  return false;
}

}  // namespace

// The fast path: stage by stage. Returns false if a node failed or memory ran out; next_ is the node to continue with.
bool ProgramRun::execute_stages() {
  for (const Stage& stage : program_.stages) {
    const bool last = &stage == &program_.stages.back();
    const uint64_t began = last ? 0 : monotonic_ns();
    if (!memory_.allocate(stage) || (stage.first != stage.last && !call_in_pieces(stage.first, stage.last))) {
      memory_.unshare(stage, next_);
      return false;
    }
    if (!last) unchecked_ns_ += monotonic_ns() - began;
    if (unchecked_ns_ >= kLookEvery && !last) {
      unchecked_ns_ = 0;
      if (check_cancelled()) return false;
    }
    for (const uint32_t b : stage.release) memory_.release(b);
    if (aliased_ || last) continue;
    for (const uint32_t i : stage.erase) {
      context_.buffers.erase(program_.bindings.ids[i]);
      memory_[program_.inputs[i]] = {};
    }
  }
  return true;
}

// Executes as many nodes at a time as take some milliseconds, so that a cancellation is noticed in time. A program that
// takes less runs as a whole from its second run on.
bool ProgramRun::call_in_pieces(uint32_t first, uint32_t last) {
  uint32_t& piece = program_.piece;
  while (last - first > piece) {
    const uint64_t began = monotonic_ns();
    const uint32_t end = next_cut(program_, first + piece);
    if (!call(first, end)) return false;
    if (end == last) return true;
    first = end;
    const uint64_t took = monotonic_ns() - began;
    unchecked_ns_ += took;
    if (took < kLookEvery / 2) piece *= 2;
    if (took > 2 * kLookEvery) piece = std::max(piece / 2, 1u);
    if (unchecked_ns_ < kLookEvery) continue;
    unchecked_ns_ = 0;
    if (check_cancelled()) return false;
  }
  const uint64_t began = last - first > 8 ? monotonic_ns() : 0;
  const bool good = call(first, last);
  if (began != 0 && monotonic_ns() - began > 4 * kLookEvery) piece = std::max(piece / 2, 8u);
  return good;
}

// The slow path: node by node, skipping those with operands that failed. Temporaries are freed as soon as they are
// dead, and memory is allocated only when it is needed. So a program that does not fit at once may still run.
void ProgramRun::execute_one_by_one() {
  const ir::Graph& graph = program_.graph;
  uint64_t looked = monotonic_ns();
  one_by_one_ = true;
  for (uint32_t n = next_; n < graph.nodes.size(); ++n) {
    await_operands(n, n + 1);
    if (!cancelled_ && monotonic_ns() - looked > kLookEvery) {
      check_cancelled();
      looked = monotonic_ns();
    }
    if (const FailurePtr failure = cancelled_ ? cancelled_ : failures_.blocked(n)) {
      skip(n, failure);
    } else {
      call_and_repair(n);
    }
    for (const uint32_t b : program_.dead_after[n]) memory_.release(b);
  }
}

// Looks for a cancellation. Returns whether the rest of the run is dropped.
bool ProgramRun::check_cancelled() {
  if (context_.cancelled && context_.cancelled(request_.sequence)) {
    cancelled_ = context_.failures.add_cancelled(request_.sequence);
  }
  return cancelled_ != nullptr;
}

// Runs nodes [first, last); `alone`: one node, as if it were in no group. Returns false if a node failed: next_ is then
// the node after it.
bool ProgramRun::call(uint32_t first, uint32_t last, bool alone) {
  Profile* const profile = context_.profile;
  uint64_t* const times = profile ? times_of(first, last) : nullptr;
  tr_error& error = context_.error;
  error.struct_size = sizeof(error);
  error.node = first;
  error.retry_as_nodes = 0;
  const bool good = alone ? call_alone(first, times) : call_steps(first, last, times);
  if (profile && !context_.device.asynchronous()) {
    profile->ops(program_, profile->variant(program_, program_.values), request_.sequence, first, last);
  }
  const uint32_t end = good ? last : std::clamp(error.node, first, last - 1);
  failures_.pass_on(first, end);
  next_ = last;
  if (good) return true;
  if (error.retry_as_nodes != 0) {
    next_ = end;
    return false;
  }
  next_ = end + 1;
  const FailurePtr failure =
      context_.failures.add(program_, program_.values, end, runner_error(error), request_.sequence);
  skip(end, failure);
  if (failure->check) failures_.check_failed(end, failure);
  return false;
}

bool ProgramRun::call_steps(uint32_t first, uint32_t last, uint64_t* times) {
  auto step = step_of(program_, first);
  for (uint32_t n = first; n < last; ++step) {
    const uint32_t end = std::min(step->last, last);
    if (!await_operands(n, end)) {  // An operand has failed meanwhile.
      context_.error.node = n;
      context_.error.retry_as_nodes = 1;
      return false;
    }
    const bool timed = step->timed_group != ir::kNoNode;
    const uint64_t began = timed ? monotonic_ns() : 0;
    uint64_t* const its_times = times ? times + (n - first) : nullptr;
    const bool good = watched_ ? call_watched(*step, n, end, its_times) : call_runner(step->runner, n, end, its_times);
    if (timed) program_.group_times[step->timed_group] += monotonic_ns() - began;
    if (!good) return false;
    n = end;
  }
  return true;
}

// Executes nodes [first, last) of a step, and shows their operands and results to the watcher.
bool ProgramRun::call_watched(const Step& step, uint32_t first, uint32_t last, uint64_t* times) {
  if (step.runner == kNoRunner || step.runner == context_.background_runner) {
    return call_runner(step.runner, first, last, times);
  }
  const std::span<const tr_buffer> buffers(memory_.data(), memory_.size());
  const uint32_t piece = step.is_group ? last - first : 1;
  for (uint32_t n = first; n < last; n += piece) {
    auto seen = context_.watcher->before(program_, buffers, step.runner, n, n + piece, request_.sequence);
    if (!call_runner(step.runner, n, n + piece, times ? times + (n - first) : nullptr)) return false;
    if (seen) context_.watcher->after(std::move(seen), buffers);
  }
  return true;
}

// Executes a node with the first runner that takes it. If that runner finds out only now that it cannot, the next one
// is tried.
bool ProgramRun::call_alone(uint32_t node, uint64_t* times) {
  tr_error& error = context_.error;
  for (uint32_t before = kNoRunner;;) {
    const uint32_t runner = runner_of(program_, node);
    error.retry_as_nodes = 0;
    if (call_runner(runner, node, node + 1, times)) return true;
    if (error.retry_as_nodes == 0 || runner == context_.background_runner) return false;
    if (runner == before) {  // The runner takes a node that it cannot execute.
      error.retry_as_nodes = 0;
      return false;
    }
    before = runner;
    program_.node_runners[node] = kUnknownRunner;
    program_.steps_outdated = true;
  }
}

// Executes nodes [first, last) with one runner, which takes all of them.
bool ProgramRun::call_runner(uint32_t runner, uint32_t first, uint32_t last, uint64_t* times) {
  if (runner == kNoRunner) return fail(context_.error, first, refusal(program_, context_.runners, first));
  if (runner == context_.background_runner) {
    for (uint32_t n = first; n < last; ++n) {
      if (!begin(n, times ? times + (n - first) : nullptr)) return false;
    }
    return true;
  }
  LoadedProgram::Loaded& loaded = program_.loaded[runner];
  tr_run call = describe(runner, first, last, times);
  const bool good = loaded.program->run(call, &context_.error);
  loaded.is_current = true;
  if (!good && context_.error.retry_as_nodes != 0) program_.chosen = false;  // The next run asks the runners again.
  result_words_used_ += call.result_word_count;
  return good;
}

tr_run ProgramRun::describe(uint32_t runner, uint32_t first, uint32_t last, uint64_t* times) {
  tr_run call{};
  call.struct_size = sizeof(call);
  call.symbols = program_.values.data();
  call.symbols_changed = !program_.loaded[runner].is_current;
  call.first = first;
  call.last = last;
  call.buffers = memory_.data();
  call.buffer_count = static_cast<uint32_t>(memory_.size());
  call.result_words = result_words_->data() + result_words_used_;
  call.result_word_capacity = static_cast<uint32_t>(result_words_->size() - result_words_used_);
  call.times = times;
  call.run_id = context_.run_id;
  call.math_modes = request_.math_modes;
  call.cached_data = cached_data_.empty() || aliased_ ? nullptr : cached_data_.data();
  return call;
}

// Returns where a runner writes the times of nodes [first, last).
uint64_t* ProgramRun::times_of(uint32_t first, uint32_t last) {
  if (!context_.device.asynchronous()) return context_.profile->times(last - first);
  calls_.push_back({first, last, std::vector<uint64_t>(last - first + 1)});
  return calls_.back().times.data();
}

// Begins a node that executes in the background.
bool ProgramRun::begin(uint32_t node, uint64_t* times) {
  tr_error& error = context_.error;
  if (!await_operands(node, node + 1)) {
    error.node = node;
    error.retry_as_nodes = 1;
    return false;
  }
  // New buffers have no memory yet if there was not enough for the whole program.
  uint64_t lacks = 0;
  ir::for_each_access(program_.graph.nodes[node], [&](uint32_t view, ir::Access) {
    const uint32_t b = program_.graph.views[view].buffer;
    const uint64_t nbytes = program_.nbytes[b];
    if (nbytes != 0 && !failures_.poison_of(b) && !memory_.allocate(b)) lacks = nbytes;
  });
  if (lacks != 0) return fail(error, node, no_memory_for({}, lacks));
  BackgroundOps::Op op{nullptr, shared_program_, program_.values, node, request_.sequence};
  const bool stays = find_uses(node, &op.uses);
  if (!stays) op.uses.clear();
  tr_run call = describe(context_.background_runner, node, node + 1, times);
  LoadedProgram::Loaded& loaded = program_.loaded[context_.background_runner];
  const bool good = context_.background_ops.begin(std::move(op), [&](std::shared_ptr<BackgroundWork>* work) {
    return loaded.program->begin(call, stays, work, &error);
  });
  loaded.is_current = true;
  return good;
}

// Finds the memory of the node's operands. Returns whether all of it outlives the run. On a device with its own memory,
// also false if the node only reads: such an op sends a copy in this process's memory.
bool ProgramRun::find_uses(uint32_t node, std::vector<BackgroundOps::Use>* uses) {
  const ir::Graph& graph = program_.graph;
  if (one_by_one_ || aliased_ || context_.profile != nullptr) return false;
  bool all = true, any_written = false;
  ir::for_each_access(graph.nodes[node], [&](uint32_t view, ir::Access access) {
    const uint32_t b = graph.views[view].buffer;
    const bool writes = access != ir::Access::kReads;
    any_written |= writes;
    all = all && graph.buffers[b].survives && memory_[b].data != nullptr;
    if (!all) return;
    if (const auto input = std::ranges::find(program_.inputs, b); input != program_.inputs.end()) {
      const uint64_t id = program_.bindings.ids[static_cast<size_t>(input - program_.inputs.begin())];
      const Buffers::Entry* const entry = context_.buffers.find(id);
      all = entry != nullptr && entry->memory->data() == memory_[b].data;
      if (all) uses->push_back({id, entry->memory, writes});
      return;
    }
    const auto survivor = std::ranges::find(program_.survivors, b);
    all = survivor != program_.survivors.end();
    if (!all) return;
    if (shared_survivors_.empty()) shared_survivors_.resize(memory_.size());
    if (!shared_survivors_[b]) {
      const tr_buffer made = memory_[b];
      shared_survivors_[b] = std::make_shared<Memory>(made);
      memory_[b] = borrowed(made.data, made.nbytes);
    }
    const bool creates = writes && program_.lifetimes[b].first == node;
    uses->push_back({request_.first_result_id + static_cast<uint64_t>(survivor - program_.survivors.begin()),
                     shared_survivors_[b], writes, creates});
  });
  return all && (any_written || context_.device.is_host_memory());
}

// Waits, before nodes [first, last) execute, for the background ops that they depend on. Returns false if one failed.
bool ProgramRun::await_operands(uint32_t first, uint32_t last) {
  if (context_.background_ops.empty()) return true;
  const ir::Graph& graph = program_.graph;
  const auto concerns = [&](const BackgroundOps::Op& op) {
    bool touched = false;
    for (uint32_t n = first; n < last && !touched; ++n) {
      ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
        const void* const data = memory_[graph.views[view].buffer].data;
        for (const BackgroundOps::Use& use : op.uses) {
          touched = touched || (use.memory->data() == data && (use.writes || access != ir::Access::kReads));
        }
      });
    }
    return touched;
  };
  return await_background(concerns);
}

// Waits for the background ops that `concerns` selects. Returns false if one failed; the run has recorded its
// consequences then.
bool ProgramRun::await_background(const std::function<bool(const BackgroundOps::Op&)>& concerns) {
  bool good = true;
  context_.background_ops.await(concerns, [&](const BackgroundOps::Op& op, const FailurePtr& failure) {
    good = false;
    for (const BackgroundOps::Use& use : op.uses) {
      for (uint32_t b = 0; use.writes && b < memory_.size(); ++b) {
        if (memory_[b].data != use.memory->data()) continue;
        if (!use.creates) {
          failures_.add_missing_update(b, failure);
          continue;
        }
        failures_.set_poison(b, failure);
        memory_[b] = borrowed(nullptr, program_.nbytes[b]);  // The memory is released with the background op.
        if (!shared_survivors_.empty()) shared_survivors_[b] = nullptr;
        if (!cached_data_.empty()) cached_data_[b] = nullptr;
      }
    }
  });
  return good;
}

}  // namespace torch_remote::worker

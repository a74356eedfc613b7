#include "worker/session/session_run.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <ranges>
#include <utility>

#include "remote/wire/delta.h"
#include "worker/device/monotonic_clock.h"
#include "worker/device/no_memory.h"
#include "worker/runner/plugin_runner.h"

namespace torch_remote::worker {
namespace {

constexpr uint64_t kLookEvery = 2'000'000;  // Nanoseconds of a run between two looks for a cancellation.
// RunnerProgram::work from which a run is worth waking threads: some 600 us of one core.
constexpr double kPointsWorthWaking = 1 << 20;

}  // namespace

Failure failure_of(const LoadedProgram& program, const std::vector<int64_t>& values, uint32_t index,
                   const Status& status, uint64_t sequence) {
  const ir::Node& node = program.graph.nodes[index];
  const std::string message = status.message() + " [" + describe_node(program.graph, node, values) + "]";
  bool check = true;
  ir::for_each_view(node, [&](uint32_t, bool writes) { check = check && !writes; });
  return {{status.code(), message, status.kind()}, program.number, node.source, sequence, check};
}

// Applies the message to the state of the program's last run. *program is null, without an error, if the program's
// bytes could not be decoded.
Status Session::decode(const RunRequest& request, LoadedProgram** program) {
  *program = nullptr;
  const auto found = programs_.find(request.program);
  if (found == programs_.end()) {
    return Status::invalid("remote: a run names program " + std::to_string(request.program) + ", which was not sent");
  }
  LoadedProgram& loaded = *found->second;
  frees_.clear();
  Status status = remote::decode_frees(request.frees, &frees_);
  if (!status.ok() || !loaded.decoded) return status;
  bool changed = false;
  if (request.afresh) {
    std::ranges::fill(loaded.params, 0);
    std::ranges::fill(loaded.bindings.ids, 0);
    loaded.bindings.relative.assign(loaded.bindings.ids.size(), false);
    loaded.bindings.base = 0;
    loaded.evaluated = false;
  }
  status = remote::decode_params(request.params, loaded.params, &changed);
  if (status.ok()) status = remote::decode_bindings(request.bindings, request.base, loaded.bindings);
  if (!status.ok()) return status;
  if (changed) loaded.evaluated = false;
  *program = &loaded;
  return {};
}

Status Session::run(const RunRequest& request, std::vector<int64_t>* words, FailurePtr* failure) {
  words->clear();
  *failure = nullptr;
  LoadedProgram* program = nullptr;
  Status status = decode(request, &program);
  if (!status.ok()) return status;
  if (program == nullptr) {
    *failure = note({programs_[request.program]->status, request.program, 0, request.sequence});
    undecoded_failure_ = *failure;
    undecoded_base_ = request.base;
    erase_freed();
    return {};
  }
  running_ = program;
  thread_ = std::this_thread::get_id();
  try {
    run_decoded(*program, request, words, failure);
  } catch (const std::bad_alloc&) {  // Memory of this process itself ran out; all that the run took is free again.
    words->clear();
    drop(*program, request, note({no_memory_for("the run of a program"), program->number, 0, request.sequence}),
         failure);
  }
  running_ = nullptr;
  erase_freed();
  return {};
}

void Session::run_decoded(LoadedProgram& program, const RunRequest& request, std::vector<int64_t>* words,
                          FailurePtr* failure) {
  update_groups(program, *runners_);
  if (!background_ops_.empty()) await_inputs(program);
  Run run{program, request, words};
  run.buffers.resize(program.graph.buffers.size());
  run.check = pending_check();
  bind_inputs(run);
  if (!program.status.ok()) {
    fail_all(run, note({program.status, program.number, 0, request.sequence}));
  } else if (const Status status = prepare(run); !status.ok()) {
    fail_all(run, note({status, program.number, 0, request.sequence}));
  } else {
    words->resize(program.words);
    unshare_written(run);
    if (program.work > 0 && notify_threads_) notify_threads_(program.work >= kPointsWorthWaking);
    const bool careful =
        !run.poison.empty() || !run.missing_updates.empty() || (last_unreported() != 0 && program.updates);
    const bool complete = !careful && allocate_arena(run) && execute(run);
    if (!complete) execute_one_by_one(run);
    if (program.tune) end_tuned_run(program, complete);
    if (program.asks_again) program.chosen = false;
    note_in_flight(run);
  }
  finish(run);
  words->resize(run.words_used);
  *failure = run.failure;
}

// Executes nothing of a run: `why` is the failure of all that it would have created or written.
void Session::drop(LoadedProgram& program, const RunRequest& request, const FailurePtr& why, FailurePtr* failure) {
  Run run{program, request, nullptr};
  run.buffers.resize(program.graph.buffers.size());
  bind_inputs(run);
  fail_all(run, why);
  finish(run);
  *failure = run.failure;
}

Status Session::run_cancelled(const RunRequest& request, FailurePtr* failure) {
  *failure = nullptr;
  LoadedProgram* program = nullptr;
  Status status = decode(request, &program);
  if (!status.ok()) return status;
  if (program != nullptr) drop(*program, request, cancellation(request.sequence), failure);
  erase_freed();
  return {};
}

void Session::bind_inputs(Run& run) {
  const LoadedProgram& program = run.program;
  ++run_count_;
  if (program.has_attachments) run.attachments.resize(program.graph.buffers.size());
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    const uint64_t id = program.bindings.ids[i];
    const Entry* entry = buffers_.find(id);
    if (!entry) {
      run.buffers[b].nbytes = kUnknownSize;
      FailurePtr failure = no_such_buffer(id, run.request.sequence);
      run.set_poison(b, failure == undecoded_failure_ ? failure : note(*failure));
      continue;
    }
    run.buffers[b] = borrowed(entry->memory->data(), entry->memory->nbytes());
    run.aliased |= !entry->memory->bind(run_count_);
    if (program.written[b]) {
      entry->memory->contents_change();
    } else if (!run.attachments.empty()) {
      run.attachments[b] = entry->memory->attachment();
    }
    if (entry->poisoned()) {
      run.set_poison(b, entry->failure);
      continue;
    }
    if (is_unreported(entry->failure)) run.add_missing_update(b, entry->failure);
    if (is_unreported(entry->check)) run.add_failed_check(b, entry->check);
    if (older_contents_.empty()) continue;
    if (auto contents = older_contents_.extract(id)) run.older_contents_of(b) = std::move(contents.mapped());
  }
}

// Computes the symbol values, buffer sizes and arena offsets that differ from those of the last run.
Status Session::prepare(Run& run) {
  LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  device_->set_math(run.request.math);
  if (std::exchange(program.math, run.request.math) != run.request.math) {  // Runners may choose differently.
    program.chosen = false;
    program.waits_for_plans = waits_for_plans_ || (run.request.math & ir::kDeterministic) != 0;
    for (LoadedProgram::Loaded& loaded : program.loaded) loaded.is_current = false;
  }
  if (!program.evaluated) {
    Status status = ir::evaluate(graph, program.params.data(), &program.values);
    if (!status.ok()) return status;
    program.evaluated = true;
    program.placed = program.chosen = false;
    for (LoadedProgram::Loaded& loaded : program.loaded) loaded.is_current = false;
  }
  nbytes_.resize(graph.buffers.size());
  for (size_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].kind == ir::BufferKind::kInput) {
      nbytes_[b] = run.buffers[b].nbytes;
    } else {
      const int64_t size = graph.buffers[b].nbytes == ir::kNoSym ? 0 : program.values[graph.buffers[b].nbytes];
      if (size < 0) return Status::invalid("remote: the run gives a buffer " + std::to_string(size) + " bytes");
      nbytes_[b] = static_cast<uint64_t>(size);
    }
  }
  if (program.placed && program.chosen && nbytes_ == program.nbytes) return {};
  program.placed = false;
  Status status = ir::check_extents(graph, program.values, nbytes_);
  if (!status.ok()) return status;
  choose_steps(program);  // After check_extents(): runners read the values.
  program.nbytes = nbytes_;
  place_buffers(program);
  program.placed = true;
  return {};
}

// Gives memory of its own to an input that the program writes while its memory is shared, for example by a read.
void Session::unshare_written(Run& run) {
  const LoadedProgram& program = run.program;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    if (!program.written[b] || !run.buffers[b].data) continue;
    Entry& entry = *buffers_.find(program.bindings.ids[i]);
    if (entry.memory.use_count() == 1) continue;
    tr_buffer copy{};
    bool allocated = memory_->allocate(entry.memory->nbytes(), &copy);
    if (!allocated && !background_ops_.empty()) {
      wait_for_background();
      if (entry.memory.use_count() == 1) continue;
      allocated = memory_->allocate(entry.memory->nbytes(), &copy);
    }
    if (!allocated) {
      run.set_poison(b, note({out_of_memory(entry.memory->nbytes()), program.number, 0, run.request.sequence}));
      continue;
    }
    device_->copy(copy.data, entry.memory->data(), entry.memory->nbytes());
    entry.memory = std::make_shared<Memory>(copy);
    run.buffers[b] = borrowed(copy.data, copy.nbytes);
  }
}

// Allocates memory for the small temporaries that no runner allocates itself. Returns false if there is not enough.
bool Session::allocate_arena(Run& run) {
  const LoadedProgram& program = run.program;
  const ir::ArenaLayout& layout = program.layout;
  if (layout.size == ir::ArenaLayout::kNone || !memory_->allocate(layout.size, &run.arena, Visibility::kPrivate))
    return false;
  for (size_t b = 0; b < run.buffers.size(); ++b) {
    if (layout.offsets[b] == ir::ArenaLayout::kNone) continue;
    run.buffers[b] = borrowed(static_cast<std::byte*>(run.arena.data) + layout.offsets[b], program.nbytes[b]);
  }
  return true;
}

// The fast path: stage by stage. Returns false if a node failed or memory ran out; run.next is the node to continue
// with.
bool Session::execute(Run& run) {
  const LoadedProgram& program = run.program;
  for (const Stage& stage : program.stages) {
    const bool last = &stage == &program.stages.back();
    const uint64_t began = last ? 0 : monotonic_ns();
    if (!take_memory(run, stage) || (stage.first != stage.last && !call_in_pieces(run, stage.first, stage.last))) {
      unshare_group_memory(run, stage);
      return false;
    }
    if (!last) run.unchecked_ns += monotonic_ns() - began;
    if (run.unchecked_ns >= kLookEvery && !last) {
      run.unchecked_ns = 0;
      if (check_cancelled(run)) return false;
    }
    for (const uint32_t b : stage.release) release(run.buffers[b]);
    if (run.aliased || last) continue;
    for (const uint32_t i : stage.erase) {
      buffers_.erase(program.bindings.ids[i]);
      run.buffers[program.inputs[i]] = {};
    }
  }
  return true;
}

bool Session::take_memory(Run& run, const Stage& stage) {
  const LoadedProgram& program = run.program;
  for (const auto& [b, from] : stage.allocate) {
    tr_buffer& buffer = run.buffers[b];
    if (from != ir::kNoBuffer) {
      buffer = std::exchange(run.buffers[from], borrowed(run.buffers[from].data, program.nbytes[from]));
      buffer.nbytes = program.nbytes[b];
    } else if (!memory_->allocate(program.nbytes[b], &buffer,
                                  program.temporary[b] ? Visibility::kPrivate : Visibility::kShared)) {
      return false;
    }
  }
  return true;
}

// The remaining nodes execute one by one, even those of groups. A buffer that a group's result may overwrite is then
// still needed, so both get memory of their own again.
void Session::unshare_group_memory(Run& run, const Stage& stage) {
  const LoadedProgram& program = run.program;
  for (const auto& [b, from] : std::views::reverse(stage.allocate)) {
    if (from == ir::kNoBuffer || program.step_lifetimes[b].first < run.next || !run.buffers[b].data) continue;
    run.buffers[from] = std::exchange(run.buffers[b], {});
    run.buffers[from].nbytes = program.nbytes[from];
  }
}

// Executes as many nodes at a time as take some milliseconds, so that a cancellation is noticed in time. A program that
// takes less runs as a whole from its second run on.
bool Session::call_in_pieces(Run& run, uint32_t first, uint32_t last) {
  uint32_t& piece = run.program.piece;
  while (last - first > piece) {
    const uint64_t began = monotonic_ns();
    const uint32_t end = next_cut(run.program, first + piece);
    if (!call(run, first, end)) return false;
    if (end == last) return true;
    first = end;
    const uint64_t took = monotonic_ns() - began;
    run.unchecked_ns += took;
    if (took < kLookEvery / 2) piece *= 2;
    if (took > 2 * kLookEvery) piece = std::max(piece / 2, 1u);
    if (run.unchecked_ns < kLookEvery) continue;
    run.unchecked_ns = 0;
    if (check_cancelled(run)) return false;
  }
  const uint64_t began = last - first > 8 ? monotonic_ns() : 0;
  const bool good = call(run, first, last);
  if (began != 0 && monotonic_ns() - began > 4 * kLookEvery) piece = std::max(piece / 2, 8u);
  return good;
}

// Looks for a cancellation. Returns whether the rest of the run is dropped.
bool Session::check_cancelled(Run& run) {
  if (cancelled_ && cancelled_(run.request.sequence)) run.cancelled = cancellation(run.request.sequence);
  return run.cancelled != nullptr;
}

// Runs nodes [first, last); `alone`: one node, as if it were in no group. Returns false if a node failed: run.next is
// then the node after it.
bool Session::call(Run& run, uint32_t first, uint32_t last, bool alone) {
  const LoadedProgram& program = run.program;
  uint64_t* const times = profile_ ? times_of(run, first, last) : nullptr;
  error_.struct_size = sizeof(error_);
  error_.node = first;
  error_.repeat = 0;
  bool good = true;
  if (alone) {
    good = call_alone(run, first, times);
  } else {
    auto step = step_of(program, first);
    for (uint32_t n = first; good && n < last; ++step) {
      const uint32_t end = std::min(step->last, last);
      if (!background_ops_.empty() && !await_operands(run, n, end)) {  // An operand has failed meanwhile.
        error_.node = n;
        error_.repeat = 1;
        good = false;
        break;
      }
      const bool timed = step->timed_group != ir::kNoNode;
      const uint64_t began = timed ? monotonic_ns() : 0;
      good = call_runner(run, step->runner, n, end, times ? times + (n - first) : nullptr);
      if (timed) run.program.group_times[step->timed_group] += monotonic_ns() - began;
      if (good) n = end;
    }
  }
  if (profile_ && !device_->asynchronous()) {
    profile_->ops(program, profile_->variant(program, program.values), run.request.sequence, first, last);
  }
  const uint32_t end = good ? last : std::clamp(error_.node, first, last - 1);
  if (!run.failed_checks.empty() || run.check) pass_on(run, first, end);
  run.next = last;
  if (good) return true;
  if (error_.repeat != 0) {
    run.next = end;
    return false;
  }
  run.next = end + 1;
  const FailurePtr failure = note(failure_of(program, program.values, end, runner_error(error_), run.request.sequence));
  skip(run, end, failure);
  if (failure->check && !run.check) run.check = failure;
  if (failure->check) mark_results_doubtful(run, end, failure);
  return false;
}

// Executes a node with the first runner that takes it. If that runner finds out only now that it cannot, the next one
// is tried.
bool Session::call_alone(Run& run, uint32_t node, uint64_t* times) {
  for (uint32_t before = kNoRunner;;) {
    const uint32_t runner = runner_of(run.program, node);
    error_.repeat = 0;
    if (call_runner(run, runner, node, node + 1, times)) return true;
    if (error_.repeat == 0 || runner == background_runner_) return false;
    if (runner == before) {  // The runner takes a node that it cannot execute.
      error_.repeat = 0;
      return false;
    }
    before = runner;
    run.program.node_runners[node] = kUnknownRunner;
  }
}

// Executes nodes [first, last) with one runner, which takes all of them.
bool Session::call_runner(Run& run, uint32_t runner, uint32_t first, uint32_t last, uint64_t* times) {
  if (runner == kNoRunner) {
    const Status status = refusal(run.program, *runners_, first);
    error_.node = first;
    std::snprintf(error_.kind, sizeof(error_.kind), "%s", status.kind().c_str());
    std::snprintf(error_.message, sizeof(error_.message), "%s", status.message().c_str());
    return false;
  }
  if (runner == background_runner_) {
    for (uint32_t n = first; n < last; ++n) {
      if (!begin(run, n, times ? times + (n - first) : nullptr)) return false;
    }
    return true;
  }
  LoadedProgram::Loaded& loaded = run.program.loaded[runner];
  tr_run call = describe(run, runner, first, last, times);
  const bool good = loaded.program->run(call, &error_);
  loaded.is_current = true;
  run.words_used += call.word_count;
  return good;
}

tr_run Session::describe(Run& run, uint32_t runner, uint32_t first, uint32_t last, uint64_t* times) const {
  tr_run call{};
  call.struct_size = sizeof(call);
  call.symbols = run.program.values.data();
  call.symbols_changed = !run.program.loaded[runner].is_current;
  call.first = first;
  call.last = last;
  call.buffers = run.buffers.data();
  call.buffer_count = static_cast<uint32_t>(run.buffers.size());
  call.words = run.words->data() + run.words_used;
  call.word_capacity = static_cast<uint32_t>(run.words->size() - run.words_used);
  call.times = times;
  call.number = run_count_;
  call.math = run.request.math;
  call.attachments = run.attachments.empty() || run.aliased ? nullptr : run.attachments.data();
  return call;
}

// Returns where a runner writes the times of nodes [first, last).
uint64_t* Session::times_of(Run& run, uint32_t first, uint32_t last) {
  if (!device_->asynchronous()) return profile_->times(last - first);
  run.calls.push_back({first, last, std::vector<uint64_t>(last - first + 1)});
  return run.calls.back().times.data();
}

// On an asynchronous device the queued work may still fail: the run is retained until its ticket is done.
void Session::note_in_flight(Run& run) {
  if (!device_->asynchronous()) return;
  const LoadedProgram& program = run.program;
  in_flight_.add({device_->record(), run_count_, run.request.sequence, programs_[program.number], program.values,
                  nbytes_, program.bindings.ids, run.request.base, std::move(run.calls), run.request.wants_words,
                  profile_ ? profile_->variant(program, program.values) : 0, nullptr});
}

FailurePtr Session::take_deferred_failure(uint64_t sequence) {
  const auto found = deferred_failures_.extract(sequence);
  return found ? found.mapped() : nullptr;
}

void Session::settle() {
  if (!background_ops_.empty()) settle_background();
  if (in_flight_.empty()) return;
  // Read before the failures, so that the failures of all this work are there.
  const size_t done = in_flight_.count_done(*device_);
  for (const DeferredFailure& late : device_->take_failures()) {
    const InFlight::Run* run = in_flight_.find(late.run);
    if (!run) continue;
    const uint32_t index = std::min(late.node, static_cast<uint32_t>(run->program->graph.nodes.size()) - 1);
    const FailurePtr failure = note(failure_of(*run->program, run->values, index, late.error, run->sequence));
    for (const uint64_t id : in_flight_.invalidate_from(late.run, index, failure)) {
      Entry* entry = buffers_.find(id);
      if (!entry || entry->poisoned()) continue;
      older_contents_.erase(id);
      *entry = {std::make_shared<Memory>(entry->memory->nbytes()), failure, nullptr};
    }
  }
  in_flight_.forget(done, [this](const InFlight::Run& run) {
    if (run.failure && run.wants_words) deferred_failures_[run.sequence] = run.failure;
    if (!profile_) return;
    for (const InFlight::Call& call : run.calls) {
      if (call.times.empty()) continue;
      std::ranges::copy(call.times, profile_->times(call.last - call.first));
      profile_->ops(*run.program, run.profile_variant, run.sequence, call.first, call.last);
    }
  });
}

// The slow path: node by node, skipping those with operands that failed. Temporaries are freed as soon as they are
// dead, and memory is allocated only when it is needed. So a program that does not fit at once may still run.
void Session::execute_one_by_one(Run& run) {
  const LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  uint64_t looked = monotonic_ns();
  run.one_by_one = true;
  for (uint32_t n = run.next; n < graph.nodes.size(); ++n) {
    if (!background_ops_.empty()) await_operands(run, n, n + 1);
    if (!run.cancelled && monotonic_ns() - looked > kLookEvery) {
      check_cancelled(run);
      looked = monotonic_ns();
    }
    if (const FailurePtr failure = run.cancelled ? run.cancelled : blocked(run, n)) {
      skip(run, n, failure);
    } else {
      call_and_repair(run, n);
    }
    for (const uint32_t b : program.dead_after[n]) release(run.buffers[b]);
  }
}

void Session::finish(Run& run) {
  const LoadedProgram& program = run.program;
  const auto keep_on = [&](uint64_t id, uint32_t b) {
    if (!run.older_contents.empty() && !run.older_contents[b].empty())
      older_contents_[id] = std::move(run.older_contents[b]);
  };
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    const uint64_t id = program.bindings.ids[i];
    if (!program.graph.buffers[b].survives) {
      buffers_.erase(id);
      continue;
    }
    Entry* entry = buffers_.find(id);
    if (run.buffers[b].owner && !run.poison_of(b)) {  // The buffer was repaired.
      put(id, {std::make_shared<Memory>(run.buffers[b]), run.missing_update_of(b), run.failed_check_of(b)});
      run.buffers[b] = {};
    } else if (entry && !entry->poisoned()) {
      // A buffer is poisoned in this run only if it could not be written.
      if (run.poison_of(b)) {
        entry->failure = run.poison_of(b);
      } else if (!run.missing_updates.empty()) {
        entry->failure = run.missing_updates[b];
      }
      if (!run.failed_checks.empty()) entry->check = run.failed_checks[b];
    }
    keep_on(id, b);
  }
  for (size_t k = 0; k < program.survivors.size(); ++k) {
    const uint32_t b = program.survivors[k];
    FailurePtr failure = run.poison_of(b);
    if (!failure && !run.buffers[b].data && !memory_->allocate(program.nbytes[b], &run.buffers[b])) {
      failure = note({out_of_memory(program.nbytes[b]), program.number, 0, run.request.sequence});
    }
    if (failure) {
      release(run.buffers[b]);
      put(run.request.base + k, {std::make_shared<Memory>(program.nbytes[b]), std::move(failure), nullptr});
    } else {
      MemoryPtr made = run.shared_survivors.empty() ? nullptr : run.shared_survivors[b];
      if (!made) made = std::make_shared<Memory>(run.buffers[b]);
      put(run.request.base + k, {std::move(made), run.missing_update_of(b), run.failed_check_of(b)});
      run.buffers[b] = {};
      keep_on(run.request.base + k, b);
    }
  }
  for (tr_buffer& buffer : run.buffers) release(buffer);
  release(run.arena);
}

}  // namespace torch_remote::worker

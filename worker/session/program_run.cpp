#include "worker/session/program_run.h"

#include <algorithm>
#include <utility>

#include "worker/device/no_memory.h"

namespace torch_remote::worker {
namespace {

// RunnerProgram::work from which a run is worth waking threads: some 600 us of one core.
constexpr double kPointsWorthWaking = 1 << 20;

}  // namespace

ProgramRun::ProgramRun(RunContext& context, const std::shared_ptr<LoadedProgram>& program, const RunRequest& request)
    : context_(context),
      shared_program_(program),
      program_(*program),
      request_(request),
      memory_(*program, context.device.memory()),
      failures_(*program, context.failures.first_check()) {}

FailurePtr ProgramRun::execute(std::vector<int64_t>* result_words) {
  result_words_ = result_words;
  bind_inputs();
  if (const Status status = program_.status.ok() ? prepare() : program_.status; !status.ok()) {
    fail_all(add_failure(status));
  } else {
    result_words->resize(program_.result_words);
    watched_ = context_.watcher != nullptr && context_.watcher->begins_run(program_);
    unshare_written();
    if (program_.work > 0 && context_.notify_threads) context_.notify_threads(program_.work >= kPointsWorthWaking);
    const bool careful = !failures_.empty() || (program_.updates && context_.failures.last_unreported() != 0);
    const bool complete = !careful && memory_.allocate_arena() && execute_stages();
    if (!complete) execute_one_by_one();
    if (program_.tune) end_tuned_run(program_, complete);
    if (program_.asks_again) program_.chosen = false;
    note_in_flight();
  }
  finish();
  result_words->resize(result_words_used_);
  return failures_.of_last_node();
}

FailurePtr ProgramRun::drop(const FailurePtr& why) {
  bind_inputs();
  fail_all(why);
  finish();
  return why;
}

void ProgramRun::bind_inputs() {
  ++context_.run_id;
  if (program_.uses_cached_data) cached_data_.resize(memory_.size());
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const uint32_t b = program_.inputs[i];
    const uint64_t id = program_.bindings.ids[i];
    const Buffers::Entry* const entry = context_.buffers.find(id);
    if (!entry) {
      memory_[b].nbytes = kUnknownSize;
      FailurePtr failure = context_.failures.no_such_buffer(id, request_.sequence);
      if (failure->number == 0) failure = context_.failures.add(*failure);
      failures_.set_poison(b, failure);
      continue;
    }
    memory_[b] = borrowed(entry->memory->data(), entry->memory->nbytes());
    aliased_ |= !entry->memory->bind(context_.run_id);
    if (program_.written[b]) {
      entry->memory->contents_change();
    } else if (!cached_data_.empty()) {
      cached_data_[b] = entry->memory->cached_data();
    }
    failures_.load(b, *entry);
    if (!context_.older_contents.empty() && !entry->poisoned()) {
      older_contents_.resize(memory_.size());
      older_contents_[b] = context_.older_contents.take(id);
    }
  }
}

// Computes the symbol values, buffer sizes and arena offsets that differ from those of the last run.
Status ProgramRun::prepare() {
  const ir::Graph& graph = program_.graph;
  context_.device.set_math_modes(request_.math_modes);
  if (std::exchange(program_.math_modes, request_.math_modes) !=
      request_.math_modes) {  // Runners may choose differently.
    program_.chosen = false;
    program_.waits_for_plans = context_.waits_for_plans || (request_.math_modes & ir::kDeterministic) != 0;
    for (LoadedProgram::Loaded& loaded : program_.loaded) loaded.is_current = false;
  }
  if (!program_.evaluated) {
    Status status = ir::evaluate(graph, program_.params.data(), &program_.values);
    if (!status.ok()) return status;
    program_.evaluated = true;
    program_.placed = program_.chosen = false;
    for (LoadedProgram::Loaded& loaded : program_.loaded) loaded.is_current = false;
  }
  std::vector<uint64_t>& nbytes = context_.nbytes;
  nbytes.resize(graph.buffers.size());
  for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].kind == ir::BufferKind::kInput) {
      nbytes[b] = memory_[b].nbytes;
    } else {
      const int64_t size = graph.buffers[b].nbytes == ir::kNoSym ? 0 : program_.values[graph.buffers[b].nbytes];
      if (size < 0) return Status::invalid("remote: the run gives a buffer " + std::to_string(size) + " bytes");
      nbytes[b] = static_cast<uint64_t>(size);
    }
  }
  if (program_.placed && program_.chosen && nbytes == program_.nbytes) return {};
  program_.placed = false;
  Status status = ir::check_extents(graph, program_.values, nbytes);
  if (!status.ok()) return status;
  choose_steps(program_);  // After check_extents(): runners read the values.
  program_.nbytes = nbytes;
  place_buffers(program_);
  program_.placed = true;
  return {};
}

// Gives memory of its own to an input that the program writes while its memory is shared, for example by a read.
void ProgramRun::unshare_written() {
  CachingAllocator& allocator = context_.device.memory();
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const uint32_t b = program_.inputs[i];
    if (!program_.written[b] || !memory_[b].data) continue;
    MemoryPtr& memory = context_.buffers.find(program_.bindings.ids[i])->memory;
    if (memory.use_count() == 1) continue;
    tr_buffer copy{};
    bool allocated = allocator.allocate(memory->nbytes(), &copy);
    if (!allocated && !context_.background_ops.empty()) {
      // An op that fails may take away the contents of another input.
      (void)await_background([](const BackgroundOps::Op&) { return true; });
      if (memory.use_count() == 1) continue;
      allocated = allocator.allocate(memory->nbytes(), &copy);
    }
    if (!allocated) {
      failures_.set_poison(b, add_failure(no_memory_for({}, memory->nbytes())));
      memory_[b] = borrowed(nullptr, memory->nbytes());  // A node that overwrites all of it must not write there.
      continue;
    }
    context_.device.copy(copy.data, memory->data(), memory->nbytes());
    memory = std::make_shared<Memory>(copy);
    memory_[b] = borrowed(copy.data, copy.nbytes);
  }
}

// On an asynchronous device the queued work may still fail: the run is retained until its ticket is done.
void ProgramRun::note_in_flight() {
  if (!context_.device.asynchronous()) return;
  context_.in_flight.add({context_.device.record(), context_.run_id, request_.sequence, shared_program_,
                          program_.values, program_.nbytes, program_.bindings.ids, request_.first_result_id,
                          std::move(calls_), request_.wants_result_words,
                          context_.profile ? context_.profile->variant(program_, program_.values) : 0, nullptr});
}

// Updates the session's buffers: contents, failures and older contents.
void ProgramRun::finish() {
  const auto put_older_contents = [&](uint64_t id, uint32_t b) {
    if (!older_contents_.empty()) context_.older_contents.put(id, std::move(older_contents_[b]));
  };
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const uint32_t b = program_.inputs[i];
    const uint64_t id = program_.bindings.ids[i];
    if (!program_.graph.buffers[b].survives) {
      context_.buffers.erase(id);
      continue;
    }
    Buffers::Entry* const entry = context_.buffers.find(id);
    if (memory_[b].owner && !failures_.poison_of(b)) {  // The buffer was repaired.
      store(id, b, std::make_shared<Memory>(memory_[b]));
    } else if (entry && !entry->poisoned()) {
      // A buffer is poisoned in this run only if it could not be written.
      failures_.store(b, *entry);
    }
    put_older_contents(id, b);
  }
  for (size_t k = 0; k < program_.survivors.size(); ++k) {
    const uint32_t b = program_.survivors[k];
    const uint64_t id = request_.first_result_id + k;
    FailurePtr failure = failures_.poison_of(b);
    if (!failure && !memory_.allocate(b)) failure = add_failure(no_memory_for({}, program_.nbytes[b]));
    if (failure) {
      memory_.release(b);
      context_.buffers.put(id, {std::make_shared<Memory>(program_.nbytes[b]), std::move(failure), nullptr});
      continue;
    }
    MemoryPtr shared = shared_survivors_.empty() ? nullptr : shared_survivors_[b];
    store(id, b, shared ? std::move(shared) : std::make_shared<Memory>(memory_[b]));
    put_older_contents(id, b);
  }
}

// The memory, which was the run's until now, is that of the buffer with this id.
void ProgramRun::store(uint64_t id, uint32_t buffer, MemoryPtr memory) {
  context_.buffers.put(id, {std::move(memory), failures_.missing_update_of(buffer), failures_.failed_check_of(buffer)});
  memory_[buffer] = {};
}

}  // namespace torch_remote::worker

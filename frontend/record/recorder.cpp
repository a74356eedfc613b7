#include "frontend/record/recorder.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "frontend/device/backward_threads.h"
#include "frontend/record/flush_log.h"
#include "frontend/record/wait_span.h"
#include "frontend/source/source.h"
#include "remote/client/event_log.h"

namespace torch_remote::frontend {
namespace {

using remote::Event;
using remote::EventLog;

// Torch's current flags. NoTF32Guard is a thread-local of torch around ops that must not use TF32.
ir::MathModes math_modes() {
  const at::Context& context = at::globalContext();
  const auto allows = [&](at::Float32Op op) {
    return context.float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32;
  };
  ir::MathModes modes = 0;
  if (!at::NoTF32Guard::should_disable_tf32()) {
    if (allows(at::Float32Op::MATMUL)) modes |= ir::kTf32Matmuls;
    if (allows(at::Float32Op::CONV)) modes |= ir::kTf32Convolutions;
  }
  if (context.deterministicCuDNN()) modes |= ir::kDeterministic;
  return modes;
}

// Whether torch's flags (TF32, deterministic algorithms) affect ops of this family. Recurrent layers are kComposite.
bool has_math_modes(ir::Family family) {
  using enum ir::Family;
  return family == kMatmul || family == kConv || family == kAttention || family == kNorm || family == kComposite;
}

// Visits the device storages that the call reads and writes.
template <typename Visit>
void for_each_operand(const ir::OpDesc& op, const c10::IValue* args, const Visit& visit) {
  const auto visit_value = [&](const c10::IValue& value, bool writes) {
    if (!value.isTensor() || !value.toTensor().defined() || !is_remote(value.toTensor())) return;
    visit(storage_of(value.toTensor()), writes);
  };
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (op.args[i].role != ir::ArgRole::kOperand) continue;
    if (args[i].isList()) {
      for (const c10::IValue& item : args[i].toListRef()) visit_value(item, op.args[i].writes);
    } else {
      visit_value(args[i], op.args[i].writes);
    }
  }
}

// The status if another thread still records at exit.
Status worker_ended() { return {ErrorCode::kLost, "remote: the worker has been ended"}; }

}  // namespace

// Never destroyed, because tensors may die during exit.
const std::array<Recorder*, kMaxDevices> Recorder::all_ = [] {
  std::array<Recorder*, kMaxDevices> all{};
  for (int i = 0; i < kMaxDevices; ++i) all[i] = new Recorder(static_cast<c10::DeviceIndex>(i));
  frontend::on_storage_destroyed = [](RemoteStorage* storage) noexcept {
    get(storage->device().index()).on_storage_destroyed(storage);
  };
  return all;
}();

Recorder::Recorder(c10::DeviceIndex device) : device_(device) {
  thread_states_.push_back(std::make_unique<ThreadState>(encoders_, plans_, 0));
  last_thread_state_ = thread_states_.front().get();
}

bool Recorder::is_lost(const RemoteStorage* storage) {
  std::lock_guard<FastMutex> lock(mutex_);
  return encoders_.is_lost(storage);
}

// --- threads ---------------------------------------------------------------------------------------------------------

Recorder::ThreadState* Recorder::existing_thread_state() const {
  const auto found = std::ranges::find_if(
      thread_states_, [](const auto& thread_state) { return thread_state->thread == this_thread(); });
  return found != thread_states_.end() ? found->get() : nullptr;
}

Recorder::ThreadState& Recorder::find_thread_state(std::unique_lock<FastMutex>& lock, Status* status) {
  if (ThreadState* thread_state = existing_thread_state()) return *(last_thread_state_ = thread_state);
  const bool first = !several_threads_ && last_thread_state_->thread == 0 && last_thread_state_->empty();
  if (!first && !several_threads_) {
    // With a single thread, recorded ops do not note what they write. So they are sent first.
    if (*status = connect_locked(lock); !status->ok()) return *last_thread_state_;
    several_threads_ = true;
    // The engine's single thread would interleave the backward passes of all threads.
    every_thread_runs_backward();
    if (*status = flush_locked(lock, *last_thread_state_, {"another thread"}); !status->ok())
      return *last_thread_state_;
  }
  const auto ended =
      std::ranges::find(thread_states_, uint64_t{0}, [](const auto& thread_state) { return thread_state->thread; });
  if (ended != thread_states_.end()) {
    last_thread_state_ = ended->get();
    (void)flush_locked(lock, *last_thread_state_,
                       {"a thread ended"});  // if that fails, its tensors are lost, and their use raises
    last_thread_state_->first = last_thread_state_->sent;
    last_thread_state_->pass = last_thread_state_->last_pass = Pass::kForward;
  } else {
    last_thread_state_ =
        thread_states_.emplace_back(std::make_unique<ThreadState>(encoders_, plans_, thread_states_.size())).get();
  }
  last_thread_state_->thread = this_thread();
  static thread_local const struct ThreadExitHook {
    ~ThreadExitHook() { thread_ends(); }
  } leaver;
  (void)&leaver;  // constructed where it is first reached
  return *last_thread_state_;
}

void Recorder::thread_ends() noexcept {
  if (in_bad_fork()) return;
  for (Recorder* recorder : all_) {
    const std::lock_guard<FastMutex> lock(recorder->mutex_);
    if (ThreadState* thread_state = recorder->existing_thread_state()) thread_state->thread = 0;
  }
}

Status Recorder::send_others_of(std::unique_lock<FastMutex>& lock, const ThreadState* own, const RemoteStorage* storage,
                                bool writes, const FlushReason& flush_reason, bool* flushed) {
  Status status;
  for (const auto& thread_state : thread_states_) {
    // While only one thread records, records do not note what they write.
    if (thread_state.get() == own || !thread_state->encoder.must_precede(storage, writes || !several_threads_))
      continue;
    const Status sent = flush_locked(lock, *thread_state, flush_reason);
    if (status.ok()) status = sent;
    *flushed = true;
  }
  return status;
}

Status Recorder::send_before(std::unique_lock<FastMutex>& lock, const ThreadState& own, const ir::OpDesc& op,
                             const c10::IValue* args, bool* flushed) {
  Status status;
  // All ranks execute collectives and messages in one order: the order of the calls.
  if (op.opcode >= ir::kFirstOpaque && op.name.starts_with("remote_c10d::")) {
    for (const auto& thread_state : thread_states_) {
      if (thread_state.get() == &own || thread_state->empty()) continue;
      const Status sent = flush_locked(lock, *thread_state, {"another thread"});
      if (status.ok()) status = sent;
      *flushed = true;
    }
    return status;
  }
  for_each_operand(op, args, [&](const RemoteStorage* storage, bool writes) {
    const Status sent = send_others_of(lock, &own, storage, writes, {"another thread"}, flushed);
    if (status.ok()) status = sent;
  });
  return status;
}

void Recorder::note_written(ThreadState& thread_state, const ir::OpDesc& op, const c10::IValue* args) const {
  for_each_operand(op, args, [&](const RemoteStorage* storage, bool writes) {
    if (writes) thread_state.encoder.note_written(storage);
  });
}

// --- recording -------------------------------------------------------------------------------------------------------

// Drops a trace that will never run. The tensors that it would have created are lost.
void Recorder::forget_trace(ThreadState& thread_state) {
  const ir::Trace& trace = thread_state.encoder.trace();
  for (const ir::TraceBuffer& buffer : trace.buffers) {
    if (buffer.fresh && buffer.owner != nullptr) static_cast<RemoteStorage*>(buffer.owner)->id = RemoteStorage::kLost;
  }
  thread_state.sent += trace.records.size();
  thread_state.cuts.trace_ends(trace, /*ends=*/true, /*waits=*/false);
  thread_state.encoder.clear();
}

void Recorder::record(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<at::Tensor> results,
                      c10::ArrayRef<uint32_t> list_lengths, std::optional<RandomState> random) {
  bool backward = false;
  const ir::SourceRef source = capture_source(&backward);
  Status status;
  bool flushed = false;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    ThreadState& thread_state = this->thread_state(lock, &status);
    const Pass pass = backward ? Pass::kBackward : Pass::kForward;
    if (status.ok() && others_record(thread_state)) status = send_before(lock, thread_state, op, args, &flushed);
    const bool joins =
        op.family == ir::Family::kCopy && !tracing_ && thread_state.encoder.concatenates_many_inputs(op, args);
    if (joins && !thread_state.empty()) {
      const Status sent = flush_locked(lock, thread_state, {"join"});
      if (status.ok()) status = sent;
      flushed = true;
    }
    if (pass != thread_state.pass) {
      const Status entered = enter_pass(lock, thread_state, pass, &flushed);
      if (status.ok()) status = entered;
    }
    if (const ir::MathModes now = determinism(); now != thread_state.determinism) [[unlikely]] {
      const Status entered = enter_determinism(lock, thread_state, now, &flushed);
      if (status.ok()) status = entered;
    }
    if (has_math_modes(op.family) && !runs_on_cpu(device_)) {
      const Status entered = enter_math(lock, thread_state, math_modes(), &flushed);
      if (status.ok()) status = entered;
    }
    // If sending failed, raise that error, not the follow-up errors of tensors that were lost with it.
    if (status.ok()) {
      thread_state.encoder.append(op, args, results, list_lengths, source, random, joins);
      records_.fetch_add(1, std::memory_order_relaxed);
      if (several_threads_) note_written(thread_state, op, args);
      if (const ir::Cuts::CutKind place = thread_state.cuts.after(op.opcode);
          place != ir::Cuts::CutKind::kNone || joins) {
        const bool planned = place == ir::Cuts::CutKind::kPlanned && !joins;
        status = flush_locked(lock, thread_state, {joins ? "join" : "cut", false, planned});
        flushed = true;
      }
    }
  }
  if (flushed) {
    report_flushes();
    check(status);
    throttle();
  }
  check(status);
  if (sync_each_op()) synchronize();
}

// Cuts between forward and backward, and between backward and optimizer.
Status Recorder::enter_pass(std::unique_lock<FastMutex>& lock, ThreadState& thread_state, Pass pass, bool* flushed) {
  Status status;
  if (pass != thread_state.last_pass && thread_state.cuts.is_long_enough_to_cut()) {
    status = flush_locked(lock, thread_state, {"boundary"});
    *flushed = true;
  }
  if (thread_state.empty() && EventLog::on()) {
    thread_state.trace_began = remote::monotonic_ns();
    thread_state.trace_thread = EventLog::this_thread();
  }
  thread_state.pass = thread_state.last_pass = pass;
  return status;
}

Status Recorder::enter_math(std::unique_lock<FastMutex>& lock, ThreadState& thread_state, ir::MathModes math,
                            bool* flushed) {
  Status status;
  if (thread_state.math_in_trace && math != thread_state.math) {
    status = flush_locked(lock, thread_state, {"math modes"});
    *flushed = true;
  }
  thread_state.math = math;
  thread_state.math_in_trace = true;
  return status;
}

ir::MathModes Recorder::determinism() {
  static const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms()) [[likely]]
    return 0;
  return ir::kDeterministic | (context.deterministicAlgorithmsWarnOnly() ? ir::kDeterministicWarnOnly : 0);
}

Status Recorder::enter_determinism(std::unique_lock<FastMutex>& lock, ThreadState& thread_state,
                                   ir::MathModes determinism, bool* flushed) {
  Status status;
  if (!thread_state.empty()) {
    status = flush_locked(lock, thread_state, {"math modes"});
    *flushed = true;
  }
  thread_state.determinism = determinism;
  return status;
}

Status Recorder::connect_locked(std::unique_lock<FastMutex>& lock) const {
  while (existing_client(device_) == nullptr) {
    lock.unlock();
    Status status;
    const bool connected = connect(device_, &status) != nullptr;
    lock.lock();
    if (!connected && !status.ok()) return status;
  }
  return {};
}

Status Recorder::flush_all_locked(std::unique_lock<FastMutex>& lock, const FlushReason& flush_reason,
                                  const ir::SourceRef& line) {
  Status status;
  for (size_t i = 0; i < thread_states_.size(); ++i) {  // other threads may add thread states while a worker starts
    const Status sent = flush_locked(lock, *thread_states_[i], flush_reason, nullptr, line);
    if (status.ok()) status = sent;
  }
  return status;
}

Status Recorder::flush_locked(std::unique_lock<FastMutex>& lock, ThreadState& thread_state,
                              const FlushReason& flush_reason, uint64_t* ticket, const ir::SourceRef& line) {
  ir::Trace& trace = thread_state.encoder.trace();
  Status status;
  if (!trace.empty()) status = connect_locked(lock);
  thread_state.cuts.trace_ends(trace, !flush_reason.planned, flush_reason.waits);
  if (trace.empty()) return {};
  survivors_.clear();
  for (const ir::TraceBuffer& buffer : trace.buffers) {
    if (buffer.fresh && buffer.owner != nullptr) survivors_.push_back(static_cast<RemoteStorage*>(buffer.owner));
  }
  const ir::SourceRef last = trace.sources.back();
  const uint64_t first_record = std::exchange(thread_state.sent, thread_state.sent + trace.records.size());
  std::vector<ir::SourceRef> sources;
  std::vector<ir::Opcode> ops;
  const bool watch = expect_no_compile_ && !unexpected_compile_;
  if (watch) {
    sources = trace.sources;
    for (const ir::TraceRecord& record : trace.records) ops.push_back(trace.code[record.code]);
  }
  if (tracing_) traced_.push_back({trace, trace.survivors(), nullptr});
  trace.math = thread_state.math | thread_state.determinism;
  trace.deterministic = thread_state.determinism != 0;
  thread_state.math_in_trace = false;
  remote::FlushInfo info;
  uint64_t base = 0;
  const uint64_t started = remote::monotonic_ns();
  if (status.ok()) {
    remote::Client* worker = existing_client(device_);
    status = worker != nullptr ? worker->flush(trace, &base, &info, ticket) : worker_ended();
  }
  thread_state.encoder.clear();
  assign_buffer_ids(survivors_, status.ok(), base);
  if (!status.ok()) return status;
  note_flush({info, flush_reason.name, last, remote::monotonic_ns() - started});
  if (EventLog::on())
    log_flush(thread_state, flush_reason.name, info, line.code != 0 ? line : last, started, first_record);
  if (watch && !info.hit) {
    const bool differs = info.first_difference < ops.size();
    unexpected_compile_ = {differs ? std::string(ir::op_desc(ops[info.first_difference]).name) : std::string(),
                           differs ? sources[info.first_difference] : last, info.first_difference, ops.size()};
  }
  return {};
}

void Recorder::assign_buffer_ids(std::span<RemoteStorage* const> made, bool sent, uint64_t base) const {
  for (size_t i = 0; i < made.size(); ++i) {
    made[i]->id = sent ? base + i : RemoteStorage::kLost;
    made[i]->session = encoders_.session;
  }
}

bool Recorder::run(RunnableGraph& graph, std::span<const int64_t> params, std::span<RemoteStorage* const> inputs,
                   std::span<RemoteStorage* const> results) {
  Status status;
  bool lost = false;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    status = connect_locked(lock);
    if (status.ok()) {
      ThreadState& thread_state = this->thread_state(lock, &status);
      bool flushed = false;
      if (status.ok()) status = flush_locked(lock, thread_state, {"compiled graph"});
      for (const RemoteStorage* storage : inputs) {
        if (!status.ok() || !others_record(thread_state)) break;
        status = send_others_of(lock, &thread_state, storage, /*writes=*/true, {"another thread"}, &flushed);
      }
      if (!runs_on_cpu(device_)) thread_state.math = math_modes();
      thread_state.determinism = determinism();  // the trace is empty here
      for (const RemoteStorage* storage : inputs) lost = lost || encoders_.is_lost(storage);
      if (status.ok() && !lost) status = run_locked(thread_state, graph, params, inputs, results);
    }
  }
  report_flushes();
  check(status);
  if (lost) return false;
  throttle();
  if (sync_each_op()) synchronize();
  return true;
}

Status Recorder::run_locked(ThreadState& thread_state, RunnableGraph& graph, std::span<const int64_t> params,
                            std::span<RemoteStorage* const> inputs, std::span<RemoteStorage* const> results) {
  Status status;
  remote::Client* worker = existing_client(device_);
  if (worker == nullptr) return worker_ended();
  const uint64_t started = remote::monotonic_ns();
  RunnableGraph::Loaded& loaded = graph.loaded[thread_state.determinism != 0 ? 1 : 0];
  if (!loaded.program || loaded.session != encoders_.session) {
    remote::ProgramOptions options = graph.options;
    options.deterministic = thread_state.determinism != 0;
    if (status = worker->load(graph.graph, graph.sources, params, options, &loaded.program); !status) return status;
    loaded.session = encoders_.session;
  }
  if (tracing_) {
    TracedRun& run = traced_.emplace_back();
    run.graph = graph.graph;
    run.trace.params.assign(params.begin(), params.end());
    run.trace.sources = graph.sources;
  }
  graph.inputs.clear();
  for (const RemoteStorage* storage : inputs) graph.inputs.push_back(storage->id);
  remote::FlushInfo info;
  uint64_t base = 0;
  status =
      worker->run(loaded.program, {params, graph.inputs, results.size(), thread_state.math | thread_state.determinism},
                  &base, &info);
  assign_buffer_ids(results, status.ok(), base);
  if (!status) return status;
  const ir::SourceRef last = graph.sources.empty() ? ir::SourceRef() : graph.sources.back();
  note_flush({info, "compiled graph", last, remote::monotonic_ns() - started});
  if (EventLog::on()) log_flush(thread_state, "compiled graph", info, last, started, kNoRecords);
  if (expect_no_compile_ && !unexpected_compile_ && !info.hit) {
    unexpected_compile_ = {"", last, info.ops, info.ops};
    unexpected_compile_->compiled_graph = true;
  }
  return {};
}

void Recorder::log_flush(ThreadState& thread_state, const char* reason, const remote::FlushInfo& info,
                         const ir::SourceRef& line, uint64_t started, uint64_t first_record) {
  Event flush;
  flush.first_record = first_record;
  flush.kind = Event::Kind::kFlush;
  flush.name = reason;
  flush.begin = started;
  flush.end = remote::monotonic_ns();
  flush.sequence = info.sequence;
  flush.program = info.program;
  flush.ops = static_cast<uint32_t>(info.ops);
  flush.source = line;
  if (const remote::Client* worker = existing_client(device_)) flush.session = worker->session();
  if (thread_state.trace_began != 0) {
    Event recording = flush;
    recording.kind = Event::Kind::kRecording;
    recording.thread = thread_state.trace_thread;
    recording.begin = thread_state.trace_began;
    recording.end = started;
    EventLog::add(std::move(recording));
  }
  EventLog::add(std::move(flush));
  thread_state.trace_began = 0;
  thread_state.pass = Pass::kUnknown;
}

void Recorder::profile_starts() {
  std::lock_guard<FastMutex> lock(mutex_);
  for (const auto& thread_state : thread_states_) {
    thread_state->trace_began = 0;
    thread_state->pass = Pass::kUnknown;
  }
}

Recorder::Numbers Recorder::numbers() {
  const std::lock_guard<FastMutex> lock(mutex_);
  const ThreadState* thread_state = existing_thread_state();
  return thread_state != nullptr
             ? Numbers{thread_state->first, thread_state->sent + thread_state->encoder.trace().records.size()}
             : Numbers();
}

void Recorder::profile_ends(const ir::SourceRef& line) {
  {
    std::unique_lock<FastMutex> lock(mutex_);
    (void)flush_all_locked(lock, {"profile ends"}, line);
  }
  report_flushes();
}

void Recorder::set_limits(const ir::CutLimits& limits) {
  std::lock_guard<FastMutex> lock(mutex_);
  plans_.limits = limits;
}

bool Recorder::is_tracing() {
  const std::lock_guard<FastMutex> lock(mutex_);
  return tracing_;
}

void Recorder::start_tracing() {
  flush("trace");
  std::lock_guard<FastMutex> lock(mutex_);
  TORCH_CHECK(!tracing_, "remote: torch.remote.trace() is on already");
  tracing_ = true;
  limits_before_ = plans_.limits;
  plans_.limits = {1u << 30, 1u << 30, false};
}

std::vector<TracedRun> Recorder::stop_tracing() {
  flush("trace");
  std::lock_guard<FastMutex> lock(mutex_);
  tracing_ = false;
  plans_.limits = limits_before_;
  return std::exchange(traced_, {});
}

void Recorder::expect_no_compile(bool expect) {
  std::lock_guard<FastMutex> lock(mutex_);
  expect_no_compile_ = expect;
  if (expect) unexpected_compile_.reset();
}

std::string Recorder::take_unexpected_compile() {
  std::optional<UnexpectedCompile> miss;
  {
    std::lock_guard<FastMutex> lock(mutex_);
    miss = std::exchange(unexpected_compile_, std::nullopt);
  }
  if (!miss) return {};
  const std::string line = describe_source(miss->source);
  const std::string where = line.empty() ? std::string() : " at " + line;
  if (miss->compiled_graph) {
    return c10::str("a program was built: torch.compile made another graph of ", miss->records, " ops, which ends",
                    where);
  }
  if (miss->record > miss->records) {
    return c10::str("a program was built: no program was known before; its last op is", where);
  }
  if (miss->op.empty()) {
    return c10::str("a program was built: its ", miss->records,
                    " ops are those of a known program, but other tensors outlive it; it ends", where);
  }
  return c10::str("a program was built: op ", miss->record, " of ", miss->records, ", '", miss->op, "'", where,
                  ", is the first that differs from the known programs");
}

void Recorder::throttle() {
  if (remote::Client* worker = existing_client(device_)) check(worker->throttle(keep_waiting));
}

void Recorder::flush(const char* reason, bool waits) {
  const ir::SourceRef line = wait_line();
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    status = flush_all_locked(lock, {reason, waits}, line);
  }
  report_flushes();
  check(status);
  throttle();
}

void Recorder::flush_own(const char* reason) {
  const ir::SourceRef line = wait_line();
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    if (ThreadState* thread_state = existing_thread_state())
      status = flush_locked(lock, *thread_state, {reason}, nullptr, line);
  }
  report_flushes();
  check(status);
  throttle();
}

void Recorder::move_buffer(RemoteStorage* from, RemoteStorage* to) {
  Status status;
  bool flushed = false;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    ThreadState& thread_state = this->thread_state(lock, &status);
    for (const RemoteStorage* storage : {from, to}) {
      if (status.ok())
        status = send_others_of(lock, &thread_state, storage, /*writes=*/true, {"another thread"}, &flushed);
    }
    if (status.ok()) thread_state.encoder.swap_buffers(from, to);
  }
  if (flushed) report_flushes();
  check(status);
}

bool Recorder::has_buffer(const RemoteStorage* storage) {
  std::lock_guard<FastMutex> lock(mutex_);
  return storage->id != 0 || std::ranges::any_of(thread_states_, [&](const auto& thread_state) {
           return thread_state->encoder.contains(storage);
         });
}

void Recorder::on_storage_destroyed(RemoteStorage* storage) noexcept {
  if (in_bad_fork()) return;
  std::unique_lock<FastMutex> lock(mutex_);
  ThreadState* holder = last_thread_state_;
  if (several_threads_) {
    holder = nullptr;
    for (const auto& thread_state : thread_states_) {
      if (!thread_state->encoder.contains(storage)) continue;
      // The last run that reads the buffer frees it, so send the other traces first.
      if (holder != nullptr) (void)flush_locked(lock, *holder, {"another thread"});
      holder = thread_state.get();
    }
  }
  const bool recorded = holder != nullptr && holder->encoder.forget_storage(storage);
  if (!recorded && storage->id != 0 && !encoders_.is_lost(storage)) {
    if (remote::Client* worker = existing_client(device_)) worker->free(storage->id);
  }
  storage->id = 0;
  storage->buffer = {};
}

void Recorder::restart() {
  std::lock_guard<FastMutex> lock(mutex_);
  for (const auto& thread_state : thread_states_) forget_trace(*thread_state);
  ++encoders_.session;
  frontend::restart(device_);
}

void shutdown(bool wait) {
  if (in_bad_fork()) return;
  for (int i = 0; i < device_count(); ++i) {
    const auto device = static_cast<c10::DeviceIndex>(i);
    if (wait) Recorder::get(device).print_unreported();
    restart(device);
  }
}

}  // namespace torch_remote::frontend

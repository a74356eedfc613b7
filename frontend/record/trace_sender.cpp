#include "frontend/record/trace_sender.h"

#include <string>
#include <utility>

#include "frontend/record/flush_log.h"
#include "frontend/source/source.h"
#include "remote/client/event_log.h"

namespace torch_remote::frontend {
namespace {

using remote::Event;
using remote::EventLog;

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

ThreadState& TraceSender::find_own(std::unique_lock<FastMutex>& lock, Status* status) {
  if (ThreadState* own = traces_.find_own()) {
    traces_.set_last(*own);
    return *own;
  }
  ThreadState& last = traces_.last();
  const bool first = !traces_.has_several() && last.thread == 0 && last.empty();
  if (!first && !traces_.has_several()) {
    // With a single thread, recorded ops do not note what they write. So they are sent first.
    if (*status = connect(lock); !status->ok()) return last;
    traces_.expect_several();
    if (*status = send(lock, last, {"another thread"}); !status->ok()) return last;
  }
  ThreadState* ended = traces_.find_ended();
  ThreadState& own = ended != nullptr ? *ended : traces_.add();
  traces_.join(own);
  if (ended != nullptr) {
    (void)send(lock, own, {"a thread ended"});  // if that fails, its tensors are lost, and their use raises
    own.first = own.sent;
    own.pass = own.last_pass = Pass::kForward;
  }
  return own;
}

void TraceSender::note_written(ThreadState& own, const ir::OpDesc& op, const c10::IValue* args) {
  for_each_operand(op, args, [&](const RemoteStorage* storage, bool writes) {
    if (writes) own.encoder.note_written(storage);
  });
}

Status TraceSender::send_others_of(std::unique_lock<FastMutex>& lock, const ThreadState* own,
                                   const RemoteStorage* storage, bool writes, const FlushReason& reason,
                                   bool* flushed) {
  Status status;
  for (size_t i = 0; i < traces_.all().size(); ++i) {
    ThreadState& state = *traces_.all()[i];
    // While only one thread records, records do not note what they write.
    if (&state == own || !state.encoder.must_precede(storage, writes || !traces_.has_several())) continue;
    const Status sent = send(lock, state, reason);
    if (status.ok()) status = sent;
    *flushed = true;
  }
  return status;
}

Status TraceSender::send_before(std::unique_lock<FastMutex>& lock, const ThreadState& own, const ir::OpDesc& op,
                                const c10::IValue* args, bool* flushed) {
  Status status;
  if ((op.facts & ir::kFactInCallOrder) != 0) {
    for (size_t i = 0; i < traces_.all().size(); ++i) {
      ThreadState& state = *traces_.all()[i];
      if (&state == &own || state.empty()) continue;
      const Status sent = send(lock, state, {"another thread"});
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

Status TraceSender::connect(std::unique_lock<FastMutex>& lock) const {
  while (existing_client(device_) == nullptr) {
    lock.unlock();
    Status status;
    const bool connected = frontend::connect(device_, &status);
    lock.lock();
    if (!connected && !status.ok()) return status;
  }
  return {};
}

Status TraceSender::send_all(std::unique_lock<FastMutex>& lock, const FlushReason& reason, const ir::SourceRef& line) {
  Status status;
  for (size_t i = 0; i < traces_.all().size(); ++i) {
    const Status sent = send(lock, *traces_.all()[i], reason, nullptr, line);
    if (status.ok()) status = sent;
  }
  return status;
}

Status TraceSender::send(std::unique_lock<FastMutex>& lock, ThreadState& state, const FlushReason& reason,
                         uint64_t* ticket, const ir::SourceRef& line) {
  ir::Trace& trace = state.encoder.trace();
  Status status;
  if (!trace.empty()) status = connect(lock);
  state.cuts.trace_ends(trace, !reason.planned, reason.waits);
  if (trace.empty()) return {};
  survivors_.clear();
  for (const ir::TraceBuffer& buffer : trace.buffers) {
    if (buffer.fresh && buffer.owner != nullptr) survivors_.push_back(static_cast<RemoteStorage*>(buffer.owner));
  }
  const ir::SourceRef last = trace.sources.back();
  const uint64_t first_record = std::exchange(state.sent, state.sent + trace.records.size());
  std::vector<ir::SourceRef> sources;
  std::vector<ir::Opcode> ops;
  const bool watch = expectation_.watches();
  if (watch) {
    sources = trace.sources;
    for (const ir::TraceRecord& record : trace.records) ops.push_back(trace.code[record.code]);
  }
  if (capture_.is_on_locked()) capture_.add({trace, trace.survivors(), nullptr});
  trace.math_modes = state.math_modes | state.determinism;
  trace.deterministic = state.determinism != 0;
  state.math_modes_in_trace = false;
  remote::FlushInfo info;
  uint64_t first_result_id = 0;
  const uint64_t started = remote::monotonic_ns();
  if (status.ok()) {
    remote::Client* worker = existing_client(device_);
    status = worker != nullptr ? worker->flush(trace, &first_result_id, &info, ticket) : worker_ended();
  }
  state.encoder.clear();
  assign_buffer_ids(survivors_, status.ok(), first_result_id);
  if (!status.ok()) return status;
  note_flush({info, reason.name, last, remote::monotonic_ns() - started});
  if (EventLog::on()) log_flush(state, reason.name, info, line.code != 0 ? line : last, started, first_record);
  if (watch && !info.hit) {
    const bool differs = info.first_difference < ops.size();
    expectation_.note({differs ? std::string(ir::op_desc(ops[info.first_difference]).name) : std::string(),
                       differs ? sources[info.first_difference] : last, info.first_difference, ops.size()});
  }
  return {};
}

void TraceSender::assign_buffer_ids(std::span<RemoteStorage* const> made, bool sent, uint64_t first_result_id) const {
  for (size_t i = 0; i < made.size(); ++i) {
    made[i]->id = sent ? first_result_id + i : RemoteStorage::kLost;
    made[i]->session = traces_.session();
  }
}

Status TraceSender::run(ThreadState& own, RunnableGraph& graph, std::span<const int64_t> params,
                        std::span<RemoteStorage* const> inputs, std::span<RemoteStorage* const> results) {
  Status status;
  remote::Client* worker = existing_client(device_);
  if (worker == nullptr) return worker_ended();
  const uint64_t started = remote::monotonic_ns();
  RunnableGraph::Loaded& loaded = graph.loaded[own.determinism != 0 ? 1 : 0];
  const uint64_t session = worker->connection().session();
  if (!loaded.program || loaded.session != session) {
    remote::ProgramOptions options = graph.options;
    options.deterministic = own.determinism != 0;
    if (status = worker->load(graph.graph, graph.sources, params, options, &loaded.program); !status) return status;
    loaded.session = session;
  }
  if (capture_.is_on_locked()) {
    TracedRun traced;
    traced.graph = graph.graph;
    traced.trace.params.assign(params.begin(), params.end());
    traced.trace.sources = graph.sources;
    capture_.add(std::move(traced));
  }
  graph.inputs.clear();
  for (const RemoteStorage* storage : inputs) graph.inputs.push_back(storage->id);
  remote::FlushInfo info;
  uint64_t first_result_id = 0;
  status =
      worker->run(loaded.program,
                  {params, graph.inputs, results.size(), static_cast<ir::MathModes>(own.math_modes | own.determinism)},
                  &first_result_id, &info);
  assign_buffer_ids(results, status.ok(), first_result_id);
  if (!status) return status;
  const ir::SourceRef last = graph.sources.empty() ? ir::SourceRef() : graph.sources.back();
  note_flush({info, "compiled graph", last, remote::monotonic_ns() - started});
  if (EventLog::on()) log_flush(own, "compiled graph", info, last, started, ThreadTraces::kNoRecords);
  if (expectation_.watches() && !info.hit) expectation_.note({"", last, info.ops, info.ops, /*compiled_graph=*/true});
  return {};
}

void TraceSender::log_flush(ThreadState& state, const char* reason, const remote::FlushInfo& info,
                            const ir::SourceRef& line, uint64_t started, uint64_t first_record) const {
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
  flush.session = session_of(device_);
  if (state.trace_began != 0) {
    Event recording = flush;
    recording.kind = Event::Kind::kRecording;
    recording.thread = state.trace_thread;
    recording.begin = state.trace_began;
    recording.end = started;
    EventLog::add(std::move(recording));
  }
  EventLog::add(std::move(flush));
  state.trace_began = 0;
  state.pass = Pass::kUnknown;
}

void TraceSender::throttle() const {
  if (const std::shared_ptr<remote::Client> worker = running_client(device_)) check(worker->throttle(keep_waiting));
}

}  // namespace torch_remote::frontend

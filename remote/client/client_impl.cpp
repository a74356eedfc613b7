#include "remote/client/client_impl.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "ir/ops/op_table.h"
#include "remote/client/event_log.h"
#include "remote/wire/delta.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

// A worker that loads libtorch on a busy machine takes seconds.
constexpr std::chrono::seconds kHelloTimeout{120};
constexpr uint64_t kHelloSequence = 1;

ir::Capabilities decode(const wire::Capabilities& sent) {
  constexpr uint32_t kMostTargets = 64;
  ir::Capabilities all;
  for (uint32_t i = 0; sent.targets() != nullptr && i < std::min(sent.targets()->size(), kMostTargets); ++i) {
    all.targets.push_back(sent.targets()->Get(i)->str());
  }
  all.group_kind_mask = sent.group_kind_mask();
  all.dtype_mask = sent.dtype_mask();
  all.memory = sent.memory();
  all.threads = sent.threads();
  if (sent.library_versions() != nullptr) all.library_versions = sent.library_versions()->str();
  return all;
}

}  // namespace

// --- hello -----------------------------------------------------------------------------------------------------------

Status ClientImpl::hello(const KeepWaiting& keep_waiting) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateHello(builder, ir::op_table_fingerprint(), builder.CreateString(ir::op_table_version()),
                                   static_cast<uint32_t>(getpid())));
  // We propose a session number; the one in the worker's reply counts.
  session_ = std::random_device()() | uint64_t{std::random_device()()} << 32;
  sequence_ = kHelloSequence;
  replies_.sending(sequence_, 0);
  if (Status status = transport_->send(header(wire::Type::kHello, sequence_, wire::kWantsReply),
                                       {builder.GetBufferPointer(), builder.GetSize()}, nullptr);
      status.code() != ErrorCode::kOk && status.code() != ErrorCode::kLost) {
    return status;
  }  // if the worker is gone already, receive reports why
  const auto deadline = std::chrono::steady_clock::now() + kHelloTimeout;
  Frame frame;
  Status status;
  counters_.connections.fetch_add(1, std::memory_order_relaxed);
  do {
    if (keep_waiting && !keep_waiting()) return {ErrorCode::kInterrupted, "remote: connecting was interrupted"};
    status = transport_->receive(&frame, kWaitStep);
  } while (status.code() == ErrorCode::kTimeout && std::chrono::steady_clock::now() < deadline);
  if (status.code() == ErrorCode::kTimeout) {
    return {ErrorCode::kTimeout, "remote: the worker (" + transport_->description() + ") did not answer within " +
                                     std::to_string(kHelloTimeout.count()) + " s"};
  }
  if (!status) return status;
  const auto* reply = wire::verify<wire::HelloReply>(frame.control);
  if (frame.header.type != static_cast<uint8_t>(wire::Type::kHelloReply) || !reply) {
    return Status::invalid("remote: the worker answered the handshake with a message of type " +
                           std::to_string(frame.header.type) + "; install the same torch-remote on both ends");
  }
  if (reply->error()) return wire::to_status(*reply->error());
  session_ = frame.header.session;
  description_ = reply->runner_description() ? reply->runner_description()->str() : "worker";
  process_ = static_cast<int>(reply->process());
  peer_ = transport_->peer_process();
  if (const wire::Capabilities* sent = reply->capabilities()) capabilities_ = decode(*sent);
  machine_ = {reply->processor() ? reply->processor()->str() : "", reply->cores(), reply->memory(),
              capabilities_.targets};
  return {};
}

ClientImpl::~ClientImpl() {
  const uint64_t last = std::max(outbox_.end(), kHelloSequence);
  if (replies_.health().ok()) (void)transport_->send(header(wire::Type::kCloseSession, last + 1, 0), {}, nullptr);
}

// --- sending ---------------------------------------------------------------------------------------------------------

Status ClientImpl::begin(size_t messages, size_t bytes) {
  replies_.drain();
  return replies_.reserve(messages + 1, bytes);
}

void ClientImpl::take_freed_ids() {
  freed_ids_now_.clear();
  freed_ids_bytes_.clear();
  {
    std::lock_guard lock(freed_ids_mutex_);
    freed_ids_now_.swap(freed_ids_);
  }
  encode_freed_ids(freed_ids_now_, freed_ids_bytes_);
  speculative_reads_.on_free(freed_ids_now_);
  for (const uint64_t sequence : speculative_reads_.abandoned_reads()) replies_.drop_reply(sequence);
  speculative_reads_.abandoned_reads().clear();
}

void ClientImpl::limit_programs(uint64_t bytes) {
  std::lock_guard order(order_);
  most_program_bytes_ = bytes;
}

Status ClientImpl::drop_programs() {
  dropped_.clear();
  programs_.trim(most_program_bytes_, &dropped_);
  if (dropped_.empty()) return {};
  counters_.programs_dropped.fetch_add(dropped_.size(), std::memory_order_relaxed);
  if (Status status = replies_.reserve(3, 0); !status)
    return status;  // for UnloadPrograms and the messages that follow it
  builder_.Clear();
  builder_.Finish(wire::CreateUnloadPrograms(builder_, builder_.CreateVector(dropped_)));
  return send(wire::Type::kUnloadPrograms, false, nullptr, nullptr);
}

void ClientImpl::find_copies(const CachedProgram& program, const ir::Trace& trace) {
  copies_.clear();
  if (!program.facts_known.load(std::memory_order_acquire)) return;
  for (const ProgramFacts::Copy& copy : program.facts.copies) {
    const ir::TraceView &from = trace.views[copy.from], &to = trace.views[copy.to];
    const int64_t *source = trace.params.data() + from.first_param, *target = trace.params.data() + to.first_param;
    // The copy must cover a whole buffer of the same size, in the same order.
    const size_t rank = from.rank;
    uint64_t nbytes = ir::item_size(from.dtype);
    for (size_t i = 0; i < rank; ++i) nbytes *= static_cast<uint64_t>(source[i]);
    if (rank == to.rank && std::equal(source, source + rank, target) &&
        is_contiguous({source, rank}, {source + rank, rank}) && is_contiguous({target, rank}, {target + rank, rank}) &&
        source[2 * rank] == 0 && target[2 * rank] == 0 && trace.buffers[from.buffer].nbytes == nbytes &&
        trace.buffers[to.buffer].nbytes == nbytes) {
      copies_.push_back({copy.made, inputs_[copy.input]});
    }
  }
}

Status ClientImpl::send(wire::Type type, bool wants_reply, AttachmentPtr attachment, uint64_t* sequence) {
  const uint64_t number = ++sequence_;
  replies_.sending(number, attachment ? attachment->bytes().size() : 0);
  if (wants_reply) replies_.expect(number);
  if (sequence) *sequence = number;
  return outbox_.send(header(type, number, wants_reply ? wire::kWantsReply : 0),
                      {builder_.GetBufferPointer(), builder_.GetSize()}, std::move(attachment));
}

Status ClientImpl::send_freed_ids() {
  take_freed_ids();
  if (freed_ids_bytes_.empty()) return {};
  builder_.Clear();
  builder_.Finish(wire::CreateFree(builder_, builder_.CreateVector(freed_ids_bytes_)));
  return send(wire::Type::kFree, false, nullptr, nullptr);
}

std::span<const uint8_t> ClientImpl::encode_run(CachedProgram& program, std::span<const int64_t> now,
                                                uint64_t first_result_id, ir::MathModes math_modes) {
  params_.clear();
  bindings_.clear();
  // A replay that starts at a checkpoint does not know earlier runs, so each program sends all of its parameters once.
  const bool reset_delta = program.checkpoint != checkpoints_;
  if (reset_delta) program.last = {};
  program.checkpoint = checkpoints_;
  encode_params(now, program.last.params, params_);
  encode_bindings(inputs_, first_result_id, program.last.bindings, bindings_);
  take_freed_ids();
  builder_.Clear();
  const auto freed_ids = builder_.CreateVector(freed_ids_bytes_);
  const auto bindings = builder_.CreateVector(bindings_);
  const auto params = builder_.CreateVector(params_);
  builder_.Finish(
      wire::CreateRun(builder_, program.number, first_result_id, params, bindings, freed_ids, reset_delta, math_modes));
  return {builder_.GetBufferPointer(), builder_.GetSize()};
}

Status ClientImpl::flush(ir::Trace& trace, uint64_t* first_result_id, FlushInfo* info, uint64_t* ticket) {
  if (abandoned_) return forked();
  std::lock_guard order(order_);
  *info = FlushInfo();
  *first_result_id = next_id_;
  if (trace.empty()) return replies_.health();
  if (Status status = begin(2, 0); !status) return status;

  made_.clear();
  inputs_.clear();
  for (const ir::TraceBuffer& buffer : trace.buffers) {
    if (!buffer.fresh) {
      inputs_.push_back(buffer.id);
    } else if (buffer.owner) {
      made_.push_back(buffer.nbytes);
    }
  }
  const uint64_t made = made_.size();
  next_id_ += made;

  const ir::Hash128 key = trace.key();
  trace.survivors(survivors_);
  ProgramPtr program = programs_.find(key, trace, survivors_);
  if (program && program->failed) {
    programs_.remove(program);
    program = nullptr;
  }
  const bool hit = program != nullptr;
  if (!hit) {
    info->first_difference = programs_.first_difference(trace);
    if (Status status = drop_programs(); !status) return status;
    // The worker sees LoadProgram before the run that would bring these frees. The trace uses none of these buffers, so
    // we free them first.
    if (Status status = send_freed_ids(); !status) return status;
    program = programs_.add(key, trace, survivors_);
  }
  program->last_use = ++uses_;
  find_copies(*program, trace);
  speculative_reads_.on_run(*program, inputs_, *first_result_id, made_, copies_);
  const std::span<const uint8_t> control = encode_run(*program, trace.params, *first_result_id, trace.math_modes);
  count_flush(*program, hit, control, info);

  const RunInfo run{program, *first_result_id, made};
  std::unique_ptr<BuildJob> job;
  if (!hit) {
    job = outbox_.job_for(trace);
    job->survivors = survivors_;
    job->load_sequence = ++sequence_;
    replies_.sending(job->load_sequence, 0);
  }
  const wire::Header header = run_header(ticket, info);
  if (EventLog::on()) log_run(*info, hit ? trace.sources : program->sources);
  if (!hit) {
    outbox_.build_and_send(std::move(job), header, control, run);
    return {};
  }
  programs_.set_sources(*program, info->sequence, trace.sources);
  trace.clear();
  return outbox_.send(header, control, nullptr, &run);
}

Status ClientImpl::load(std::shared_ptr<const ir::Graph> graph, std::vector<ir::SourceRef> sources,
                        std::span<const int64_t> sample, const ProgramOptions& options, ProgramPtr* program) {
  if (abandoned_) return forked();
  std::lock_guard order(order_);
  if (Status status = begin(1, 0); !status) return status;
  if (Status status = drop_programs(); !status) return status;
  if (Status status = send_freed_ids(); !status) return status;
  *program = programs_.add(*graph, std::move(sources), options);
  if (options.low_latency) transport_->set_spin_time(kLowLatencySpin);
  auto job = std::make_unique<BuildJob>();
  job->graph = std::move(graph);
  job->sample.assign(sample.begin(), sample.end());
  job->load_sequence = ++sequence_;
  replies_.sending(job->load_sequence, 0);
  outbox_.build(std::move(job), header(wire::Type::kLoadProgram, sequence_, 0), *program);
  return {};
}

Status ClientImpl::run(const ProgramPtr& program, const RunArguments& arguments, uint64_t* first_result_id,
                       FlushInfo* info, uint64_t* ticket) {
  if (abandoned_) return forked();
  std::lock_guard order(order_);
  *info = FlushInfo();
  *first_result_id = next_id_;
  if (program->failed) return program->failure;
  if (Status status = begin(1, 0); !status) return status;
  next_id_ += arguments.fresh_buffers;
  inputs_.assign(arguments.inputs.begin(), arguments.inputs.end());
  made_.assign(arguments.fresh_buffers, 0);  // their sizes are not known here
  speculative_reads_.on_run(*program, inputs_, *first_result_id, made_, {});
  const std::span<const uint8_t> control =
      encode_run(*program, arguments.params, *first_result_id, arguments.math_modes);
  count_flush(*program, std::exchange(program->has_run, true), control, info);
  const RunInfo run{program, *first_result_id, arguments.fresh_buffers};
  const wire::Header header = run_header(ticket, info);
  if (EventLog::on()) log_run(*info, program->sources);
  return outbox_.send(header, control, nullptr, &run);
}

void ClientImpl::count_flush(const CachedProgram& program, bool hit, std::span<const uint8_t> control,
                             FlushInfo* info) {
  info->ops = program.ops.size();
  info->hit = hit;
  info->program = program.number;
  info->bytes = sizeof(wire::Header) + control.size();
  counters_.flushes.fetch_add(1, std::memory_order_relaxed);
  if (hit) counters_.program_hits.fetch_add(1, std::memory_order_relaxed);
}

wire::Header ClientImpl::run_header(uint64_t* ticket, FlushInfo* info) {
  const uint64_t sequence = ++sequence_;
  info->sequence = sequence;
  replies_.sending(sequence, 0);
  if (ticket) {
    replies_.expect(sequence);
    *ticket = sequence;
  }
  return header(wire::Type::kRun, sequence, ticket ? wire::kWantsReply : 0);
}

void ClientImpl::log_run(const FlushInfo& info, const std::vector<ir::SourceRef>& sources) const {
  Event event;
  event.kind = Event::Kind::kRun;
  event.hit = info.hit;
  event.program = info.program;
  event.ops = static_cast<uint32_t>(info.ops);
  event.begin = event.end = monotonic_ns();
  event.session = session_;
  event.sequence = info.sequence;
  event.bytes = info.bytes;
  event.first_difference = info.first_difference;
  event.sources = EventLog::share(session_, info.program, sources);
  EventLog::add(std::move(event));
}

Status ClientImpl::upload(size_t size, const std::function<void(std::byte*)>& fill, uint64_t* id) {
  if (Status status = health(); !status) return status;
  AttachmentPtr attachment = transport_->allocate(size);
  if (!attachment)
    return {ErrorCode::kOutOfMemory, "remote: this process is out of memory. It has none left for an upload of " +
                                         std::to_string(size) + " bytes"};
  fill(attachment->bytes().data());
  std::lock_guard order(order_);
  if (Status status = begin(1, size); !status) return status;
  if (Status status = send_freed_ids(); !status) return status;
  *id = next_id_++;
  builder_.Clear();
  builder_.Finish(wire::CreateUpload(builder_, *id));
  counters_.bytes_uploaded.fetch_add(size, std::memory_order_relaxed);
  return send(wire::Type::kUpload, false, std::move(attachment), nullptr);
}

Status ClientImpl::read_file(std::string_view path, const FileVersion& version, uint64_t offset, uint64_t size,
                             uint64_t* id) {
  if (abandoned_) return forked();
  std::lock_guard order(order_);
  if (Status status = begin(1, 0); !status) return status;
  if (Status status = send_freed_ids(); !status) return status;
  *id = next_id_++;
  builder_.Clear();
  const wire::FileVersion its(version.size, version.inode, version.mtime_ns);
  const auto name = builder_.CreateString(path.data(), path.size());
  builder_.Finish(wire::CreateReadFile(builder_, *id, name, &its, offset, size));
  return send(wire::Type::kReadFile, false, nullptr, nullptr);
}

void ClientImpl::free(uint64_t id) {
  if (abandoned_) return;
  std::lock_guard lock(freed_ids_mutex_);
  try {
    freed_ids_.push_back(id);
  } catch (const std::bad_alloc&) {
    return;  // the worker keeps the buffer until the session ends, which is better than an exception in a destructor
  }
}

// --- waiting ---------------------------------------------------------------------------------------------------------

Status ClientImpl::wait(uint64_t sequence, const KeepWaiting& keep_waiting, Frame* reply, OpError* error,
                        bool keep_expecting) {
  counters_.round_trips.fetch_add(1, std::memory_order_relaxed);
  EventSpan span(Event::Kind::kReply);
  if (Event* event = span.event()) {
    event->session = session_;
    event->sequence = sequence;
  }
  return replies_.wait(sequence, keep_waiting, reply, error, keep_expecting);
}

Status ClientImpl::wait_results(uint64_t ticket, ResultWords* result_words, const KeepWaiting& keep_waiting,
                                OpError* error) {
  if (abandoned_) return forked();
  Frame frame;
  if (Status status = wait(ticket, keep_waiting, &frame, error); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::RunReply>(frame.control.data());  // verified on receipt
  result_words->clear();
  if (reply->result_words()) result_words->assign(reply->result_words()->begin(), reply->result_words()->end());
  return {};
}

Status ClientImpl::synchronize(const KeepWaiting& keep_waiting, OpError* error) {
  const auto encode = [&] { builder_.Finish(wire::CreateSynchronize(builder_)); };
  Frame frame;
  OpError failures;
  Status status = ask(wire::Type::kSynchronize, encode, keep_waiting, &frame, &failures);
  if (!status && failures.status.ok()) return status;
  replies_.take_deferred(&failures);
  if (!failures.status) *error = failures;
  return failures.status;
}

Status ClientImpl::cancel() {
  if (abandoned_) return forked();
  if (Status status = health(); !status) return status;
  uint64_t last_sequence;
  {
    // Another thread may hold order_ while it waits for credits, which come soon. We need not cancel what it sends
    // after that.
    std::unique_lock order(order_, std::try_to_lock);
    last_sequence = order.owns_lock() ? sequence_ : replies_.last_sent();
  }
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateCancel(builder, last_sequence));
  return transport_->send(header(wire::Type::kCancel, 0, 0), {builder.GetBufferPointer(), builder.GetSize()}, nullptr);
}

Status ClientImpl::memory(const MemoryRequest& request, const KeepWaiting& keep_waiting, MemoryLimits* limits) {
  const auto encode = [&] {
    wire::MemoryBuilder message(builder_);
    message.add_empty_cache(request.empty_cache);
    if (request.limit) message.add_limit(*request.limit);
    message.add_reset_peak(request.reset_peak);
    message.add_reset_totals(request.reset_totals);
    builder_.Finish(message.Finish());
  };
  Frame frame;
  OpError none;  // this reply has no error
  if (Status status = ask(wire::Type::kMemory, encode, keep_waiting, &frame, &none); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::MemoryReply>(frame.control.data());  // verified on receipt
  *limits = {reply->limit(), reply->free()};
  return {};
}

Status ClientImpl::record_event(uint64_t* ticket) {
  return send_request(wire::Type::kRecordEvent, [&] { builder_.Finish(wire::CreateRecordEvent(builder_)); }, ticket);
}

bool ClientImpl::is_reached(uint64_t ticket) {
  if (abandoned_) return true;
  replies_.drain();
  return replies_.has(ticket);
}

Status ClientImpl::wait_event(uint64_t ticket, const KeepWaiting& keep_waiting, RecordedEvent* event) {
  if (abandoned_) return forked();
  Frame frame;
  OpError none;  // this reply has no error
  const bool waits = !is_reached(ticket);
  Status status = waits ? wait(ticket, keep_waiting, &frame, &none, /*again=*/true)
                        : replies_.wait(ticket, keep_waiting, &frame, &none);
  if (!status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::RecordEventReply>(frame.control.data());  // verified on receipt
  *event = {reply->device_time_ns(), reply->failed()};
  return {};
}

bool ClientImpl::is_idle() {
  if (abandoned_) return true;
  replies_.drain();
  return !health() || (!replies_.has_background_work() && last_acknowledged() == last_sent());
}

void ClientImpl::forget(uint64_t ticket) noexcept {
  if (!abandoned_) replies_.drop_reply(ticket);
}

Status ClientImpl::find_file(std::string_view path, const KeepWaiting& keep_waiting, FoundFile* file) {
  const auto encode = [&] {
    builder_.Finish(wire::CreateStatFile(builder_, builder_.CreateString(path.data(), path.size())));
  };
  Frame frame;
  OpError none;  // this reply has no error
  if (Status status = ask(wire::Type::kStatFile, encode, keep_waiting, &frame, &none); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::StatFileReply>(frame.control.data());  // verified on receipt
  *file = {};
  if (const wire::FileVersion* version = reply->version()) {
    file->readable = true;
    file->version = {version->size(), version->inode(), version->mtime_ns()};
  }
  file->allowed = reply->allowed();
  if (reply->reason()) file->reason = reply->reason()->str();
  return {};
}

Status ClientImpl::has_op(std::string_view name, const KeepWaiting& keep_waiting, bool* has, OpError* error) {
  const auto encode = [&] {
    builder_.Finish(wire::CreateHasOp(builder_, builder_.CreateString(name.data(), name.size())));
  };
  Frame frame;
  if (Status status = ask(wire::Type::kHasOp, encode, keep_waiting, &frame, error); !status) return status;
  *has = flatbuffers::GetRoot<wire::HasOpReply>(frame.control.data())->has_op();  // verified on receipt
  return {};
}

Status ClientImpl::profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting,
                           WorkerProfile* profile) {
  if (abandoned_) return forked();
  const auto encode = [&] {
    builder_.Finish(wire::CreateProfile(builder_, static_cast<wire::ProfileCommand>(command), limit));
    // the sequence of this message
    if (command == ProfileCommand::kStart) replies_.start_profile(limit, sequence_ + 1);
  };
  const uint64_t sent = monotonic_ns();
  Frame reply;
  OpError none;  // this reply has no error
  Status status = ask(wire::Type::kProfile, encode, keep_waiting, &reply, &none);
  *profile = command == ProfileCommand::kStop ? replies_.take_profile() : WorkerProfile();
  if (!status) return status;
  decode_worker_clock(reply, sent, monotonic_ns(), profile);
  return append_worker_profile(reply, profile);
}

std::string ClientImpl::description() const {
  // If the worker was replaced, the transport has a new peer. Otherwise the peer may be a listener, so we use the pid
  // from the server hello.
  const int peer = transport_->peer_process();
  return description_ + ", pid " + std::to_string(peer != peer_ ? peer : process_) + ", over " +
         transport_->description();
}

// --- counters --------------------------------------------------------------------------------------------------------

Counters ClientImpl::all_counters() const {
  const Replies::Totals totals = replies_.totals();
  return {.flushes = counters_.flushes,
          .programs_built = counters_.programs_built,
          .program_hits = counters_.program_hits,
          .programs_dropped = counters_.programs_dropped,
          .programs_kept = programs_.size(),
          .kernels_compiled = totals.kernels_compiled,
          .groups_without_kernel = totals.groups_without_kernel,
          .round_trips = counters_.round_trips,
          .connections = counters_.connections,
          .back_pressure_waits = totals.back_pressure_waits,
          .bytes_sent = counters_.bytes_sent,
          .bytes_received = totals.bytes_received,
          .bytes_uploaded = counters_.bytes_uploaded,
          .bytes_downloaded = counters_.bytes_downloaded,
          .worker_bytes = totals.memory.allocated.current,
          .worker_peak_bytes = totals.memory.allocated.peak};
}

Counters ClientImpl::counters() const {
  if (abandoned_) return {};
  std::lock_guard lock(base_mutex_);  // taken first: a reset in between would make the differences negative
  Counters all = all_counters();
  for (const CounterField& field : kCounterFields) {
    if (!field.level) all.*field.value -= base_.*field.value;
  }
  return all;
}

void ClientImpl::reset_counters() {
  if (abandoned_) return;
  std::lock_guard lock(base_mutex_);
  base_ = all_counters();
}

void Counters::add(const Counters& other) {
  for (const CounterField& field : kCounterFields) this->*field.value += other.*field.value;
}

Status Client::connect(std::unique_ptr<Transport> transport, BuildFunction build, const KeepWaiting& keep_waiting,
                       std::unique_ptr<Client>* client) {
  auto made = std::make_unique<ClientImpl>(std::move(transport), std::move(build));
  if (Status status = made->hello(keep_waiting); !status) return status;
  *client = std::move(made);
  return {};
}

}  // namespace torch_remote::remote

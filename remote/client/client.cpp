#include "remote/client/client.h"

#include <utility>

#include "remote/client/buffer_reader.h"
#include "remote/client/channel.h"
#include "remote/client/event_log.h"
#include "remote/wire/delta.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

void count_flush(AtomicCounters& counters, const CachedProgram& program, bool hit, std::span<const uint8_t> control,
                 FlushInfo* info) {
  info->ops = program.ops.size();
  info->hit = hit;
  info->program = program.number;
  info->bytes = sizeof(wire::Header) + control.size();
  counters.flushes.fetch_add(1, std::memory_order_relaxed);
  if (hit) counters.program_hits.fetch_add(1, std::memory_order_relaxed);
}

// The header of the next message, a Run. With a ticket, the caller will wait for the reply. Requires Channel::order.
wire::Header run_header(Channel& channel, uint64_t* ticket, FlushInfo* info) {
  info->sequence = channel.next_sequence();
  if (ticket) {
    channel.replies.expect(info->sequence, wire::Type::kRun);
    *ticket = info->sequence;
  }
  return channel.header(wire::Type::kRun, info->sequence, ticket ? wire::kWantsReply : 0);
}

void log_run(uint64_t session, const FlushInfo& info, const std::vector<ir::SourceRef>& sources) {
  Event event;
  event.kind = Event::Kind::kRun;
  event.hit = info.hit;
  event.program = info.program;
  event.ops = static_cast<uint32_t>(info.ops);
  event.begin = event.end = monotonic_ns();
  event.session = session;
  event.sequence = info.sequence;
  event.bytes = info.bytes;
  event.first_difference = info.first_difference;
  event.sources = EventLog::share(session, info.program, sources);
  EventLog::add(std::move(event));
}

}  // namespace

Client::Client(std::unique_ptr<Channel> channel)
    : channel_(std::move(channel)),
      reader_(std::make_unique<BufferReader>(*channel_)),
      events_(*channel_),
      files_(*channel_),
      functions_(*channel_),
      checkpoint_(*channel_),
      shadow_(*channel_),
      connection_(*channel_) {}

Client::~Client() = default;

Status Client::connect(std::unique_ptr<Transport> transport, BuildFunction build, const KeepWaiting& keep_waiting,
                       std::unique_ptr<Client>* client) {
  auto channel = std::make_unique<Channel>(std::move(transport), std::move(build));
  if (Status status = channel->connect(keep_waiting); !status) return status;
  client->reset(new Client(std::move(channel)));
  return {};
}

void Client::end_waits() { channel_->end_waits(); }
void Client::abandon() { channel_->abandon(); }

// --- programs and runs -----------------------------------------------------------------------------------------------

void Client::limit_programs(uint64_t bytes) {
  std::lock_guard order(channel_->order);
  most_program_bytes_ = bytes;
}

Status Client::drop_programs() {
  std::vector<uint32_t> dropped;
  channel_->programs.trim(most_program_bytes_, &dropped);
  if (dropped.empty()) return {};
  channel_->counters.programs_dropped.fetch_add(dropped.size(), std::memory_order_relaxed);
  if (Status status = channel_->replies.reserve(3, 0); !status)
    return status;  // for UnloadPrograms and the messages that follow it
  flatbuffers::FlatBufferBuilder& builder = channel_->builder;
  builder.Clear();
  builder.Finish(wire::CreateUnloadPrograms(builder, builder.CreateVector(dropped)));
  return channel_->send(wire::Type::kUnloadPrograms, false, nullptr, nullptr);
}

std::span<const uint8_t> Client::encode_run(CachedProgram& program, std::span<const int64_t> now,
                                            uint64_t first_result_id, ir::MathModes math_modes) {
  params_.clear();
  bindings_.clear();
  // A replay that starts at a checkpoint does not know earlier runs, so each program sends all of its parameters once.
  const bool reset_delta = program.checkpoint != channel_->checkpoints;
  if (reset_delta) program.last = {};
  program.checkpoint = channel_->checkpoints;
  encode_params(now, program.last.params, params_);
  encode_bindings(inputs_, first_result_id, program.last.bindings, bindings_);
  const std::vector<uint8_t>& freed = channel_->take_freed_ids();
  flatbuffers::FlatBufferBuilder& builder = channel_->builder;
  builder.Clear();
  const auto freed_ids = builder.CreateVector(freed);
  const auto bindings = builder.CreateVector(bindings_);
  const auto params = builder.CreateVector(params_);
  builder.Finish(
      wire::CreateRun(builder, program.number, first_result_id, params, bindings, freed_ids, reset_delta, math_modes));
  return {builder.GetBufferPointer(), builder.GetSize()};
}

Status Client::flush(ir::Trace& trace, uint64_t* first_result_id, FlushInfo* info, uint64_t* ticket) {
  if (channel_->is_abandoned()) return Channel::forked();
  std::lock_guard order(channel_->order);
  *info = FlushInfo();
  *first_result_id = channel_->next_id;
  if (trace.empty()) return channel_->replies.health();
  if (Status status = channel_->begin(2, 0); !status) return status;

  made_.clear();
  inputs_.clear();
  consumed_.clear();
  for (const ir::TraceBuffer& buffer : trace.buffers) {
    if (!buffer.fresh) {
      inputs_.push_back(buffer.id);
      if (buffer.owner == nullptr) consumed_.push_back(buffer.id);
    } else if (buffer.owner) {
      made_.push_back(buffer.nbytes);
    }
  }
  const uint64_t made = made_.size();
  channel_->next_id += made;

  const ir::Hash128 key = trace.key();
  trace.survivors(survivors_);
  ProgramPtr program = channel_->programs.find(key, trace, survivors_);
  if (program && program->failed) {
    channel_->programs.remove(program);
    program = nullptr;
  }
  const bool hit = program != nullptr;
  if (!hit) {
    info->first_difference = channel_->programs.first_difference(trace);
    if (Status status = drop_programs(); !status) return status;
    // The worker sees LoadProgram before the run that would bring these frees. The trace uses none of these buffers, so
    // we free them first.
    if (Status status = channel_->send_freed_ids(); !status) return status;
    program = channel_->programs.add(key, trace, survivors_);
  }
  program->last_use = ++uses_;
  reader_->on_run(*program, inputs_, *first_result_id, made_, &trace);
  const std::span<const uint8_t> control = encode_run(*program, trace.params, *first_result_id, trace.math_modes);
  count_flush(channel_->counters, *program, hit, control, info);

  const RunInfo run{program, *first_result_id, made, consumed_};
  std::unique_ptr<BuildJob> job;
  if (!hit) {
    job = channel_->outbox.job_for(trace);
    job->survivors = survivors_;
    job->load_sequence = channel_->next_sequence();
  }
  const wire::Header header = run_header(*channel_, ticket, info);
  if (EventLog::on()) log_run(channel_->session(), *info, hit ? trace.sources : program->sources);
  if (!hit) {
    channel_->outbox.build_and_send(std::move(job), header, control, run);
    return {};
  }
  channel_->programs.set_sources(*program, info->sequence, trace.sources);
  trace.clear();
  return channel_->outbox.send(header, control, nullptr, &run);
}

Status Client::load(std::shared_ptr<const ir::Graph> graph, std::vector<ir::SourceRef> sources,
                    std::span<const int64_t> sample, const ProgramOptions& options, ProgramPtr* program) {
  if (channel_->is_abandoned()) return Channel::forked();
  std::lock_guard order(channel_->order);
  if (Status status = channel_->begin(1, 0); !status) return status;
  if (Status status = drop_programs(); !status) return status;
  if (Status status = channel_->send_freed_ids(); !status) return status;
  *program = channel_->programs.add(*graph, std::move(sources), options);
  if (options.low_latency) channel_->transport->set_spin_time(kLowLatencySpin);
  auto job = std::make_unique<BuildJob>();
  job->graph = std::move(graph);
  job->sample.assign(sample.begin(), sample.end());
  job->load_sequence = channel_->next_sequence();
  const wire::Header header = channel_->header(wire::Type::kLoadProgram, job->load_sequence, 0);
  channel_->outbox.build(std::move(job), header, *program);
  return {};
}

Status Client::run(const ProgramPtr& program, const RunArguments& arguments, uint64_t* first_result_id, FlushInfo* info,
                   uint64_t* ticket) {
  if (channel_->is_abandoned()) return Channel::forked();
  std::lock_guard order(channel_->order);
  *info = FlushInfo();
  *first_result_id = channel_->next_id;
  if (program->failed) return program->failure;
  if (Status status = channel_->begin(1, 0); !status) return status;
  channel_->next_id += arguments.fresh_buffers;
  inputs_.assign(arguments.inputs.begin(), arguments.inputs.end());
  made_.assign(arguments.fresh_buffers, 0);  // their sizes are not known here
  reader_->on_run(*program, inputs_, *first_result_id, made_, nullptr);
  const std::span<const uint8_t> control =
      encode_run(*program, arguments.params, *first_result_id, arguments.math_modes);
  count_flush(channel_->counters, *program, std::exchange(program->has_run, true), control, info);
  const RunInfo run{program, *first_result_id, arguments.fresh_buffers};
  const wire::Header header = run_header(*channel_, ticket, info);
  if (EventLog::on()) log_run(channel_->session(), *info, program->sources);
  return channel_->outbox.send(header, control, nullptr, &run);
}

Status Client::wait_results(uint64_t ticket, ResultWords* result_words, const KeepWaiting& keep_waiting,
                            OpError* error) {
  Frame frame;
  if (Status status = channel_->wait(ticket, keep_waiting, &frame, error); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::RunReply>(frame.control.data());  // verified on receipt
  wire::assign(reply->result_words(), result_words);
  return {};
}

// --- buffers ---------------------------------------------------------------------------------------------------------

Status Client::upload(size_t size, const std::function<void(std::byte*)>& fill, uint64_t* id) {
  AttachmentPtr attachment;
  if (Status status = channel_->allocate(size, "an upload", &attachment); !status) return status;
  fill(attachment->bytes().data());
  const auto encode = [&] {
    *id = channel_->next_id++;
    channel_->builder.Finish(wire::CreateUpload(channel_->builder, *id));
    channel_->counters.bytes_uploaded.fetch_add(size, std::memory_order_relaxed);
  };
  return channel_->send_message(wire::Type::kUpload, false, std::move(attachment), encode, nullptr);
}

Status Client::read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes,
                    std::span<const int64_t> strides, int64_t offset,
                    const std::function<void(std::span<const std::byte>)>& take, const KeepWaiting& keep_waiting,
                    OpError* error) {
  return reader_->read({buffer, item_size, sizes, strides, offset}, take, keep_waiting, error);
}

void Client::free(uint64_t id) { channel_->free(id); }

// --- the worker -----------------------------------------------------------------------------------------------------

Status Client::throttle(const KeepWaiting& keep_waiting) {
  return channel_->is_abandoned() ? Channel::forked() : channel_->replies.throttle(keep_waiting);
}

Status Client::synchronize(const KeepWaiting& keep_waiting, OpError* error) {
  const auto encode = [&] { channel_->builder.Finish(wire::CreateSynchronize(channel_->builder)); };
  Frame frame;
  OpError failures;
  Status status = channel_->ask(wire::Type::kSynchronize, encode, keep_waiting, &frame, &failures);
  if (!status && failures.status.ok()) return status;
  channel_->replies.take_deferred(&failures);
  if (!failures.status) *error = failures;
  return failures.status;
}

Status Client::cancel() {
  if (Status status = channel_->health(); !status) return status;
  uint64_t last_sequence;
  {
    // Another thread may hold the lock while it waits for credits, which come soon. We need not cancel what it sends
    // after that.
    std::unique_lock order(channel_->order, std::try_to_lock);
    last_sequence = order.owns_lock() ? channel_->sequence : channel_->replies.last_sent();
  }
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateCancel(builder, last_sequence));
  return channel_->transport->send(channel_->header(wire::Type::kCancel, 0, 0),
                                   {builder.GetBufferPointer(), builder.GetSize()}, nullptr);
}

Status Client::memory(const MemoryRequest& request, const KeepWaiting& keep_waiting, MemoryLimits* limits) {
  const auto encode = [&] {
    wire::MemoryBuilder message(channel_->builder);
    message.add_empty_cache(request.empty_cache);
    if (request.limit) message.add_limit(*request.limit);
    message.add_reset_peak(request.reset_peak);
    message.add_reset_totals(request.reset_totals);
    channel_->builder.Finish(message.Finish());
  };
  Frame frame;
  OpError none;  // this reply has no error
  if (Status status = channel_->ask(wire::Type::kMemory, encode, keep_waiting, &frame, &none); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::MemoryReply>(frame.control.data());  // verified on receipt
  *limits = {reply->limit(), reply->free()};
  return {};
}

Status Client::has_op(std::string_view name, const KeepWaiting& keep_waiting, bool* has, OpError* error) {
  flatbuffers::FlatBufferBuilder& builder = channel_->builder;
  const auto encode = [&] {
    builder.Finish(wire::CreateHasOp(builder, builder.CreateString(name.data(), name.size())));
  };
  Frame frame;
  if (Status status = channel_->ask(wire::Type::kHasOp, encode, keep_waiting, &frame, error); !status) return status;
  *has = flatbuffers::GetRoot<wire::HasOpReply>(frame.control.data())->has_op();  // verified on receipt
  return {};
}

Status Client::profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting,
                       WorkerProfile* profile) {
  if (channel_->is_abandoned()) return Channel::forked();
  const auto encode = [&] {
    channel_->builder.Finish(wire::CreateProfile(channel_->builder, static_cast<wire::ProfileCommand>(command), limit));
    // the sequence of this message
    if (command == ProfileCommand::kStart) channel_->replies.start_profile(limit, channel_->sequence + 1);
  };
  const uint64_t sent = monotonic_ns();
  Frame reply;
  OpError none;  // this reply has no error
  Status status = channel_->ask(wire::Type::kProfile, encode, keep_waiting, &reply, &none);
  *profile = command == ProfileCommand::kStop ? channel_->replies.take_profile() : WorkerProfile();
  if (!status) return status;
  decode_worker_clock(reply, sent, monotonic_ns(), profile);
  return append_worker_profile(reply, profile);
}

}  // namespace torch_remote::remote

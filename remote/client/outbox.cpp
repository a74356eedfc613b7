#include "remote/client/outbox.h"

#include <cstring>
#include <exception>
#include <utility>

#include "remote/client/event_log.h"
#include "remote/wire/delta.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

constexpr size_t kSpareJobs = 4;

wire::Header header_like(const wire::Header& run, wire::Type type, uint64_t sequence) {
  wire::Header header;
  header.type = static_cast<uint8_t>(type);
  header.session = run.session;
  header.sequence = sequence;
  return header;
}

flatbuffers::DetachedBuffer free_message(std::vector<uint64_t> ids) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<uint8_t> bytes;
  encode_freed_ids(ids, bytes);
  builder.Finish(wire::CreateFree(builder, builder.CreateVector(bytes)));
  return builder.Release();
}

std::span<const uint8_t> span_of(const flatbuffers::DetachedBuffer& buffer) { return {buffer.data(), buffer.size()}; }

}  // namespace

Outbox::Outbox(Transport& transport, Replies& replies, BuildFunction build, const ir::Capabilities& worker,
               std::atomic<uint64_t>& bytes_sent, std::atomic<uint64_t>& programs_built)
    : transport_(transport),
      replies_(replies),
      build_(std::move(build)),
      worker_(worker),
      bytes_sent_(bytes_sent),
      programs_built_(programs_built) {}

uint64_t Outbox::end() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (builder_.joinable()) builder_.join();
  return last_sent_;
}

// --- the caller's side -----------------------------------------------------------------------------------------------

Status Outbox::send(const wire::Header& header, std::span<const uint8_t> control, AttachmentPtr attachment,
                    const RunInfo* run) {
  bool queue;
  {
    std::lock_guard lock(mutex_);
    queue = busy_;  // only push() sets it, which no other thread calls during this call
  }
  if (!queue) return send_now(header, control, std::move(attachment));
  push({header, {control.begin(), control.end()}, std::move(attachment), run ? *run : RunInfo(), nullptr, {}});
  return {};
}

void Outbox::build_and_send(std::unique_ptr<BuildJob> job, const wire::Header& header, std::span<const uint8_t> control,
                            const RunInfo& run) {
  push({header, {control.begin(), control.end()}, nullptr, run, std::move(job), {}});
}

void Outbox::build(std::unique_ptr<BuildJob> job, const wire::Header& header, ProgramPtr program) {
  push({header, {}, nullptr, {std::move(program), 0, 0}, std::move(job), {}});
}

std::unique_ptr<BuildJob> Outbox::job_for(ir::Trace& trace) {
  std::unique_ptr<BuildJob> job;
  {
    std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      job = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (!job) job = std::make_unique<BuildJob>();
  std::swap(job->trace, trace);
  return job;
}

void Outbox::push(Item item) {
  item.consumed.assign(item.run.consumed.begin(), item.run.consumed.end());
  item.run.consumed = {};
  {
    std::lock_guard lock(mutex_);
    busy_ = true;
    items_.push_back(std::move(item));
    if (!builder_.joinable()) builder_ = std::thread([this] { builder_loop(); });
  }
  changed_.notify_all();
}

Status Outbox::send_now(const wire::Header& header, std::span<const uint8_t> control, AttachmentPtr attachment) {
  EventSpan span(Event::Kind::kSend);
  if (Event* event = span.event()) {
    event->name = wire::name(static_cast<wire::Type>(header.type));
    event->session = header.session;
    event->sequence = header.sequence;
    event->bytes = sizeof(header) + control.size();
    event->attachment = attachment ? attachment->bytes().size() : 0;
  }
  Status status = transport_.send(header, control, std::move(attachment));
  if (status.ok()) {
    bytes_sent_.fetch_add(sizeof(header) + control.size(), std::memory_order_relaxed);
    last_sent_ = header.sequence;
    return status;
  }
  if (status.code() == ErrorCode::kOutOfMemory) return status;  // the connection still works
  replies_.set_connection_lost(status);
  return replies_.health();
}

// --- the builder's thread --------------------------------------------------------------------------------------------

void Outbox::builder_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !items_.empty(); });
    if (ending_) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    send_item(item);
    if (item.job) {
      item.job->trace.clear();
      item.job->survivors.clear();
      item.job->graph = nullptr;
    }
    lock.lock();
    if (item.job && spare_.size() < kSpareJobs) spare_.push_back(std::move(item.job));
    if (items_.empty()) busy_ = false;
  }
}

void Outbox::send_item(Item& item) {
  if (!replies_.health()) return;
  const RunInfo& run = item.run;
  if (item.job) {
    if (Status status = build_program(*item.job, run, item.header); !status) {
      run.program->failure = status;
      run.program->failed = true;
      return send_failed_run(item, item.job.get(), status);
    }
    if (item.control.empty()) return;
  } else if (run.program && run.program->failed) {
    return send_failed_run(item, nullptr, run.program->failure);
  }
  if (Status status = send_now(item.header, item.control, std::move(item.attachment)); !status)
    replies_.set_connection_lost(status);
}

Status Outbox::build_program(BuildJob& job, const RunInfo& run, const wire::Header& header) {
  std::vector<uint8_t> program;
  try {
    BuildRequest request;
    request.program = run.program->number;
    request.worker = &worker_;
    request.deterministic = run.program->options.deterministic;
    if (job.graph) {
      request.graph = job.graph.get();
      request.sample = job.sample;
      request.sources = run.program->sources;  // sources of a graph's program never change
    } else {
      request.trace = &job.trace;
      request.sample = job.trace.params;
      request.survivors = &job.survivors;
      request.sources = job.trace.sources;
    }
    EventSpan span(Event::Kind::kBuild);
    if (Event* event = span.event()) {
      event->program = request.program;
      event->session = header.session;
    }
    if (Status status = build_(request, &program); !status) return status;
    ir::Graph graph;
    if (job.graph || ir::import_trace(job.trace, job.survivors, &graph).ok()) {
      run.program->facts = analyze_buffers(job.graph ? *job.graph : graph);
      run.program->facts_known.store(true, std::memory_order_release);
    }
  } catch (const std::exception& error) {
    return Status::internal(std::string("remote: building a program failed: ") + error.what());
  }
  run.program->worker_bytes = bytes_on_worker(program.size());
  AttachmentPtr attachment = transport_.allocate(program.size());
  if (!attachment)
    return {ErrorCode::kOutOfMemory, "remote: this process is out of memory. It has none left to send a program of " +
                                         std::to_string(program.size()) + " bytes"};
  std::memcpy(attachment->bytes().data(), program.data(), program.size());
  flatbuffers::FlatBufferBuilder builder;
  const ProgramOptions& options = run.program->options;
  builder.Finish(wire::CreateLoadProgram(builder, run.program->number, options.low_latency,
                                         options.tune && !options.deterministic));
  programs_built_.fetch_add(1, std::memory_order_relaxed);
  return send_now(header_like(header, wire::Type::kLoadProgram, job.load_sequence),
                  {builder.GetBufferPointer(), builder.GetSize()}, std::move(attachment));
}

// Free messages replace LoadProgram and Run, so that sequences have no gaps.
void Outbox::send_failed_run(Item& item, const BuildJob* job, const Status& why) {
  if (job) {
    (void)send_now(header_like(item.header, wire::Type::kFree, job->load_sequence), span_of(free_message({})), nullptr);
  }
  if (item.control.empty()) return;
  const auto* run = flatbuffers::GetRoot<wire::Run>(item.control.data());
  std::vector<uint64_t> freed = std::move(item.consumed);
  (void)decode_freed_ids(wire::bytes(run->freed_ids()), &freed);  // of this client, so they are valid
  (void)send_now(header_like(item.header, wire::Type::kFree, item.header.sequence),
                 span_of(free_message(std::move(freed))), nullptr);
  OpError error{why, {}, {}};
  if (job && !job->trace.sources.empty()) error.source = job->trace.sources.front();
  replies_.fail(item.header.sequence, item.run.first_result_id, item.run.made, std::move(error));
}

}  // namespace torch_remote::remote

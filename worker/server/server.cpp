#include "worker/server/server.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <thread>

#include "ir/ops/op_table.h"
#include "remote/wire/environment.h"
#include "remote/wire/message.h"
#include "worker/collectives/collective_runner.h"
#include "worker/device/machine.h"
#include "worker/device/no_memory.h"
#include "worker/server/server_impl.h"

namespace torch_remote::worker {
namespace {

// Completed messages are acknowledged after this many, or this long after the last acknowledgement. A client at its
// limit of unacknowledged messages then waits for one slow message, not for 32.
constexpr uint64_t kAcknowledgeEvery = 32;
constexpr uint64_t kAcknowledgeAfter = 5'000'000;  // ns
constexpr std::chrono::seconds kIdle{3600};

}  // namespace

Server::Server(remote::Transport& transport, const ServerOptions& options)
    : transport_(transport),
      options_(options),
      inbox_(transport),
      waits_for_plans_(remote::is_enabled("TORCH_REMOTE_WAIT_COMPILE")) {}

ir::MathModes Server::math_of(const wire::Run& run) const {
  const ir::MathModes math = run.math();
  const bool add = is_reproducible() && opened_.device->is_host_memory() && (math & ir::kDeterministic) == 0;
  return add ? math | ir::kDeterministic | ir::kDeterministicWarnOnly : math;
}

Status Server::run() {
  if (Status status = hello(); !status.ok()) return status;
  for (;;) {
    Frame frame;
    if (Status status = next(&frame); !status.ok()) {
      if (status.code() != ErrorCode::kLost) return status;
      spdlog::debug("the client is gone");
      return {};
    }
    if (frame.header.type == static_cast<uint8_t>(Type::kGoodbye)) {
      session_->wait_for_background();  // Other workers may need what this one sends.
      return {};
    }
    inbox_.begin(frame);
    Status status = profile_ ? handle_profiled(frame) : handle(frame);
    if (status.code() == ErrorCode::kLost) return {};
    if (status.ok()) status = session_->within_limit();
    if (!status.ok()) return status;
    if (status = when_done(frame.header.sequence, [] { return Status(); }); status.ok()) status = settle();
    if (!status.ok()) return status.code() == ErrorCode::kLost ? Status() : status;
    if (status = answer_calls(); !status.ok()) return status.code() == ErrorCode::kLost ? Status() : status;
    if (profile_) {
      if (Status sent = hand_over_profile(); !sent.ok()) return sent.code() == ErrorCode::kLost ? Status() : sent;
    }
  }
}

// Returns the next message. Before it waits, it acknowledges what is done.
Status Server::next(Frame* frame) {
  Status status = inbox_.receive(frame, std::chrono::nanoseconds::zero());
  if (status.code() != ErrorCode::kTimeout) {
    const bool late = done_ != acknowledged_ && inbox_.asked() - acknowledged_at_ >= kAcknowledgeAfter;
    return status.ok() && (late || done_ - acknowledged_ >= kAcknowledgeEvery) ? acknowledge() : status;
  }
  if (pending_.empty()) {
    for (const auto& runner : opened_.runners) runner->on_idle();
  }
  for (;;) {
    inbox_.forget_wake();
    if (session_->has_background_work()) session_->settle();
    if (status = settle(); !status.ok()) return status;
    if (status = answer_calls(); !status.ok()) return status;
    if (done_ != acknowledged_ || (reported_background_ && !session_->has_background_work())) {
      if (status = acknowledge(); !status.ok()) return status;
    }
    if (!pending_.empty() && pending_.front().ticket != notified_) {
      notified_ = pending_.front().ticket;
      opened_.device->notify(notified_, [this] { inbox_.wake(); });
    }
    std::chrono::nanoseconds idle = kIdle;
    if (const uint64_t due = profile_ ? profile_->next_hand_over_in(monotonic_ns()) : Profile::kNever;
        due != Profile::kNever) {
      idle = std::chrono::nanoseconds(due);
    }
    status = inbox_.receive(frame, idle);
    if (status.code() != ErrorCode::kTimeout) return status;
    if (profile_) {
      if (status = hand_over_profile(); !status.ok()) return status;
    }
  }
}

// --- hello -----------------------------------------------------------------------------------------------------------

Status Server::open_device(int client) {
  inbox_.watch_client(client);
  // For reproducible results, an op's number of threads must not depend on other processes.
  std::function<tr_client()> activity = [] { return TR_CLIENT_RESTS; };
  if (!is_reproducible()) {
    inbox_.watch_others();
    activity = [this] { return inbox_.client_activity(); };
  }
  Status status = options_.open_device(transport_, options_, std::move(activity), &opened_);
  if (!status.ok()) return status;
  // They come before runners that accept any op.
  CollectiveOptions collectives;
  collectives.device = opened_.device.get();
  collectives.collectives = opened_.collectives;
  collectives.host = options_.peer_host;
  collectives.sequence = [this] { return running_; };
  collectives.interrupted = [this](uint64_t sequence) {
    if (std::this_thread::get_id() == thread_) inbox_.receive_early();
    return inbox_.is_over(sequence);
  };
  collectives.look = [this] { inbox_.receive_early(); };
  collectives.on_done = [this] { inbox_.wake(); };
  opened_.runners.insert(opened_.runners.begin(), make_collective_runner(std::move(collectives)));
  memory_ = &opened_.device->memory();
  limit_ = memory_->limit();
  session_ = std::make_unique<Session>(opened_.device.get(), &opened_.runners);
  session_->set_cancelled([this](uint64_t sequence) { return inbox_.poll_cancelled(sequence); });
  return {};
}

Status Server::refuse(const Status& why) {
  builder_.Clear();
  builder_.Finish(wire::CreateHelloReply(builder_, encode(std::make_shared<Failure>(Failure{why, 0, 0, 0})),
                                         static_cast<uint32_t>(getpid())));
  Status sent = send(Type::kHelloReply, 1);
  return sent.ok() ? why : sent;
}

Status Server::hello() {
  Frame frame;
  Status status = inbox_.receive(&frame, options_.hello_timeout);
  if (status.code() == ErrorCode::kTimeout) return {ErrorCode::kTimeout, "remote: a client does not greet"};
  if (!status.ok()) return status;
  const auto* hello = wire::verify<wire::Hello>(frame.control);
  if (frame.header.type != static_cast<uint8_t>(Type::kHello) || !hello) return damaged("greeting");
  if (hello->fingerprint() != ir::op_table_fingerprint()) {
    const std::string theirs = hello->table_version() ? hello->table_version()->str() : "unknown";
    return refuse({ErrorCode::kUnsupported, "remote: client and worker have different op tables (client: " + theirs +
                                                ", worker: " + ir::op_table_version() +
                                                "); install the same torch_remote on both ends"});
  }
  if (!options_.unavailable.ok()) return refuse(options_.unavailable);
  options_.repeatable = hello->repeatable();
  if (status = open_device(static_cast<int>(hello->process())); !status.ok()) return refuse(status);
  if (!options_.inproc) transport_.avoid_busy_cores();
  session_number_ = frame.header.session;
  builder_.Clear();
  const auto description = builder_.CreateString(descriptions(opened_.runners));
  const auto processor = builder_.CreateString(opened_.device->description());
  const auto targets = builder_.CreateVectorOfStrings(opened_.targets);
  const auto capabilities = wire::CreateCapabilities(builder_, targets, opened_.group_kinds, opened_.dtypes,
                                                     memory_->limit(), processor_cores(), description);
  builder_.Finish(wire::CreateHelloReply(builder_, 0, static_cast<uint32_t>(getpid()), description, processor,
                                         processor_cores(), memory_->limit(), capabilities));
  done_ = frame.header.sequence;
  spdlog::debug("session with process {}", hello->process());
  return reply(Type::kHelloReply, frame.header.sequence);
}

// --- answers ---------------------------------------------------------------------------------------------------------

Status Server::send(Type type, uint64_t sequence, AttachmentPtr attachment) {
  wire::Header header;
  header.type = static_cast<uint8_t>(type);
  header.flags = attachment ? wire::kAttachment : 0;
  reported_background_ = session_ && session_->has_background_work();
  if (reported_background_) header.flags |= wire::kBackgroundWork;
  header.session = session_number_;
  header.sequence = sequence;
  return transport_.send(header, {builder_.GetBufferPointer(), builder_.GetSize()}, std::move(attachment));
}

// A reply acknowledges its message and all earlier ones.
Status Server::reply(Type type, uint64_t to, AttachmentPtr attachment) {
  done_ = acknowledged_ = to;
  acknowledged_at_ = inbox_.asked();
  if (profile_) replied_ = monotonic_ns();
  return send(type, to, std::move(attachment));
}

// All tickets of a lost device are done, but its memory is gone: the session ends.
Status Server::check_device(Ticket ticket) {
  const Status status = opened_.device->wait(ticket);
  if (!status.ok()) spdlog::error("{}", status.message());
  return status;
}

Status Server::settle() {
  while (!pending_.empty() && opened_.device->done(pending_.front().ticket)) {
    if (Status status = check_device(pending_.front().ticket); !status.ok()) return status;
    session_->settle();
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    if (Status status = next.finish(); !status.ok()) return status;
    done_ = next.sequence;
  }
  return {};
}

Status Server::drain() {
  if (Status status = opened_.device->wait(opened_.device->record()); !status.ok()) return status;
  session_->settle();
  return settle();
}

flatbuffers::Offset<wire::Error> Server::encode(const FailurePtr& failure) {
  if (!failure) return 0;
  const Status& status = failure->status;
  return wire::CreateErrorDirect(builder_, static_cast<uint8_t>(status.code()), status.kind().c_str(),
                                 status.message().c_str(), failure->program, failure->record, failure->sequence,
                                 failure->skipped, failure->reported);
}

flatbuffers::Offset<wire::Error> Server::encode_and_mark_reported(const FailurePtr& failure) {
  const auto error = encode(failure);
  if (failure) session_->failures().mark_reported(failure);
  return error;
}

// Allocates memory for a reply. It counts against the limit until the client has released it.
AttachmentPtr Server::allocate(uint64_t nbytes) {
  if (nbytes < opened_.device->lends_from()) return nbytes <= limit_ ? transport_.allocate(nbytes) : nullptr;
  tr_buffer buffer{};
  if (!memory_->allocate(nbytes, &buffer)) return nullptr;
  const auto memory = std::make_shared<Memory>(buffer);
  return opened_.device->lend(memory->data(), nbytes, memory);
}

Status Server::acknowledge() {
  builder_.Clear();
  const auto error = encode(session_->failures().announce());
  const wire::WorkerUse use = worker_use();
  builder_.Finish(wire::CreateProgress(builder_, &use, error));
  acknowledged_ = done_;
  acknowledged_at_ = inbox_.asked();
  return send(Type::kProgress, done_);
}

// --- messages --------------------------------------------------------------------------------------------------------

Status Server::handle(Frame& frame) {
  try {
    return handle_message(frame);
  } catch (const std::bad_alloc&) {
    return out_of_memory(frame);
  }
}

// The memory of this process itself ran out. A client that waits for an answer gets the error; the message has no other
// effect.
Status Server::out_of_memory(const Frame& frame) {
  const Type type = static_cast<Type>(frame.header.type);
  const std::string what = "a message of type " + std::to_string(frame.header.type);
  const auto failure = std::make_shared<Failure>(Failure{no_memory_for(what), 0, 0, frame.header.sequence});
  spdlog::warn("{}", failure->status.message());
  builder_.Reset();
  if (type == Type::kUpload) {
    const auto* upload = wire::verify<wire::Upload>(frame.control);
    return session_->buffers().upload_failed(upload->buffer(), frame.attachment ? frame.attachment->bytes().size() : 0);
  }
  if (type == Type::kReadFile) {
    const auto* file = wire::verify<wire::ReadFile>(frame.control);
    return session_->buffers().upload_failed(file->buffer(), file->size());
  }
  if (!(frame.header.flags & wire::kWantsReply)) return {};
  if (Status status = drain(); !status.ok()) return status;
  builder_.Clear();
  const auto error = encode(failure);
  const wire::WorkerUse use = worker_use();
  switch (type) {
    case Type::kRun:
      builder_.Finish(wire::CreateRunReply(builder_, error, 0, &use));
      return reply(Type::kRunReply, frame.header.sequence);
    case Type::kRead:
      builder_.Finish(wire::CreateReadReply(builder_, error, &use));
      return reply(Type::kReadReply, frame.header.sequence);
    case Type::kSynchronize:
      builder_.Finish(wire::CreateSynchronizeReply(builder_, error, &use));
      return reply(Type::kSynchronizeReply, frame.header.sequence);
    case Type::kMark:
      builder_.Finish(wire::CreateMarkReply(builder_, error));
      return reply(Type::kMarkReply, frame.header.sequence);
    case Type::kFile:
      builder_.Finish(wire::CreateFileReply(builder_, error));
      return reply(Type::kFileReply, frame.header.sequence);
    case Type::kCall:
      builder_.Finish(wire::CreateCallReply(builder_, error));
      return reply(Type::kCallReply, frame.header.sequence);
    case Type::kHasOp:
      builder_.Finish(wire::CreateHasOpReply(builder_, error));
      return reply(Type::kHasOpReply, frame.header.sequence);
    case Type::kProfile:
      builder_.Finish(wire::CreateProfileReply(builder_, error));
      return reply(Type::kProfileReply, frame.header.sequence);
    default:
      return failure->status;
  }
}

Status Server::handle_message(Frame& frame) {
  switch (static_cast<Type>(frame.header.type)) {
    case Type::kLoadProgram:
      return load_program(frame);
    case Type::kUnload:
      return unload(frame);
    case Type::kRun:
      return run_program(frame);
    case Type::kUpload:
      return upload(frame);
    case Type::kFree:
      return free(frame);
    case Type::kRead:
      return read(frame);
    case Type::kSynchronize:
      return synchronize(frame);
    case Type::kMark:
      return mark(frame);
    case Type::kFile:
      return find_file(frame);
    case Type::kReadFile:
      return read_file(frame);
    case Type::kCall:
      return call(frame);
    case Type::kEndCall:
      return end_call(frame);
    case Type::kHasOp:
      return has_op(frame);
    case Type::kProfile:
      return profile(frame);
    case Type::kMemory:
      return memory(frame);
    default:
      return Status::invalid("remote: the client sent a message of type " + std::to_string(frame.header.type) +
                             ", which the worker does not expect");
  }
}

Status Server::handle_profiled(Frame& frame) {
  const uint64_t begin = monotonic_ns();
  Status status = handle(frame);
  if (profile_) {
    // A client that gets its reply may preempt this thread before it returns from sending.
    const uint64_t end = replied_ >= begin ? replied_ : monotonic_ns();
    profile_->message(static_cast<Type>(frame.header.type), frame.header.sequence, begin, end);
  }
  return status;
}

Status serve(remote::Transport& transport, const ServerOptions& options) { return Server(transport, options).run(); }

}  // namespace torch_remote::worker

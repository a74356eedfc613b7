#include "worker/server/server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "ir/math_modes.h"
#include "remote/wire/message.h"
#include "worker/device/machine.h"
#include "worker/device/no_memory.h"
#include "worker/server/function_calls.h"
#include "worker/server/handshake.h"
#include "worker/server/inbox.h"
#include "worker/server/messages.h"
#include "worker/server/pending_messages.h"
#include "worker/server/profile_stream.h"
#include "worker/server/replies.h"
#include "worker/session/session.h"
#include "worker/shadow/shadow.h"

namespace torch_remote::worker {
namespace {

using remote::AttachmentPtr;
using remote::Frame;
using wire::Type;

constexpr uint64_t kAcknowledgeBytes = 16u << 20;  // An upload of at least this size is acknowledged at once.
constexpr uint64_t kIdle = 3'600'000'000'000;      // ns

Status cancelled_read() { return {ErrorCode::kOpFailed, "remote: a file was not read: cancelled"}; }

// Receives the messages of an accepted client, and handles them in order. A handler decodes one type of message, lets
// the session execute it, and replies. It returns an error for a malformed message, if the client is gone or the device
// is lost (kLost), and if the session cannot continue. The error ends the session.
class Server {
 public:
  Server(remote::Transport& transport, const ServerOptions& options, Inbox& inbox, const OpenSession& opened)
      : transport_(transport), options_(options), inbox_(inbox), opened_(opened) {
    session_.set_cancelled([this](uint64_t sequence) { return inbox_.poll_cancelled(sequence); });
  }

  // Returns ok when the client closes the session, else the error that ends the session.
  Status run();

 private:
  // Returns the next message. Before it waits, it acknowledges what is done.
  Status next(Frame* frame);
  // Handles a message, and finishes what is done since the last one.
  Status step(Frame& frame);
  Status handle(Frame& frame);
  Status dispatch(Frame& frame);
  template <typename Message>
  Status verify_and_handle(Frame& frame, const char* what);
  Status out_of_memory(const Frame& frame);

  Status handle(const wire::LoadProgram& message, Frame& frame);
  Status handle(const wire::UnloadPrograms& message, Frame& frame);
  Status handle(const wire::Run& message, Frame& frame);
  Status handle(const wire::Upload& message, Frame& frame);
  Status handle(const wire::Free& message, Frame& frame);
  Status handle(const wire::Read& message, Frame& frame);
  Status handle(const wire::Synchronize& message, Frame& frame);
  Status handle(const wire::RecordEvent& message, Frame& frame);
  Status handle(const wire::StatFile& message, Frame& frame);
  Status handle(const wire::ReadFile& message, Frame& frame);
  Status handle(const wire::CallFunction& message, Frame& frame) { return calls_.begin(message, frame); }
  Status handle(const wire::CancelFunction& message, Frame& frame) { return calls_.end(message); }
  Status handle(const wire::HasOp& message, Frame& frame);
  Status handle(const wire::Profile& message, Frame& frame);
  Status handle(const wire::Memory& message, Frame& frame);
  Status handle(const wire::Shadow& message, Frame& frame);
  flatbuffers::Offset<wire::ShadowDifference> encode_difference(flatbuffers::FlatBufferBuilder& builder,
                                                                const ShadowDifference& found, AttachmentPtr* bytes);
  Status checkpoint(wire::Checkpoint what, uint64_t sequence);

  remote::Transport& transport_;
  const ServerOptions& options_;
  Inbox& inbox_;
  const OpenSession& opened_;
  Session session_{opened_.device.get(), &opened_.runners};
  std::unique_ptr<Shadow> shadow_;  // Set when the client first asks for shadow runs.
  Replies replies_{transport_, inbox_, opened_, session_};
  PendingMessages pending_{*opened_.device, session_, replies_};
  ProfileStream profile_{opened_, session_, replies_};
  FunctionCalls calls_{options_, opened_.device->memory(), inbox_, session_, pending_, replies_};
  // Math modes that each run has in addition to those that the client chose, unless it chose deterministic ones.
  const ir::MathModes math_modes_ = opened_.reproducible && opened_.device->is_host_memory()
                                        ? ir::kDeterministic | ir::kDeterministicWarnOnly
                                        : ir::MathModes{0};
  std::vector<int64_t> result_words_;  // Scratch: the result words of a run.
};

// --- the loop --------------------------------------------------------------------------------------------------------

Status Server::run() {
  for (;;) {
    Frame frame;
    if (Status status = next(&frame); !status.ok()) return status;
    if (frame.header.type == static_cast<uint8_t>(Type::kCloseSession)) {
      session_.wait_for_background();  // Other workers may need what this one sends.
      return {};
    }
    if (Status status = step(frame); !status.ok()) return status;
  }
}

Status Server::next(Frame* frame) {
  Status status = inbox_.receive(frame, std::chrono::nanoseconds::zero());
  if (status.ok()) return replies_.acknowledge_if_due();
  if (status.code() != ErrorCode::kTimeout) return status;
  if (pending_.empty()) {
    for (const auto& runner : opened_.runners) runner->on_idle();
  }
  for (;;) {
    inbox_.forget_wake();
    if (session_.has_background_work()) session_.settle();
    if (status = pending_.settle(); !status.ok()) return status;
    if (status = calls_.answer(); !status.ok()) return status;
    if (status = replies_.acknowledge_news(); !status.ok()) return status;
    pending_.wake_when_done(inbox_);
    status = inbox_.receive(frame, std::chrono::nanoseconds(std::min(kIdle, profile_.due_in())));
    if (status.code() != ErrorCode::kTimeout) return status;
    if (status = profile_.hand_over_if_due(); !status.ok()) return status;
  }
}

Status Server::step(Frame& frame) {
  inbox_.begin(frame);
  const uint64_t begin = profile_.begin_message();
  Status handled = handle(frame);
  profile_.end_message(frame.header, begin);
  if (!handled.ok()) return handled;
  if (Status status = session_.within_limit(); !status.ok()) return status;
  Status done = pending_.when_done(frame.header.sequence, [] { return Status(); });
  if (!done.ok()) return done;
  if (Status status = pending_.settle(); !status.ok()) return status;
  if (Status status = calls_.answer(); !status.ok()) return status;
  return profile_.hand_over_if_due();
}

Status Server::handle(Frame& frame) {
  try {
    return dispatch(frame);
  } catch (const std::bad_alloc&) {
    return out_of_memory(frame);
  }
}

template <typename Message>
Status Server::verify_and_handle(Frame& frame, const char* what) {
  const auto* message = wire::verify<Message>(frame.control);
  return message ? handle(*message, frame) : damaged(what);
}

Status Server::dispatch(Frame& frame) {
  switch (static_cast<Type>(frame.header.type)) {
    case Type::kLoadProgram:
      return verify_and_handle<wire::LoadProgram>(frame, "program");
    case Type::kUnloadPrograms:
      return verify_and_handle<wire::UnloadPrograms>(frame, "unload programs");
    case Type::kRun:
      return verify_and_handle<wire::Run>(frame, "run");
    case Type::kUpload:
      return verify_and_handle<wire::Upload>(frame, "upload");
    case Type::kFree:
      return verify_and_handle<wire::Free>(frame, "free");
    case Type::kRead:
      return verify_and_handle<wire::Read>(frame, "read");
    case Type::kSynchronize:
      return verify_and_handle<wire::Synchronize>(frame, "synchronize");
    case Type::kRecordEvent:
      return verify_and_handle<wire::RecordEvent>(frame, "record event");
    case Type::kStatFile:
      return verify_and_handle<wire::StatFile>(frame, "stat file");
    case Type::kReadFile:
      return verify_and_handle<wire::ReadFile>(frame, "read file");
    case Type::kCallFunction:
      return verify_and_handle<wire::CallFunction>(frame, "call");
    case Type::kCancelFunction:
      return verify_and_handle<wire::CancelFunction>(frame, "call");
    case Type::kHasOp:
      return verify_and_handle<wire::HasOp>(frame, "question");
    case Type::kProfile:
      return verify_and_handle<wire::Profile>(frame, "profile");
    case Type::kMemory:
      return verify_and_handle<wire::Memory>(frame, "memory");
    case Type::kShadow:
      return verify_and_handle<wire::Shadow>(frame, "shadow");
    default:
      return Status::invalid("remote: the client sent a message of type " + std::to_string(frame.header.type) +
                             ", which the worker does not expect");
  }
}

// The memory of this process itself ran out. A client that waits for an answer gets the error; the message has no other
// effect.
Status Server::out_of_memory(const Frame& frame) {
  const Type type = static_cast<Type>(frame.header.type);
  const uint64_t sequence = frame.header.sequence;
  const auto failure = make_failure(no_memory_for("a message of type " + std::to_string(frame.header.type)), sequence);
  spdlog::warn("{}", failure->status.message());
  if (type == Type::kUpload) {
    const auto* upload = wire::verify<wire::Upload>(frame.control);
    return session_.buffers().upload_failed(upload->buffer(), frame.attachment ? frame.attachment->bytes().size() : 0);
  }
  if (type == Type::kReadFile) {
    const auto* file = wire::verify<wire::ReadFile>(frame.control);
    return session_.buffers().upload_failed(file->buffer(), file->size());
  }
  if (!(frame.header.flags & wire::kWantsReply)) return {};
  if (Status status = pending_.drain(); !status.ok()) return status;
  auto& builder = replies_.begin();
  const auto error = encode(builder, failure);
  const wire::WorkerStats stats = replies_.worker_stats();
  switch (type) {
    case Type::kRun:
      return replies_.reply(Type::kRunReply, sequence, wire::CreateRunReply(builder, error, 0, &stats));
    case Type::kRead:
      return replies_.reply(Type::kReadReply, sequence, wire::CreateReadReply(builder, error, &stats));
    case Type::kSynchronize:
      return replies_.reply(Type::kSynchronizeReply, sequence, wire::CreateSynchronizeReply(builder, error, &stats));
    case Type::kRecordEvent:
      return replies_.reply(Type::kRecordEventReply, sequence, wire::CreateRecordEventReply(builder, error));
    case Type::kStatFile:
      return replies_.reply(Type::kStatFileReply, sequence, wire::CreateStatFileReply(builder, error));
    case Type::kCallFunction:
      return replies_.reply(Type::kCallFunctionReply, sequence, wire::CreateCallFunctionReply(builder, error));
    case Type::kHasOp:
      return replies_.reply(Type::kHasOpReply, sequence, wire::CreateHasOpReply(builder, error));
    case Type::kProfile:
      return replies_.reply(Type::kProfileReply, sequence, wire::CreateProfileReply(builder, error));
    default:
      return failure->status;
  }
}

// --- programs --------------------------------------------------------------------------------------------------------

Status Server::handle(const wire::LoadProgram& message, Frame& frame) {
  if (!frame.attachment || message.program() == 0) return damaged("program");
  session_.load_program(message.program(), frame.attachment->bytes(), message.tune() && !opened_.deterministic);
  if (message.low_latency()) transport_.set_spin_time(remote::kLowLatencySpin);
  return {};
}

Status Server::handle(const wire::UnloadPrograms& message, Frame& frame) {
  if (!message.programs()) return damaged("unload programs");
  // The recorded events of the programs refer to them.
  if (Status status = profile_.hand_over(); !status.ok()) return status;
  for (const uint32_t program : *message.programs()) session_.unload_program(program);
  return {};
}

Status Server::handle(const wire::Run& message, Frame& frame) {
  const uint64_t sequence = frame.header.sequence;
  RunRequest request;
  request.program = message.program();
  request.first_result_id = message.first_result_id();
  request.params = wire::bytes(message.params());
  request.bindings = wire::bytes(message.bindings());
  request.freed_ids = wire::bytes(message.freed_ids());
  request.sequence = sequence;
  request.wants_result_words = is_waited_for(frame);
  request.reset_delta = message.reset_delta();
  request.math_modes = message.math_modes();
  if ((request.math_modes & ir::kDeterministic) == 0) request.math_modes |= math_modes_;
  FailurePtr failure;
  result_words_.clear();
  Status status = inbox_.is_cancelled(sequence) ? session_.run_cancelled(request, &failure)
                                                : session_.run(request, &result_words_, &failure);
  if (!status.ok() || !(frame.header.flags & wire::kWantsReply)) return status;
  return pending_.when_done(sequence, [this, sequence, failure, result_words = result_words_] {
    const FailurePtr late = session_.failures().take_deferred(sequence);
    auto& builder = replies_.begin();
    const auto error = replies_.encode_and_mark_reported(failure ? failure : late);
    const auto encoded = builder.CreateVector(result_words);
    const wire::WorkerStats stats = replies_.worker_stats();
    return replies_.reply(Type::kRunReply, sequence, wire::CreateRunReply(builder, error, encoded, &stats));
  });
}

// --- buffers ---------------------------------------------------------------------------------------------------------

Status Server::handle(const wire::Upload& message, Frame& frame) {
  if (frame.refused_bytes != 0) return session_.buffers().upload_failed(message.buffer(), frame.refused_bytes);
  std::span<std::byte> bytes;
  if (frame.attachment) bytes = frame.attachment->bytes();
  const uint64_t size = bytes.size();
  Status status = session_.buffers().upload(message.buffer(), bytes, std::move(frame.attachment));
  if (!status.ok() || size < kAcknowledgeBytes) return status;
  return pending_.when_done(frame.header.sequence, [this, sequence = frame.header.sequence] {
    replies_.mark_done(sequence);
    return replies_.acknowledge();
  });
}

Status Server::handle(const wire::Free& message, Frame& frame) {
  return session_.buffers().free(wire::bytes(message.freed_ids()));
}

Status Server::handle(const wire::Read& message, Frame& frame) {
  const uint64_t sequence = frame.header.sequence;
  const std::vector<int64_t> sizes = wire::elements(message.sizes()), strides = wire::elements(message.strides());
  ReadRequest request{message.buffer(), message.item_size(), sizes, strides, message.offset(), message.speculative()};
  Session::Located located;
  FailurePtr failure = message.checkpoint() ? session_.locate_in_checkpoint(request.buffer, sequence, &located)
                                            : session_.locate(request, sequence, &located);
  const int64_t all[] = {static_cast<int64_t>(located.nbytes)}, one[] = {1};
  if (message.checkpoint())
    // The checkpoint's size may differ from that of the present contents.
    request = {0, 1, all, one, 0, request.speculative};
  AttachmentPtr attachment;
  std::shared_ptr<QueuedRead> queued;
  if (!failure && located.packed) attachment = opened_.device->lend(located.data, located.nbytes, located.keep);
  if (!failure && !attachment) {
    attachment = replies_.allocate(located.nbytes);
    if (attachment) {
      queued = session_.copy_out(request, located, attachment->bytes(), attachment);
    } else {
      failure = make_failure(no_memory_for("an answer", located.nbytes), sequence);
    }
  }
  return pending_.when_done(
      sequence, [this, sequence, speculative = request.speculative, failure, queued, attachment]() mutable {
        if (queued && queued->failure) {
          failure = queued->failure;
          attachment = nullptr;
        }
        auto& builder = replies_.begin();
        const auto error = speculative ? encode(builder, failure) : replies_.encode_and_mark_reported(failure);
        const wire::WorkerStats stats = replies_.worker_stats();
        return replies_.reply(Type::kReadReply, sequence, wire::CreateReadReply(builder, error, &stats),
                              std::move(attachment));
      });
}

// --- files -----------------------------------------------------------------------------------------------------------

Status Server::handle(const wire::StatFile& message, Frame& frame) {
  if (!message.path()) return damaged("stat file");
  if (Status status = pending_.drain(); !status.ok()) return status;
  OpenFile file;
  const Status status = options_.files ? options_.files->open(message.path()->str(), &file) : no_files();
  const FileVersion& found = file.version();
  const wire::FileVersion version(found.size, found.inode, found.mtime_ns);
  auto& builder = replies_.begin();
  const auto reason = status.ok() ? flatbuffers::Offset<flatbuffers::String>() : builder.CreateString(status.message());
  return replies_.reply(
      Type::kStatFileReply, frame.header.sequence,
      wire::CreateStatFileReply(builder, 0, status.ok() ? &version : nullptr, options_.files != nullptr, reason));
}

Status Server::handle(const wire::ReadFile& message, Frame& frame) {
  if (!message.path() || !message.version()) return damaged("read file");
  const uint64_t sequence = frame.header.sequence;
  const FileVersion version{message.version()->size(), message.version()->inode(), message.version()->mtime_ns()};
  OpenFile file;
  Status status = options_.files
                      ? options_.files->open(message.path()->str(), version, message.offset(), message.size(), &file)
                      : no_files();
  return session_.buffers().make(message.buffer(), message.size(), sequence, status,
                                 [&](uint64_t offset, std::span<std::byte> piece) {
                                   if (inbox_.poll_cancelled(sequence)) return cancelled_read();
                                   return file.read(message.offset() + offset, piece);
                                 });
}

// --- progress --------------------------------------------------------------------------------------------------------

Status Server::handle(const wire::Synchronize& message, Frame& frame) {
  if (Status status = pending_.drain(); !status.ok()) return status;
  session_.wait_for_background();
  if (message.checkpoint() != wire::Checkpoint::None) return checkpoint(message.checkpoint(), frame.header.sequence);
  auto& builder = replies_.begin();
  uint64_t omitted_errors = 0;
  std::vector<flatbuffers::Offset<wire::Error>> errors;
  for (const FailurePtr& failure : session_.failures().take(&omitted_errors))
    errors.push_back(replies_.encode_and_mark_reported(failure));
  const auto first = errors.empty() ? flatbuffers::Offset<wire::Error>() : errors[0];
  const auto more_errors = errors.size() < 2 ? 0 : builder.CreateVector(&errors[1], errors.size() - 1);
  const wire::WorkerStats stats = replies_.worker_stats();
  return replies_.reply(Type::kSynchronizeReply, frame.header.sequence,
                        wire::CreateSynchronizeReply(builder, first, &stats, more_errors, omitted_errors));
}

Status Server::checkpoint(wire::Checkpoint what, uint64_t sequence) {
  std::vector<uint64_t> buffers, sizes;
  const bool created = what == wire::Checkpoint::Create && !session_.failures().has_unreported();
  session_.buffers().drop_checkpoint();
  if (created) session_.buffers().make_checkpoint(&buffers, &sizes);
  auto& builder = replies_.begin();
  const auto ids = builder.CreateVector(buffers), bytes = builder.CreateVector(sizes);
  const wire::WorkerStats stats = replies_.worker_stats();
  return replies_.reply(Type::kSynchronizeReply, sequence,
                        wire::CreateSynchronizeReply(builder, 0, &stats, 0, 0, created, ids, bytes));
}

Status Server::handle(const wire::RecordEvent& message, Frame& frame) {
  const uint64_t sequence = frame.header.sequence;
  session_.wait_for_background();  // The event also covers ops that are running in the background.
  return pending_.when_done(sequence, [this, sequence, clock = opened_.device->read_clock()] {
    auto& builder = replies_.begin();
    return replies_.reply(Type::kRecordEventReply, sequence,
                          wire::CreateRecordEventReply(builder, 0, clock(), session_.failures().has_unreported()));
  });
}

// --- the worker ------------------------------------------------------------------------------------------------------

Status Server::handle(const wire::Shadow& message, Frame& frame) {
  if (Status status = pending_.drain(); !status.ok()) return status;
  session_.wait_for_background();
  auto& builder = replies_.begin();
  if (!options_.open_reference) {
    const Status why(ErrorCode::kUnsupported,
                     "remote: this worker has no reference implementation to compare runs with; use a worker of the "
                     "package (torch-remote-worker), not 'inproc'");
    return replies_.reply(Type::kShadowReply, frame.header.sequence,
                          wire::CreateShadowReply(builder, encode(builder, make_failure(why, frame.header.sequence))));
  }
  if (!shadow_) {
    shadow_ = std::make_unique<Shadow>(*opened_.device, opened_.runners, options_.open_reference);
    session_.set_watcher(shadow_.get());
  }
  if (message.sets()) shadow_->set({std::clamp(message.rate(), 0.0, 1.0), message.first_runs()});
  if (message.wait()) shadow_->wait();
  AttachmentPtr bytes;
  flatbuffers::Offset<wire::ShadowDifference> difference;
  if (const auto found = shadow_->take()) difference = encode_difference(builder, *found, &bytes);
  const ShadowCounts counts = shadow_->counts();
  const wire::WorkerStats stats = replies_.worker_stats();
  return replies_.reply(Type::kShadowReply, frame.header.sequence,
                        wire::CreateShadowReply(builder, 0, &stats, counts.runs, counts.steps, counts.left_out,
                                                counts.bytes, counts.copying_ns, counts.checking_ns, difference),
                        std::move(bytes));
}

// Without memory for the inputs' bytes, the difference has neither graph nor inputs.
flatbuffers::Offset<wire::ShadowDifference> Server::encode_difference(flatbuffers::FlatBufferBuilder& builder,
                                                                      const ShadowDifference& found,
                                                                      AttachmentPtr* bytes) {
  std::vector<uint8_t> graph;
  std::vector<uint64_t> sizes;
  uint64_t total = 0;
  for (const Bytes& input : found.inputs) total += input.size();
  if (total > 0) *bytes = replies_.allocate(total);
  if (total == 0 || *bytes) {
    graph = ir::encode_program(found.graph);
    std::byte* to = total > 0 ? (*bytes)->bytes().data() : nullptr;
    for (const Bytes& input : found.inputs) {
      sizes.push_back(input.size());
      to = std::ranges::copy(input, to).out;
    }
  }
  return wire::CreateShadowDifferenceDirect(builder, found.program, found.sequence, &found.records, found.record,
                                            found.runner.c_str(), found.op.c_str(), found.what.c_str(), &graph,
                                            &found.params, &sizes, found.math_modes);
}

Status Server::handle(const wire::Memory& message, Frame& frame) {
  if (Status status = pending_.drain(); !status.ok()) return status;
  CachingAllocator& memory = opened_.device->memory();
  if (message.empty_cache()) memory.empty_cache();
  if (message.limit()) memory.set_limit(std::min(*message.limit(), opened_.memory_limit));
  if (message.reset_peak()) memory.reset_peak();
  if (message.reset_totals()) memory.reset_totals();
  const uint64_t limit = memory.limit();
  const uint64_t reserved = memory.stats().reserved.current;
  const wire::WorkerStats stats = replies_.worker_stats();
  auto& builder = replies_.begin();
  return replies_.reply(Type::kMemoryReply, frame.header.sequence,
                        wire::CreateMemoryReply(builder, 0, &stats, limit,
                                                std::min(limit - std::min(limit, reserved), available_memory())));
}

Status Server::handle(const wire::HasOp& message, Frame& frame) {
  if (!message.name()) return damaged("question");
  if (Status status = pending_.drain(); !status.ok()) return status;
  const char* name = message.name()->c_str();
  const bool has_op = std::ranges::any_of(opened_.runners, [&](const auto& runner) { return runner->has_op(name); });
  auto& builder = replies_.begin();
  return replies_.reply(Type::kHasOpReply, frame.header.sequence, wire::CreateHasOpReply(builder, 0, has_op));
}

Status Server::handle(const wire::Profile& message, Frame& frame) {
  const uint64_t received = monotonic_ns();
  if (Status status = pending_.drain(); !status.ok()) return status;
  session_.wait_for_background();  // These ops began before the profile starts or ends.
  return profile_.execute(message, frame.header.sequence, received);
}

}  // namespace

Status serve(remote::Transport& transport, const ServerOptions& options) {
  Inbox inbox(transport);
  OpenSession opened;
  if (Status status = handshake(transport, inbox, options, &opened); !status.ok()) return status;
  Status status = Server(transport, options, inbox, opened).run();
  if (status.code() != ErrorCode::kLost) return status;
  spdlog::debug("the session ends: {}", status.message());
  return {};
}

}  // namespace torch_remote::worker

#include "worker/server.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <thread>
#include <tuple>

#include "ir/op_table.h"
#include "remote/wire/message.h"
#include "worker/collectives/collective_runner.h"
#include "worker/device/machine.h"
#include "worker/device/no_memory.h"
#include "worker/inbox.h"
#include "worker/profile.h"
#include "worker/python.h"
#include "worker/session.h"

namespace torch_remote::worker {
namespace {

using remote::AttachmentPtr;
using remote::Frame;
using wire::Type;

constexpr uint64_t kAcknowledgeEvery = 32;         // messages
constexpr uint64_t kAcknowledgeBytes = 16u << 20;  // of one upload
constexpr uint64_t kOfProfile = 16;                // which part of the limit a profile may take beside it
constexpr std::chrono::seconds kIdle{3600};
Status damaged(const char* what) {
  return Status::invalid(std::string("remote: the client sent a damaged ") + what + " message");
}

Status cancelled_read() { return {ErrorCode::kOpFailed, "remote: a file was not read: cancelled"}; }

// A copy: flatbuffers' verifier looks at the alignment of a vector, not of its elements.
std::vector<int64_t> elements(const flatbuffers::Vector<int64_t>* vector) {
  std::vector<int64_t> copy(vector ? vector->size() : 0);
  if (!copy.empty()) std::memcpy(copy.data(), vector->Data(), copy.size() * sizeof(int64_t));
  return copy;
}

class Server {
 public:
  Server(remote::Transport& transport, const ServerOptions& options)
      : transport_(transport), options_(options), inbox_(transport) {}

  Status run();

 private:
  Status hello();
  Status refuse(const Status& why);
  Status open_device(int client);
  Status next(Frame* frame);
  Status handle(Frame& frame);
  Status handle_message(Frame& frame);
  Status out_of_memory(const Frame& frame);
  Status handle_profiled(Frame& frame);

  Status load_program(Frame& frame);
  Status unload(Frame& frame);
  Status run_program(Frame& frame);
  Status upload(Frame& frame);
  Status free(Frame& frame);
  Status read(Frame& frame);
  Status synchronize(Frame& frame);
  Status checkpoint(Frame& frame, wire::Checkpoint what);
  Status mark(Frame& frame);
  Status find_file(Frame& frame);
  Status read_file(Frame& frame);
  struct PendingCall {
    uint64_t base = 0;    // buffer of its first result; 0: nobody wants them
    uint64_t nbytes = 0;  // of its request, charged to the client
  };
  Status call(Frame& frame);
  // Copies what a call gets; null if nothing stands against it.
  FailurePtr begin_call(Frame& frame, const wire::Call& message);
  Status end_call(Frame& frame);
  Status answer_calls();
  Status answer_call(PythonResult& result, const PendingCall& call);
  Status has_op(Frame& frame);
  Status profile(Frame& frame);
  Status memory(Frame& frame);
  wire::WorkerUse worker_use() const;
  Status acknowledge();
  // Puts what was recorded since the last time into *events and builder_.
  using Programs = flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::ProfileProgram>>>;
  Programs take_profile(Profile& profile, AttachmentPtr* events);
  // Sends that to the client if it is time, or `now`.
  Status hand_over_profile(bool now = false);

  flatbuffers::Offset<wire::Error> encode(const FailurePtr& failure);
  // Likewise; the client knows it then.
  flatbuffers::Offset<wire::Error> tell(const FailurePtr& failure);
  AttachmentPtr allocate(uint64_t nbytes);
  // Sends what builder_ holds.
  Status send(Type type, uint64_t sequence, AttachmentPtr attachment = nullptr);
  Status reply(Type type, uint64_t to, AttachmentPtr attachment = nullptr);

  // Calls finish() when the device has done what was asked of it so far: now, or from settle(). Replies go out in the
  // order of their messages.
  template <typename F>
  Status when_done(uint64_t sequence, F&& finish);
  // Goes on with what waits for the device.
  Status settle();
  Status still_there(Ticket ticket);
  // Waits until the device has done all.
  Status drain();

  remote::Transport& transport_;
  ServerOptions options_;
  Inbox inbox_;
  OpenDevice on_;
  CachingAllocator* memory_ = nullptr;  // the device's
  uint64_t limit_ = 0;                  // of it, the most that a client can set
  std::unique_ptr<Session> session_;
  std::unique_ptr<Profile> profile_;       // while one is recorded
  std::unique_ptr<Python> python_;         // once a function was called
  std::map<uint64_t, PendingCall> calls_;  // that are not answered yet, by sequence
  flatbuffers::FlatBufferBuilder builder_{4096};
  std::vector<int64_t> words_;
  uint64_t session_number_ = 0;
  uint64_t running_ = 0;  // sequence of the last run
  const std::thread::id thread_ = std::this_thread::get_id();
  bool said_at_work_ = false;  // the last message to the client
  struct Pending {
    Ticket ticket = 0;
    uint64_t sequence = 0;
    std::function<Status()> finish;
  };
  std::deque<Pending> pending_;  // messages that the device is not done with
  Ticket notified_ = 0;          // the device tells when it gets there
  uint64_t done_ = 0;            // sequence of the last message that is done
  uint64_t acknowledged_ = 0;    // the client knows that
  uint64_t replied_ = 0;         // when the last reply went out, if a profile is recorded
};

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
      session_->wait_for_background();  // others may need what this one sends
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
    if (done_ - acknowledged_ >= kAcknowledgeEvery) {
      if (Status sent = acknowledge(); !sent.ok()) return sent.code() == ErrorCode::kLost ? Status() : sent;
    }
    if (profile_) {
      if (Status sent = hand_over_profile(); !sent.ok()) return sent.code() == ErrorCode::kLost ? Status() : sent;
    }
  }
}

// The next message. Before it waits, it tells the client what is done.
Status Server::next(Frame* frame) {
  Status status = inbox_.receive(frame, std::chrono::nanoseconds::zero());
  if (status.code() != ErrorCode::kTimeout) return status;
  if (pending_.empty()) {
    for (const auto& runner : on_.runners) runner->rest();
  }
  for (;;) {
    inbox_.forget_wake();
    if (session_->is_at_work()) session_->settle();
    if (status = settle(); !status.ok()) return status;
    if (status = answer_calls(); !status.ok()) return status;
    if (done_ != acknowledged_ || (said_at_work_ && !session_->is_at_work())) {
      if (status = acknowledge(); !status.ok()) return status;
    }
    if (!pending_.empty() && pending_.front().ticket != notified_) {
      notified_ = pending_.front().ticket;
      on_.device->notify(notified_, [this] { inbox_.wake(); });
    }
    std::chrono::nanoseconds idle = kIdle;
    if (const uint64_t due = profile_ ? profile_->due_in(monotonic_ns()) : Profile::kNever; due != Profile::kNever) {
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
  // How many threads an op has must not depend on what a client happens to do, where bits are to come again.
  std::function<tr_client()> activity = [this] { return inbox_.client_activity(); };
  if (options_.repeatable) activity = [] { return TR_CLIENT_RESTS; };
  Status status = options_.open_device(transport_, options_, std::move(activity), &on_);
  if (!status.ok()) return status;
  // Before those that take any op.
  CollectiveOptions collectives;
  collectives.device = on_.device.get();
  collectives.collectives = on_.collectives;
  collectives.host = options_.peer_host;
  collectives.sequence = [this] { return running_; };
  collectives.interrupted = [this](uint64_t sequence) {
    if (std::this_thread::get_id() == thread_) inbox_.look_ahead();
    return inbox_.is_over(sequence);
  };
  collectives.look = [this] { inbox_.look_ahead(); };
  collectives.told = [this] { inbox_.wake(); };
  on_.runners.insert(on_.runners.begin(), make_collective_runner(std::move(collectives)));
  memory_ = &on_.device->memory();
  limit_ = memory_->limit();
  session_ = std::make_unique<Session>(on_.device.get(), &on_.runners);
  session_->set_cancelled([this](uint64_t sequence) { return inbox_.looks_cancelled(sequence); });
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
  Status status = inbox_.receive(&frame, options_.greeting);
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
  if (!options_.inproc) transport_.leave_busy_cores();
  session_number_ = frame.header.session;
  builder_.Clear();
  const auto description = builder_.CreateString(descriptions(on_.runners));
  const auto processor = builder_.CreateString(on_.device->description());
  const auto targets = builder_.CreateVectorOfStrings(on_.targets);
  const auto capabilities = wire::CreateCapabilities(builder_, targets, on_.group_kinds, on_.dtypes, memory_->limit(),
                                                     processor_cores(), description);
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
  said_at_work_ = session_ && session_->is_at_work();
  if (said_at_work_) header.flags |= wire::kAtWork;
  header.session = session_number_;
  header.sequence = sequence;
  return transport_.send(header, {builder_.GetBufferPointer(), builder_.GetSize()}, std::move(attachment));
}

// A reply acknowledges its message and all before it.
Status Server::reply(Type type, uint64_t to, AttachmentPtr attachment) {
  done_ = acknowledged_ = to;
  if (profile_) replied_ = monotonic_ns();
  return send(type, to, std::move(attachment));
}

template <typename F>
Status Server::when_done(uint64_t sequence, F&& finish) {
  const Ticket ticket = on_.device->record();
  if (pending_.empty() && (ticket == 0 || on_.device->done(ticket))) {
    if (Status status = still_there(ticket); !status.ok()) return status;
    session_->settle();
    Status status = finish();
    done_ = sequence;
    return status;
  }
  pending_.push_back({ticket, sequence, std::forward<F>(finish)});
  return {};
}

// A device that is lost is done with everything, but nothing of it is there: the session ends.
Status Server::still_there(Ticket ticket) {
  const Status status = on_.device->wait(ticket);
  if (!status.ok()) spdlog::error("{}", status.message());
  return status;
}

Status Server::settle() {
  while (!pending_.empty() && on_.device->done(pending_.front().ticket)) {
    if (Status status = still_there(pending_.front().ticket); !status.ok()) return status;
    session_->settle();
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    if (Status status = next.finish(); !status.ok()) return status;
    done_ = next.sequence;
  }
  return {};
}

Status Server::drain() {
  if (Status status = on_.device->wait(on_.device->record()); !status.ok()) return status;
  session_->settle();
  return settle();
}

flatbuffers::Offset<wire::Error> Server::encode(const FailurePtr& failure) {
  if (!failure) return 0;
  const Status& status = failure->status;
  return wire::CreateErrorDirect(builder_, static_cast<uint8_t>(status.code()), status.kind().c_str(),
                                 status.message().c_str(), failure->program, failure->record, failure->sequence,
                                 failure->skipped, failure->told);
}

flatbuffers::Offset<wire::Error> Server::tell(const FailurePtr& failure) {
  const auto error = encode(failure);
  if (failure) session_->tell(failure);
  return error;
}

// Memory to answer with. It counts against the limit until the client has given it back.
AttachmentPtr Server::allocate(uint64_t nbytes) {
  if (nbytes < on_.device->lends_from()) return nbytes <= limit_ ? transport_.allocate(nbytes) : nullptr;
  tr_buffer buffer{};
  if (!memory_->allocate(nbytes, &buffer)) return nullptr;
  const auto memory = std::make_shared<Memory>(buffer);
  return on_.device->lend(memory->data(), nbytes, memory);
}

Status Server::acknowledge() {
  builder_.Clear();
  const auto error = encode(session_->announce());
  const wire::WorkerUse use = worker_use();
  builder_.Finish(wire::CreateProgress(builder_, &use, error));
  acknowledged_ = done_;
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

// Of this process's own. Whoever waits for an answer gets the error; what else a message was to do is not done.
Status Server::out_of_memory(const Frame& frame) {
  const Type type = static_cast<Type>(frame.header.type);
  const std::string what = "a message of type " + std::to_string(frame.header.type);
  const auto failure = std::make_shared<Failure>(Failure{no_memory_for(what), 0, 0, frame.header.sequence});
  spdlog::warn("{}", failure->status.message());
  builder_.Reset();
  if (type == Type::kUpload) {
    const auto* upload = wire::verify<wire::Upload>(frame.control);
    return session_->upload_failed(upload->buffer(), frame.attachment ? frame.attachment->bytes().size() : 0);
  }
  if (type == Type::kReadFile) {
    const auto* file = wire::verify<wire::ReadFile>(frame.control);
    return session_->upload_failed(file->buffer(), file->size());
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
    // A client that gets its reply may take the processor before this thread comes back from sending.
    const uint64_t end = replied_ >= begin ? replied_ : monotonic_ns();
    profile_->message(static_cast<Type>(frame.header.type), frame.header.sequence, begin, end);
  }
  return status;
}

Status Server::load_program(Frame& frame) {
  const auto* message = wire::verify<wire::LoadProgram>(frame.control);
  if (!message || !frame.attachment) return damaged("program");
  session_->load_program(message->program(), frame.attachment->bytes(), message->tune() && !options_.repeatable);
  if (message->low_latency()) transport_.busy_wait(remote::kBusyWait);
  return {};
}

Status Server::unload(Frame& frame) {
  const auto* message = wire::verify<wire::Unload>(frame.control);
  if (!message || !message->programs()) return damaged("unload");
  if (profile_) {  // what was recorded of them needs them
    if (Status status = hand_over_profile(/*now=*/true); !status.ok()) return status;
  }
  for (const uint32_t program : *message->programs()) session_->unload_program(program);
  return {};
}

Status Server::run_program(Frame& frame) {
  const auto* message = wire::verify<wire::Run>(frame.control);
  if (!message) return damaged("run");
  RunRequest request;
  request.program = message->program();
  request.base = message->base();
  request.params = wire::bytes(message->params());
  request.bindings = wire::bytes(message->bindings());
  request.frees = wire::bytes(message->frees());
  request.sequence = frame.header.sequence;
  request.answered = is_waited_for(frame);
  request.afresh = message->afresh();
  request.math = message->math();
  FailurePtr failure;
  running_ = request.sequence;
  words_.clear();
  Status status = inbox_.is_cancelled(request.sequence) ? session_->run_cancelled(request, &failure)
                                                        : session_->run(request, &words_, &failure);
  if (!status.ok() || !(frame.header.flags & wire::kWantsReply)) return status;
  const uint64_t sequence = frame.header.sequence;
  return when_done(sequence, [this, sequence, failure, words = words_] {
    const FailurePtr late = session_->take_late_failure(sequence);
    builder_.Clear();
    const auto error = tell(failure ? failure : late);
    const auto encoded = builder_.CreateVector(words);
    const wire::WorkerUse use = worker_use();
    builder_.Finish(wire::CreateRunReply(builder_, error, encoded, &use));
    return reply(Type::kRunReply, sequence);
  });
}

Status Server::upload(Frame& frame) {
  const auto* message = wire::verify<wire::Upload>(frame.control);
  if (!message) return damaged("upload");
  if (frame.refused != 0) return session_->upload_failed(message->buffer(), frame.refused);
  std::span<std::byte> bytes;
  if (frame.attachment) bytes = frame.attachment->bytes();
  const uint64_t size = bytes.size();
  Status status = session_->upload(message->buffer(), bytes, std::move(frame.attachment));
  if (!status.ok() || size < kAcknowledgeBytes) return status;
  return when_done(frame.header.sequence, [this, sequence = frame.header.sequence] {
    done_ = sequence;
    return acknowledge();
  });
}

Status Server::find_file(Frame& frame) {
  const auto* message = wire::verify<wire::File>(frame.control);
  if (!message || !message->path()) return damaged("file");
  if (Status status = drain(); !status.ok()) return status;
  OpenFile file;
  const Status status = options_.files ? options_.files->open(message->path()->str(), &file) : no_files();
  const FileVersion& found = file.version();
  const wire::FileVersion version(found.size, found.inode, found.modified);
  builder_.Clear();
  const auto why = status.ok() ? flatbuffers::Offset<flatbuffers::String>() : builder_.CreateString(status.message());
  builder_.Finish(wire::CreateFileReply(builder_, 0, status.ok() ? &version : nullptr, options_.files != nullptr, why));
  return reply(Type::kFileReply, frame.header.sequence);
}

Status Server::read_file(Frame& frame) {
  const auto* message = wire::verify<wire::ReadFile>(frame.control);
  if (!message || !message->path() || !message->version()) return damaged("file");
  const FileVersion version{message->version()->size(), message->version()->inode(), message->version()->modified()};
  OpenFile file;
  Status status = options_.files
                      ? options_.files->open(message->path()->str(), version, message->offset(), message->size(), &file)
                      : no_files();
  const uint64_t sequence = frame.header.sequence;
  return session_->make_buffer(message->buffer(), message->size(), sequence, status,
                               [&](uint64_t offset, std::span<std::byte> piece) {
                                 if (inbox_.looks_cancelled(sequence)) return cancelled_read();
                                 return file.read(message->offset() + offset, piece);
                               });
}

Status Server::free(Frame& frame) {
  const auto* message = wire::verify<wire::Free>(frame.control);
  if (!message) return damaged("free");
  return session_->free(wire::bytes(message->frees()));
}

Status Server::read(Frame& frame) {
  const auto* message = wire::verify<wire::Read>(frame.control);
  if (!message) return damaged("read");
  ReadRequest request;
  request.buffer = message->buffer();
  request.item_size = message->item_size();
  const std::vector<int64_t> sizes = elements(message->sizes()), strides = elements(message->strides());
  request.sizes = sizes;
  request.strides = strides;
  request.offset = message->offset();

  const uint64_t sequence = frame.header.sequence;
  const bool ahead = message->ahead();
  Session::Located located;
  FailurePtr failure = message->checkpoint() ? session_->locate_kept(request.buffer, sequence, &located)
                                             : session_->locate(request, sequence, &located);
  const int64_t all[] = {static_cast<int64_t>(located.nbytes)}, one[] = {1};
  if (message->checkpoint()) request = {0, 1, all, one, 0};  // what the buffer holds now is another matter
  AttachmentPtr attachment;
  std::shared_ptr<QueuedRead> queued;
  if (!failure && located.packed) attachment = on_.device->lend(located.data, located.nbytes, located.keep);
  if (!failure && !attachment) {
    attachment = allocate(located.nbytes);
    if (attachment) {
      queued = session_->copy_out(request, located, attachment->bytes(), attachment);
    } else {
      failure = std::make_shared<Failure>(Failure{no_memory_for("an answer", located.nbytes), 0, 0, sequence});
    }
  }
  return when_done(sequence, [this, sequence, ahead, failure, queued, attachment]() mutable {
    if (queued && queued->failure) {
      failure = queued->failure;
      attachment = nullptr;
    }
    builder_.Clear();
    const auto error = ahead ? encode(failure) : tell(failure);
    const wire::WorkerUse use = worker_use();
    builder_.Finish(wire::CreateReadReply(builder_, error, &use));
    return reply(Type::kReadReply, sequence, std::move(attachment));
  });
}

Status Server::synchronize(Frame& frame) {
  const auto* message = wire::verify<wire::Synchronize>(frame.control);
  if (!message) return damaged("synchronize");
  if (Status status = drain(); !status.ok()) return status;
  session_->wait_for_background();
  if (message->checkpoint() != wire::Checkpoint::None) return checkpoint(frame, message->checkpoint());
  builder_.Clear();
  uint64_t not_listed = 0;
  std::vector<flatbuffers::Offset<wire::Error>> errors;
  for (const FailurePtr& failure : session_->take_failures(&not_listed)) errors.push_back(tell(failure));
  const auto first = errors.empty() ? flatbuffers::Offset<wire::Error>() : errors[0];
  const auto more = errors.size() < 2 ? 0 : builder_.CreateVector(&errors[1], errors.size() - 1);
  const wire::WorkerUse use = worker_use();
  builder_.Finish(wire::CreateSynchronizeReply(builder_, first, &use, more, not_listed));
  return reply(Type::kSynchronizeReply, frame.header.sequence);
}

Status Server::checkpoint(Frame& frame, wire::Checkpoint what) {
  std::vector<uint64_t> buffers, sizes;
  const bool kept = what == wire::Checkpoint::Keep && !session_->has_untold();
  session_->drop_checkpoint();
  if (kept) session_->keep_checkpoint(&buffers, &sizes);
  builder_.Clear();
  const auto ids = builder_.CreateVector(buffers), bytes = builder_.CreateVector(sizes);
  const wire::WorkerUse use = worker_use();
  builder_.Finish(wire::CreateSynchronizeReply(builder_, 0, &use, 0, 0, kept, ids, bytes));
  Status status = reply(Type::kSynchronizeReply, frame.header.sequence);
  builder_.Reset();  // there may be many
  return status;
}

Status Server::mark(Frame& frame) {
  const auto* message = wire::verify<wire::Mark>(frame.control);
  if (!message) return damaged("mark");
  const uint64_t sequence = frame.header.sequence;
  session_->wait_for_background();  // that was called before, too
  return when_done(sequence, [this, sequence, clock = on_.device->read_clock()] {
    builder_.Clear();
    builder_.Finish(wire::CreateMarkReply(builder_, 0, clock(), session_->has_untold()));
    return reply(Type::kMarkReply, sequence);
  });
}

wire::WorkerUse Server::worker_use() const {
  const MemoryStats stats = memory_->stats();
  const auto encoded = [](const MemoryStat& stat) {
    return wire::MemoryStat(stat.current, stat.peak, stat.allocated, stat.freed);
  };
  uint64_t kernels = 0, refused = 0;
  for (const auto& runner : on_.runners) {
    kernels += runner->kernels_compiled();
    refused += runner->groups_refused();
  }
  return {encoded(stats.allocated),
          encoded(stats.reserved),
          encoded(stats.allocations),
          encoded(stats.segments),
          stats.retries,
          stats.failures,
          kernels,
          refused};
}

Status Server::memory(Frame& frame) {
  const auto* message = wire::verify<wire::Memory>(frame.control);
  if (!message) return damaged("memory");
  if (Status status = drain(); !status.ok()) return status;
  if (message->trim()) memory_->trim();
  if (message->limit()) memory_->set_limit(std::min(*message->limit(), limit_));
  if (message->reset_peak()) memory_->reset_peak();
  if (message->reset_totals()) memory_->reset_totals();
  const uint64_t limit = memory_->limit();
  const uint64_t reserved = memory_->stats().reserved.current;
  const wire::WorkerUse use = worker_use();
  builder_.Clear();
  builder_.Finish(wire::CreateMemoryReply(builder_, 0, &use, limit,
                                          std::min(limit - std::min(limit, reserved), available_memory())));
  return reply(Type::kMemoryReply, frame.header.sequence);
}

FailurePtr Server::begin_call(Frame& frame, const wire::Call& message) {
  const uint64_t sequence = frame.header.sequence;
  const auto refuse = [&](Status why) { return std::make_shared<Failure>(Failure{std::move(why), 0, 0, sequence}); };
  if (options_.python.empty()) {
    return refuse({ErrorCode::kOpFailed,
                   "remote: the worker calls no Python functions for its clients; start it with --allow-python"});
  }
  const Status no_memory = no_memory_for("a call");
  const size_t count = message.inputs() ? message.inputs()->size() : 0;
  if (count >= kMostParts) return refuse(Status::invalid("remote: a call has too many tensors"));
  struct View {
    std::vector<int64_t> sizes, strides;
    ReadRequest request;
    Session::Located located;
  };
  std::vector<View> views(count);
  std::vector<uint64_t> sizes{frame.attachment->bytes().size()};
  uint64_t total = sizes[0];
  for (size_t i = 0; i < count; ++i) {
    const wire::CallInput* input = message.inputs()->Get(static_cast<flatbuffers::uoffset_t>(i));
    View& view = views[i];
    view.sizes = elements(input->sizes());
    view.strides = elements(input->strides());
    view.request = {input->buffer(), input->item_size(), view.sizes, view.strides, input->offset()};
    if (FailurePtr failure = session_->locate(view.request, sequence, &view.located)) return failure;
    if (__builtin_add_overflow(total, view.located.nbytes, &total) || total > limit_) return refuse(no_memory);
    sizes.push_back(view.located.nbytes);
  }
  if (!memory_->charge(total)) return refuse(no_memory);
  const auto discharge = [this](const uint64_t* nbytes) { memory_->discharge(*nbytes); };
  std::unique_ptr<uint64_t, decltype(discharge)> charged(&total, discharge);
  Parts parts;
  if (Status status = Parts::make(sizes, &parts); !status.ok()) return refuse(std::move(status));
  std::ranges::copy(frame.attachment->bytes(), parts.data(0));
  std::vector<std::shared_ptr<QueuedRead>> queued;
  for (size_t i = 0; i < count; ++i) {
    View& view = views[i];
    queued.push_back(
        session_->copy_out(view.request, view.located, {parts.data(i + 1), view.located.nbytes}, view.located.keep));
  }
  if (Status status = drain(); !status.ok()) return refuse(std::move(status));
  for (const auto& read : queued) {
    if (read && read->failure) return read->failure;
  }
  if (!python_) {
    python_ = std::make_unique<Python>(options_.python, options_.python_program, [this] { inbox_.wake(); });
  }
  if (Status status = python_->call(sequence, std::move(parts)); !status.ok()) return refuse(std::move(status));
  std::ignore = charged.release();  // until the call ends
  calls_[sequence] = {message.base(), total};
  return nullptr;
}

Status Server::call(Frame& frame) {
  const auto* message = wire::verify<wire::Call>(frame.control);
  if (!message || !frame.attachment || message->base() == 0 || message->base() > UINT64_MAX - kMostParts) {
    return damaged("call");
  }
  const FailurePtr failure = begin_call(frame, *message);
  if (!failure) return {};
  builder_.Clear();
  builder_.Finish(wire::CreateCallReply(builder_, tell(failure)));
  return reply(Type::kCallReply, frame.header.sequence);
}

Status Server::end_call(Frame& frame) {
  const auto* message = wire::verify<wire::EndCall>(frame.control);
  if (!message) return damaged("call");
  if (message->unwanted() == 0) {
    if (python_) python_->end(message->call(), message->kill());
    return {};
  }
  if (message->unwanted() > UINT64_MAX - kMostParts) return damaged("call");
  if (const auto found = calls_.find(message->call()); found != calls_.end()) {
    found->second.base = 0;
  } else {
    session_->free_range(message->unwanted(), kMostParts);
  }
  return {};
}

Status Server::answer_calls() {
  if (!python_) return {};
  for (PythonResult& result : python_->take_results()) {
    const auto found = calls_.find(result.call);
    if (found == calls_.end()) continue;
    const PendingCall call = found->second;
    calls_.erase(found);
    memory_->discharge(call.nbytes);
    if (Status status = answer_call(result, call); !status.ok()) return status;
  }
  return {};
}

Status Server::answer_call(PythonResult& result, const PendingCall& call) {
  std::vector<uint64_t> sizes;
  AttachmentPtr answer;
  if (call.base == 0) {
    result = {result.call, {ErrorCode::kOpFailed, "remote: nobody wants the results of this call"}, {}};
  } else if (result.status.ok()) {
    answer = allocate(result.parts.size(0));
    if (answer) result.status = result.parts.read(0, 0, answer->bytes().data(), answer->bytes().size());
    if (!answer && result.parts.size(0) != 0) result.status = no_memory_for("a call's results");
  }
  for (size_t part = 1; result.status.ok() && part < result.parts.count(); ++part) {
    sizes.push_back(result.parts.size(part));
    Status made = session_->make_buffer(call.base + part - 1, sizes.back(), result.call, {},
                                        [&](uint64_t offset, std::span<std::byte> piece) {
                                          return result.parts.read(part, offset, piece.data(), piece.size());
                                        });
    if (!made.ok()) return made;
  }
  builder_.Clear();
  const FailurePtr failure =
      result.status.ok() ? nullptr : std::make_shared<Failure>(Failure{result.status, 0, 0, result.call});
  const auto error = encode(failure);
  const auto encoded = builder_.CreateVector(sizes);
  builder_.Finish(wire::CreateCallReply(builder_, error, encoded));
  return send(Type::kCallReply, result.call, failure ? nullptr : std::move(answer));
}

Status Server::has_op(Frame& frame) {
  const auto* message = wire::verify<wire::HasOp>(frame.control);
  if (!message || !message->name()) return damaged("question");
  if (Status status = drain(); !status.ok()) return status;
  builder_.Clear();
  const char* name = message->name()->c_str();
  const bool has_op = std::ranges::any_of(on_.runners, [&](const auto& runner) { return runner->has_op(name); });
  builder_.Finish(wire::CreateHasOpReply(builder_, 0, has_op));
  return reply(Type::kHasOpReply, frame.header.sequence);
}

Status Server::profile(Frame& frame) {
  const uint64_t received = monotonic_ns();
  const auto* message = wire::verify<wire::Profile>(frame.control);
  if (!message) return damaged("profile");
  if (Status status = drain(); !status.ok()) return status;
  session_->wait_for_background();  // is of before
  std::unique_ptr<Profile> done;
  if (message->command() == wire::ProfileCommand::Start) {
    profile_ = std::make_unique<Profile>(std::min(message->limit(), limit_ / kOfProfile / sizeof(wire::ProfileEvent)));
  } else if (message->command() == wire::ProfileCommand::Stop) {
    done = std::move(profile_);
  }
  session_->set_profile(profile_.get());
  builder_.Clear();
  Programs programs;
  AttachmentPtr events;
  if (done) programs = take_profile(*done, &events);
  builder_.Finish(wire::CreateProfileReply(builder_, 0, static_cast<uint32_t>(getpid()), received, monotonic_ns(),
                                           done ? done->dropped() : 0, programs));
  Status status = reply(Type::kProfileReply, frame.header.sequence, std::move(events));
  builder_.Reset();  // what it held may have been large
  return status;
}

Server::Programs Server::take_profile(Profile& profile, AttachmentPtr* events) {
  const std::span<const std::byte> bytes = std::as_bytes(profile.events());
  if (bytes.empty()) return {};
  *events = allocate(bytes.size());
  if (!*events) {  // no memory
    profile.give_up();
    return {};
  }
  std::ranges::copy(bytes, (*events)->bytes().begin());
  const Programs programs = profile.encode_programs(builder_, [this](uint32_t n) { return session_->find_program(n); });
  profile.handed_over();
  return programs;
}

Status Server::hand_over_profile(bool now) {
  const uint64_t begin = monotonic_ns();
  if (!now && profile_->due_in(begin) > 0) return {};
  builder_.Clear();
  AttachmentPtr events;
  const Programs programs = take_profile(*profile_, &events);
  builder_.Finish(wire::CreateProfileReply(builder_, 0, static_cast<uint32_t>(getpid()), begin, monotonic_ns(),
                                           profile_->dropped(), programs));
  Status status = send(Type::kProfilePart, acknowledged_, std::move(events));
  builder_.Reset();
  profile_->message(Type::kProfilePart, 0, begin, monotonic_ns());
  return status;
}

}  // namespace

Status serve(remote::Transport& transport, const ServerOptions& options) { return Server(transport, options).run(); }

}  // namespace torch_remote::worker

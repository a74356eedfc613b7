#include <unistd.h>

#include <algorithm>

#include "worker/device/machine.h"
#include "worker/device/no_memory.h"
#include "worker/server/server_impl.h"

namespace torch_remote::worker {
namespace {

constexpr uint64_t kAcknowledgeBytes = 16u << 20;  // An upload of at least this size is acknowledged at once.
constexpr uint64_t kOfProfile = 16;                // A profile may take this fraction of the limit, in addition to it.

Status cancelled_read() { return {ErrorCode::kOpFailed, "remote: a file was not read: cancelled"}; }

}  // namespace

Status Server::load_program(Frame& frame) {
  const auto* message = wire::verify<wire::LoadProgram>(frame.control);
  if (!message || !frame.attachment) return damaged("program");
  session_->load_program(message->program(), frame.attachment->bytes(), message->tune() && !options_.repeatable);
  if (message->low_latency()) transport_.set_spin_time(remote::kLowLatencySpin);
  return {};
}

Status Server::unload(Frame& frame) {
  const auto* message = wire::verify<wire::Unload>(frame.control);
  if (!message || !message->programs()) return damaged("unload");
  if (profile_) {  // The recorded events of the programs refer to them.
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
  request.wants_words = is_waited_for(frame);
  request.afresh = message->afresh();
  request.math = math_of(*message);
  FailurePtr failure;
  running_ = request.sequence;
  words_.clear();
  Status status = inbox_.is_cancelled(request.sequence) ? session_->run_cancelled(request, &failure)
                                                        : session_->run(request, &words_, &failure);
  if (!status.ok() || !(frame.header.flags & wire::kWantsReply)) return status;
  const uint64_t sequence = frame.header.sequence;
  return when_done(sequence, [this, sequence, failure, words = words_] {
    const FailurePtr late = session_->failures().take_deferred(sequence);
    builder_.Clear();
    const auto error = encode_and_mark_reported(failure ? failure : late);
    const auto encoded = builder_.CreateVector(words);
    const wire::WorkerUse use = worker_use();
    builder_.Finish(wire::CreateRunReply(builder_, error, encoded, &use));
    return reply(Type::kRunReply, sequence);
  });
}

Status Server::upload(Frame& frame) {
  const auto* message = wire::verify<wire::Upload>(frame.control);
  if (!message) return damaged("upload");
  if (frame.refused_bytes != 0) return session_->buffers().upload_failed(message->buffer(), frame.refused_bytes);
  std::span<std::byte> bytes;
  if (frame.attachment) bytes = frame.attachment->bytes();
  const uint64_t size = bytes.size();
  Status status = session_->buffers().upload(message->buffer(), bytes, std::move(frame.attachment));
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
  return session_->buffers().make(message->buffer(), message->size(), sequence, status,
                                  [&](uint64_t offset, std::span<std::byte> piece) {
                                    if (inbox_.poll_cancelled(sequence)) return cancelled_read();
                                    return file.read(message->offset() + offset, piece);
                                  });
}

Status Server::free(Frame& frame) {
  const auto* message = wire::verify<wire::Free>(frame.control);
  if (!message) return damaged("free");
  return session_->buffers().free(wire::bytes(message->frees()));
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
  request.prefetch = message->ahead();

  const uint64_t sequence = frame.header.sequence;
  Session::Located located;
  FailurePtr failure = message->checkpoint() ? session_->locate_in_checkpoint(request.buffer, sequence, &located)
                                             : session_->locate(request, sequence, &located);
  const int64_t all[] = {static_cast<int64_t>(located.nbytes)}, one[] = {1};
  if (message->checkpoint())
    // The checkpoint's size may differ from that of the present contents.
    request = {0, 1, all, one, 0, request.prefetch};
  AttachmentPtr attachment;
  std::shared_ptr<QueuedRead> queued;
  if (!failure && located.packed) attachment = opened_.device->lend(located.data, located.nbytes, located.keep);
  if (!failure && !attachment) {
    attachment = allocate(located.nbytes);
    if (attachment) {
      queued = session_->copy_out(request, located, attachment->bytes(), attachment);
    } else {
      failure = std::make_shared<Failure>(Failure{no_memory_for("an answer", located.nbytes), 0, 0, sequence});
    }
  }
  return when_done(sequence, [this, sequence, ahead = request.prefetch, failure, queued, attachment]() mutable {
    if (queued && queued->failure) {
      failure = queued->failure;
      attachment = nullptr;
    }
    builder_.Clear();
    const auto error = ahead ? encode(failure) : encode_and_mark_reported(failure);
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
  for (const FailurePtr& failure : session_->failures().take(&not_listed))
    errors.push_back(encode_and_mark_reported(failure));
  const auto first = errors.empty() ? flatbuffers::Offset<wire::Error>() : errors[0];
  const auto more = errors.size() < 2 ? 0 : builder_.CreateVector(&errors[1], errors.size() - 1);
  const wire::WorkerUse use = worker_use();
  builder_.Finish(wire::CreateSynchronizeReply(builder_, first, &use, more, not_listed));
  return reply(Type::kSynchronizeReply, frame.header.sequence);
}

Status Server::checkpoint(Frame& frame, wire::Checkpoint what) {
  std::vector<uint64_t> buffers, sizes;
  const bool kept = what == wire::Checkpoint::Keep && !session_->failures().has_unreported();
  session_->buffers().drop_checkpoint();
  if (kept) session_->buffers().make_checkpoint(&buffers, &sizes);
  builder_.Clear();
  const auto ids = builder_.CreateVector(buffers), bytes = builder_.CreateVector(sizes);
  const wire::WorkerUse use = worker_use();
  builder_.Finish(wire::CreateSynchronizeReply(builder_, 0, &use, 0, 0, kept, ids, bytes));
  Status status = reply(Type::kSynchronizeReply, frame.header.sequence);
  builder_.Reset();  // The lists may be long.
  return status;
}

Status Server::mark(Frame& frame) {
  const auto* message = wire::verify<wire::Mark>(frame.control);
  if (!message) return damaged("mark");
  const uint64_t sequence = frame.header.sequence;
  session_->wait_for_background();  // The mark also covers ops that are running in the background.
  return when_done(sequence, [this, sequence, clock = opened_.device->read_clock()] {
    builder_.Clear();
    builder_.Finish(wire::CreateMarkReply(builder_, 0, clock(), session_->failures().has_unreported()));
    return reply(Type::kMarkReply, sequence);
  });
}

wire::WorkerUse Server::worker_use() const {
  const MemoryStats stats = memory_->stats();
  const auto encoded = [](const MemoryStat& stat) {
    return wire::MemoryStat(stat.current, stat.peak, stat.allocated, stat.freed);
  };
  uint64_t kernels = 0, refused = 0;
  for (const auto& runner : opened_.runners) {
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

Status Server::has_op(Frame& frame) {
  const auto* message = wire::verify<wire::HasOp>(frame.control);
  if (!message || !message->name()) return damaged("question");
  if (Status status = drain(); !status.ok()) return status;
  builder_.Clear();
  const char* name = message->name()->c_str();
  const bool has_op = std::ranges::any_of(opened_.runners, [&](const auto& runner) { return runner->has_op(name); });
  builder_.Finish(wire::CreateHasOpReply(builder_, 0, has_op));
  return reply(Type::kHasOpReply, frame.header.sequence);
}

Status Server::profile(Frame& frame) {
  const uint64_t received = monotonic_ns();
  const auto* message = wire::verify<wire::Profile>(frame.control);
  if (!message) return damaged("profile");
  if (Status status = drain(); !status.ok()) return status;
  session_->wait_for_background();  // These ops began before the profile starts or ends.
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
  builder_.Reset();  // The contents may have been large.
  return status;
}

Server::Programs Server::take_profile(Profile& profile, AttachmentPtr* events) {
  const std::span<const std::byte> bytes = std::as_bytes(profile.events());
  if (bytes.empty()) return {};
  *events = allocate(bytes.size());
  if (!*events) {  // Out of memory.
    profile.drop_events();
    return {};
  }
  std::ranges::copy(bytes, (*events)->bytes().begin());
  const Programs programs =
      profile.encode_programs(builder_, [this](uint32_t n) { return session_->find_program(n); }, opened_.runners);
  profile.handed_over();
  return programs;
}

Status Server::hand_over_profile(bool now) {
  const uint64_t begin = monotonic_ns();
  if (!now && profile_->next_hand_over_in(begin) > 0) return {};
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

}  // namespace torch_remote::worker

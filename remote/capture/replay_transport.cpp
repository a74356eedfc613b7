#include "remote/capture/replay_transport.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "remote/capture/replay_log.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

using wire::Type;
using Clock = std::chrono::steady_clock;

// Limits on what was sent again and is not acknowledged: the messages of a client, and half of its bytes
// (remote/client/types.h).
constexpr uint64_t kMostOnTheWay = 64;  // messages
constexpr uint64_t kMostBytesOnTheWay = uint64_t{256} << 20;
constexpr const char* kCalled =
    "a Python function ran on the worker's machine, and a replay does not repeat such calls";
constexpr int kMostDeaths = 3;  // successive deaths of workers without progress in between
constexpr std::chrono::seconds kHello{120};
constexpr std::chrono::milliseconds kBetweenAttempts{300};

Type type_of(const wire::Header& header) { return static_cast<Type>(header.type); }
// Whether the message is a reply whose order is that of the client's messages. Replies to calls come in any order.
bool is_reply(Type type) {
  return type != Type::kAcknowledge && type != Type::kProfilePart && type != Type::kCallFunctionReply;
}
bool is_timeout(const Status& status) { return status.code() == ErrorCode::kTimeout; }

// Whether a message has the same effect when it is sent again. We assume that unknown types do not.
bool repeats(Type type) {
  switch (type) {
    case Type::kLoadProgram:
    case Type::kUnloadPrograms:
    case Type::kRun:
    case Type::kUpload:
    case Type::kFree:
    case Type::kRead:
    case Type::kSynchronize:
    case Type::kHasOp:
    case Type::kProfile:
    case Type::kMemory:
    case Type::kRecordEvent:
    case Type::kStatFile:
    case Type::kReadFile:
    case Type::kShadow:
      return true;
    default:
      return false;
  }
}

// An attachment of one worker's transport. After a restore it is copied to the next worker's transport.
class GenerationAttachment : public Attachment {
 public:
  GenerationAttachment(AttachmentPtr inner, uint64_t generation) : inner_(std::move(inner)), generation_(generation) {}
  std::span<std::byte> bytes() override { return inner_->bytes(); }
  const AttachmentPtr& inner() const { return inner_; }
  uint64_t generation() const { return generation_; }

 private:
  const AttachmentPtr inner_;
  const uint64_t generation_;
};

// Describes what two workers must have in common to compute the same bits.
std::string kind_of(const wire::HelloReply& hello) {
  const auto text = [](const flatbuffers::String* s) { return s != nullptr ? s->str() : std::string(); };
  std::string kind = text(hello.runner_description()) + ", on " + text(hello.processor()) + ", " +
                     std::to_string(hello.cores()) + " cores";
  if (const wire::Capabilities* has = hello.capabilities()) {
    kind += ", kernels for";
    for (uint32_t i = 0; has->targets() != nullptr && i < has->targets()->size(); ++i) {
      kind += " " + has->targets()->Get(i)->str();
    }
    kind += ", " + std::to_string(has->group_kind_mask()) + "/" + std::to_string(has->dtype_mask());
  }
  return kind;
}

// Whether a worker's message reports that it ran out of memory. Another worker might not have.
bool ran_out(const Frame& frame) {
  const auto code = [](const wire::Error* error) {
    return error != nullptr && error->code() == static_cast<uint8_t>(ErrorCode::kOutOfMemory);
  };
  switch (type_of(frame.header)) {
    case Type::kAcknowledge: {
      const auto* message = wire::verify<wire::Acknowledge>(frame.control);
      return message != nullptr && code(message->error());
    }
    case Type::kRunReply: {
      const auto* message = wire::verify<wire::RunReply>(frame.control);
      return message != nullptr && code(message->error());
    }
    case Type::kReadReply: {
      const auto* message = wire::verify<wire::ReadReply>(frame.control);
      return message != nullptr && code(message->error());
    }
    case Type::kSynchronizeReply: {
      const auto* message = wire::verify<wire::SynchronizeReply>(frame.control);
      if (message == nullptr || message->error() == nullptr) return false;
      bool any = code(message->error());
      for (uint32_t i = 0; message->more_errors() != nullptr && i < message->more_errors()->size(); ++i) {
        any = any || code(message->more_errors()->Get(i));
      }
      return any;
    }
    default:
      return false;
  }
}

// Locks: send_mutex_ makes the order of the log that of the connection. mutex_ is taken after it, for short times.
class ReplayTransportImpl final : public ReplayTransport {
 public:
  ReplayTransportImpl(std::unique_ptr<Transport> first, ReplayOptions options, std::unique_ptr<ReplayLog> log)
      : options_(std::move(options)), log_(std::move(log)), inner_(std::move(first)) {}
  ~ReplayTransportImpl() override;

  AttachmentPtr allocate(size_t size) override {
    const auto [inner, generation] = current();
    AttachmentPtr made = inner->allocate(size);
    return made ? std::make_shared<GenerationAttachment>(std::move(made), generation) : nullptr;
  }
  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> owner) override {
    const auto [inner, generation] = current();
    AttachmentPtr made = inner->share(memory, size, std::move(owner));
    return made ? std::make_shared<GenerationAttachment>(std::move(made), generation) : nullptr;
  }
  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override;
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override;
  void set_spin_time(std::chrono::nanoseconds time) override {
    std::unique_lock lock(mutex_);
    busy_ = time;
    const std::shared_ptr<Transport> inner = inner_;
    lock.unlock();
    inner->set_spin_time(time);
  }
  void avoid_busy_cores() override { current().first->avoid_busy_cores(); }
  void wake() override {
    std::unique_lock lock(mutex_);
    woken_ = state_ != State::kLive;
    const std::shared_ptr<Transport> inner = inner_;
    lock.unlock();
    changed_.notify_all();
    inner->wake();
  }
  void abandon() override {
    log_->abandon();
    inner_->abandon();
  }
  bool shares_memory() const override { return current().first->shares_memory(); }
  // The pid of the session's process, even if the peer is a listener, so that a replaced worker has another pid.
  int peer_process() const override {
    std::lock_guard lock(mutex_);
    return process_;
  }
  std::string description() const override { return current().first->description(); }

  Status begin_checkpoint() override { return log_->begin_checkpoint(); }
  Status add_buffer(uint64_t buffer, std::span<const std::byte> bytes) override {
    return log_->add_buffer(buffer, bytes);
  }
  Status commit_checkpoint() override;
  void abandon_checkpoint() override { log_->abandon_checkpoint(); }
  bool checkpoint_due() const override {
    return log_->may_become_usable() && (log_->size() > options_.limit / 2 || !log_->usable() ||
                                         Clock::now() - last_checkpoint_.load() > options_.every);
  }
  uint64_t restored() const override {
    std::lock_guard lock(mutex_);
    return generation_ - 1;
  }

 private:
  enum class State { kLive, kRestoring, kFailed };

  std::pair<std::shared_ptr<Transport>, uint64_t> current() const {
    std::lock_guard lock(mutex_);
    return {inner_, generation_};
  }
  Status send_hello(wire::Header header, std::span<const uint8_t> control);
  // Requires mutex_. Returns false if the client already received this frame.
  bool note(const Frame& frame);
  void lose(uint64_t generation, const Status& why);
  bool closing() const {
    std::lock_guard lock(mutex_);
    return closing_;
  }

  // The following belong to the restoring thread.
  void restore_loop();
  void restore(const Status& why);
  void drain_lost();
  Status replay(std::shared_ptr<Transport> fresh);
  Status repeat_handshake(Transport& fresh);
  Status send_again(Transport& fresh, const LoggedFrame& frame, uint64_t sequence);
  // Receives available frames; waits for the first one for at most `timeout`.
  Status take(Transport& fresh, std::chrono::nanoseconds timeout);
  void say(const std::string& what) const {
    if (options_.log) options_.log(what);
  }

  const ReplayOptions options_;
  const std::unique_ptr<ReplayLog> log_;

  std::mutex send_mutex_;
  wire::Header hello_header_;
  std::vector<uint8_t> hello_;
  using Limit = std::optional<std::vector<uint8_t>>;  // the last Memory message that set a limit
  Limit limit_, limit_at_cut_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Transport> inner_;
  uint64_t generation_ = 1;
  State state_ = State::kLive;
  Status why_;  // why the worker was lost, or why it cannot be restored
  std::chrono::nanoseconds busy_{0};
  bool receiving_ = false, woken_ = false, closing_ = false;
  Limit state_limit_;                 // as of the last checkpoint
  std::deque<Frame> pending_frames_;  // frames for the client, before those from inner_
  std::string kind_;                  // of the first worker
  int process_ = 0;                   // pid of the current worker
  std::set<uint64_t> calls_;          // calls of Python functions without a reply so far
  uint64_t delivered_ = 0;            // sequence of the last reply that the client received; replies come in order
  uint64_t acknowledged_ = 0;         // as far as the client knows
  std::thread restorer_;
  std::atomic<Clock::time_point> last_checkpoint_{Clock::now()};

  // The following belong to the restoring thread.
  bool pass_on_ = false;            // whether frames may be for the client
  uint64_t replayed_sequence_ = 0;  // the last sequence that the new worker acknowledged
  uint64_t bytes_on_the_way_ = 0;
  std::deque<std::pair<uint64_t, uint64_t>> on_the_way_;  // pairs of sequence and bytes
  uint64_t acknowledged_at_death_ = 0;
  int deaths_ = 0;
  int fresh_process_ = 0;
};

ReplayTransportImpl::~ReplayTransportImpl() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (restorer_.joinable()) restorer_.join();
}

// --- the client's side -----------------------------------------------------------------------------------------------

// Sends the client hello with `deterministic` set, so that the worker computes the same bits again.
Status ReplayTransportImpl::send_hello(wire::Header header, std::span<const uint8_t> control) {
  const auto* hello = wire::verify<wire::Hello>(control);
  if (hello == nullptr) return Status::internal("remote: the client hello is damaged");
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateHello(builder, hello->process(), /*deterministic=*/true));
  hello_header_ = header;
  hello_.assign(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
  return current().first->send(header, hello_, nullptr);
}

Status ReplayTransportImpl::send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) {
  std::lock_guard order(send_mutex_);
  const Type type = type_of(header);
  if (type == Type::kHello) return send_hello(header, control);
  std::unique_lock lock(mutex_);
  if (state_ == State::kFailed) return why_;
  const bool live = state_ == State::kLive;
  const std::shared_ptr<Transport> inner = inner_;
  const uint64_t generation = generation_;
  lock.unlock();

  if (type == Type::kCloseSession) return live ? inner->send(header, control, nullptr) : Status();
  std::span<const std::byte> bytes;
  if (attachment) bytes = attachment->bytes();
  bool creates = false;
  if (type == Type::kSynchronize) {
    const auto* message = wire::verify<wire::Synchronize>(control);
    creates = message != nullptr && message->checkpoint() == wire::Checkpoint::Create;
  } else if (type == Type::kMemory) {
    const auto* message = wire::verify<wire::Memory>(control);
    if (message != nullptr && message->limit()) limit_.emplace(control.begin(), control.end());
  }
  if (repeats(type)) {
    // We log the message before sending it. Once it is sent, the worker owns the memory and may overwrite it.
    const bool logged = log_->append(header, control, bytes).ok();
    if (!logged && !live) return log_->usable();
    if (creates) {
      (void)log_->cut();
      limit_at_cut_ = limit_;
    }
  } else {
    if (type == Type::kCallFunction) {
      lock.lock();
      calls_.insert(header.sequence);
      lock.unlock();
    }
    log_->mark_not_repeatable(type == Type::kCallFunction ? kCalled
                              : type == Type::kCancel
                                  ? "work was cancelled, and a replay cannot repeat exactly the part that ran"
                                  : std::string("a message of type '") + wire::name(type) +
                                        "' was sent, which cannot be repeated");
  }
  if (options_.on_due && checkpoint_due()) options_.on_due();
  if (!live) return {};
  const auto forget = [&] {
    log_->forget(header);
    const std::lock_guard guard(mutex_);
    calls_.erase(header.sequence);
  };

  if (attachment) {
    auto& owned = static_cast<GenerationAttachment&>(*attachment);
    if (owned.generation() == generation) {
      attachment = owned.inner();
    } else {
      AttachmentPtr copy = inner->allocate(bytes.size());
      if (!copy) {
        forget();
        return {ErrorCode::kOutOfMemory, "remote: no memory for " + std::to_string(bytes.size()) + " bytes to send"};
      }
      std::memcpy(copy->bytes().data(), bytes.data(), bytes.size());
      attachment = std::move(copy);
    }
  }
  Status status = inner->send(header, control, std::move(attachment));
  if (status.ok()) return status;
  if (status.code() == ErrorCode::kOutOfMemory) {
    forget();
    return status;
  }
  lock.lock();
  lose(generation, status);
  return state_ == State::kFailed ? why_ : Status();
}

bool ReplayTransportImpl::note(const Frame& frame) {
  const Type type = type_of(frame.header);
  const uint64_t sequence = frame.header.sequence;
  if (is_reply(type)) {
    if (sequence <= delivered_) return false;
    delivered_ = sequence;
    if (type == Type::kHelloReply) {
      if (const auto* hello = wire::verify<wire::HelloReply>(frame.control)) {
        kind_ = kind_of(*hello);
        process_ = static_cast<int>(hello->process());
      }
    }
  }
  acknowledged_ = std::max(acknowledged_, sequence);
  if (type == Type::kCallFunctionReply) {
    calls_.erase(sequence);
    log_->mark_not_repeatable(kCalled);  // the results of the call are in no message
    if (options_.on_due) options_.on_due();
  }
  if (ran_out(frame)) {
    log_->mark_not_repeatable("the worker ran out of memory, and another worker may behave differently");
    if (options_.on_due) options_.on_due();
  }
  return true;
}

Status ReplayTransportImpl::receive(Frame* frame, std::chrono::nanoseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!pending_frames_.empty()) {
      *frame = std::move(pending_frames_.front());
      pending_frames_.pop_front();
      return {};
    }
    if (state_ == State::kFailed) return why_;
    if (state_ == State::kLive) {
      const std::shared_ptr<Transport> inner = inner_;
      const uint64_t generation = generation_;
      receiving_ = true;
      lock.unlock();
      Status status = inner->receive(frame, std::max<std::chrono::nanoseconds>(deadline - Clock::now(), {}));
      lock.lock();
      receiving_ = false;
      if (status.ok()) {
        if (note(*frame)) return status;
        *frame = {};
        continue;
      }
      changed_.notify_all();
      if (is_timeout(status)) return status;
      lose(generation, status);
      continue;
    }
    if (std::exchange(woken_, false)) return {ErrorCode::kTimeout, "remote: no message arrived in time"};
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
      return {ErrorCode::kTimeout, "remote: no message arrived in time"};
    }
  }
}

void ReplayTransportImpl::lose(uint64_t generation, const Status& why) {
  if (state_ != State::kLive || generation != generation_) return;
  why_ = why;
  if (delivered_ == 0) {  // the handshake is not done yet, so there is nothing to restore
    state_ = State::kFailed;
    return;
  }
  state_ = State::kRestoring;
  if (!restorer_.joinable()) restorer_ = std::thread([this] { restore_loop(); });
  changed_.notify_all();
}

Status ReplayTransportImpl::commit_checkpoint() {
  Status status = log_->commit_checkpoint();
  std::lock_guard order(send_mutex_);
  std::lock_guard lock(mutex_);
  state_limit_ = limit_at_cut_;
  last_checkpoint_ = Clock::now();
  return status;
}

// --- another worker --------------------------------------------------------------------------------------------------

void ReplayTransportImpl::restore_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || state_ == State::kRestoring; });
    if (closing_) return;
    const Status why = why_;
    lock.unlock();
    restore(why);
    lock.lock();
  }
}

// Takes the frames that the lost worker sent before its death, which are valid.
void ReplayTransportImpl::drain_lost() {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Transport> old = inner_;
  while (receiving_ && !closing_) {
    lock.unlock();
    old->wake();
    lock.lock();
    changed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  lock.unlock();
  for (;;) {
    Frame frame;
    if (!old->receive(&frame, std::chrono::nanoseconds::zero())) return;
    lock.lock();
    if (note(frame)) pending_frames_.push_back(std::move(frame));
    lock.unlock();
  }
}

void ReplayTransportImpl::restore(const Status& why) {
  const auto began = Clock::now();
  const auto give_up = [&](const Status& reason) {
    say("the worker was lost (" + why.message() + ") and cannot be replaced: " + reason.message());
    std::lock_guard lock(mutex_);
    state_ = State::kFailed;
    why_ = {ErrorCode::kLost, why.message() + "; it could not be replaced (restore='replay'): " + reason.message()};
    changed_.notify_all();
  };
  drain_lost();
  changed_.notify_all();
  {
    std::lock_guard lock(mutex_);
    if (deaths_ > 0 && acknowledged_ > acknowledged_at_death_) deaths_ = 0;
    acknowledged_at_death_ = acknowledged_;
  }
  ++deaths_;
  say("the worker was lost (" + why.message() + "); its tensors are recomputed on another one");
  for (auto last_try = began;;) {
    if (closing()) return;
    if (Status usable = log_->usable(); !usable) return give_up(usable);
    std::unique_lock calling(mutex_);
    const bool called = !calls_.empty();
    calling.unlock();
    if (called) return give_up(Status::internal(kCalled));
    if (deaths_ > kMostDeaths) {
      return give_up(
          Status::internal("remote: " + std::to_string(kMostDeaths) + " workers in a row died at the same message"));
    }
    std::unique_ptr<Transport> made;
    Status status = options_.connect([this] { return !closing(); }, &made);
    if (status.ok()) {
      last_try = Clock::now();
      status = replay(std::shared_ptr<Transport>(std::move(made)));
      if (status.ok()) break;
      if (status.code() != ErrorCode::kLost) return give_up(status);
      ++deaths_;
      continue;
    }
    if (closing()) return;
    if (Clock::now() - last_try > options_.retry_time) return give_up(status);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kBetweenAttempts, [&] { return closing_; });
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
  say("the tensors are restored, after " + std::to_string(took.count()) + " ms");
}

Status ReplayTransportImpl::repeat_handshake(Transport& fresh) {
  Frame frame;
  if (Status status = fresh.send(hello_header_, hello_, nullptr); !status) return status;
  const auto deadline = Clock::now() + kHello;
  Status status;
  do {
    if (closing()) return {ErrorCode::kInterrupted, "remote: the session ends"};
    status = fresh.receive(&frame, kWaitStep);
  } while (is_timeout(status) && Clock::now() < deadline);
  if (!status) return status;
  const auto* reply = wire::verify<wire::HelloReply>(frame.control);
  if (type_of(frame.header) != Type::kHelloReply || reply == nullptr) {
    return Status::invalid("remote: the new worker did not answer the handshake");
  }
  if (reply->error() != nullptr) return wire::to_status(*reply->error());
  fresh_process_ = static_cast<int>(reply->process());
  if (const std::string kind = kind_of(*reply); kind != kind_) {
    return {ErrorCode::kUnsupported,
            "remote: the new worker would not compute the same bits: it is " + kind + ", the first one was " + kind_};
  }
  return {};
}

Status ReplayTransportImpl::take(Transport& fresh, std::chrono::nanoseconds timeout) {
  for (;; timeout = {}) {
    Frame frame;
    Status status = fresh.receive(&frame, timeout);
    if (is_timeout(status)) return {};
    if (!status) return status;
    replayed_sequence_ = frame.header.sequence;
    for (; !on_the_way_.empty() && on_the_way_.front().first <= replayed_sequence_; on_the_way_.pop_front()) {
      bytes_on_the_way_ -= on_the_way_.front().second;
    }
    if (!pass_on_ || type_of(frame.header) == Type::kProfilePart) continue;
    std::lock_guard lock(mutex_);
    if (type_of(frame.header) == Type::kAcknowledge && frame.header.sequence <= acknowledged_) continue;
    if (!note(frame)) continue;
    pending_frames_.push_back(std::move(frame));
    changed_.notify_all();
  }
}

Status ReplayTransportImpl::send_again(Transport& fresh, const LoggedFrame& logged, uint64_t sequence) {
  wire::Header header = logged.header;
  header.sequence = sequence;
  header.length = header.checksum = 0;
  header.flags = static_cast<uint16_t>(header.flags & ~(wire::kAttachment | wire::kSenderSpins));
  AttachmentPtr attachment;
  if (!logged.attachment.empty() || (logged.header.flags & wire::kAttachment) != 0 ||
      type_of(header) == Type::kUpload) {
    attachment = fresh.allocate(logged.attachment.size());
    if (!attachment) return {ErrorCode::kOutOfMemory, "remote: no memory to send a tensor again"};
    std::ranges::copy(logged.attachment, attachment->bytes().begin());
  }
  if (Status status = take(fresh, std::chrono::nanoseconds::zero()); !status) return status;
  while (on_the_way_.size() >= kMostOnTheWay ||
         (bytes_on_the_way_ > 0 && bytes_on_the_way_ + logged.attachment.size() > kMostBytesOnTheWay)) {
    if (closing()) return {ErrorCode::kInterrupted, "remote: the session ends"};
    if (Status status = take(fresh, kWaitStep); !status) return status;
  }
  on_the_way_.emplace_back(sequence, logged.attachment.size());
  bytes_on_the_way_ += logged.attachment.size();
  return fresh.send(header, logged.control, std::move(attachment));
}

// The messages that restore the state are numbered from 1. The messages after them keep the client's numbers.
Status ReplayTransportImpl::replay(std::shared_ptr<Transport> fresh) {
  const auto no_checkpoint = log_->hold_checkpoints();
  std::unique_lock lock(mutex_, std::defer_lock);
  pass_on_ = false;
  on_the_way_.clear();
  bytes_on_the_way_ = 0;
  if (Status status = repeat_handshake(*fresh); !status) return status;
  uint64_t sequence = hello_header_.sequence;
  const auto again = [&](const LoggedFrame& frame) { return send_again(*fresh, frame, ++sequence); };
  if (Status status = log_->visit_state(again); !status) return status;
  wire::Header header;
  header.session = hello_header_.session;
  header.flags = wire::kWantsReply;
  lock.lock();
  const Limit limit = state_limit_;
  lock.unlock();
  if (limit) {
    header.type = static_cast<uint8_t>(Type::kMemory);
    if (Status status = again({header, *limit, {}}); !status) return status;
  }
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateSynchronize(builder));
  header.type = static_cast<uint8_t>(Type::kSynchronize);
  const std::span<const uint8_t> control(builder.GetBufferPointer(), builder.GetSize());
  if (Status status = again({header, control, {}}); !status) return status;
  while (replayed_sequence_ != sequence) {
    if (closing()) return {ErrorCode::kInterrupted, "remote: the session ends"};
    if (Status status = take(*fresh, kWaitStep); !status) return status;
  }

  pass_on_ = true;
  on_the_way_.clear();
  bytes_on_the_way_ = 0;
  ReplayLog::Position position;
  const auto go_on = [&](const LoggedFrame& frame) { return send_again(*fresh, frame, frame.header.sequence); };
  if (Status status = log_->visit_messages(&position, go_on); !status) return status;
  std::lock_guard order(send_mutex_);
  if (Status status = log_->visit_messages(&position, go_on); !status) return status;
  if (Status usable = log_->usable(); !usable) return Status::internal(usable.message());
  lock.lock();
  fresh->set_spin_time(busy_);
  inner_ = std::move(fresh);
  process_ = fresh_process_;
  ++generation_;
  state_ = State::kLive;
  changed_.notify_all();
  return {};
}

}  // namespace

Status ReplayTransport::open(std::unique_ptr<Transport> first, ReplayOptions options,
                             std::unique_ptr<ReplayTransport>* transport) {
  std::unique_ptr<ReplayLog> log;
  if (Status status = ReplayLog::open(options.folder, options.limit, &log); !status) return status;
  *transport = std::make_unique<ReplayTransportImpl>(std::move(first), std::move(options), std::move(log));
  return {};
}

}  // namespace torch_remote::remote

#include "remote/client/channel.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>

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

// --- the session -----------------------------------------------------------------------------------------------------

Status Channel::connect(const KeepWaiting& keep_waiting) {
  builder.Clear();
  builder.Finish(wire::CreateHello(builder, static_cast<uint32_t>(getpid())));
  // We propose a session number; the one in the worker's reply counts.
  session_ = std::random_device()() | uint64_t{std::random_device()()} << 32;
  sequence = kHelloSequence;
  replies.sending(sequence, 0);
  if (Status status = transport->send(header(wire::Type::kHello, sequence, wire::kWantsReply),
                                      {builder.GetBufferPointer(), builder.GetSize()}, nullptr);
      status.code() != ErrorCode::kOk && status.code() != ErrorCode::kLost) {
    return status;
  }  // if the worker is gone already, receive reports why
  const auto deadline = std::chrono::steady_clock::now() + kHelloTimeout;
  Frame frame;
  Status status;
  counters.connections.fetch_add(1, std::memory_order_relaxed);
  do {
    if (keep_waiting && !keep_waiting()) return {ErrorCode::kInterrupted, "remote: connecting was interrupted"};
    status = transport->receive(&frame, kWaitStep);
  } while (status.code() == ErrorCode::kTimeout && std::chrono::steady_clock::now() < deadline);
  if (status.code() == ErrorCode::kTimeout) {
    return {ErrorCode::kTimeout, "remote: the worker (" + transport->description() + ") did not answer within " +
                                     std::to_string(kHelloTimeout.count()) + " s"};
  }
  if (!status) return status;
  const auto* reply = wire::verify<wire::HelloReply>(frame.control);
  if (frame.header.type != static_cast<uint8_t>(wire::Type::kHelloReply) || !reply) {
    return Status::invalid("remote: the worker answered the handshake with a message of type " +
                           std::to_string(frame.header.type) + "; install the same torch-remote on both ends");
  }
  if (reply->error()) return wire::to_status(*reply->error());
  replies.hello_answered(kHelloSequence);
  session_ = frame.header.session;
  runners_ = reply->runner_description() ? reply->runner_description()->str() : "worker";
  process_ = static_cast<int>(reply->process());
  peer_ = transport->peer_process();
  if (const wire::Capabilities* sent = reply->capabilities()) machine_.capabilities = decode(*sent);
  machine_.processor = reply->processor() ? reply->processor()->str() : "";
  machine_.cores = reply->cores();
  machine_.memory = reply->memory();
  return {};
}

Channel::~Channel() {
  const uint64_t last = std::max(outbox.end(), kHelloSequence);
  if (ended_waits_ || replies.health().ok())
    (void)transport->send(header(wire::Type::kCloseSession, last + 1, 0), {}, nullptr);
}

void Channel::end_waits() {
  if (replies.health().ok()) ended_waits_ = true;
  replies.end_waits({ErrorCode::kLost, "remote: the worker has been ended"});
}

std::string Channel::description() const {
  // If the worker was replaced, the transport has a new peer. Otherwise the peer may be a listener, so we use the pid
  // from the server hello.
  const int peer = transport->peer_process();
  return runners_ + ", pid " + std::to_string(peer != peer_ ? peer : process_) + ", over " + transport->description();
}

// --- frees -----------------------------------------------------------------------------------------------------------

void Channel::free(uint64_t id) {
  if (abandoned_) return;
  std::lock_guard lock(freed_ids_mutex_);
  try {
    freed_ids_.push_back(id);
  } catch (const std::bad_alloc&) {
    return;  // the worker keeps the buffer until the session ends, which is better than an exception in a destructor
  }
}

const std::vector<uint8_t>& Channel::take_freed_ids() {
  freed_ids_now_.clear();
  freed_ids_bytes_.clear();
  {
    std::lock_guard lock(freed_ids_mutex_);
    freed_ids_now_.swap(freed_ids_);
  }
  encode_freed_ids(freed_ids_now_, freed_ids_bytes_);
  speculative_reads.on_free(freed_ids_now_);
  for (const uint64_t number : speculative_reads.abandoned_reads()) replies.drop_reply(number);
  speculative_reads.abandoned_reads().clear();
  return freed_ids_bytes_;
}

bool Channel::has_just_freed(uint64_t id) const {
  return std::ranges::find(freed_ids_now_, id) != freed_ids_now_.end();
}

Status Channel::send_freed_ids() {
  const std::vector<uint8_t>& freed_ids = take_freed_ids();
  if (freed_ids.empty()) return {};
  builder.Clear();
  builder.Finish(wire::CreateFree(builder, builder.CreateVector(freed_ids)));
  return send(wire::Type::kFree, false, nullptr, nullptr);
}

// --- messages --------------------------------------------------------------------------------------------------------

Status Channel::allocate(size_t size, const char* purpose, AttachmentPtr* attachment) {
  if (Status status = health(); !status) return status;
  *attachment = transport->allocate(size);
  if (*attachment) return {};
  return {ErrorCode::kOutOfMemory, std::string("remote: this process is out of memory. It has none left for ") +
                                       purpose + " of " + std::to_string(size) + " bytes"};
}

Status Channel::begin(size_t messages, size_t bytes) {
  replies.drain();
  return replies.reserve(messages + 1, bytes);
}

Status Channel::send(wire::Type type, bool wants_reply, AttachmentPtr attachment, uint64_t* number) {
  const uint64_t next = next_sequence(attachment ? attachment->bytes().size() : 0);
  if (wants_reply) replies.expect(next, type);
  if (number) *number = next;
  Status status = outbox.send(header(type, next, wants_reply ? wire::kWantsReply : 0),
                              {builder.GetBufferPointer(), builder.GetSize()}, std::move(attachment));
  if (status.code() != ErrorCode::kOutOfMemory) return status;
  // The attachment was not sent. A Free message replaces the message: sequences have no gaps, and the worker's
  // acknowledgement returns the credit.
  if (wants_reply) {
    replies.fail(next, 0, 0, {status, {}, {}});
    replies.drop_reply(next);
  }
  builder.Clear();
  builder.Finish(wire::CreateFree(builder, builder.CreateVector(std::vector<uint8_t>())));
  (void)outbox.send(header(wire::Type::kFree, next, 0), {builder.GetBufferPointer(), builder.GetSize()}, nullptr);
  return status;
}

Status Channel::wait(uint64_t number, const KeepWaiting& keep_waiting, Frame* reply, OpError* error,
                     bool keep_expecting) {
  if (abandoned_) return forked();
  counters.round_trips.fetch_add(1, std::memory_order_relaxed);
  EventSpan span(Event::Kind::kReply);
  if (Event* event = span.event()) {
    event->session = session_;
    event->sequence = number;
  }
  return replies.wait(number, keep_waiting, reply, error, keep_expecting);
}

}  // namespace torch_remote::remote

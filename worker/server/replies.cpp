#include "worker/server/replies.h"

#include <memory>

#include "worker/device/monotonic_clock.h"
#include "worker/server/messages.h"

namespace torch_remote::worker {
namespace {

using remote::AttachmentPtr;
using wire::Type;

// Completed messages are acknowledged after this many, or this long after the last acknowledgement. A client at its
// limit of unacknowledged messages then waits for one slow message, not for 32.
constexpr uint64_t kAcknowledgeEvery = 32;
constexpr uint64_t kAcknowledgeAfter = 5'000'000;  // ns
// The memory of a larger message is released when it was sent: it may be a profile, or the list of a checkpoint.
constexpr size_t kMaxKept = 64 << 10;

}  // namespace

Replies::Replies(remote::Transport& transport, const Inbox& inbox, const OpenSession& opened, Session& session)
    : transport_(transport),
      inbox_(inbox),
      opened_(opened),
      session_(session),
      done_(opened.hello),
      acknowledged_(opened.hello),
      acknowledged_at_(inbox.asked()) {}

flatbuffers::Offset<wire::Error> Replies::encode_and_mark_reported(const FailurePtr& failure) {
  const auto error = encode(builder_, failure);
  if (failure) session_.failures().mark_reported(failure);
  return error;
}

wire::WorkerStats Replies::worker_stats() const {
  const MemoryStats stats = opened_.device->memory().stats();
  const auto encoded = [](const MemoryStat& stat) {
    return wire::MemoryStat(stat.current, stat.peak, stat.allocated, stat.freed);
  };
  const StepWatcher* const watcher = session_.watcher();
  uint64_t kernels = 0, refused = 0;
  for (const auto& runner : opened_.runners) {
    kernels += runner->kernels_compiled();
    refused += runner->groups_without_kernel();
  }
  return {encoded(stats.allocated),
          encoded(stats.reserved),
          encoded(stats.allocations),
          encoded(stats.segments),
          stats.num_alloc_retries,
          stats.num_ooms,
          kernels,
          refused,
          watcher ? watcher->findings() : 0};
}

AttachmentPtr Replies::allocate(uint64_t nbytes) {
  Device& device = *opened_.device;
  if (nbytes < device.lends_from()) return nbytes <= opened_.memory_limit ? transport_.allocate(nbytes) : nullptr;
  tr_buffer buffer{};
  if (!device.memory().allocate(nbytes, &buffer)) return nullptr;
  const auto memory = std::make_shared<Memory>(buffer);
  return device.lend(memory->data(), nbytes, memory);
}

Status Replies::send_encoded(Type type, uint64_t sequence, AttachmentPtr attachment) {
  wire::Header header;
  header.type = static_cast<uint8_t>(type);
  header.flags = attachment ? wire::kAttachment : 0;
  reported_background_ = session_.has_background_work();
  if (reported_background_) header.flags |= wire::kBackgroundWork;
  header.session = opened_.number;
  header.sequence = sequence;
  Status status = transport_.send(header, {builder_.GetBufferPointer(), builder_.GetSize()}, std::move(attachment));
  if (builder_.GetSize() > kMaxKept) builder_.Reset();
  return status;
}

void Replies::note_reply(uint64_t to) {
  done_ = acknowledged_ = to;
  acknowledged_at_ = inbox_.asked();
  if (records_times_) replied_at_ = monotonic_ns();
}

Status Replies::acknowledge() {
  begin();
  const auto error = encode(builder_, session_.failures().announce());
  const wire::WorkerStats stats = worker_stats();
  acknowledged_ = done_;
  acknowledged_at_ = inbox_.asked();
  return send(Type::kAcknowledge, done_, wire::CreateAcknowledge(builder_, &stats, error));
}

Status Replies::acknowledge_if_due() {
  const bool late = done_ != acknowledged_ && inbox_.asked() - acknowledged_at_ >= kAcknowledgeAfter;
  return late || done_ - acknowledged_ >= kAcknowledgeEvery ? acknowledge() : Status();
}

Status Replies::acknowledge_news() {
  const bool ended = reported_background_ && !session_.has_background_work();
  return done_ != acknowledged_ || ended ? acknowledge() : Status();
}

}  // namespace torch_remote::worker

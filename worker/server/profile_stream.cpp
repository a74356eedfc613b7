#include "worker/server/profile_stream.h"

#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

namespace torch_remote::worker {
namespace {

using wire::Type;

constexpr uint64_t kOfProfile = 16;  // A profile may take this fraction of the limit, in addition to it.

}  // namespace

Status ProfileStream::execute(const wire::Profile& command, uint64_t sequence, uint64_t received) {
  std::unique_ptr<Profile> done;
  if (command.command() == wire::ProfileCommand::Start) {
    const uint64_t most = opened_.memory_limit / kOfProfile / sizeof(wire::ProfileEvent);
    profile_ = std::make_unique<Profile>(std::min(command.limit(), most));
  } else if (command.command() == wire::ProfileCommand::Stop) {
    done = std::move(profile_);
  }
  session_.set_profile(profile_.get());
  replies_.record_times(profile_ != nullptr);
  auto& builder = replies_.begin();
  Programs programs;
  remote::AttachmentPtr events;
  if (done) programs = take(*done, builder, &events);
  return replies_.reply(Type::kProfileReply, sequence,
                        wire::CreateProfileReply(builder, 0, static_cast<uint32_t>(getpid()), received, monotonic_ns(),
                                                 done ? done->dropped() : 0, programs),
                        std::move(events));
}

void ProfileStream::end_message(const wire::Header& message, uint64_t begin) {
  if (!profile_ || begin == 0) return;
  // A client that gets its reply may preempt this thread before it returns from sending.
  const uint64_t end = replies_.replied_at() >= begin ? replies_.replied_at() : monotonic_ns();
  profile_->message(static_cast<Type>(message.type), message.sequence, begin, end);
}

ProfileStream::Programs ProfileStream::take(Profile& profile, flatbuffers::FlatBufferBuilder& builder,
                                            remote::AttachmentPtr* events) {
  const std::span<const std::byte> bytes = std::as_bytes(profile.events());
  if (bytes.empty()) return {};
  *events = replies_.allocate(bytes.size());
  if (!*events) {  // Out of memory.
    profile.drop_events();
    return {};
  }
  std::ranges::copy(bytes, (*events)->bytes().begin());
  const Programs programs =
      profile.encode_programs(builder, [this](uint32_t n) { return session_.find_program(n); }, opened_.runners);
  profile.handed_over();
  return programs;
}

Status ProfileStream::hand_over() {
  if (!profile_) return {};
  const uint64_t begin = monotonic_ns();
  auto& builder = replies_.begin();
  remote::AttachmentPtr events;
  const Programs programs = take(*profile_, builder, &events);
  Status status = replies_.send(Type::kProfilePart, replies_.acknowledged(),
                                wire::CreateProfileReply(builder, 0, static_cast<uint32_t>(getpid()), begin,
                                                         monotonic_ns(), profile_->dropped(), programs),
                                std::move(events));
  profile_->message(Type::kProfilePart, 0, begin, monotonic_ns());
  return status;
}

}  // namespace torch_remote::worker

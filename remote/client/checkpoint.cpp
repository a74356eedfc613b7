#include "remote/client/checkpoint.h"

#include "remote/client/channel.h"
#include "remote/client/read_view.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {

Status Checkpoint::begin(const KeepWaiting& keep_waiting, bool* created, std::vector<CheckpointBuffer>* buffers) {
  const auto encode = [&] {
    channel_.builder.Finish(wire::CreateSynchronize(channel_.builder, wire::Checkpoint::Create));
    ++channel_.checkpoints;
  };
  Frame frame;
  OpError none;  // this reply has no error
  if (Status status = channel_.ask(wire::Type::kSynchronize, encode, keep_waiting, &frame, &none); !status)
    return status;
  const auto* reply = flatbuffers::GetRoot<wire::SynchronizeReply>(frame.control.data());  // verified on receipt
  *created = reply->checkpoint_created();
  buffers->clear();
  const std::vector<uint64_t> ids = wire::elements(reply->checkpoint_buffers());
  const std::vector<uint64_t> bytes = wire::elements(reply->checkpoint_bytes());
  if (ids.size() != bytes.size()) {
    return Status::invalid("remote: the worker's list of a checkpoint's buffers is invalid");
  }
  for (size_t i = 0; i < ids.size(); ++i) buffers->push_back({ids[i], bytes[i]});
  return {};
}

Status Checkpoint::read(const CheckpointBuffer& buffer, const TakeBytes& take, const KeepWaiting& keep_waiting) {
  const auto encode = [&] {
    wire::ReadBuilder message(channel_.builder);
    message.add_buffer(buffer.id);
    message.add_item_size(1);
    message.add_checkpoint(true);
    channel_.builder.Finish(message.Finish());
  };
  Frame frame;
  OpError error;
  if (Status status = channel_.ask(wire::Type::kRead, encode, keep_waiting, &frame, &error); !status) return status;
  if (Status status = check_size(frame, buffer.nbytes); !status) return status;
  return take(frame.attachment ? frame.attachment->bytes() : std::span<std::byte>());
}

Status Checkpoint::drop(const KeepWaiting& keep_waiting) {
  const auto encode = [&] {
    channel_.builder.Finish(wire::CreateSynchronize(channel_.builder, wire::Checkpoint::Drop));
  };
  Frame frame;
  OpError none;
  return channel_.ask(wire::Type::kSynchronize, encode, keep_waiting, &frame, &none);
}

}  // namespace torch_remote::remote

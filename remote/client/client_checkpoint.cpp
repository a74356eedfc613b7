#include "remote/client/client_impl.h"

namespace torch_remote::remote {
namespace {

ClientImpl& impl(Client& client) { return static_cast<ClientImpl&>(client); }

}  // namespace

Status begin_checkpoint(Client& client, const KeepWaiting& keep_waiting, bool* created,
                        std::vector<CheckpointBuffer>* buffers) {
  ClientImpl& it = impl(client);
  const auto encode = [&] {
    it.builder_.Finish(wire::CreateSynchronize(it.builder_, wire::Checkpoint::Create));
    ++it.checkpoints_;
  };
  Frame frame;
  OpError none;  // this reply has no error
  if (Status status = it.ask(wire::Type::kSynchronize, encode, keep_waiting, &frame, &none); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::SynchronizeReply>(frame.control.data());  // verified on receipt
  *created = reply->checkpoint_created();
  buffers->clear();
  if (reply->checkpoint_buffers() == nullptr || reply->checkpoint_bytes() == nullptr) return {};
  if (reply->checkpoint_buffers()->size() != reply->checkpoint_bytes()->size()) {
    return Status::invalid("remote: the worker's list of a checkpoint's buffers is invalid");
  }
  for (uint32_t i = 0; i < reply->checkpoint_buffers()->size(); ++i) {
    buffers->push_back({reply->checkpoint_buffers()->Get(i), reply->checkpoint_bytes()->Get(i)});
  }
  return {};
}

Status read_checkpoint(Client& client, const CheckpointBuffer& buffer, const TakeBytes& take,
                       const KeepWaiting& keep_waiting) {
  ClientImpl& it = impl(client);
  const auto encode = [&] {
    wire::ReadBuilder message(it.builder_);
    message.add_buffer(buffer.id);
    message.add_item_size(1);
    message.add_checkpoint(true);
    it.builder_.Finish(message.Finish());
  };
  Frame frame;
  OpError error;
  if (Status status = it.ask(wire::Type::kRead, encode, keep_waiting, &frame, &error); !status) return status;
  if (Status status = ClientImpl::check_size(frame, buffer.nbytes); !status) return status;
  return take(frame.attachment ? frame.attachment->bytes() : std::span<std::byte>());
}

Status drop_checkpoint(Client& client, const KeepWaiting& keep_waiting) {
  ClientImpl& it = impl(client);
  const auto encode = [&] { it.builder_.Finish(wire::CreateSynchronize(it.builder_, wire::Checkpoint::Drop)); };
  Frame frame;
  OpError none;
  return it.ask(wire::Type::kSynchronize, encode, keep_waiting, &frame, &none);
}

}  // namespace torch_remote::remote

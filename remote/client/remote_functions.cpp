#include "remote/client/remote_functions.h"

#include <algorithm>

#include "remote/client/channel.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {

Status RemoteFunctions::call(std::span<const std::byte> request, const std::vector<CallInput>& inputs, uint64_t* ticket,
                             uint64_t* first_result_id) {
  AttachmentPtr attachment;
  if (Status status = channel_.allocate(request.size(), "a call", &attachment); !status) return status;
  std::ranges::copy(request, attachment->bytes().begin());
  flatbuffers::FlatBufferBuilder& builder = channel_.builder;
  const auto encode = [&] {
    *first_result_id = channel_.next_id;
    channel_.next_id += kMaxResults;
    std::vector<flatbuffers::Offset<wire::CallInput>> all;
    all.reserve(inputs.size());
    for (const CallInput& input : inputs) {
      const auto sizes = builder.CreateVector(input.sizes), strides = builder.CreateVector(input.strides);
      all.push_back(wire::CreateCallInput(builder, input.buffer, input.item_size, sizes, strides, input.offset));
    }
    builder.Finish(wire::CreateCallFunction(builder, builder.CreateVector(all), *first_result_id));
  };
  return channel_.send_message(wire::Type::kCallFunction, true, std::move(attachment), encode, ticket);
}

Status RemoteFunctions::wait(uint64_t ticket, const KeepWaiting& keep_waiting, CallResult* result, OpError* error) {
  Frame frame;
  if (Status status = channel_.wait(ticket, keep_waiting, &frame, error, /*keep_expecting=*/true); !status)
    return status;
  const auto* reply = flatbuffers::GetRoot<wire::CallFunctionReply>(frame.control.data());  // verified on receipt
  *result = {};
  if (frame.attachment) {
    const auto bytes = frame.attachment->bytes();
    result->answer.assign(bytes.begin(), bytes.end());
  }
  wire::assign(reply->sizes(), &result->sizes);
  if (result->sizes.size() <= kMaxResults) return {};
  return Status::internal("remote: a call returned " + std::to_string(result->sizes.size()) +
                          " results; the limit is " + std::to_string(kMaxResults));
}

Status RemoteFunctions::cancel(uint64_t ticket, bool kill) { return send_cancel(ticket, kill, 0); }

Status RemoteFunctions::drop_results(uint64_t ticket, uint64_t first_result_id) {
  if (channel_.is_abandoned()) return Channel::forked();
  channel_.replies.drop_reply(ticket);
  return send_cancel(ticket, false, first_result_id);
}

Status RemoteFunctions::send_cancel(uint64_t ticket, bool kill, uint64_t drop_results_from) {
  if (channel_.is_abandoned()) return Channel::forked();
  std::lock_guard order(channel_.order);
  if (Status status = channel_.begin(1, 0); !status) return status;
  channel_.builder.Clear();
  channel_.builder.Finish(wire::CreateCancelFunction(channel_.builder, ticket, kill, drop_results_from));
  return channel_.send(wire::Type::kCancelFunction, false, nullptr, nullptr);
}

}  // namespace torch_remote::remote

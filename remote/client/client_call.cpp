#include <algorithm>

#include "remote/client/client_impl.h"

// Calls of Python functions next to the worker.
namespace torch_remote::remote {

Status ClientImpl::call_function(std::span<const std::byte> request, const std::vector<CallInput>& inputs,
                                 uint64_t* ticket, uint64_t* first_result_id) {
  if (Status status = health(); !status) return status;
  AttachmentPtr attachment = transport_->allocate(request.size());
  if (!attachment) {
    return {ErrorCode::kOutOfMemory, "remote: this process is out of memory. It has none left for a call of " +
                                         std::to_string(request.size()) + " bytes"};
  }
  std::ranges::copy(request, attachment->bytes().begin());
  std::lock_guard order(order_);
  if (Status status = begin(1, request.size()); !status) return status;
  if (Status status = send_freed_ids(); !status) return status;
  *first_result_id = next_id_;
  next_id_ += kMaxResults;
  builder_.Clear();
  std::vector<flatbuffers::Offset<wire::CallInput>> all;
  all.reserve(inputs.size());
  for (const CallInput& input : inputs) {
    const auto sizes = builder_.CreateVector(input.sizes), strides = builder_.CreateVector(input.strides);
    all.push_back(wire::CreateCallInput(builder_, input.buffer, input.item_size, sizes, strides, input.offset));
  }
  builder_.Finish(wire::CreateCallFunction(builder_, builder_.CreateVector(all), *first_result_id));
  return send(wire::Type::kCallFunction, true, std::move(attachment), ticket);
}

Status ClientImpl::wait_function(uint64_t ticket, const KeepWaiting& keep_waiting, CallResult* result, OpError* error) {
  if (abandoned_) return forked();
  Frame frame;
  if (Status status = wait(ticket, keep_waiting, &frame, error, /*again=*/true); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::CallFunctionReply>(frame.control.data());  // verified on receipt
  *result = {};
  if (frame.attachment) {
    const auto bytes = frame.attachment->bytes();
    result->answer.assign(bytes.begin(), bytes.end());
  }
  if (reply->sizes()) result->sizes.assign(reply->sizes()->begin(), reply->sizes()->end());
  if (result->sizes.size() <= kMaxResults) return {};
  return Status::internal("remote: a call returned " + std::to_string(result->sizes.size()) +
                          " results; the limit is " + std::to_string(kMaxResults));
}

Status ClientImpl::cancel_function(uint64_t ticket, bool kill) {
  if (abandoned_) return forked();
  std::lock_guard order(order_);
  if (Status status = begin(1, 0); !status) return status;
  builder_.Clear();
  builder_.Finish(wire::CreateCancelFunction(builder_, ticket, kill));
  return send(wire::Type::kCancelFunction, false, nullptr, nullptr);
}

Status ClientImpl::drop_function_results(uint64_t ticket, uint64_t first_result_id) {
  if (abandoned_) return forked();
  replies_.drop_reply(ticket);
  std::lock_guard order(order_);
  if (Status status = begin(1, 0); !status) return status;
  builder_.Clear();
  builder_.Finish(wire::CreateCancelFunction(builder_, ticket, false, first_result_id));
  return send(wire::Type::kCancelFunction, false, nullptr, nullptr);
}

}  // namespace torch_remote::remote

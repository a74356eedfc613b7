#include "remote/client/shadow.h"

#include "remote/client/channel.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {

Status Shadow::send(const ShadowSettings* settings, bool wait, const KeepWaiting& keep_waiting, Frame* reply) {
  const auto encode = [&] {
    channel_.builder.Finish(wire::CreateShadow(channel_.builder, settings != nullptr, settings ? settings->rate : 0,
                                               settings ? settings->first_runs : 0, wait));
  };
  OpError error;
  return channel_.ask(wire::Type::kShadow, encode, keep_waiting, reply, &error);
}

Status Shadow::set(const ShadowSettings& settings, const KeepWaiting& keep_waiting) {
  Frame reply;
  Status status = send(&settings, false, keep_waiting, &reply);
  if (status.ok()) on_ = true;
  return status;
}

Status Shadow::ask(bool wait, const KeepWaiting& keep_waiting, ShadowCounts* counts,
                   std::optional<ShadowDifference>* difference) {
  difference->reset();
  Frame frame;
  if (Status status = send(nullptr, wait, keep_waiting, &frame); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::ShadowReply>(frame.control.data());  // verified on receipt
  *counts = {reply->runs(),
             reply->steps(),
             reply->left_out(),
             reply->bytes(),
             reply->copying_ns(),
             reply->checking_ns(),
             reply->stats() ? reply->stats()->differences() : 0};
  const wire::ShadowDifference* found = reply->difference();
  if (found == nullptr) return {};
  const auto text = [](const flatbuffers::String* string) { return string ? string->str() : std::string(); };
  ShadowDifference made;
  made.runner = text(found->runner());
  made.op = text(found->op());
  made.what = text(found->what());
  made.record = found->record();
  for (const uint32_t record : wire::elements(found->records())) {
    std::string op;
    channel_.programs.describe(found->program(), record, found->sequence(), &made.sources.emplace_back(), &op);
  }
  const std::span<const uint8_t> graph = wire::bytes(found->graph());
  made.graph.assign(graph.begin(), graph.end());
  made.params = wire::elements(found->params());
  made.math_modes = found->math_modes();
  std::span<const std::byte> bytes;
  if (frame.attachment) bytes = frame.attachment->bytes();
  for (const uint64_t size : wire::elements(found->input_bytes())) {
    if (size > bytes.size()) return Status::invalid("remote: the worker's report of a difference lacks bytes");
    made.inputs.emplace_back(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    bytes = bytes.subspan(size);
  }
  *difference = std::move(made);
  return {};
}

}  // namespace torch_remote::remote

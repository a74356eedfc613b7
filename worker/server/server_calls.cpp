// Python functions that the client calls.
#include <algorithm>
#include <tuple>

#include "worker/device/no_memory.h"
#include "worker/server/server_impl.h"

namespace torch_remote::worker {

FailurePtr Server::begin_call(Frame& frame, const wire::Call& message) {
  const uint64_t sequence = frame.header.sequence;
  const auto refuse = [&](Status why) { return std::make_shared<Failure>(Failure{std::move(why), 0, 0, sequence}); };
  if (options_.python.empty()) {
    return refuse({ErrorCode::kOpFailed,
                   "remote: the worker calls no Python functions for its clients; start it with --allow-python"});
  }
  const Status no_memory = no_memory_for("a call");
  const size_t count = message.inputs() ? message.inputs()->size() : 0;
  if (count >= kMostParts) return refuse(Status::invalid("remote: a call has too many tensors"));
  struct View {
    std::vector<int64_t> sizes, strides;
    ReadRequest request;
    Session::Located located;
  };
  std::vector<View> views(count);
  std::vector<uint64_t> sizes{frame.attachment->bytes().size()};
  uint64_t total = sizes[0];
  for (size_t i = 0; i < count; ++i) {
    const wire::CallInput* input = message.inputs()->Get(static_cast<flatbuffers::uoffset_t>(i));
    View& view = views[i];
    view.sizes = elements(input->sizes());
    view.strides = elements(input->strides());
    view.request = {input->buffer(), input->item_size(), view.sizes, view.strides, input->offset()};
    if (FailurePtr failure = session_->locate(view.request, sequence, &view.located)) return failure;
    if (__builtin_add_overflow(total, view.located.nbytes, &total) || total > limit_) return refuse(no_memory);
    sizes.push_back(view.located.nbytes);
  }
  if (!memory_->charge(total)) return refuse(no_memory);
  const auto discharge = [this](const uint64_t* nbytes) { memory_->discharge(*nbytes); };
  std::unique_ptr<uint64_t, decltype(discharge)> charged(&total, discharge);
  Parts parts;
  if (Status status = Parts::make(sizes, &parts); !status.ok()) return refuse(std::move(status));
  std::ranges::copy(frame.attachment->bytes(), parts.data(0));
  std::vector<std::shared_ptr<QueuedRead>> queued;
  for (size_t i = 0; i < count; ++i) {
    View& view = views[i];
    queued.push_back(
        session_->copy_out(view.request, view.located, {parts.data(i + 1), view.located.nbytes}, view.located.keep));
  }
  if (Status status = drain(); !status.ok()) return refuse(std::move(status));
  for (const auto& read : queued) {
    if (read && read->failure) return read->failure;
  }
  if (!python_) {
    python_ = std::make_unique<PythonCalls>(options_.python, options_.python_program, [this] { inbox_.wake(); });
  }
  if (Status status = python_->call(sequence, std::move(parts)); !status.ok()) return refuse(std::move(status));
  std::ignore = charged.release();  // Until the call ends.
  calls_[sequence] = {message.base(), total};
  return nullptr;
}

Status Server::call(Frame& frame) {
  const auto* message = wire::verify<wire::Call>(frame.control);
  if (!message || !frame.attachment || message->base() == 0 || message->base() > UINT64_MAX - kMostParts) {
    return damaged("call");
  }
  const FailurePtr failure = begin_call(frame, *message);
  if (!failure) return {};
  builder_.Clear();
  builder_.Finish(wire::CreateCallReply(builder_, encode_and_mark_reported(failure)));
  return reply(Type::kCallReply, frame.header.sequence);
}

Status Server::end_call(Frame& frame) {
  const auto* message = wire::verify<wire::EndCall>(frame.control);
  if (!message) return damaged("call");
  if (message->unwanted() == 0) {
    if (python_) python_->end(message->call(), message->kill());
    return {};
  }
  if (message->unwanted() > UINT64_MAX - kMostParts) return damaged("call");
  if (const auto found = calls_.find(message->call()); found != calls_.end()) {
    found->second.base = 0;
  } else {
    session_->buffers().free_range(message->unwanted(), kMostParts);
  }
  return {};
}

Status Server::answer_calls() {
  if (!python_) return {};
  for (PythonResult& result : python_->take_results()) {
    const auto found = calls_.find(result.call);
    if (found == calls_.end()) continue;
    const PendingCall call = found->second;
    calls_.erase(found);
    memory_->discharge(call.nbytes);
    if (Status status = answer_call(result, call); !status.ok()) return status;
  }
  return {};
}

Status Server::answer_call(PythonResult& result, const PendingCall& call) {
  std::vector<uint64_t> sizes;
  AttachmentPtr answer;
  if (call.base == 0) {
    result = {result.call, {ErrorCode::kOpFailed, "remote: nobody wants the results of this call"}, {}};
  } else if (result.status.ok()) {
    answer = allocate(result.parts.size(0));
    if (answer) result.status = result.parts.read(0, 0, answer->bytes().data(), answer->bytes().size());
    if (!answer && result.parts.size(0) != 0) result.status = no_memory_for("a call's results");
  }
  for (size_t part = 1; result.status.ok() && part < result.parts.count(); ++part) {
    sizes.push_back(result.parts.size(part));
    Status made = session_->buffers().make(call.base + part - 1, sizes.back(), result.call, {},
                                           [&](uint64_t offset, std::span<std::byte> piece) {
                                             return result.parts.read(part, offset, piece.data(), piece.size());
                                           });
    if (!made.ok()) return made;
  }
  builder_.Clear();
  const FailurePtr failure =
      result.status.ok() ? nullptr : std::make_shared<Failure>(Failure{result.status, 0, 0, result.call});
  const auto error = encode(failure);
  const auto encoded = builder_.CreateVector(sizes);
  builder_.Finish(wire::CreateCallReply(builder_, error, encoded));
  return send(Type::kCallReply, result.call, failure ? nullptr : std::move(answer));
}

}  // namespace torch_remote::worker

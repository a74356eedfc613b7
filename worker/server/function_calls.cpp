#include "worker/server/function_calls.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "remote/wire/message.h"
#include "worker/device/no_memory.h"
#include "worker/server/messages.h"

namespace torch_remote::worker {

using remote::AttachmentPtr;
using remote::Frame;
using wire::Type;

FailurePtr FunctionCalls::start(const wire::CallFunction& message, const Frame& frame) {
  const uint64_t sequence = frame.header.sequence;
  const auto refuse = [&](Status why) { return make_failure(std::move(why), sequence); };
  if (options_.python.empty()) {
    return refuse({ErrorCode::kOpFailed,
                   "remote: the worker calls no Python functions for its clients; start it with --allow-python"});
  }
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
    view.sizes = wire::elements(input->sizes());
    view.strides = wire::elements(input->strides());
    view.request = {input->buffer(), input->item_size(), view.sizes, view.strides, input->offset()};
    if (FailurePtr failure = session_.locate(view.request, sequence, &view.located)) return failure;
    if (__builtin_add_overflow(total, view.located.nbytes, &total)) return refuse(no_memory_for("a call"));
    sizes.push_back(view.located.nbytes);
  }
  PendingCall call{message.first_result_id(), {}};
  if (Status status = call.operands.take(&memory_, total, "a call"); !status.ok()) return refuse(std::move(status));
  Parts parts;
  if (Status status = Parts::make(sizes, &parts); !status.ok()) return refuse(std::move(status));
  std::ranges::copy(frame.attachment->bytes(), parts.data(0));
  std::vector<std::shared_ptr<QueuedRead>> queued;
  for (size_t i = 0; i < count; ++i) {
    View& view = views[i];
    queued.push_back(
        session_.copy_out(view.request, view.located, {parts.data(i + 1), view.located.nbytes}, view.located.keep));
  }
  if (Status status = pending_.drain(); !status.ok()) return refuse(std::move(status));
  for (const auto& read : queued) {
    if (read && read->failure) return read->failure;
  }
  if (!python_) {
    python_ = std::make_unique<PythonCalls>(options_.python, options_.python_program, [this] { inbox_.wake(); });
  }
  if (Status status = python_->call(sequence, std::move(parts)); !status.ok()) return refuse(std::move(status));
  calls_[sequence] = std::move(call);
  return nullptr;
}

Status FunctionCalls::begin(const wire::CallFunction& message, const Frame& frame) {
  if (!frame.attachment || message.first_result_id() == 0 || message.first_result_id() > UINT64_MAX - kMostParts)
    return damaged("call");
  const FailurePtr failure = start(message, frame);
  if (!failure) return {};
  auto& builder = replies_.begin();
  const auto error = replies_.encode_and_mark_reported(failure);
  return replies_.reply(Type::kCallFunctionReply, frame.header.sequence, wire::CreateCallFunctionReply(builder, error));
}

Status FunctionCalls::end(const wire::CancelFunction& message) {
  if (message.drop_results_from() == 0) {
    if (python_) python_->end(message.sequence(), message.kill());
    return {};
  }
  if (message.drop_results_from() > UINT64_MAX - kMostParts) return damaged("call");
  if (const auto found = calls_.find(message.sequence()); found != calls_.end()) {
    found->second.first_result_id = 0;
  } else {
    session_.buffers().free_range(message.drop_results_from(), kMostParts);
  }
  return {};
}

Status FunctionCalls::answer() {
  if (!python_) return {};
  for (PythonResult& result : python_->take_results()) {
    const auto found = calls_.find(result.call);
    if (found == calls_.end()) continue;
    const uint64_t first_result_id = found->second.first_result_id;
    calls_.erase(found);  // The results may need the memory of the operands.
    if (Status status = answer(result, first_result_id); !status.ok()) return status;
  }
  return {};
}

Status FunctionCalls::answer(PythonResult& result, uint64_t first_result_id) {
  std::vector<uint64_t> sizes;
  AttachmentPtr answer;
  if (first_result_id == 0) {
    result = {result.call, {ErrorCode::kOpFailed, "remote: nobody wants the results of this call"}, {}};
  } else if (result.status.ok()) {
    answer = replies_.allocate(result.parts.size(0));
    if (answer) result.status = result.parts.read(0, 0, answer->bytes().data(), answer->bytes().size());
    if (!answer && result.parts.size(0) != 0) result.status = no_memory_for("a call's results");
  }
  for (size_t part = 1; result.status.ok() && part < result.parts.count(); ++part) {
    sizes.push_back(result.parts.size(part));
    Status made = session_.buffers().make(first_result_id + part - 1, sizes.back(), result.call, {},
                                          [&](uint64_t offset, std::span<std::byte> piece) {
                                            return result.parts.read(part, offset, piece.data(), piece.size());
                                          });
    if (!made.ok()) return made;
  }
  auto& builder = replies_.begin();
  const auto error = result.status.ok() ? 0 : encode(builder, make_failure(result.status, result.call));
  const auto encoded = builder.CreateVector(sizes);
  return replies_.send(Type::kCallFunctionReply, result.call, wire::CreateCallFunctionReply(builder, error, encoded),
                       result.status.ok() ? std::move(answer) : nullptr);
}

}  // namespace torch_remote::worker

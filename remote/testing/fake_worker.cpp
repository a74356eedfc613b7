#include "remote/testing/fake_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

using flatbuffers::FlatBufferBuilder;

std::span<const uint8_t> finished(const FlatBufferBuilder& builder) {
  return {builder.GetBufferPointer(), builder.GetSize()};
}

flatbuffers::Offset<wire::Error> error_of(FlatBufferBuilder& builder, const Status& status, uint32_t program = 0,
                                          uint32_t record = 0, uint64_t sequence = 0) {
  if (status.ok()) return 0;
  return wire::CreateErrorDirect(builder, static_cast<uint8_t>(status.code()), status.exception_type().c_str(),
                                 status.message().c_str(), program, record, sequence);
}

// Some numbers that differ from each other.
wire::WorkerStats worker_stats(uint64_t allocated) {
  const auto stat = [](uint64_t n) { return wire::MemoryStat(n, 2 * n, 4 * n, 3 * n); };
  return {stat(allocated), stat(10 * allocated), stat(3), stat(7), 1, 2, 4 * allocated, 5 * allocated, 0};
}

std::vector<uint8_t> program_of(size_t params, ptrdiff_t inputs) {
  const uint32_t counts[] = {static_cast<uint32_t>(params), static_cast<uint32_t>(inputs)};
  std::vector<uint8_t> bytes(sizeof(counts));
  std::memcpy(bytes.data(), counts, sizeof(counts));
  return bytes;
}

}  // namespace

std::vector<uint8_t> FakeWorker::make_program(const ir::Trace& trace) {
  return program_of(trace.params.size(), std::ranges::count(trace.buffers, false, &ir::TraceBuffer::fresh));
}

std::vector<uint8_t> FakeWorker::make_program(const ir::Graph& graph) {
  return program_of(graph.params, std::ranges::count(graph.buffers, ir::BufferKind::kInput, &ir::Buffer::kind));
}

void FakeWorker::serve() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return dead_ || !paused_; });
      if (dead_) break;
    }
    if (!hold_replies_) {
      for (auto& send : held_) send();
      held_.clear();
    }
    Frame frame;
    Status status = transport_->receive(&frame, std::chrono::nanoseconds::zero());
    if (status.code() == ErrorCode::kTimeout) {
      acknowledge();  // idle
      status = transport_->receive(&frame, std::chrono::seconds(1));
    }
    if (status.code() == ErrorCode::kTimeout) continue;
    if (!status || !handle(frame)) break;
    if (done_ - acknowledged_ >= 32) acknowledge();
  }
  held_.clear();
  std::lock_guard lock(mutex_);
  transport_ = nullptr;
}

void FakeWorker::acknowledge() {
  if (done_ == acknowledged_) return;
  FlatBufferBuilder builder;
  const auto error = error_of(builder, failure_.status, failed_.program, failure_.record, failed_.sequence);
  const wire::WorkerStats stats = worker_stats(1000);
  builder.Finish(wire::CreateAcknowledge(builder, &stats, error));
  reply(wire::Type::kAcknowledge, done_, finished(builder), nullptr);
  acknowledged_ = done_;
}

void FakeWorker::answer(wire::Type type, const FlatBufferBuilder& builder, const AttachmentPtr& attachment) {
  const auto control = finished(builder);
  answer_ = [this, type, bytes = std::vector(control.begin(), control.end()), attachment] {
    reply(type, done_, bytes, attachment);
  };
}

void FakeWorker::reply(wire::Type type, uint64_t sequence, std::span<const uint8_t> control, AttachmentPtr attachment) {
  wire::Header header;
  header.type = static_cast<uint8_t>(type);
  header.session = 7;
  header.sequence = sequence;
  if (hold_replies_) {
    held_.push_back([this, header, bytes = std::vector(control.begin(), control.end()), attachment] {
      (void)transport_->send(header, bytes, attachment);
    });
  } else {
    (void)transport_->send(header, control, std::move(attachment));
  }
}

void FakeWorker::send_raw(wire::Type type, uint64_t sequence, std::vector<uint8_t> control, uint16_t flags) {
  wire::Header header;
  header.type = static_cast<uint8_t>(type);
  header.flags = flags;
  header.sequence = sequence;
  std::lock_guard lock(mutex_);  // the worker's thread destroys the transport
  EXPECT_TRUE(transport_ && transport_->send(header, control, nullptr).ok());
}

void FakeWorker::hand_over_profile(const std::vector<wire::ProfileEvent>& events) {
  std::lock_guard lock(mutex_);
  ASSERT_TRUE(transport_);
  flatbuffers::FlatBufferBuilder builder;
  wire::Header header;
  header.type = static_cast<uint8_t>(wire::Type::kProfilePart);
  header.flags = wire::kAttachment;
  header.sequence = done_;
  AttachmentPtr attachment = encode_profile(builder, events);
  EXPECT_TRUE(transport_->send(header, {builder.GetBufferPointer(), builder.GetSize()}, std::move(attachment)).ok());
}

AttachmentPtr FakeWorker::encode_profile(flatbuffers::FlatBufferBuilder& builder,
                                         const std::vector<wire::ProfileEvent>& events) {
  AttachmentPtr attachment;
  if (!events.empty()) {
    attachment = transport_->allocate(events.size() * sizeof(wire::ProfileEvent));
    std::memcpy(attachment->bytes().data(), events.data(), attachment->bytes().size());
  }
  const std::vector labels{builder.CreateString("aten::relu(f32[4])")};
  const auto label_vector = builder.CreateVector(labels);
  const auto record_indices = builder.CreateVector(std::vector<uint32_t>{0});
  const std::vector names{builder.CreateString("ATen")}, reasons{builder.CreateString("")};
  const auto runners = builder.CreateVector(names), declined = builder.CreateVector(reasons);
  const std::vector programs{wire::CreateProfileProgram(builder, 1, label_vector, record_indices, runners, declined)};
  builder.Finish(
      wire::CreateProfileReply(builder, 0, 4242, kFakeClock, kFakeClock + 1, 3, builder.CreateVector(programs)));
  return attachment;
}

void FakeWorker::run(Frame& frame, Message& message) {
  const auto* run = wire::verify<wire::Run>(frame.control);
  ASSERT_NE(run, nullptr);
  message.program = run->program();
  message.first_result_id = run->first_result_id();
  const auto found = last_runs_.find(run->program());
  ASSERT_NE(found, last_runs_.end()) << "program " << run->program() << " is not loaded";
  LastRun& last = found->second;
  if (run->reset_delta()) {
    last.params.assign(last.params.size(), 0);
    last.bindings = {std::vector<uint64_t>(last.bindings.ids.size()), {}, 0};
  }
  bool changed;
  ASSERT_TRUE(decode_params(wire::bytes(run->params()), last.params, &changed).ok());
  ASSERT_TRUE(decode_bindings(wire::bytes(run->bindings()), run->first_result_id(), last.bindings).ok());
  ASSERT_TRUE(decode_freed_ids(wire::bytes(run->freed_ids()), &message.freed_ids).ok());
  if (log_) {
    message.params = last.params;
    message.inputs = last.bindings.ids;
  }
  std::function<Failure(const Message&)> on_run;
  std::vector<int64_t> result_words;
  {
    std::lock_guard lock(mutex_);
    on_run = on_run_;
    result_words = result_words_;
  }
  Failure failure;
  if (on_run) failure = on_run(message);
  if (frame.header.flags & wire::kWantsReply) {
    FlatBufferBuilder builder;
    const auto error = error_of(builder, failure.status, message.program, failure.record, message.sequence);
    builder.Finish(wire::CreateRunReplyDirect(builder, error, &result_words));
    answer(wire::Type::kRunReply, builder, nullptr);
  } else if (!failure.status.ok() && failure_.status.ok()) {
    failure_ = failure;
    failed_ = message;
  }
}

bool FakeWorker::handle(Frame& frame) {
  Message message;
  message.type = static_cast<wire::Type>(frame.header.type);
  message.sequence = frame.header.sequence;
  message.flags = frame.header.flags;
  message.bytes = frame.control.size();
  FlatBufferBuilder builder;
  if (message.type == wire::Type::kCancel) return true;  // drops nothing
  if (!gaps_) {
    EXPECT_EQ(message.sequence, done_ + 1) << "sequences have no gaps";
  }
  switch (message.type) {
    case wire::Type::kHello: {
      const auto error = error_of(builder, hello_);
      const auto targets = builder.CreateVectorOfStrings({"fake-1", "fake-0"});
      const auto capabilities =
          wire::CreateCapabilities(builder, targets, 5, uint64_t{1} << 40, 5000, 3, builder.CreateString("fake 1.0"));
      builder.Finish(wire::CreateHelloReply(builder, error, 4242, builder.CreateString("fake runner"),
                                            builder.CreateString("fake processor"), 3, 5000, capabilities));
      done_ = acknowledged_ = message.sequence;
      reply(wire::Type::kHelloReply, message.sequence, finished(builder), nullptr);
      return hello_.ok();
    }
    case wire::Type::kCloseSession: {
      std::lock_guard lock(mutex_);
      session_closed_ = true;
      return false;
    }
    case wire::Type::kLoadProgram: {
      const auto* load = wire::verify<wire::LoadProgram>(frame.control);
      uint32_t counts[2];
      std::memcpy(counts, frame.attachment->bytes().data(), sizeof(counts));
      message.program = load->program();
      LastRun& last = last_runs_[load->program()];
      last.params.assign(counts[0], 0);
      last.bindings.ids.assign(counts[1], 0);
      break;
    }
    case wire::Type::kUnloadPrograms:
      for (const uint32_t program : *wire::verify<wire::UnloadPrograms>(frame.control)->programs()) {
        message.unloaded.push_back(program);
        last_runs_.erase(program);
      }
      break;
    case wire::Type::kRun:
      run(frame, message);
      break;
    case wire::Type::kUpload: {
      message.buffer = wire::verify<wire::Upload>(frame.control)->buffer();
      const auto bytes = frame.attachment->bytes();
      if (log_) buffers_[message.buffer].assign(bytes.begin(), bytes.end());
      break;
    }
    case wire::Type::kFree:
      EXPECT_TRUE(
          decode_freed_ids(wire::bytes(wire::verify<wire::Free>(frame.control)->freed_ids()), &message.freed_ids).ok());
      break;
    case wire::Type::kRead: {
      message.buffer = wire::verify<wire::Read>(frame.control)->buffer();
      const bool kept = wire::verify<wire::Read>(frame.control)->checkpoint();
      const auto& all = kept ? checkpoint_ : buffers_;
      const auto found = all.find(message.buffer);
      AttachmentPtr attachment;
      Status status;
      if (found == all.end()) {
        status = Status::invalid("no buffer " + std::to_string(message.buffer));
      } else {
        attachment = transport_->allocate(found->second.size());
        std::ranges::copy(found->second, attachment->bytes().begin());
      }
      builder.Finish(wire::CreateReadReply(builder, error_of(builder, status)));
      answer(wire::Type::kReadReply, builder, attachment);
      break;
    }
    case wire::Type::kRecordEvent: {
      builder.Finish(wire::CreateRecordEventReply(builder, 0, message.sequence * 1000, false));
      answer(wire::Type::kRecordEventReply, builder, nullptr);
      break;
    }
    case wire::Type::kStatFile: {
      const wire::FileVersion version(12, 34, 56);
      const bool found = wire::verify<wire::StatFile>(frame.control)->path()->str() == "there";
      const auto reason = builder.CreateString("it is not there");
      builder.Finish(wire::CreateStatFileReply(builder, 0, found ? &version : nullptr, true, reason));
      answer(wire::Type::kStatFileReply, builder, nullptr);
      break;
    }
    case wire::Type::kCallFunction: {
      const std::vector<uint64_t> sizes = {4, 8};
      builder.Finish(wire::CreateCallFunctionReply(builder, 0, builder.CreateVector(sizes)));
      answer(wire::Type::kCallFunctionReply, builder, frame.attachment);  // the request is the result
      break;
    }
    case wire::Type::kCancelFunction:
      break;
    case wire::Type::kReadFile:
      message.buffer = wire::verify<wire::ReadFile>(frame.control)->buffer();
      break;
    case wire::Type::kHasOp: {
      const auto* request = wire::verify<wire::HasOp>(frame.control);
      builder.Finish(wire::CreateHasOpReply(builder, 0, request && request->name()->str().starts_with("aten::")));
      answer(wire::Type::kHasOpReply, builder, nullptr);
      break;
    }
    case wire::Type::kProfile: {
      const auto* request = wire::verify<wire::Profile>(frame.control);
      const bool stop = request->command() == wire::ProfileCommand::Stop;
      AttachmentPtr attachment = encode_profile(builder, stop ? profile_ : std::vector<wire::ProfileEvent>());
      answer(wire::Type::kProfileReply, builder, attachment);
      break;
    }
    case wire::Type::kMemory: {
      const auto* request = wire::verify<wire::Memory>(frame.control);
      const wire::WorkerStats stats = worker_stats(request->reset_peak() ? 5 : 50);
      builder.Finish(wire::CreateMemoryReply(builder, 0, &stats, request->limit().value_or(77), 66));
      answer(wire::Type::kMemoryReply, builder, nullptr);
      break;
    }
    case wire::Type::kSynchronize: {
      const auto error = error_of(builder, failure_.status, failed_.program, failure_.record, failed_.sequence);
      failure_ = {};
      const wire::WorkerStats stats = worker_stats(11);
      const auto what = wire::verify<wire::Synchronize>(frame.control)->checkpoint();
      const bool creates = what == wire::Checkpoint::Create;
      if (what != wire::Checkpoint::None) checkpoint_.clear();
      std::vector<uint64_t> ids, sizes;
      for (const auto& [id, bytes] : buffers_) {
        if (!creates) break;
        checkpoint_[id] = bytes;
        ids.push_back(id);
        sizes.push_back(bytes.size());
      }
      const auto buffers = builder.CreateVector(ids), bytes = builder.CreateVector(sizes);
      builder.Finish(wire::CreateSynchronizeReply(builder, error, &stats, 0, 0, creates, buffers, bytes));
      answer(wire::Type::kSynchronizeReply, builder, nullptr);
      break;
    }
    default:
      ADD_FAILURE() << "message of type " << frame.header.type;
  }
  {
    std::lock_guard lock(mutex_);
    done_ = message.sequence;
    if (log_) messages_.push_back(std::move(message));
  }
  if (answer_) std::exchange(answer_, nullptr)();
  return true;
}

}  // namespace torch_remote::remote

#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ir/graph.h"
#include "remote/transport/transport.h"
#include "remote/wire/delta.h"
#include "remote/wire/message.h"
#include "worker/runner/testing/fake_runner.h"
#include "worker/server/server.h"
#include "worker/targets/cpu/cpu_target.h"

namespace torch_remote::worker {

using flatbuffers::FlatBufferBuilder;
using remote::AttachmentPtr;
using remote::Frame;
using wire::ProfileEvent;
using wire::Type;

// x + x, for s0 elements in s1 bytes.
inline constexpr const char* kDouble = R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
})";

// -x in place, for s0 elements. The fake runner fails with an IndexError.
inline constexpr const char* kFails = R"(graph(s0) {
  b0: input survives
  %0: f32[s0]{1} @b0
  aten::neg_(%0)
})";

// A check of x, for s0 elements, which fails in the fake runner.
inline constexpr const char* kCheckFails = R"(graph(s0) {
  op test::check(Tensor self) -> ()
  b0: input survives
  %0: f32[s0]{1} @b0
  test::check(%0)
})";

// A server on a thread, and the client's end of the connection, in one process. The server has the fake runner, and the
// CPU as its device unless the options open another one.
class ServerTest : public ::testing::Test {
 protected:
  void start(ServerOptions options = {}) {
    connect();
    begin_serving(options);
  }
  void connect() { std::tie(client, servers_end) = remote::make_inproc_transport(); }
  void begin_serving(ServerOptions options = {}) {
    if (options.unavailable.ok()) options.runner = testing::fake_runner();
    if (!options.open_device) options.open_device = open_cpu;
    options.inproc = true;
    thread = std::thread([this, options, transport = std::move(servers_end)] { result = serve(*transport, options); });
  }
  void TearDown() override {
    if (client) send(Type::kCloseSession, FlatBufferBuilder());
    client.reset();
    if (thread.joinable()) thread.join();
  }

  void send(Type type, const FlatBufferBuilder& builder, AttachmentPtr attachment = nullptr, uint16_t flags = 0) {
    wire::Header header;
    header.type = static_cast<uint8_t>(type);
    header.flags = flags;
    header.sequence = ++sequence;
    const std::span<const uint8_t> control =
        builder.GetSize() ? std::span<const uint8_t>(builder.GetBufferPointer(), builder.GetSize())
                          : std::span<const uint8_t>();
    (void)client->send(header, control, std::move(attachment));
  }

  // Receives the next message of this type. Acknowledgements and parts of a profile that come first are recorded, and
  // other messages are dropped. Returns false if the connection is lost, or if nothing arrives for 20 s.
  bool receive(Type type, Frame* frame) {
    for (;;) {
      if (!client->receive(frame, std::chrono::seconds(20)).ok()) return false;
      if (frame->header.type == static_cast<uint8_t>(Type::kAcknowledge)) {
        ++acknowledgements;
        acknowledged = frame->header.sequence;
        const auto* acknowledge = wire::verify<wire::Acknowledge>(frame->control);
        if (acknowledge->error()) errors.push_back(acknowledge->error()->message()->str());
      }
      if (frame->header.type == static_cast<uint8_t>(Type::kProfilePart)) record(*frame);
      if (frame->header.type == static_cast<uint8_t>(type)) return true;
    }
  }

  void send_hello() {
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateHello(builder, 1));
    send(Type::kHello, builder, nullptr, wire::kWantsReply);
  }

  // Sends a hello and returns the error of the reply, or "".
  std::string hello() {
    send_hello();
    Frame frame;
    if (!receive(Type::kHelloReply, &frame)) return "no reply";
    const auto* reply = wire::verify<wire::HelloReply>(frame.control);
    return reply->error() ? reply->error()->message()->str() : "";
  }

  AttachmentPtr bytes(const void* data, size_t size) {
    AttachmentPtr attachment = client->allocate(size);
    if (size != 0) std::memcpy(attachment->bytes().data(), data, size);
    return attachment;
  }

  void load(uint32_t number, const char* text) {
    ir::Graph graph;
    const Status status = ir::parse_graph(text, &graph);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto program = ir::encode_program(graph);
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateLoadProgram(builder, number));
    send(Type::kLoadProgram, builder, bytes(program.data(), program.size()), wire::kAttachment);
  }

  void upload(uint64_t id, const std::vector<float>& values) {
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateUpload(builder, id));
    send(Type::kUpload, builder, bytes(values.data(), values.size() * 4), wire::kAttachment);
  }

  void run(uint32_t number, const std::vector<int64_t>& params, const std::vector<uint64_t>& inputs,
           uint64_t first_result_id, uint16_t flags = 0) {
    std::vector<uint8_t> p, b;
    remote::encode_params(params, last_runs[number].params, p);
    remote::encode_bindings(inputs, first_result_id, last_runs[number].bindings, b);
    FlatBufferBuilder builder;
    const auto pv = builder.CreateVector(p), bv = builder.CreateVector(b);
    builder.Finish(wire::CreateRun(builder, number, first_result_id, pv, bv));
    send(Type::kRun, builder, nullptr, flags);
  }

  // Reads a strided view of f32 elements that begins at the start of the buffer. *error receives the error's message,
  // or "".
  std::vector<float> read(uint64_t id, std::vector<int64_t> sizes, std::vector<int64_t> strides,
                          std::string* error = nullptr) {
    FlatBufferBuilder builder;
    const auto s = builder.CreateVector(sizes), t = builder.CreateVector(strides);
    builder.Finish(wire::CreateRead(builder, id, 4, s, t, 0));
    send(Type::kRead, builder, nullptr, wire::kWantsReply);
    Frame frame;
    EXPECT_TRUE(receive(Type::kReadReply, &frame));
    const auto* reply = wire::verify<wire::ReadReply>(frame.control);
    EXPECT_EQ(frame.header.sequence, sequence);
    if (error) *error = reply->error() ? reply->error()->message()->str() : "";
    if (reply->error() || !frame.attachment) return {};
    const auto* data = reinterpret_cast<const float*>(frame.attachment->bytes().data());
    return {data, data + frame.attachment->bytes().size() / 4};
  }

  // Waits for all work. Returns the message of the first failure, or "". *allocated receives the allocated bytes.
  std::string synchronize(uint64_t* allocated = nullptr) {
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateSynchronize(builder));
    send(Type::kSynchronize, builder, nullptr, wire::kWantsReply);
    Frame frame;
    EXPECT_TRUE(receive(Type::kSynchronizeReply, &frame));
    const auto* reply = wire::verify<wire::SynchronizeReply>(frame.control);
    if (allocated) *allocated = reply->stats()->allocated().current();
    more = reply->more_errors() ? reply->more_errors()->size() : 0;
    return reply->error() ? reply->error()->message()->str() : "";
  }

  // The reply to RecordEvent.
  struct RecordedEvent {
    uint64_t device_time_ns = 0;
    bool failed = false;
  };
  RecordedEvent record_event() {
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateRecordEvent(builder));
    send(Type::kRecordEvent, builder, nullptr, wire::kWantsReply);
    Frame frame;
    EXPECT_TRUE(receive(Type::kRecordEventReply, &frame));
    EXPECT_EQ(frame.header.sequence, sequence);
    const auto* reply = wire::verify<wire::RecordEventReply>(frame.control);
    return {reply->device_time_ns(), reply->failed()};
  }

  // A profile, assembled from its parts.
  struct Recorded {
    std::vector<ProfileEvent> events;
    std::vector<std::vector<std::string>> labels;  // One vector for each variant of a program.
    uint64_t dropped = 0;
  };
  void record(const Frame& frame) {
    const auto* part = wire::verify<wire::ProfileReply>(frame.control);
    ASSERT_NE(part, nullptr);
    recorded.dropped = part->dropped();
    if (part->programs()) {
      for (const wire::ProfileProgram* program : *part->programs()) {
        auto& labels = recorded.labels.emplace_back();
        for (const auto* label : *program->labels()) labels.push_back(label->str());
      }
    }
    if (!frame.attachment) return;
    const size_t before = recorded.events.size(), bytes = frame.attachment->bytes().size();
    recorded.events.resize(before + bytes / sizeof(ProfileEvent));
    std::memcpy(recorded.events.data() + before, frame.attachment->bytes().data(), bytes);
  }

  // Returns the reply. `recorded` is complete after Stop, and empty after Start.
  Frame profile(wire::ProfileCommand command, uint64_t limit = 0) {
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateProfile(builder, command, limit));
    send(Type::kProfile, builder, nullptr, wire::kWantsReply);
    Frame frame;
    if (command == wire::ProfileCommand::Start) recorded = {};
    EXPECT_TRUE(receive(Type::kProfileReply, &frame));
    record(frame);
    return frame;
  }

  using Floats = std::vector<float>;
  std::unique_ptr<remote::Transport> client, servers_end;
  std::thread thread;
  Status result;          // What serve() returned; valid when `thread` has ended.
  uint64_t sequence = 0;  // Sequence number of the last message that was sent.
  Recorded recorded;
  int acknowledgements = 0;   // Acknowledgements that receive() has seen.
  uint64_t acknowledged = 0;  // Sequence number of the last of them.
  int misaligned = 0;
  size_t more = 0;                                // Failures of the last synchronization after the first one.
  std::vector<std::string> errors;                // Messages of the errors in acknowledgements.
  std::map<uint32_t, remote::LastRun> last_runs;  // By program.
};

}  // namespace torch_remote::worker

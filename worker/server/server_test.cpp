#include <random>

#include "worker/server/testing/server_fixture.h"

namespace torch_remote::worker {
namespace {

TEST_F(ServerTest, WhatIsUnloadedTakesNothingAndCannotRun) {
  ServerOptions options;
  options.memory_limit = 4 << 20;
  start(options);
  ASSERT_EQ(hello(), "");
  upload(1, {1, 2, 3});
  const auto unload = [&](const std::vector<uint32_t>& programs) {
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateUnloadPrograms(builder, builder.CreateVector(programs)));
    send(Type::kUnloadPrograms, builder);
  };
  for (uint32_t number = 1; number <= 2000; ++number) {
    load(number, kDouble);
    run(number, {3, 12}, {1}, 100);
    if (number % 100 == 0) {
      EXPECT_EQ(synchronize(), "");
    }
    unload({number, 5000});  // The second one was never sent.
  }
  EXPECT_EQ(read(100, {3}, {1}), (Floats{2, 4, 6}));  // The results of the program stay.
  run(7, {3, 12}, {1}, 5000);
  thread.join();
  EXPECT_NE(result.message().find("program 7, which was not sent"), std::string::npos) << result.message();
}

TEST_F(ServerTest, RunsAProgram) {
  start();
  ASSERT_EQ(hello(), "");
  load(1, kDouble);
  upload(1, {1, 2, 3});
  run(1, {3, 12}, {1}, 100);
  EXPECT_EQ(read(100, {3}, {1}), (Floats{2, 4, 6}));
  EXPECT_EQ(synchronize(), "");
}

TEST_F(ServerTest, AMissingRunnerIsToldToTheClient) {
  ServerOptions options;
  options.unavailable = {ErrorCode::kUnsupported, "remote: no such plugin"};
  start(options);
  EXPECT_EQ(hello(), "remote: no such plugin");
}

TEST_F(ServerTest, ReadsOfAllSizesAndStrides) {
  start();
  ASSERT_EQ(hello(), "");
  std::vector<float> values(20000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  upload(1, values);
  EXPECT_EQ(read(1, {20000}, {1}), values);  // Shared memory.
  EXPECT_EQ(read(1, {2, 2}, {1, 2}), (Floats{0, 2, 1, 3}));
  EXPECT_EQ(read(1, {2}, {0}), (Floats{0, 0}));
  EXPECT_EQ(read(1, {0}, {1}), Floats());
  std::string error;
  read(1, {20001}, {1}, &error);
  EXPECT_NE(error.find("beyond buffer 1"), std::string::npos) << error;
  read(9, {1}, {1}, &error);
  EXPECT_NE(error.find("no buffer 9"), std::string::npos) << error;
}

TEST_F(ServerTest, ManyMessagesAreAcknowledgedTogether) {
  connect();
  send_hello();
  load(1, kDouble);
  upload(1, {1, 2, 3});
  for (int i = 0; i < 640; ++i) run(1, {3, 12}, {1}, 100);
  const uint64_t last = sequence;
  const auto begin = std::chrono::steady_clock::now();
  begin_serving();  // All messages are queued by now, so the server does not catch up before the last one.
  Frame frame;
  while (acknowledged < last) ASSERT_TRUE(receive(Type::kAcknowledge, &frame));
  const auto fives = (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(5);
  EXPECT_GE(acknowledgements, 2);
  EXPECT_LE(acknowledgements, 640 / 32 + 2 + fives);
}

// A client at its limit of unacknowledged messages waits for one of them.
TEST_F(ServerTest, MessagesThatTakeLongAreAcknowledgedSoon) {
  connect();
  send_hello();
  constexpr size_t kSize = 1 << 23;
  load(1, kDouble);
  upload(1, std::vector<float>(kSize, 1));
  for (int i = 0; i < 12; ++i) run(1, {kSize, 4 * kSize}, {1}, 100);
  const uint64_t last = sequence;
  const auto begin = std::chrono::steady_clock::now();
  begin_serving();
  Frame frame;
  while (acknowledged < last) ASSERT_TRUE(receive(Type::kAcknowledge, &frame));
  const auto tens = (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(10);
  EXPECT_GE(acknowledgements, std::min<int64_t>(tens, 12) / 2);
}

TEST_F(ServerTest, FailuresAreAnnouncedAndToldOnce) {
  start();
  ASSERT_EQ(hello(), "");
  load(1, kFails);
  upload(1, {1, 2});
  const std::string failure = "index out of range in self [aten::neg_(f32[2])]";
  run(1, {2}, {1}, 100);
  Frame frame;
  while (errors.empty()) ASSERT_TRUE(receive(Type::kAcknowledge, &frame));
  EXPECT_EQ(errors[0], failure);
  EXPECT_EQ(synchronize(), failure);
  EXPECT_EQ(synchronize(), "");
  std::string error;
  EXPECT_EQ(read(1, {2}, {1}, &error), (Floats{1, 2}));  // As before the op that failed.
  EXPECT_EQ(error, "");
  run(1, {2}, {1}, 100);
  read(1, {2}, {1}, &error);
  EXPECT_EQ(error, failure);
  EXPECT_EQ(read(1, {2}, {1}, &error), (Floats{1, 2}));
  EXPECT_EQ(synchronize(), "");
  // Whether the second failure was announced before the read depends on timing.
  const size_t announced = errors.size();
  EXPECT_LE(announced, 2u);
  // A run that wants a reply reports its failure in it, and nowhere else.
  run(1, {2}, {1}, 200, wire::kWantsReply);
  ASSERT_TRUE(receive(Type::kRunReply, &frame));
  const auto* reply = wire::verify<wire::RunReply>(frame.control);
  ASSERT_NE(reply->error(), nullptr);
  EXPECT_EQ(reply->error()->message()->str(), failure);
  EXPECT_EQ(reply->error()->skipped_updates(), 1u);
  EXPECT_EQ(synchronize(), "");
  EXPECT_EQ(errors.size(), announced);
}

TEST_F(ServerTest, AMarkSaysWhenItWasReachedAndWhetherSomethingFailedBefore) {
  start();
  ASSERT_EQ(hello(), "");
  const RecordedEvent first = record_event();
  EXPECT_FALSE(first.failed);
  load(1, kFails);
  upload(5, {1, 2});
  run(1, {2}, {5}, 6);
  const RecordedEvent second = record_event(), third = record_event();
  EXPECT_LT(first.device_time_ns, second.device_time_ns);
  EXPECT_LE(second.device_time_ns, third.device_time_ns);
  EXPECT_TRUE(second.failed && third.failed);  // An event reports no failure.
  EXPECT_NE(synchronize(), "");
  EXPECT_FALSE(record_event().failed);
}

TEST_F(ServerTest, ReadingWhatNoFailureConcernsTellsNone) {
  start();
  ASSERT_EQ(hello(), "");
  load(1, kFails);
  load(2, kCheckFails);
  upload(1, {1, 2});
  upload(2, {3, 4});
  const std::string check = "it does not hold [test::check(f32[2])]";
  run(1, {2}, {1}, 100);
  run(2, {2}, {2}, 100);
  std::string error;
  EXPECT_EQ(read(2, {2}, {1}, &error), (std::vector<float>{3, 4}));  // Not written since the check.
  EXPECT_EQ(error, "");
  EXPECT_EQ(synchronize(), "index out of range in self [aten::neg_(f32[2])]");
  EXPECT_EQ(more, 1u);
  // A run that wants a reply has the failure in it, and it is not reported again.
  run(2, {2}, {2}, 100, wire::kWantsReply);
  Frame frame;
  ASSERT_TRUE(receive(Type::kRunReply, &frame));
  const auto* reply = wire::verify<wire::RunReply>(frame.control);
  ASSERT_NE(reply->error(), nullptr);
  EXPECT_EQ(reply->error()->message()->str(), check);
  EXPECT_EQ(synchronize(), "");
}

TEST_F(ServerTest, EverythingIsFreedWhenTheClientGoes) {
  ServerOptions options;
  options.trusted = true;
  start(options);
  ASSERT_EQ(hello(), "");
  upload(1, std::vector<float>(100000));
  uint64_t allocated = 0;
  synchronize(&allocated);
  EXPECT_EQ(allocated, 400000u);
  client.reset();
  thread.join();
  EXPECT_TRUE(result.ok()) << result.message();
}

TEST_F(ServerTest, AProfileHasTheMessagesAndOpsBetweenStartAndStop) {
  start();
  ASSERT_EQ(hello(), "");
  load(1, kDouble);
  load(2, kFails);
  upload(1, {1, 2, 3});
  run(1, {3, 12}, {1}, 100);
  const uint64_t before = profile(wire::ProfileCommand::Start, 100).header.sequence;
  EXPECT_TRUE(recorded.events.empty());
  run(1, {3, 12}, {1}, 101);
  upload(2, {1, 2});
  run(1, {2, 8}, {2}, 102);
  run(2, {2}, {2}, 103);
  run(1, {2, 8}, {99}, 104);  // The buffer does not exist: the op is skipped.
  const Frame frame = profile(wire::ProfileCommand::Stop);
  const auto* reply = wire::verify<wire::ProfileReply>(frame.control);
  EXPECT_EQ(reply->dropped(), 0u);
  EXPECT_LE(reply->received_ns(), reply->sent_ns());

  std::vector<std::string> labels;
  std::vector<uint64_t> sequences, messages;
  for (const ProfileEvent& event : recorded.events) {
    EXPECT_GT(event.begin, 0u);
    EXPECT_LE(event.begin, event.end);
    EXPECT_LE(event.end, reply->sent_ns());
    if (event.program == ProfileEvent::kMessage) {
      if (event.node != static_cast<uint32_t>(Type::kProfilePart)) messages.push_back(event.sequence);
      continue;
    }
    sequences.push_back(event.sequence);
    labels.push_back(recorded.labels.at(event.program).at(event.node));
  }
  EXPECT_EQ(labels, (std::vector<std::string>{"aten::add.Tensor(f32[3], f32[3])", "aten::add.Tensor(f32[2], f32[2])",
                                              "aten::neg_(f32[2])"}));
  EXPECT_EQ(sequences, (std::vector<uint64_t>{before + 1, before + 3, before + 4}));
  EXPECT_EQ(messages, (std::vector<uint64_t>{before + 1, before + 2, before + 3, before + 4, before + 5}));

  recorded = {};
  profile(wire::ProfileCommand::Stop);  // Nothing is recorded any more.
  EXPECT_TRUE(recorded.events.empty());
}

// So that the events survive a worker that dies.
TEST_F(ServerTest, AProfileIsHandedOverNowAndThen) {
  start();
  ASSERT_EQ(hello(), "");
  load(1, kDouble);
  load(2, kFails);
  upload(1, {1, 2, 3});
  profile(wire::ProfileCommand::Start, 100'000);
  run(1, {3, 12}, {1}, 100);
  Frame part;
  ASSERT_TRUE(receive(Type::kProfilePart, &part));  // While the server is idle.
  ASSERT_EQ(recorded.labels.size(), 1u);
  EXPECT_EQ(recorded.labels[0].at(0), "aten::add.Tensor(f32[3], f32[3])");
  const size_t before = recorded.events.size();
  EXPECT_GE(before, 2u);  // The run and its op.

  for (int i = 0; i < 20'000; ++i) run(1, {3, 12}, {1}, 100);
  ASSERT_TRUE(receive(Type::kProfilePart, &part));  // While the server is busy.
  EXPECT_GE(recorded.events.size(), before + 100);
  run(2, {3}, {1}, 101);
  profile(wire::ProfileCommand::Stop);
  EXPECT_EQ(recorded.labels.size(), 2u);  // Each program is described once.
  size_t runs = 0, ops = 0;
  for (const ProfileEvent& event : recorded.events) {
    if (event.program != ProfileEvent::kMessage) {
      ++ops;
      ASSERT_LT(event.program, 2u);
    } else {
      runs += event.node == static_cast<uint32_t>(Type::kRun);
    }
  }
  EXPECT_EQ(runs, 20'002u);
  EXPECT_EQ(ops, 20'002u);
}

TEST_F(ServerTest, AProfileIsBounded) {
  start();
  ASSERT_EQ(hello(), "");
  load(1, kDouble);
  upload(1, {1, 2, 3});
  profile(wire::ProfileCommand::Start, 5);
  for (int i = 0; i < 10; ++i) run(1, {3, 12}, {1}, 100);
  profile(wire::ProfileCommand::Stop);
  EXPECT_EQ(recorded.events.size(), 5u);
  EXPECT_EQ(recorded.dropped, 2 * 10 - 5u);
}

TEST_F(ServerTest, AProfileSurvivesAProgramThatIsReplaced) {
  start();
  ASSERT_EQ(hello(), "");
  load(1, kDouble);
  upload(1, {1, 2, 3});
  profile(wire::ProfileCommand::Start, 100);
  run(1, {3, 12}, {1}, 100);
  load(1, kFails);
  last_runs.clear();
  run(1, {3}, {1}, 101);
  profile(wire::ProfileCommand::Stop);
  ASSERT_EQ(recorded.labels.size(), 2u);
  EXPECT_EQ(recorded.labels[0].size(), 0u);
  EXPECT_EQ(recorded.labels[1].at(0), "aten::neg_(f32[3])");
}

// Changing an upload after it was checked has no effect, unless the worker trusts the client.
TEST_F(ServerTest, AnUploadIsWhatItWasWhenItCame) {
  for (const bool trusted : {false, true}) {
    sequence = 0;
    ServerOptions options;
    options.trusted = trusted;
    start(options);
    ASSERT_EQ(hello(), "");
    for (const size_t count : {4, 40000}) {
      const Floats before(count, 1);
      FlatBufferBuilder builder;
      builder.Finish(wire::CreateUpload(builder, count));
      const AttachmentPtr sent = bytes(before.data(), count * 4);
      send(Type::kUpload, builder, sent, wire::kAttachment);
      EXPECT_EQ(synchronize(), "");
      Floats changed(count, 2);
      std::memcpy(sent->bytes().data(), changed.data(), count * 4);
      EXPECT_EQ(read(count, {static_cast<int64_t>(count)}, {1}), trusted ? changed : before);
    }
    send(Type::kCloseSession, FlatBufferBuilder());
    client.reset();
    thread.join();
  }
}

TEST_F(ServerTest, ACopiedUploadCountsAgainstTheLimit) {
  ServerOptions options;
  options.memory_limit = 1 << 20;
  start(options);
  ASSERT_EQ(hello(), "");
  upload(1, Floats(100'000, 1));
  upload(2, Floats(400'000, 1));
  EXPECT_NE(synchronize().find("none left for an upload of 1600000 bytes"), std::string::npos);
  EXPECT_EQ(read(1, {1}, {1}), Floats{1});
  upload(3, {});
  EXPECT_EQ(read(3, {0}, {1}), Floats());
}

TEST_F(ServerTest, WithoutMemoryOfItsOwnItAnswersAndLivesOn) {
  start();
  ASSERT_EQ(hello(), "");
  FlatBufferBuilder builder;
  builder.Finish(wire::CreateHasOp(builder, builder.CreateString("test::no_memory")));
  send(Type::kHasOp, builder, nullptr, wire::kWantsReply);
  Frame frame;
  ASSERT_TRUE(receive(Type::kHasOpReply, &frame));
  const auto* reply = wire::verify<wire::HasOpReply>(frame.control);
  ASSERT_NE(reply->error(), nullptr);
  EXPECT_EQ(reply->error()->exception_type()->str(), "OutOfMemoryError");
  load(1, kDouble);
  upload(1, {1, 2, 3});
  run(1, {3, 12}, {1}, 100);
  EXPECT_EQ(read(100, {3}, {1}), (Floats{2, 4, 6}));
}

TEST_F(ServerTest, AClientCannotRaiseItsLimit) {
  ServerOptions options;
  options.memory_limit = 1 << 20;
  start(options);
  ASSERT_EQ(hello(), "");
  for (const uint64_t limit : {uint64_t{1} << 40, uint64_t{1} << 16}) {
    FlatBufferBuilder builder;
    builder.Finish(wire::CreateMemory(builder, false, limit));
    send(Type::kMemory, builder, nullptr, wire::kWantsReply);
    Frame frame;
    ASSERT_TRUE(receive(Type::kMemoryReply, &frame));
    EXPECT_EQ(wire::verify<wire::MemoryReply>(frame.control)->limit(), std::min(limit, options.memory_limit));
  }
  upload(1, Floats(400'000, 1));
  EXPECT_NE(synchronize().find("none left for an upload of 1600000 bytes"), std::string::npos);
}

TEST_F(ServerTest, WhatAReadIsGivenCountsUntilItComesBack) {
  ServerOptions options;
  options.memory_limit = 4 << 20;
  start(options);
  ASSERT_EQ(hello(), "");
  upload(1, {1, 2, 3});
  const auto read_a_megabyte = [&](Frame* frame) {
    FlatBufferBuilder builder;
    const auto sizes = builder.CreateVector(std::vector<int64_t>{1 << 18}),
               strides = builder.CreateVector(std::vector<int64_t>{0});
    builder.Finish(wire::CreateRead(builder, 1, 4, sizes, strides, 0));
    send(Type::kRead, builder, nullptr, wire::kWantsReply);
    ASSERT_TRUE(receive(Type::kReadReply, frame));
  };
  std::vector<Frame> held;
  for (Frame frame; held.size() < 10; held.push_back(std::move(frame))) {
    read_a_megabyte(&frame);
    if (!frame.attachment) break;
  }
  EXPECT_GE(held.size(), 2u);
  EXPECT_LE(held.size(), 4u);
  held.clear();
  Frame frame;
  read_a_megabyte(&frame);
  ASSERT_NE(frame.attachment, nullptr);
  EXPECT_EQ(frame.attachment->bytes().size(), size_t{1} << 20);
}

TEST_F(ServerTest, AClientThatSendsNoHelloTimesOut) {
  ServerOptions options;
  options.hello_timeout = std::chrono::milliseconds(50);
  start(options);
  thread.join();
  EXPECT_EQ(result.code(), ErrorCode::kTimeout) << result.message();
}

TEST_F(ServerTest, BuffersWithoutBytesAreBounded) {
  ServerOptions options;
  options.memory_limit = 4 << 20;
  options.trusted = true;
  start(options);
  ASSERT_EQ(hello(), "");
  for (uint64_t id = 1; id <= 40'000; ++id) upload(id, {});
  thread.join();
  EXPECT_EQ(result.code(), ErrorCode::kOutOfMemory) << result.message();
}

// A vector of 8-byte numbers that begins at a 4-byte offset, which flatbuffers' verifier accepts.
TEST_F(ServerTest, SizesThatAreNotAlignedAreRead) {
  start();
  ASSERT_EQ(hello(), "");
  upload(1, {1, 2, 3, 4});
  for (const uint32_t shift : {0u, 4u}) {
    FlatBufferBuilder builder;
    const auto vector = [&](const std::vector<int64_t>& values) {
      builder.StartVector(2 * values.size(), sizeof(uint32_t));
      for (size_t i = values.size(); i-- > 0;) {
        builder.PushElement(static_cast<uint32_t>(static_cast<uint64_t>(values[i]) >> 32));
        builder.PushElement(static_cast<uint32_t>(values[i]));
      }
      return flatbuffers::Offset<flatbuffers::Vector<int64_t>>(builder.EndVector(values.size()));
    };
    if (shift) builder.PushElement(uint32_t{0});
    const auto sizes = vector({2, 2}), strides = vector({1, 2});
    builder.Finish(wire::CreateRead(builder, 1, 4, sizes, strides, 0));
    const auto* message = wire::verify<wire::Read>({builder.GetBufferPointer(), builder.GetSize()});
    ASSERT_NE(message, nullptr);
    misaligned += reinterpret_cast<uintptr_t>(message->sizes()->data()) % alignof(int64_t) != 0;
    send(Type::kRead, builder, nullptr, wire::kWantsReply);
    Frame frame;
    ASSERT_TRUE(receive(Type::kReadReply, &frame));
    ASSERT_EQ(frame.attachment->bytes().size(), 16u);
    Floats values(4);
    std::memcpy(values.data(), frame.attachment->bytes().data(), 16);
    EXPECT_EQ(values, (Floats{1, 3, 2, 4}));
  }
  EXPECT_EQ(misaligned, 1);
}

// Numbers of programs begin at 1. A profile has 0 for programs that were replaced.
TEST_F(ServerTest, ProgramZeroEndsTheSession) {
  start();
  ASSERT_EQ(hello(), "");
  load(0, kDouble);
  send(Type::kCloseSession, FlatBufferBuilder());
  thread.join();
  EXPECT_EQ(result.code(), ErrorCode::kInvalid) << result.message();
}

// Messages of random bytes end the session with an error, or have no effect; they never crash it.
TEST_F(ServerTest, HostileMessages) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    sequence = 0;
    start();
    ASSERT_EQ(hello(), "");
    last_runs.clear();
    load(1, kDouble);
    upload(1, {1, 2, 3});
    run(1, {3, 12}, {1}, 100);
    for (int i = 0; i < 5; ++i) {
      FlatBufferBuilder builder;
      std::vector<uint8_t> control;
      if (random() % 8 == 0) {
        const auto command = static_cast<wire::ProfileCommand>(random() % 4);
        builder.Finish(wire::CreateProfile(builder, command, random() % 3 ? random() : ~uint64_t{0}));
      } else if (random() % 2) {
        std::vector<uint8_t> noise(random() % 12);
        for (auto& byte : noise) byte = static_cast<uint8_t>(random());
        const auto v = builder.CreateVector(noise);
        builder.Finish(wire::CreateRun(builder, 1 + random() % 2, random() % 3, v, v, v));
      } else {
        const auto sizes = builder.CreateVector(std::vector<int64_t>(random() % 4, static_cast<int64_t>(random())));
        builder.Finish(
            wire::CreateRead(builder, random() % 120, random() % 20, sizes, sizes, static_cast<int64_t>(random() % 9)));
      }
      control.assign(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
      if (random() % 3 == 0) control[random() % control.size()] ^= 1 << random() % 8;
      wire::Header header;
      header.type = static_cast<uint8_t>(random() % 2 ? random() % 19 : static_cast<unsigned>(Type::kRun));
      header.flags = wire::kWantsReply;
      header.sequence = ++sequence;
      (void)client->send(header, control, nullptr);
    }
    client.reset();
    thread.join();
  }
}

}  // namespace
}  // namespace torch_remote::worker

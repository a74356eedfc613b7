// A server whose device does its work late.
#include <cmath>

#include "worker/server/testing/delayed.h"
#include "worker/server/testing/server_fixture.h"

namespace torch_remote::worker {
namespace {

class DelayedServerTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.open_device = testing::open_delayed_device;
    start(options);
    ASSERT_EQ(hello(), "");
  }
};

// x + y and x * y; then x is doubled.
constexpr const char* kStep = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%0, %1)
  aten::add_.Tensor(%0, %0, alpha=1)
})";

TEST_F(DelayedServerTest, AnswersInOrderWithWhatWasThere) {
  load(1, kStep);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  float x = 1;
  for (uint64_t round = 0; round < 20; ++round) {
    const uint64_t first_result_id = 100 + 2 * round;
    run(1, {3, 12}, {1, 2}, first_result_id);
    EXPECT_EQ(read(first_result_id, {3}, {1}), (std::vector<float>{x + 10, 2 * x + 20, 3 * x + 30}));
    EXPECT_EQ(read(first_result_id + 1, {3}, {1}), (std::vector<float>{10 * x, 40 * x, 90 * x}));
    x *= 2;
    EXPECT_EQ(read(1, {2}, {2}), (std::vector<float>{x, 3 * x}));
  }
  EXPECT_EQ(synchronize(), "");
}

// An event reports when the device reached it, not when the host looked.
TEST_F(DelayedServerTest, EventsHaveTheDevicesTime) {
  load(1, kStep);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  uint64_t before = 0;
  for (uint64_t round = 0; round < 20; ++round) {
    run(1, {3, 12}, {1, 2}, 100 + 2 * round);
    const uint64_t device_time_ns = record_event().device_time_ns;
    EXPECT_LT(before, device_time_ns);
    before = device_time_ns;
  }
}

// Work is never acknowledged before it is done: a client that relies on it could reuse its memory.
TEST_F(DelayedServerTest, AcknowledgesWhatIsDone) {
  load(1, kStep);
  std::vector<float> large(1 << 16, 1);
  upload(1, large);
  upload(2, large);
  for (int i = 0; i < 100; ++i) run(1, {1 << 16, 1 << 18}, {1, 2}, 100);
  const uint64_t last = sequence;
  Frame frame;
  while (acknowledged < last) ASSERT_TRUE(receive(Type::kAcknowledge, &frame));
  const std::vector<float> first = read(1, {1}, {1});
  EXPECT_EQ(first, std::vector<float>{std::ldexp(1.f, 100)});
}

// A node fails late. Its result, and everything computed from it or updated with it since, are invalid. All else is
// valid, including buffers that were overwritten since.
TEST_F(DelayedServerTest, AFailureThatComesLateSpoilsWhatUsedIt) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::exp(%0)
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
})");
  load(2, kStep);
  load(3, R"(graph(s0) {
  b0: input survives
  %0: f32[s0]{1} @b0
  aten::zero_(%0)
})");
  for (uint64_t id = 1; id <= 4; ++id) upload(id, {1, 2, 3});
  run(1, {3, 12}, {1}, 100);
  run(2, {3, 12}, {2, 100}, 200);  // 200 and 201 are computed from the failed result; 2 is doubled from itself.
  run(2, {3, 12}, {3, 4}, 300);
  run(2, {3, 12}, {200, 4}, 400);  // 200 is added to itself.
  std::string error;
  const auto failed = [&](uint64_t id) {
    error.clear();
    read(id, {3}, {1}, &error);
    return error.find("no exponentials here [aten::exp(f32[3])]") != std::string::npos;
  };
  EXPECT_TRUE(failed(400)) << error;
  for (const uint64_t id : {100, 200, 201, 401}) EXPECT_TRUE(failed(id)) << id << error;
  EXPECT_EQ(read(101, {3}, {1}), (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(read(2, {3}, {1}), (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(read(3, {3}, {1}), (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(read(300, {3}, {1}), (std::vector<float>{2, 4, 6}));
  run(3, {3}, {200}, 500);
  EXPECT_EQ(read(200, {3}, {1}), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(synchronize(), "");
}

// A read of no bytes reports a failure, too.
TEST_F(DelayedServerTest, AFailureThatComesLateIsToldWhereNothingIsRead) {
  load(1, R"(graph(s0) {
  b0: input survives
  b1: fresh(s0) survives
  %0: f32[0]{1} @b0
  %1: f32[0]{1} @b1 = aten::exp(%0)
})");
  for (uint64_t id = 1; id <= 80; ++id) {
    upload(id, {});
    run(1, {0}, {id}, 100 + id);
    std::string error;
    read(100 + id, {0}, {1}, &error);
    EXPECT_NE(error.find("no exponentials here"), std::string::npos) << error;
  }
}

// The result words of a run's last node are not reported as valid, either.
TEST_F(DelayedServerTest, AFailureThatComesLateIsToldWithTheWordsOfTheRun) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::exp(%0)
  aten::equal(%0, %1)
})");
  upload(1, {1, 2, 3});
  run(1, {3, 12}, {1}, 100, wire::kWantsReply);
  Frame frame;
  ASSERT_TRUE(receive(Type::kRunReply, &frame));
  const auto* reply = wire::verify<wire::RunReply>(frame.control);
  ASSERT_NE(reply->error(), nullptr);
  EXPECT_NE(reply->error()->message()->str().find("no exponentials here"), std::string::npos);
}

TEST_F(DelayedServerTest, OverwritingBeforeAFailureIsKnownRepairs) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::exp(%0)
})");
  load(3, R"(graph(s0) {
  b0: input survives
  %0: f32[s0]{1} @b0
  aten::zero_(%0)
})");
  upload(1, {1, 2, 3});
  run(1, {3, 12}, {1}, 100);
  run(3, {3}, {100}, 200);
  EXPECT_EQ(read(100, {3}, {1}), (std::vector<float>{0, 0, 0}));
  EXPECT_NE(synchronize().find("no exponentials here"), std::string::npos);
}

TEST_F(DelayedServerTest, ProfilesWhatRanLate) {
  load(1, kStep);
  upload(1, {1, 2, 3});
  upload(2, {1, 2, 3});
  profile(wire::ProfileCommand::Start, 1000);
  for (int i = 0; i < 5; ++i) run(1, {3, 12}, {1, 2}, 100);
  profile(wire::ProfileCommand::Stop);
  size_t ops = 0;
  uint64_t last = 0;
  for (const ProfileEvent& event : recorded.events) {
    if (event.program == ProfileEvent::kMessage) continue;
    ++ops;
    EXPECT_LE(last, event.begin);
    EXPECT_LE(event.begin, event.end);
    last = event.end;
  }
  EXPECT_EQ(ops, 15u);
}

TEST_F(DelayedServerTest, ClientsMayGoAtAnyTime) {
  load(1, kStep);
  upload(1, {1, 2, 3});
  upload(2, {1, 2, 3});
  for (int i = 0; i < 200; ++i) run(1, {3, 12}, {1, 2}, 100);
  client.reset();
  thread.join();
  EXPECT_TRUE(result.ok()) << result.message();
}

}  // namespace
}  // namespace torch_remote::worker

#include "remote/client/event_log.h"
#include "remote/client/testing/client_fixture.h"

namespace torch_remote::remote {
namespace {

TEST_P(ClientTest, AProfileSaysWhatTheClockIsAndWhatRan) {
  WorkerProfile profile;
  ASSERT_TRUE(client->profile(ProfileCommand::kReadClock, 0, kPatient, &profile).ok());
  EXPECT_EQ(profile.process, 4242u);
  EXPECT_LE(profile.begin, profile.end);
  EXPECT_EQ(profile.clock_most, static_cast<int64_t>(FakeWorker::kFakeClock - profile.begin));
  EXPECT_EQ(profile.clock_least, static_cast<int64_t>(FakeWorker::kFakeClock + 1 - profile.end));
  EXPECT_LT(profile.clock_least, profile.clock_most);
  EXPECT_TRUE(profile.events.empty());

  worker->set_profile({{10, 20, 5, 0, 0}, {5, 30, 5, wire::ProfileEvent::kMessage, 4}});
  ASSERT_TRUE(client->profile(ProfileCommand::kStop, 0, kPatient, &profile).ok());
  ASSERT_EQ(profile.events.size(), 2u);
  EXPECT_EQ(profile.events[0].end, 20u);
  EXPECT_EQ(profile.programs.at(0).labels.at(0), "aten::relu(f32[4])");
  EXPECT_EQ(profile.dropped, 3u);
  EXPECT_EQ(client->connection().counters().round_trips, 2u);
  EXPECT_EQ(client->connection().counters().connections, 1u);
}

TEST_P(ClientTest, AProfileThatNamesWhatIsNotThereIsRefused) {
  WorkerProfile profile;
  for (const wire::ProfileEvent event : {wire::ProfileEvent{1, 2, 3, 0, 1}, wire::ProfileEvent{1, 2, 3, 1, 0}}) {
    worker->set_profile({event});
    EXPECT_EQ(client->profile(ProfileCommand::kStop, 0, kPatient, &profile).code(), ErrorCode::kInvalid);
  }
  EXPECT_TRUE(client->connection().health().ok());
}

TEST_P(ClientTest, WhatAWorkerHandedOverSurvivesIt) {
  WorkerProfile profile;
  ASSERT_TRUE(client->profile(ProfileCommand::kStart, 3, kPatient, &profile).ok());
  worker->hand_over_profile({{10, 20, 5, 0, 0}, {20, 30, 5, 0, 0}});
  ASSERT_TRUE(synchronize().ok());
  worker->hand_over_profile({{30, 40, 6, 1, 0}});  // nobody receives it before the worker dies
  worker->hand_over_profile({{50, 60, 6, 1, 0}});  // exceeds the limit
  worker = nullptr;
  const uint64_t before = monotonic_ns();
  EXPECT_EQ(client->profile(ProfileCommand::kStop, 0, kPatient, &profile).code(), ErrorCode::kLost);
  ASSERT_EQ(profile.events.size(), 3u);
  EXPECT_EQ(profile.events[2].end, 40u);
  EXPECT_EQ(profile.programs.size(), 2u);
  EXPECT_GE(profile.lost, before);
  EXPECT_LE(profile.lost, monotonic_ns());
}

TEST_P(ClientTest, AProfilesPartsAndItsEndAreOne) {
  WorkerProfile profile;
  worker->hand_over_profile({{1, 2, 5, 0, 0}});  // sent although no profile was started
  ASSERT_TRUE(client->profile(ProfileCommand::kStart, 10, kPatient, &profile).ok());
  worker->hand_over_profile({{10, 20, 5, 0, 0}});
  worker->set_profile({{20, 30, 5, 1, 0}});
  ASSERT_TRUE(client->profile(ProfileCommand::kStop, 0, kPatient, &profile).ok());
  ASSERT_EQ(profile.events.size(), 2u);
  EXPECT_EQ(profile.events[0].end, 20u);
  EXPECT_EQ(profile.events[1].end, 30u);
  EXPECT_EQ(profile.lost, 0u);
}

TEST_P(ClientTest, AProfileLeavesFailuresForTheNextWait) {
  worker->on_run([](const auto&) { return FakeWorker::Failure{{ErrorCode::kOpFailed, "no", "ValueError"}, 0}; });
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  WorkerProfile profile;
  EXPECT_TRUE(client->profile(ProfileCommand::kReadClock, 0, kPatient, &profile).ok());
  EXPECT_EQ(synchronize().message(), "no");
  worker = nullptr;
  EXPECT_EQ(client->profile(ProfileCommand::kStop, 0, kPatient, &profile).code(), ErrorCode::kLost);
}

TEST_P(ClientTest, TheEventLogHasRunsMessagesAndWaits) {
  ASSERT_TRUE(EventLog::start(1000));
  EXPECT_FALSE(EventLog::start(1000));
  TraceWriter(trace).op(0, 5, 10, true);
  const FlushInfo info = flush();
  TraceWriter(trace).op(0, 6, 10, true);
  flush();
  ASSERT_TRUE(synchronize().ok());
  ASSERT_TRUE(synchronize().ok());  // the thread that sent the first one may log the send after the reply came
  const EventLog::Recorded recorded = EventLog::stop();
  EXPECT_FALSE(EventLog::on());
  EXPECT_EQ(recorded.dropped, 0u);
  std::map<Event::Kind, std::vector<Event>> events;
  for (const Event& event : recorded.events) {
    EXPECT_LE(event.begin, event.end);
    EXPECT_NE(event.thread, 0u);
    events[event.kind].push_back(event);
  }
  using enum Event::Kind;
  ASSERT_EQ(events[kRun].size(), 2u);
  EXPECT_EQ(events[kRun][0].sequence, info.sequence);
  EXPECT_FALSE(events[kRun][0].hit);
  EXPECT_TRUE(events[kRun][1].hit);
  EXPECT_EQ(events[kRun][0].sources, events[kRun][1].sources);  // equal sources share one copy
  EXPECT_EQ(events[kRun][0].sources->at(0).code, 0xC0DEu);
  std::vector<std::string_view> sent;
  for (const Event& event : events[kSend]) {
    sent.push_back(event.name);
    EXPECT_EQ(event.session, client->connection().session());
    EXPECT_GT(event.bytes, sizeof(wire::Header));
  }
  ASSERT_GE(sent.size(), 4u);
  sent.resize(4);
  EXPECT_EQ(sent, (std::vector<std::string_view>{"load program", "run", "run", "synchronize"}));
  EXPECT_EQ(events[kBuild].size(), 1u);
  ASSERT_EQ(events[kReply].size(), 2u);
  EXPECT_EQ(events[kReply][0].sequence, info.sequence + 2);
  ASSERT_FALSE(events[kAcknowledged].empty());
  EXPECT_EQ(events[kAcknowledged].back().sequence, info.sequence + 3);
  ASSERT_TRUE(synchronize().ok());
  EXPECT_TRUE(EventLog::stop().events.empty());  // nothing was added while it was off
}

TEST_P(ClientTest, TheEventLogIsBounded) {
  ASSERT_TRUE(EventLog::start(2));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(synchronize().ok());
  const EventLog::Recorded recorded = EventLog::stop();
  EXPECT_EQ(recorded.events.size(), 2u);
  EXPECT_GE(recorded.dropped, 4u);
}

INSTANTIATE_TEST_SUITE_P(Transports, ClientTest, testing::ValuesIn(kTransports), name_of);

}  // namespace
}  // namespace torch_remote::remote

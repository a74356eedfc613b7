#include "remote/client/client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <thread>

#include "ir/op_table.h"
#include "remote/client/event_log.h"
#include "remote/testing/fake_worker.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;
using Type = wire::Type;

const KeepWaiting kPatient;
std::vector<Client*>* const forked_clients = new std::vector<Client*>;  // where the leak checker finds them

using Pair = std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>>;

Pair unix_pair() {
  int sockets[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  return {make_unix_transport(sockets[0]), make_unix_transport(sockets[1])};
}

struct Kind {
  const char* name;
  Pair (*make)();
};

// Records like a recorder. Opcodes are the first ones of the table, whatever they are.
class TraceWriter {
 public:
  explicit TraceWriter(ir::Trace& trace) : trace_(trace) {}

  // One op that reads a buffer and makes one; `size` is the size of both.
  TraceWriter& op(uint32_t opcode, uint64_t input, int64_t size, bool survives, int64_t value = 0) {
    const int64_t sizes[] = {size}, strides[] = {1};
    trace_.begin_record(opcode, {0xC0DE, static_cast<int32_t>(trace_.records.size()), 0});
    trace_.new_buffer_view(input, &trace_, static_cast<uint64_t>(size), ir::DType::kFloat32, sizes, strides, 0);
    trace_.param(value);
    trace_.new_buffer_view(0, survives ? &trace_ : nullptr, static_cast<uint64_t>(4 * size), ir::DType::kFloat32, sizes,
                           strides, 0);
    trace_.end_record();
    return *this;
  }

 private:
  ir::Trace& trace_;
};

class ClientTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    auto [a, b] = GetParam().make();
    transport = a->description();
    worker = std::make_unique<FakeWorker>(std::move(b));
    ASSERT_TRUE(
        Client::connect(std::move(a), [this](auto&&... arguments) { return build(arguments...); }, {}, &client).ok());
  }
  void TearDown() override {
    release_builds();
    client = nullptr;
  }

  Status build(const BuildRequest& request, std::vector<uint8_t>* program) {
    ++builds;
    build_gate.wait();
    built_for = *request.worker;
    if (fail_build) return {ErrorCode::kUnsupported, "remote: no such thing"};
    if (throw_in_build) throw std::runtime_error("out of luck");
    *program = request.trace ? FakeWorker::make_program(*request.trace) : FakeWorker::make_program(*request.graph);
    return {};
  }
  ir::Capabilities built_for;  // by the last build
  void hold_builds() {
    gate = std::promise<void>();
    build_gate = gate.get_future().share();
    held = true;
  }
  void release_builds() {
    if (std::exchange(held, false)) gate.set_value();
  }

  FlushInfo flush(uint64_t* base_out = nullptr) {
    FlushInfo info;
    uint64_t base;
    const Status status = client->flush(trace, &base, &info);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(trace.empty());
    if (base_out) *base_out = base;
    return info;
  }
  Status synchronize() {
    error = OpError();
    return client->synchronize(kPatient, &error);
  }
  uint64_t upload(const std::string& text) {
    uint64_t id = 0;
    EXPECT_TRUE(
        client->upload(text.size(), [&](std::byte* to) { std::memcpy(to, text.data(), text.size()); }, &id).ok());
    return id;
  }
  Status read(uint64_t buffer, size_t size, std::string* text, const KeepWaiting& keep_waiting = kPatient) {
    const int64_t sizes[] = {static_cast<int64_t>(size)}, strides[] = {1};
    const auto take = [&](std::span<const std::byte> bytes) {
      text->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    OpError read_error;
    const Status status = client->read(buffer, 1, sizes, strides, 0, take, keep_waiting, &read_error);
    if (!status && !read_error.status.ok()) error = read_error;
    return status;
  }
  std::vector<Type> types() {
    std::vector<Type> out;
    for (const auto& message : worker->messages()) out.push_back(message.type);
    return out;
  }

  std::promise<void> gate;
  std::shared_future<void> build_gate = [] {
    std::promise<void> open;
    open.set_value();
    return open.get_future().share();
  }();
  bool held = false;
  std::atomic<int> builds = 0;
  std::atomic<bool> fail_build = false, throw_in_build = false;
  std::string transport;
  ir::Trace trace;
  OpError error;
  std::unique_ptr<FakeWorker> worker;  // outlives the client
  std::unique_ptr<Client> client;
};

TEST(ClientConnect, ARefusalIsPassedOn) {
  auto [a, b] = make_inproc_transport();
  FakeWorker worker(std::move(b), {ErrorCode::kUnsupported, "remote: op tables differ: 5 ops, 6 ops"});
  std::unique_ptr<Client> client;
  const Status status = Client::connect(std::move(a), nullptr, {}, &client);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(status.message(), "remote: op tables differ: 5 ops, 6 ops");
  EXPECT_EQ(client, nullptr);
}

TEST(ClientConnect, AWorkerThatDiesBeforeItAnswersIsLost) {
  auto [a, b] = make_inproc_transport();
  b = nullptr;
  std::unique_ptr<Client> client;
  EXPECT_EQ(Client::connect(std::move(a), nullptr, {}, &client).code(), ErrorCode::kLost);
}

TEST(ClientConnect, AnotherProgramAtTheOtherEndIsNoticed) {
  auto [a, b] = make_inproc_transport();
  wire::Header header;
  header.type = 77;
  ASSERT_TRUE(b->send(header, {}, nullptr).ok());
  std::unique_ptr<Client> client;
  EXPECT_EQ(Client::connect(std::move(a), nullptr, {}, &client).code(), ErrorCode::kInvalid);
}

TEST_P(ClientTest, ProgramsAreBuiltForTheWorkerThatAnswered) {
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  ASSERT_TRUE(synchronize().ok());
  EXPECT_EQ(built_for.targets, (std::vector<std::string>{"fake-1", "fake-0"}));
  EXPECT_TRUE(built_for.does(ir::GroupKind::kPointwise) && built_for.does(ir::GroupKind::kReduce));
  EXPECT_FALSE(built_for.does(ir::GroupKind::kRowwise));
  EXPECT_EQ(built_for.dtypes, uint64_t{1} << 40);
  EXPECT_EQ(built_for.memory, 5000u);
  EXPECT_EQ(built_for.threads, 3u);
  EXPECT_EQ(built_for.versions, "fake 1.0");
}

TEST_P(ClientTest, KnowsSessionAndDescription) {
  EXPECT_EQ(client->session(), 7u);
  EXPECT_EQ(client->description(), "fake runner, pid 4242, over " + transport);
  EXPECT_TRUE(client->health().ok());
}

TEST_P(ClientTest, TheSecondRunOfATraceIsAHitWithTheRightParametersAndIds) {
  uint64_t base1, base2;
  TraceWriter(trace).op(0, 5, 10, true, 7).op(1, 6, 20, false).op(0, 9, 30, true);
  EXPECT_FALSE(flush(&base1).hit);
  TraceWriter(trace).op(0, 5, 11, true, -8).op(1, 6, 21, false).op(0, base1, 31, true);  // sizes are not in the key
  const std::vector<int64_t> params = trace.params;
  const FlushInfo info = flush(&base2);
  EXPECT_TRUE(info.hit);
  EXPECT_EQ(info.ops, 3u);
  EXPECT_EQ(info.program, 1u);
  EXPECT_GT(info.bytes, sizeof(wire::Header));
  EXPECT_EQ(base2, base1 + 2);
  ASSERT_TRUE(synchronize().ok());
  EXPECT_EQ(types(), (std::vector<Type>{Type::kLoadProgram, Type::kRun, Type::kRun, Type::kSynchronize}));
  const auto run = worker->messages()[2];
  EXPECT_EQ(run.program, 1u);
  EXPECT_EQ(run.base, base2);
  EXPECT_EQ(run.params, params);
  EXPECT_EQ(run.inputs, (std::vector<uint64_t>{5, 6, base1}));
  EXPECT_EQ(builds, 1);
  const Counters counters = client->counters();
  EXPECT_EQ(counters.flushes, 2u);
  EXPECT_EQ(counters.programs_built, 1u);
  EXPECT_EQ(counters.program_hits, 1u);
  EXPECT_EQ(counters.round_trips, 1u);
}

TEST(ClientConnect, EndsWhenNobodyWantsToWait) {
  auto [a, b] = make_inproc_transport();  // nobody answers at the other end
  std::unique_ptr<Client> client;
  int asked = 0;
  const auto twice = [&] { return ++asked <= 2; };
  EXPECT_EQ(Client::connect(std::move(a), nullptr, twice, &client).code(), ErrorCode::kInterrupted);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(client, nullptr);
}

TEST_P(ClientTest, AProfileSaysWhatTheClockIsAndWhatRan) {
  WorkerProfile profile;
  ASSERT_TRUE(client->profile(ProfileCommand::kClock, 0, kPatient, &profile).ok());
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
  EXPECT_EQ(client->counters().round_trips, 2u);
  EXPECT_EQ(client->counters().connections, 1u);
}

TEST_P(ClientTest, AProfileThatNamesWhatIsNotThereIsRefused) {
  WorkerProfile profile;
  for (const wire::ProfileEvent event : {wire::ProfileEvent{1, 2, 3, 0, 1}, wire::ProfileEvent{1, 2, 3, 1, 0}}) {
    worker->set_profile({event});
    EXPECT_EQ(client->profile(ProfileCommand::kStop, 0, kPatient, &profile).code(), ErrorCode::kInvalid);
  }
  EXPECT_TRUE(client->health().ok());
}

TEST_P(ClientTest, WhatAWorkerHandedOverSurvivesIt) {
  WorkerProfile profile;
  ASSERT_TRUE(client->profile(ProfileCommand::kStart, 3, kPatient, &profile).ok());
  worker->hand_over_profile({{10, 20, 5, 0, 0}, {20, 30, 5, 0, 0}});
  ASSERT_TRUE(synchronize().ok());
  worker->hand_over_profile({{30, 40, 6, 1, 0}});  // nobody receives it before the worker dies
  worker->hand_over_profile({{50, 60, 6, 1, 0}});  // more than it was asked for
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
  worker->hand_over_profile({{1, 2, 5, 0, 0}});  // nobody asked for it
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
  EXPECT_TRUE(client->profile(ProfileCommand::kClock, 0, kPatient, &profile).ok());
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
  EXPECT_EQ(events[kRun][0].sources, events[kRun][1].sources);  // equal, so one
  EXPECT_EQ(events[kRun][0].sources->at(0).code, 0xC0DEu);
  std::vector<std::string_view> sent;
  for (const Event& event : events[kSend]) {
    sent.push_back(event.name);
    EXPECT_EQ(event.session, client->session());
    EXPECT_GT(event.bytes, sizeof(wire::Header));
  }
  EXPECT_EQ(sent, (std::vector<std::string_view>{"load program", "run", "run", "synchronize"}));
  EXPECT_EQ(events[kBuild].size(), 1u);
  ASSERT_EQ(events[kReply].size(), 1u);
  EXPECT_EQ(events[kReply][0].sequence, info.sequence + 2);
  ASSERT_FALSE(events[kAcknowledged].empty());
  EXPECT_EQ(events[kAcknowledged].back().sequence, info.sequence + 2);
  ASSERT_TRUE(synchronize().ok());
  EXPECT_TRUE(EventLog::stop().events.empty());  // off: nothing was added
}

TEST_P(ClientTest, TheEventLogIsBounded) {
  ASSERT_TRUE(EventLog::start(2));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(synchronize().ok());
  const EventLog::Recorded recorded = EventLog::stop();
  EXPECT_EQ(recorded.events.size(), 2u);
  EXPECT_GE(recorded.dropped, 4u);
}

TEST_P(ClientTest, AMissNamesTheFirstRecordThatDiffers) {
  TraceWriter(trace).op(0, 5, 10, true).op(1, 6, 20, false).op(0, 7, 30, true);
  EXPECT_EQ(flush().first_difference, SIZE_MAX);
  TraceWriter(trace).op(0, 5, 10, true).op(1, 6, 20, false).op(2, 7, 30, true);
  EXPECT_EQ(flush().first_difference, 2u);
  TraceWriter(trace).op(0, 5, 10, true).op(1, 6, 1, false).op(2, 7, 30, true);  // a dim became 1
  EXPECT_EQ(flush().first_difference, 1u);
  TraceWriter(trace).op(3, 5, 10, true);
  EXPECT_EQ(flush().first_difference, 0u);
  TraceWriter(trace).op(0, 5, 10, true).op(1, 6, 20, true).op(0, 7, 30, true);  // another buffer outlives it
  EXPECT_EQ(flush().first_difference, 3u);
  TraceWriter(trace).op(0, 5, 10, true).op(1, 6, 20, false).op(0, 7, 30, true).op(1, 8, 1, true);
  EXPECT_EQ(flush().first_difference, 3u);
}

TEST_P(ClientTest, FreesGoWithTheNextMessage) {
  client->free(12);
  client->free(3);
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  client->free(4);
  const uint64_t id = upload("hello");
  std::string text;
  client->free(6);
  ASSERT_TRUE(read(id, 5, &text).ok());
  EXPECT_EQ(text, "hello");
  const auto messages = worker->messages();
  ASSERT_EQ(types(),
            (std::vector<Type>{Type::kLoadProgram, Type::kRun, Type::kFree, Type::kUpload, Type::kFree, Type::kRead}));
  EXPECT_EQ(messages[1].frees, (std::vector<uint64_t>{3, 12}));
  EXPECT_EQ(messages[2].frees, std::vector<uint64_t>{4});
  EXPECT_EQ(messages[4].frees, std::vector<uint64_t>{6});
}

TEST_P(ClientTest, MessagesQueueBehindABuildInOrderAndNobodyWaitsForIt) {
  hold_builds();
  uint64_t base;
  TraceWriter(trace).op(0, 5, 10, true);
  EXPECT_FALSE(flush(&base).hit);
  TraceWriter(trace).op(0, base, 10, true);
  EXPECT_TRUE(flush().hit);  // of a program that is not built yet
  upload("a");
  TraceWriter(trace).op(1, 5, 10, true);
  EXPECT_FALSE(flush().hit);
  TraceWriter(trace).op(0, 5, 12, true);
  EXPECT_TRUE(flush().hit);
  EXPECT_TRUE(worker->messages().empty());
  release_builds();
  ASSERT_TRUE(synchronize().ok());
  EXPECT_EQ(types(), (std::vector<Type>{Type::kLoadProgram, Type::kRun, Type::kRun, Type::kUpload, Type::kLoadProgram,
                                        Type::kRun, Type::kRun, Type::kSynchronize}));
  EXPECT_EQ(worker->messages()[2].inputs, std::vector<uint64_t>{base});
}

TEST_P(ClientTest, ABuildThatFailsIsReportedOnceAndTheRestGoesOn) {
  for (auto* reason : {&fail_build, &throw_in_build}) {
    *reason = true;
    uint64_t base;
    client->free(90 + (reason == &fail_build));
    TraceWriter(trace).op(0, 5, 10, true).op(0, 5, 10, true);
    flush(&base);
    TraceWriter(trace).op(0, 5, 10, true).op(0, 5, 10, true);
    flush();  // hits the failed program or tries it again, depending on how far the builder is
    const uint64_t id = upload("still here");
    const Status status = synchronize();
    EXPECT_EQ(status.code(), reason == &fail_build ? ErrorCode::kUnsupported : ErrorCode::kInternal);
    EXPECT_EQ(error.status.message(),
              reason == &fail_build ? "remote: no such thing" : "remote: building a program failed: out of luck");
    EXPECT_EQ(error.source.code, 0xC0DEu);
    (void)synchronize();  // the second run's
    EXPECT_TRUE(synchronize().ok());
    std::string text;
    EXPECT_TRUE(read(id, 10, &text).ok());
    EXPECT_EQ(text, "still here");
    // What the run should have made is not there, and why is known.
    EXPECT_EQ(read(base + 1, 10, &text).code(), status.code());
    *reason = false;
  }
  const int before = builds;
  TraceWriter(trace).op(0, 5, 10, true).op(0, 5, 10, true);
  EXPECT_FALSE(flush().hit);  // tried again
  EXPECT_TRUE(synchronize().ok());
  EXPECT_EQ(builds, before + 1);
  std::vector<uint64_t> frees;
  for (const auto& message : worker->messages()) frees.insert(frees.end(), message.frees.begin(), message.frees.end());
  EXPECT_EQ(frees, (std::vector<uint64_t>{91, 90}));  // although the runs that carried them were not sent
}

TEST_P(ClientTest, ABuildThatFailsEndsTheWaitForItsResults) {
  hold_builds();
  fail_build = true;
  TraceWriter(trace).op(0, 5, 10, true);
  FlushInfo info;
  uint64_t base, ticket;
  ASSERT_TRUE(client->flush(trace, &base, &info, &ticket).ok());
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    release_builds();
  });
  Words words;
  EXPECT_EQ(client->wait_results(ticket, &words, kPatient, &error).code(), ErrorCode::kUnsupported);
  later.join();
  EXPECT_TRUE(synchronize().ok());  // reported once
}

TEST_P(ClientTest, ResultsOfARunComeBack) {
  worker->set_words({2, 3, 4});
  TraceWriter(trace).op(0, 5, 10, true);
  FlushInfo info;
  uint64_t base, ticket;
  ASSERT_TRUE(client->flush(trace, &base, &info, &ticket).ok());
  uint64_t after = upload("x");  // others may send before the results are waited for
  std::string text;
  ASSERT_TRUE(read(after, 1, &text).ok());
  Words words;
  ASSERT_TRUE(client->wait_results(ticket, &words, kPatient, &error).ok());
  EXPECT_EQ(words, (Words{2, 3, 4}));
}

// One input, one parameter, one fresh buffer that survives.
std::shared_ptr<const ir::Graph> small_graph() {
  auto graph = std::make_shared<ir::Graph>();
  graph->params = 1;
  graph->buffers.resize(2);
  graph->buffers[0].kind = ir::BufferKind::kInput;
  graph->nodes.resize(1);
  graph->nodes[0].opcode = 3;
  return graph;
}

TEST_P(ClientTest, ALoadedGraphRunsBetweenRecordedOnes) {
  ProgramPtr program;
  ASSERT_TRUE(client->load(small_graph(), {{0xC0DE, 5, 0}}, {}, &program).ok());
  uint64_t base;
  TraceWriter(trace).op(0, 5, 10, true);
  flush(&base);
  for (int64_t step = 0; step < 2; ++step) {
    const int64_t params[] = {40 + step};
    const uint64_t inputs[] = {base};
    uint64_t made;
    FlushInfo info;
    ASSERT_TRUE(client->run(program, {params, inputs, 1}, &made, &info).ok());
    EXPECT_EQ(made, base + 1);
    EXPECT_EQ(info.hit, step == 1);
    EXPECT_EQ(info.ops, 1u);
    base = made;
  }
  ASSERT_TRUE(synchronize().ok());
  EXPECT_EQ(types(), (std::vector<Type>{Type::kLoadProgram, Type::kLoadProgram, Type::kRun, Type::kRun, Type::kRun,
                                        Type::kSynchronize}));
  const auto run = worker->messages()[4];
  EXPECT_EQ(run.program, 1u);
  EXPECT_EQ(run.params, std::vector<int64_t>{41});
  EXPECT_EQ(run.inputs, std::vector<uint64_t>{base - 1});
  EXPECT_EQ(run.base, base);
  EXPECT_EQ(client->counters().programs_built, 2u);
  EXPECT_EQ(client->counters().program_hits, 1u);
}

TEST_P(ClientTest, AFailedOpOfALoadedGraphHasItsSource) {
  ProgramPtr program;
  ASSERT_TRUE(client->load(small_graph(), {{0xC0DE, 5, 0}}, {}, &program).ok());
  worker->on_run([](const FakeWorker::Message&) {
    return FakeWorker::Failure{{ErrorCode::kOpFailed, "too bad", "ValueError"}, 0};
  });
  const int64_t params[] = {1};
  const uint64_t inputs[] = {9};
  uint64_t made;
  FlushInfo info;
  ASSERT_TRUE(client->run(program, {params, inputs, 1}, &made, &info).ok());
  EXPECT_EQ(synchronize().code(), ErrorCode::kOpFailed);
  EXPECT_EQ(error.source.instruction, 5);
  EXPECT_EQ(error.op, ir::op_desc(3).name);
}

TEST_P(ClientTest, AGraphThatCannotBeBuiltSaysWhyAtEveryRun) {
  hold_builds();
  fail_build = true;
  ProgramPtr program;
  ASSERT_TRUE(client->load(small_graph(), {{0xC0DE, 5, 0}}, {}, &program).ok());
  const int64_t params[] = {1};
  const uint64_t inputs[] = {9};
  uint64_t made;
  FlushInfo info;
  ASSERT_TRUE(client->run(program, {params, inputs, 1}, &made, &info).ok());  // nobody knows yet
  release_builds();
  EXPECT_EQ(synchronize().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(client->run(program, {params, inputs, 1}, &made, &info).message(), "remote: no such thing");
  EXPECT_TRUE(synchronize().ok());
}

TEST_P(ClientTest, ReadsOfAllSizesArriveWhole) {
  for (size_t size : {0, 1, 1000, 100'000, 3'000'000}) {
    std::string text(size, 'a'), got;
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i % 23);
    const uint64_t id = upload(text);
    ASSERT_TRUE(read(id, size, &got).ok());
    EXPECT_EQ(got, text);
    EXPECT_EQ(read(id, size + 1, &got).code(), ErrorCode::kInternal);  // not what was asked for
  }
  EXPECT_EQ(client->counters().bytes_uploaded, 3'101'001u);
  EXPECT_EQ(client->counters().bytes_downloaded, 3'101'001u);
}

TEST_P(ClientTest, AFailedOpIsReportedAtTheNextWaitWithItsSourceAndOnlyOnce) {
  worker->on_run([](const FakeWorker::Message& run) {
    return run.params.back() == 0 && run.params.size() > 30
               ? FakeWorker::Failure{{ErrorCode::kOpFailed, "index 5 is out of bounds", "IndexError"}, 3}
               : FakeWorker::Failure{};
  });
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  TraceWriter(trace).op(0, 5, 10, true).op(1, 6, 10, true).op(1, 7, 10, true).op(2, 8, 10, true);
  flush();
  const Status status = synchronize();
  EXPECT_EQ(status.code(), ErrorCode::kOpFailed);
  EXPECT_EQ(error.status.kind(), "IndexError");
  EXPECT_EQ(error.status.message(), "index 5 is out of bounds");
  EXPECT_EQ(error.source.code, 0xC0DEu);
  EXPECT_EQ(error.source.instruction, 3);
  EXPECT_EQ(error.op, ir::op_desc(2).name);
  EXPECT_TRUE(synchronize().ok());
}

TEST_P(ClientTest, AFailureHasTheSourceOfItsOwnRun) {
  worker->on_run([](const FakeWorker::Message& run) {
    return std::ranges::count(run.params, 12) > 0 ? FakeWorker::Failure{{ErrorCode::kOpFailed, "no", "ValueError"}, 0}
                                                  : FakeWorker::Failure{};
  });
  for (const int size : {10, 11, 12, 13, 14}) {
    TraceWriter(trace).op(0, 5, size, true);
    trace.sources[0].instruction = size;
    EXPECT_EQ(flush().hit, size > 10);
  }
  EXPECT_EQ(synchronize().code(), ErrorCode::kOpFailed);
  EXPECT_EQ(error.source.instruction, 12);
}

TEST_P(ClientTest, AFailureThatProgressAnnouncesIsToldByTheNextSynchronize) {
  worker->on_run([](const FakeWorker::Message&) { return FakeWorker::Failure{{ErrorCode::kOutOfMemory, "4 GB"}, 0}; });
  const uint64_t id = upload("x");
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  while (client->last_acknowledged() < 4) {  // upload, load, run after hello: by Progress alone
    upload("y");                             // takes what has come
    std::this_thread::sleep_for(1ms);
  }
  std::string text;
  EXPECT_TRUE(read(id, 1, &text).ok());
  EXPECT_EQ(synchronize().code(), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(synchronize().ok());
}

TEST_P(ClientTest, AnInterruptedReadReturnsAndItsLateReplyIsDropped) {
  const uint64_t first = upload("first"), second = upload("second");
  ASSERT_TRUE(synchronize().ok());
  worker->hold_replies(true);
  std::string text;
  std::atomic<int> calls = 0;
  EXPECT_EQ(read(first, 5, &text, [&] { return ++calls < 2; }).code(), ErrorCode::kInterrupted);
  EXPECT_EQ(calls, 2);
  worker->hold_replies(false);
  ASSERT_TRUE(read(second, 6, &text).ok());
  EXPECT_EQ(text, "second");
}

TEST_P(ClientTest, ManyThreadsWaitAtOnceAndEachGetsItsOwnReply) {
  const int64_t size = 5000;  // more than is kept
  std::vector<std::string> texts;
  std::vector<uint64_t> ids;
  for (char i = 0; i < 4; ++i)
    texts.emplace_back(size, static_cast<char>('a' + i)), ids.push_back(upload(texts.back()));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        std::string text;
        ASSERT_TRUE(read(ids[static_cast<size_t>(t)], size, &text).ok());
        EXPECT_EQ(text, texts[static_cast<size_t>(t)]);
        if (i % 10 == 0) client->free(1'000'000 + static_cast<uint64_t>(t * 50 + i));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(client->counters().round_trips, 200u);
}

TEST_P(ClientTest, WhatWasReadIsNotAskedForAgain) {
  const uint64_t id = upload("hello");
  std::string text;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(read(id, 5, &text).ok());
    EXPECT_EQ(text, "hello");
    ASSERT_TRUE(read(id, 2, &text).ok());
    EXPECT_EQ(text, "he");
  }
  EXPECT_EQ(client->counters().round_trips, 1u);
  TraceWriter(trace).op(0, id, 5, true);  // which may write it, as far as is known at first
  flush();
  ASSERT_TRUE(read(id, 5, &text).ok());
  EXPECT_EQ(client->counters().round_trips, 2u);
}

TEST_P(ClientTest, ThreadsMayFlushUploadReadAndFreeAtTheSameTime) {
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      ir::Trace mine;
      for (int i = 0; i < 60; ++i) {
        TraceWriter(mine).op(t, 5, 10 + i, true).op(static_cast<uint32_t>(i % 3), 6, 10, false);
        uint64_t base;
        FlushInfo info;
        ASSERT_TRUE(client->flush(mine, &base, &info).ok());
        client->free(base);
        const std::string text = std::to_string(t * 1000 + static_cast<uint32_t>(i));
        const uint64_t id = upload(text);
        std::string got;
        ASSERT_TRUE(read(id, text.size(), &got).ok());
        EXPECT_EQ(got, text);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(synchronize().ok());
  EXPECT_EQ(builds, 12);
}

TEST_P(ClientTest, TheClientRunsAheadOnlySoFar) {
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  ASSERT_TRUE(synchronize().ok());
  worker->pause(true);
  std::atomic<int> sent = 0;
  std::thread sender([&] {
    ir::Trace mine;
    for (int i = 0; i < 300; ++i) {
      TraceWriter(mine).op(0, 5, 10, true);
      uint64_t base;
      FlushInfo info;
      ASSERT_TRUE(client->flush(mine, &base, &info).ok());
      ++sent;
    }
  });
  while (sent < 30) std::this_thread::yield();
  std::this_thread::sleep_for(100ms);
  EXPECT_LE(sent, static_cast<int>(kMaxUnacknowledged) + 1);  // + 1: pausing may have let one through
  worker->pause(false);
  sender.join();
  EXPECT_EQ(sent, 300);
}

TEST_P(ClientTest, UploadsRunAheadOnlySoManyBytes) {
  worker->pause(true);
  std::atomic<int> sent = 0;
  constexpr size_t kSize = kMaxUnacknowledgedBytes / 4;
  std::thread sender([&] {
    for (int i = 0; i < 6; ++i) {
      uint64_t id;
      ASSERT_TRUE(client->upload(kSize, [](std::byte* to) { *to = {}; }, &id).ok());
      ++sent;
    }
  });
  while (sent < 4) std::this_thread::yield();
  std::this_thread::sleep_for(60ms);
  EXPECT_LE(sent, 5);
  worker->log_messages(false);
  worker->pause(false);
  sender.join();
}

TEST_P(ClientTest, WhenTheWorkerDiesEveryCallSaysSoAndNamesTheWayOut) {
  const uint64_t id = upload("x");
  ASSERT_TRUE(synchronize().ok());
  worker->hold_replies(true);
  std::thread killer([&] {
    std::this_thread::sleep_for(20ms);
    worker->die();
  });
  std::string text;
  Status status = read(id, 1, &text);
  killer.join();
  const auto expect_lost = [](const Status& s) {
    EXPECT_EQ(s.code(), ErrorCode::kLost);
    EXPECT_NE(s.message().find("torch.remote.restart()"), std::string::npos) << s.message();
  };
  expect_lost(status);
  expect_lost(client->health());
  expect_lost(read(id, 1, &text));
  expect_lost(synchronize());
  uint64_t base;
  FlushInfo info;
  TraceWriter(trace).op(0, 5, 10, true);
  expect_lost(client->flush(trace, &base, &info));
  expect_lost(client->upload(1, [](std::byte*) {}, &base));
  client->free(1);
}

TEST_P(ClientTest, DeathWhileABuildIsPendingEndsAllWaits) {
  hold_builds();
  TraceWriter(trace).op(0, 5, 10, true);
  FlushInfo info;
  uint64_t base, ticket;
  ASSERT_TRUE(client->flush(trace, &base, &info, &ticket).ok());
  worker->die();
  Words words;
  EXPECT_EQ(client->wait_results(ticket, &words, kPatient, &error).code(), ErrorCode::kLost);
  release_builds();
}

TEST_P(ClientTest, GarbageFromTheWorkerLosesIt) {
  worker->send_raw(Type::kProgress, 1, {1, 2, 3});
  EXPECT_EQ(synchronize().code(), ErrorCode::kLost);
}

TEST_P(ClientTest, AnAcknowledgementOfWhatWasNeverSentLosesTheWorker) {
  worker->send_raw(Type::kProgress, 1'000'000, {});
  EXPECT_EQ(synchronize().code(), ErrorCode::kLost);
}

TEST_P(ClientTest, SynchronizeBringsTheWorkersNumbers) {
  ASSERT_TRUE(synchronize().ok());
  Counters counters = client->counters();
  EXPECT_EQ(counters.worker_bytes, 11u);
  EXPECT_EQ(counters.worker_peak_bytes, 22u);
  EXPECT_EQ(counters.kernels_compiled, 44u);
  EXPECT_GT(counters.bytes_sent, 0u);
  EXPECT_GT(counters.bytes_received, 0u);
  client->reset_counters();
  counters = client->counters();
  EXPECT_EQ(counters.worker_bytes, 11u);
  EXPECT_EQ(counters.kernels_compiled, 0u);
  EXPECT_EQ(counters.round_trips, 0u);
  EXPECT_EQ(counters.bytes_sent, 0u);
  EXPECT_EQ(counters.bytes_received, 0u);
}

TEST_P(ClientTest, AsksForMemoryWithoutTellingFailures) {
  EXPECT_EQ(client->machine().processor, "fake processor");
  EXPECT_EQ(client->machine().cores, 3u);
  EXPECT_EQ(client->machine().memory, 5000u);
  worker->on_run([](const auto&) { return FakeWorker::Failure{{ErrorCode::kOpFailed, "no", "ValueError"}, 0}; });
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  MemoryRoom room;
  ASSERT_TRUE(client->memory({}, kPatient, &room).ok());
  EXPECT_EQ(room.limit, 77u);
  EXPECT_EQ(room.free, 66u);
  EXPECT_EQ(client->memory_use().allocated.current, 50u);
  EXPECT_EQ(client->memory_use().allocated.freed, 150u);
  EXPECT_EQ(client->memory_use().reserved.peak, 1000u);
  EXPECT_EQ(client->memory_use().segments.current, 7u);
  EXPECT_EQ(client->memory_use().failures, 2u);
  ASSERT_TRUE(client->memory({.limit = 1234, .reset_peak = true}, kPatient, &room).ok());
  EXPECT_EQ(room.limit, 1234u);
  EXPECT_EQ(client->memory_use().allocated.current, 5u);
  EXPECT_EQ(client->counters().round_trips, 2u);
  EXPECT_EQ(synchronize().message(), "no");
}

TEST_P(ClientTest, DestructionSaysGoodbye) {
  client = nullptr;
  while (!worker->said_goodbye()) std::this_thread::yield();
}

TEST_P(ClientTest, AfterAbandonNothingTouchesTheConnection) {
  Client* child = client.release();  // as in a forked child: no destructor runs
  child->abandon();
  child->free(5);
  EXPECT_EQ(child->health().code(), ErrorCode::kLost);
  EXPECT_EQ(child->synchronize(kPatient, &error).code(), ErrorCode::kLost);
  forked_clients->push_back(child);
}

INSTANTIATE_TEST_SUITE_P(Transports, ClientTest,
                         testing::Values(Kind{"inproc", make_inproc_transport}, Kind{"unix", unix_pair}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace torch_remote::remote

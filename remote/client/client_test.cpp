#include <algorithm>
#include <set>
#include <thread>

#include "ir/ops/op_table.h"
#include "remote/client/testing/client_fixture.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

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
  EXPECT_TRUE(built_for.supports(ir::GroupKind::kPointwise) && built_for.supports(ir::GroupKind::kReduce));
  EXPECT_FALSE(built_for.supports(ir::GroupKind::kRowwise));
  EXPECT_EQ(built_for.dtype_mask, uint64_t{1} << 40);
  EXPECT_EQ(built_for.memory, 5000u);
  EXPECT_EQ(built_for.threads, 3u);
  EXPECT_EQ(built_for.library_versions, "fake 1.0");
}

TEST_P(ClientTest, KnowsSessionAndDescription) {
  EXPECT_EQ(client->connection().session(), 7u);
  EXPECT_EQ(client->connection().description(), "fake runner, pid 4242, over " + transport);
  EXPECT_TRUE(client->connection().health().ok());
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
  EXPECT_EQ(run.first_result_id, base2);
  EXPECT_EQ(run.params, params);
  EXPECT_EQ(run.inputs, (std::vector<uint64_t>{5, 6, base1}));
  EXPECT_EQ(builds, 1);
  const Counters counters = client->connection().counters();
  EXPECT_EQ(counters.flushes, 2u);
  EXPECT_EQ(counters.programs_built, 1u);
  EXPECT_EQ(counters.program_hits, 1u);
  EXPECT_EQ(counters.round_trips, 1u);
}

TEST(ClientConnect, EndsWhenNobodyWantsToWait) {
  auto [a, b] = make_inproc_transport();  // the other end never answers
  std::unique_ptr<Client> client;
  int asked = 0;
  const auto twice = [&] { return ++asked <= 2; };
  EXPECT_EQ(Client::connect(std::move(a), nullptr, twice, &client).code(), ErrorCode::kInterrupted);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(client, nullptr);
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
  TraceWriter(trace).op(0, 5, 10, true).op(1, 6, 20, true).op(0, 7, 30, true);  // another buffer survives
  EXPECT_EQ(flush().first_difference, 3u);
  TraceWriter(trace).op(0, 5, 10, true).op(1, 6, 20, false).op(0, 7, 30, true).op(1, 8, 1, true);
  EXPECT_EQ(flush().first_difference, 3u);
}

TEST_P(ClientTest, MarksAreReachedInOrderAndMayBeForgotten) {
  uint64_t first, second, third;
  hold_builds();
  ASSERT_TRUE(client->events().record(&first).ok());
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  ASSERT_TRUE(client->events().record(&second).ok());
  ASSERT_TRUE(client->events().record(&third).ok());
  client->events().forget(second);
  RecordedEvent event;
  const auto release_and_wait = [&] {
    release_builds();  // only after the wait has begun
    return true;
  };
  ASSERT_TRUE(client->events().wait(third, release_and_wait, &event).ok());
  EXPECT_EQ(event.device_time_ns, third * 1000);
  EXPECT_TRUE(client->events().is_reached(first));
  ASSERT_TRUE(client->events().wait(first, {}, &event).ok());
  EXPECT_EQ(event.device_time_ns, first * 1000);
  EXPECT_FALSE(event.failed);
  EXPECT_TRUE(client->events().is_idle());
  EXPECT_EQ(client->connection().counters().round_trips, 1u);  // the first event's reply was already there
  client->events().forget(third);                              // has no effect
}

TEST_P(ClientTest, IsBusyUntilAllIsDoneAndNoThreadWaits) {
  EXPECT_FALSE(client->connection().is_busy());
  worker->pause(true);
  upload("data");
  EXPECT_TRUE(client->connection().is_busy());
  worker->pause(false);
  EXPECT_TRUE(synchronize().ok());
  EXPECT_FALSE(client->connection().is_busy());
  // A worker acknowledges a call as soon as the function has begun.
  worker->hold_replies(true);
  const std::byte request[1] = {};
  uint64_t ticket = 0, id = 0;
  ASSERT_TRUE(client->functions().call(request, {}, &ticket, &id).ok());
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateAcknowledge(builder));
  const std::vector<uint8_t> done(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
  worker->send_raw(Type::kAcknowledge, ticket, done);
  while (client->connection().last_acknowledged() < ticket) EXPECT_TRUE(client->connection().is_busy());
  EXPECT_TRUE(client->connection().is_busy());
  worker->hold_replies(false);
  CallResult result;
  EXPECT_TRUE(client->functions().wait(ticket, kPatient, &result, &error).ok());
  EXPECT_FALSE(client->connection().is_busy());
  // An op in the background ends after all messages were acknowledged.
  worker->pause(true);
  upload("data");
  const uint64_t last = client->connection().last_sent();
  worker->send_raw(Type::kAcknowledge, last, done, wire::kBackgroundWork);
  while (client->connection().last_acknowledged() < last) EXPECT_TRUE(client->connection().is_busy());
  EXPECT_TRUE(client->connection().is_busy());
  worker->send_raw(Type::kAcknowledge, last, done);
  while (client->connection().is_busy()) std::this_thread::yield();
  worker->pause(false);
}

TEST_P(ClientTest, AWaitForAMarkThatIsInterruptedCanBeTakenUpAgain) {
  hold_builds();
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  uint64_t ticket;
  ASSERT_TRUE(client->events().record(&ticket).ok());
  EXPECT_FALSE(client->events().is_reached(ticket));
  RecordedEvent event;
  EXPECT_EQ(client->events().wait(ticket, [] { return false; }, &event).code(), ErrorCode::kInterrupted);
  release_builds();
  ASSERT_TRUE(client->events().wait(ticket, {}, &event).ok());
  EXPECT_EQ(event.device_time_ns, ticket * 1000);
}

// A script with ever new structures: the cache stays bounded, and programs in use stay in it.
TEST_P(ClientTest, ProgramsThatWereNotUsedForLongestAreDropped) {
  constexpr uint32_t kStructures = 2000;
  client->limit_programs(uint64_t{50} * 4096);
  const auto structure = [&](uint32_t n) {
    for (uint32_t digits = n + 1; digits > 0; digits /= 8) TraceWriter(trace).op(digits % 8, 5, 10, false);
    return flush();
  };
  const auto used = [&] {
    TraceWriter(trace).op(9, 5, 10, false);
    return flush();
  };
  EXPECT_FALSE(used().hit);
  ASSERT_TRUE(synchronize().ok());
  uint64_t most = 0;
  for (uint32_t n = 0; n < kStructures; ++n) {
    EXPECT_FALSE(structure(n).hit) << n;
    EXPECT_TRUE(used().hit) << n;
    if (n % 16 == 0) {
      ASSERT_TRUE(synchronize().ok());  // wait for the build, so that the program's size counts
    }
    most = std::max(most, client->connection().counters().programs_kept);
  }
  ASSERT_TRUE(synchronize().ok());
  EXPECT_LE(most, 50u + 17u);
  EXPECT_TRUE(structure(kStructures - 1).hit);
  EXPECT_FALSE(structure(0).hit);  // built and sent again
  ASSERT_TRUE(synchronize().ok());
  EXPECT_EQ(builds, static_cast<int>(kStructures) + 2);
  std::set<uint32_t> there;
  uint64_t dropped = 0;
  for (const auto& message : worker->messages()) {
    EXPECT_TRUE(message.type != Type::kLoadProgram || there.insert(message.program).second);
    EXPECT_TRUE(message.type != Type::kRun || there.contains(message.program));
    for (const uint32_t program : message.unloaded) dropped += there.erase(program);
  }
  EXPECT_EQ(there.size(), client->connection().counters().programs_kept);
  EXPECT_EQ(dropped, client->connection().counters().programs_dropped);
  EXPECT_EQ(dropped + there.size(), kStructures + 2u);
}

TEST_P(ClientTest, AProgramThatWasLoadedGoesWithWhoeverHadIt) {
  const int64_t sample[] = {1};
  ProgramPtr kept, given_up;
  ASSERT_TRUE(client->load(small_graph(), {}, sample, {}, &kept).ok());
  ASSERT_TRUE(client->load(small_graph(), {}, sample, {}, &given_up).ok());
  ASSERT_TRUE(synchronize().ok());
  given_up = nullptr;
  client->limit_programs(1);  // the limit does not apply to loaded programs in use
  ProgramPtr last;
  ASSERT_TRUE(client->load(small_graph(), {}, sample, {}, &last).ok());
  ASSERT_TRUE(synchronize().ok());
  std::vector<uint32_t> unloaded;
  for (const auto& message : worker->messages()) {
    unloaded.insert(unloaded.end(), message.unloaded.begin(), message.unloaded.end());
  }
  EXPECT_EQ(unloaded, std::vector<uint32_t>{2});
  const uint64_t inputs[] = {5};
  uint64_t first_result_id;
  FlushInfo info;
  EXPECT_TRUE(client->run(kept, {sample, inputs, 1}, &first_result_id, &info).ok());
  EXPECT_TRUE(synchronize().ok());
}

TEST_P(ClientTest, FreesGoWithTheNextMessage) {
  client->free(12);
  client->free(3);
  TraceWriter(trace).op(0, 5, 10, true);
  flush();  // sends the frees first, because a program needs memory, too
  client->free(9);
  TraceWriter(trace).op(0, 5, 10, true);
  EXPECT_TRUE(flush().hit);
  client->free(4);
  const uint64_t id = upload("hello");
  std::string text;
  client->free(6);
  ASSERT_TRUE(read(id, 5, &text).ok());
  EXPECT_EQ(text, "hello");
  const auto messages = worker->messages();
  ASSERT_EQ(types(), (std::vector<Type>{Type::kFree, Type::kLoadProgram, Type::kRun, Type::kRun, Type::kFree,
                                        Type::kUpload, Type::kFree, Type::kRead}));
  EXPECT_EQ(messages[0].freed_ids, (std::vector<uint64_t>{3, 12}));
  EXPECT_EQ(messages[2].freed_ids, std::vector<uint64_t>{});
  EXPECT_EQ(messages[3].freed_ids, std::vector<uint64_t>{9});
  EXPECT_EQ(messages[4].freed_ids, std::vector<uint64_t>{4});
  EXPECT_EQ(messages[6].freed_ids, std::vector<uint64_t>{6});
}

TEST_P(ClientTest, MessagesQueueBehindABuildInOrderAndNobodyWaitsForIt) {
  hold_builds();
  uint64_t first_result_id;
  TraceWriter(trace).op(0, 5, 10, true);
  EXPECT_FALSE(flush(&first_result_id).hit);
  TraceWriter(trace).op(0, first_result_id, 10, true);
  EXPECT_TRUE(flush().hit);  // hits a program that is not built yet
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
  EXPECT_EQ(worker->messages()[2].inputs, std::vector<uint64_t>{first_result_id});
}

TEST_P(ClientTest, ResultsOfARunComeBack) {
  worker->set_result_words({2, 3, 4});
  TraceWriter(trace).op(0, 5, 10, true);
  FlushInfo info;
  uint64_t first_result_id, ticket;
  ASSERT_TRUE(client->flush(trace, &first_result_id, &info, &ticket).ok());
  uint64_t after = upload("x");  // other messages may be sent before the results are waited for
  std::string text;
  ASSERT_TRUE(read(after, 1, &text).ok());
  ResultWords result_words;
  ASSERT_TRUE(client->wait_results(ticket, &result_words, kPatient, &error).ok());
  EXPECT_EQ(result_words, (ResultWords{2, 3, 4}));
}

TEST_P(ClientTest, ALoadedGraphRunsBetweenRecordedOnes) {
  ProgramPtr program;
  ASSERT_TRUE(client->load(small_graph(), {{0xC0DE, 5, 0}}, {}, {}, &program).ok());
  uint64_t first_result_id;
  TraceWriter(trace).op(0, 5, 10, true);
  flush(&first_result_id);
  for (int64_t step = 0; step < 2; ++step) {
    const int64_t params[] = {40 + step};
    const uint64_t inputs[] = {first_result_id};
    uint64_t made;
    FlushInfo info;
    ASSERT_TRUE(client->run(program, {params, inputs, 1}, &made, &info).ok());
    EXPECT_EQ(made, first_result_id + 1);
    EXPECT_EQ(info.hit, step == 1);
    EXPECT_EQ(info.ops, 1u);
    first_result_id = made;
  }
  ASSERT_TRUE(synchronize().ok());
  EXPECT_EQ(types(), (std::vector<Type>{Type::kLoadProgram, Type::kLoadProgram, Type::kRun, Type::kRun, Type::kRun,
                                        Type::kSynchronize}));
  const auto run = worker->messages()[4];
  EXPECT_EQ(run.program, 1u);
  EXPECT_EQ(run.params, std::vector<int64_t>{41});
  EXPECT_EQ(run.inputs, std::vector<uint64_t>{first_result_id - 1});
  EXPECT_EQ(run.first_result_id, first_result_id);
  EXPECT_EQ(client->connection().counters().programs_built, 2u);
  EXPECT_EQ(client->connection().counters().program_hits, 1u);
}

TEST_P(ClientTest, ReadsOfAllSizesArriveWhole) {
  for (size_t size : {0, 1, 1000, 100'000, 3'000'000}) {
    std::string text(size, 'a'), got;
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + i % 23);
    const uint64_t id = upload(text);
    ASSERT_TRUE(read(id, size, &got).ok());
    EXPECT_EQ(got, text);
    EXPECT_EQ(read(id, size + 1, &got).code(), ErrorCode::kInternal);  // larger than the buffer
  }
  EXPECT_EQ(client->connection().counters().bytes_uploaded, 3'101'001u);
  EXPECT_EQ(client->connection().counters().bytes_downloaded, 3'101'001u);
}

TEST_P(ClientTest, ManyThreadsWaitAtOnceAndEachGetsItsOwnReply) {
  const int64_t size = 5000;  // larger than what is cached
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
  EXPECT_EQ(client->connection().counters().round_trips, 200u);
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
  EXPECT_EQ(client->connection().counters().round_trips, 1u);
  TraceWriter(trace).op(0, id, 5, true);  // the client does not know yet that the program does not write it
  flush();
  ASSERT_TRUE(read(id, 5, &text).ok());
  EXPECT_EQ(client->connection().counters().round_trips, 2u);
}

TEST_P(ClientTest, ThreadsMayFlushUploadReadAndFreeAtTheSameTime) {
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      ir::Trace mine;
      for (int i = 0; i < 60; ++i) {
        TraceWriter(mine).op(t, 5, 10 + i, true).op(static_cast<uint32_t>(i % 3), 6, 10, false);
        uint64_t first_result_id;
        FlushInfo info;
        ASSERT_TRUE(client->flush(mine, &first_result_id, &info).ok());
        client->free(first_result_id);
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
      uint64_t first_result_id;
      FlushInfo info;
      ASSERT_TRUE(client->flush(mine, &first_result_id, &info).ok());
      ++sent;
    }
  });
  while (sent < 30) std::this_thread::yield();
  std::this_thread::sleep_for(100ms);
  EXPECT_LE(sent, static_cast<int>(kMaxUnacknowledged) + 1);  // + 1: one message may have got through before the pause
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

TEST_P(ClientTest, SynchronizeBringsTheWorkersNumbers) {
  ASSERT_TRUE(synchronize().ok());
  Counters counters = client->connection().counters();
  EXPECT_EQ(counters.worker_bytes, 11u);
  EXPECT_EQ(counters.worker_peak_bytes, 22u);
  EXPECT_EQ(counters.kernels_compiled, 44u);
  EXPECT_EQ(counters.groups_without_kernel, 55u);
  EXPECT_GT(counters.bytes_sent, 0u);
  EXPECT_GT(counters.bytes_received, 0u);
  client->connection().reset_counters();
  counters = client->connection().counters();
  EXPECT_EQ(counters.worker_bytes, 11u);
  EXPECT_EQ(counters.kernels_compiled, 0u);
  EXPECT_EQ(counters.groups_without_kernel, 0u);
  EXPECT_EQ(counters.round_trips, 0u);
  EXPECT_EQ(counters.bytes_sent, 0u);
  EXPECT_EQ(counters.bytes_received, 0u);
}

TEST_P(ClientTest, AsksForMemoryWithoutTellingFailures) {
  EXPECT_EQ(client->connection().machine().processor, "fake processor");
  EXPECT_EQ(client->connection().machine().cores, 3u);
  EXPECT_EQ(client->connection().machine().memory, 5000u);
  worker->on_run([](const auto&) { return FakeWorker::Failure{{ErrorCode::kOpFailed, "no", "ValueError"}, 0}; });
  TraceWriter(trace).op(0, 5, 10, true);
  flush();
  MemoryLimits limits;
  ASSERT_TRUE(client->memory({}, kPatient, &limits).ok());
  EXPECT_EQ(limits.limit, 77u);
  EXPECT_EQ(limits.free, 66u);
  EXPECT_EQ(client->connection().memory_use().allocated.current, 50u);
  EXPECT_EQ(client->connection().memory_use().allocated.freed, 150u);
  EXPECT_EQ(client->connection().memory_use().reserved.peak, 1000u);
  EXPECT_EQ(client->connection().memory_use().segments.current, 7u);
  EXPECT_EQ(client->connection().memory_use().num_ooms, 2u);
  ASSERT_TRUE(client->memory({.limit = 1234, .reset_peak = true}, kPatient, &limits).ok());
  EXPECT_EQ(limits.limit, 1234u);
  EXPECT_EQ(client->connection().memory_use().allocated.current, 5u);
  EXPECT_EQ(client->connection().counters().round_trips, 2u);
  EXPECT_EQ(synchronize().message(), "no");
}

TEST_P(ClientTest, DestructionClosesTheSession) {
  client = nullptr;
  while (!worker->session_was_closed()) std::this_thread::yield();
}

TEST_P(ClientTest, AfterAbandonNothingTouchesTheConnection) {
  Client* child = client.release();  // as in a forked child: no destructor runs
  child->abandon();
  child->free(5);
  EXPECT_EQ(child->connection().health().code(), ErrorCode::kLost);
  EXPECT_EQ(child->synchronize(kPatient, &error).code(), ErrorCode::kLost);
  forked_clients->push_back(child);
}

INSTANTIATE_TEST_SUITE_P(Transports, ClientTest, testing::ValuesIn(kTransports), name_of);

}  // namespace
}  // namespace torch_remote::remote

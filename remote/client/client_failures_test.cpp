#include <thread>

#include "remote/client/testing/client_fixture.h"
#include "remote/transport/forwarding_transport.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

TEST_P(ClientTest, ABuildThatFailsIsReportedOnceAndTheRestGoesOn) {
  for (auto* reason : {&fail_build, &throw_in_build}) {
    *reason = true;
    uint64_t first_result_id;
    client->free(90 + (reason == &fail_build));
    TraceWriter(trace).op(0, 5, 10, true).op(0, 5, 10, true);
    flush(&first_result_id);
    TraceWriter(trace).op(0, 5, 10, true).op(0, 5, 10, true);
    flush();  // hits the failed program or builds it again, depending on the builder's progress
    const uint64_t id = upload("still here");
    const Status status = synchronize();
    EXPECT_EQ(status.code(), reason == &fail_build ? ErrorCode::kUnsupported : ErrorCode::kInternal);
    EXPECT_EQ(error.status.message(),
              reason == &fail_build ? "remote: no such thing" : "remote: building a program failed: out of luck");
    EXPECT_EQ(error.source.code, 0xC0DEu);
    (void)synchronize();  // the second run's failure
    EXPECT_TRUE(synchronize().ok());
    std::string text;
    EXPECT_TRUE(read(id, 10, &text).ok());
    EXPECT_EQ(text, "still here");
    // The buffer that the run should have created does not exist, and its read reports why.
    EXPECT_EQ(read(first_result_id + 1, 10, &text).code(), status.code());
    *reason = false;
  }
  const int before = builds;
  TraceWriter(trace).op(0, 5, 10, true).op(0, 5, 10, true);
  EXPECT_FALSE(flush().hit);  // builds it again
  EXPECT_TRUE(synchronize().ok());
  EXPECT_EQ(builds, before + 1);
  std::vector<uint64_t> freed_ids;
  for (const auto& message : worker->messages())
    freed_ids.insert(freed_ids.end(), message.freed_ids.begin(), message.freed_ids.end());
  EXPECT_EQ(freed_ids,
            (std::vector<uint64_t>{91, 90}));  // although the runs that would have carried them were not sent
}

TEST_P(ClientTest, ABuildThatFailsFreesTheInputsThatItsRunsWouldFree) {
  hold_builds();
  fail_build = true;
  for (const uint64_t input : {uint64_t{5}, uint64_t{6}}) {  // the second run waits for the first one's program
    TraceWriter(trace).op(0, input, 10, true);
    trace.buffers[0].owner = nullptr;
    client->free(input + 90);
    flush();
  }
  release_builds();
  (void)synchronize();
  (void)synchronize();
  std::vector<uint64_t> freed_ids;
  for (const auto& message : worker->messages())
    freed_ids.insert(freed_ids.end(), message.freed_ids.begin(), message.freed_ids.end());
  EXPECT_EQ(freed_ids, (std::vector<uint64_t>{95, 5, 6, 96}));
}

TEST_P(ClientTest, ABuildThatFailsEndsTheWaitForItsResults) {
  hold_builds();
  fail_build = true;
  TraceWriter(trace).op(0, 5, 10, true);
  FlushInfo info;
  uint64_t first_result_id, ticket;
  ASSERT_TRUE(client->flush(trace, &first_result_id, &info, &ticket).ok());
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    release_builds();
  });
  ResultWords result_words;
  EXPECT_EQ(client->wait_results(ticket, &result_words, kPatient, &error).code(), ErrorCode::kUnsupported);
  later.join();
  EXPECT_TRUE(synchronize().ok());  // the failure is reported only once
}

TEST_P(ClientTest, AFailedOpOfALoadedGraphHasItsSource) {
  ProgramPtr program;
  ASSERT_TRUE(client->load(small_graph(), {{0xC0DE, 5, 0}}, {}, {}, &program).ok());
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
  ASSERT_TRUE(client->load(small_graph(), {{0xC0DE, 5, 0}}, {}, {}, &program).ok());
  const int64_t params[] = {1};
  const uint64_t inputs[] = {9};
  uint64_t made;
  FlushInfo info;
  ASSERT_TRUE(client->run(program, {params, inputs, 1}, &made, &info).ok());  // the build has not failed yet
  release_builds();
  EXPECT_EQ(synchronize().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(client->run(program, {params, inputs, 1}, &made, &info).message(), "remote: no such thing");
  EXPECT_TRUE(synchronize().ok());
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
  EXPECT_EQ(error.status.exception_type(), "IndexError");
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
  while (client->connection().last_acknowledged() <
         4) {     // upload, load and run after the hello are acknowledged by Acknowledge messages alone
    upload("y");  // receives what has come
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
  expect_lost(client->connection().health());
  expect_lost(read(id, 1, &text));
  expect_lost(synchronize());
  uint64_t first_result_id;
  FlushInfo info;
  TraceWriter(trace).op(0, 5, 10, true);
  expect_lost(client->flush(trace, &first_result_id, &info));
  expect_lost(client->upload(1, [](std::byte*) {}, &first_result_id));
  client->free(1);
}

TEST_P(ClientTest, AClientThatIsGivenUpEndsAllWaitsAndClosesTheSession) {
  const uint64_t id = upload("x");
  ASSERT_TRUE(synchronize().ok());
  worker->hold_replies(true);
  std::thread ends([&] {
    std::this_thread::sleep_for(20ms);
    client->end_waits();
  });
  std::string text;
  EXPECT_EQ(read(id, 1, &text).code(), ErrorCode::kLost);
  ends.join();
  EXPECT_EQ(synchronize().code(), ErrorCode::kLost);
  client = nullptr;
  while (!worker->session_was_closed()) std::this_thread::yield();
}

TEST_P(ClientTest, DeathWhileABuildIsPendingEndsAllWaits) {
  hold_builds();
  TraceWriter(trace).op(0, 5, 10, true);
  FlushInfo info;
  uint64_t first_result_id, ticket;
  ASSERT_TRUE(client->flush(trace, &first_result_id, &info, &ticket).ok());
  worker->die();
  ResultWords result_words;
  EXPECT_EQ(client->wait_results(ticket, &result_words, kPatient, &error).code(), ErrorCode::kLost);
  release_builds();
}

TEST_P(ClientTest, GarbageFromTheWorkerLosesIt) {
  worker->send_raw(Type::kAcknowledge, 1, {1, 2, 3});
  EXPECT_EQ(synchronize().code(), ErrorCode::kLost);
}

TEST_P(ClientTest, AnAcknowledgementOfWhatWasNeverSentLosesTheWorker) {
  worker->send_raw(Type::kAcknowledge, 1'000'000, {});
  EXPECT_EQ(synchronize().code(), ErrorCode::kLost);
}

TEST_P(ClientTest, AReplyOfAnotherTypeLosesTheWorker) {
  worker->hold_replies(true);
  TraceWriter(trace).op(0, 5, 10, true);
  FlushInfo info;
  uint64_t first_result_id, ticket;
  ASSERT_TRUE(client->flush(trace, &first_result_id, &info, &ticket).ok());
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateReadReply(builder));
  const std::vector<uint8_t> reply(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
  worker->send_raw(Type::kReadReply, ticket, reply);
  ResultWords result_words;
  const Status status = client->wait_results(ticket, &result_words, kPatient, &error);
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_NE(status.message().find("but the message had type 4"), std::string::npos) << status.message();
}

TEST_P(ClientTest, TheReplyToAnEmptyReadMayLackAnAttachment) {
  worker->hold_replies(true);
  std::thread replies([&] {
    while (worker->messages().empty()) std::this_thread::yield();
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(wire::CreateReadReply(builder));
    const std::vector<uint8_t> reply(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
    worker->send_raw(Type::kReadReply, worker->messages().back().sequence, reply);
  });
  std::string text = "old";
  EXPECT_TRUE(read(7, 0, &text).ok());
  EXPECT_EQ(text, "");
  replies.join();
}

// Has no memory for attachments while `full` is set.
class FullTransport : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override {
    if (full && attachment) return {ErrorCode::kOutOfMemory, "remote: no shared memory"};
    return ForwardingTransport::send(header, control, std::move(attachment));
  }
  bool full = false;
};

TEST(ClientWithoutMemory, WhatCannotBeSentLeavesNoGap) {
  auto [mine, its] = make_inproc_transport();
  FakeWorker worker(std::move(its));  // expects that sequences have no gaps
  auto made = std::make_unique<FullTransport>(std::move(mine));
  FullTransport& transport = *made;
  std::unique_ptr<Client> client;
  ASSERT_TRUE(Client::connect(std::move(made), {}, {}, &client).ok());
  transport.full = true;
  uint64_t id = 0, ticket = 0;
  EXPECT_EQ(client->upload(1, [](std::byte*) {}, &id).code(), ErrorCode::kOutOfMemory);
  const std::byte request[1] = {};
  EXPECT_EQ(client->functions().call(request, {}, &ticket, &id).code(), ErrorCode::kOutOfMemory);
  transport.full = false;
  CallResult result;
  OpError error;
  EXPECT_EQ(client->functions().wait(ticket, kPatient, &result, &error).code(), ErrorCode::kInternal);
  EXPECT_TRUE(client->synchronize(kPatient, &error).ok());
  EXPECT_EQ(client->connection().last_acknowledged(), client->connection().last_sent());
  std::vector<Type> types;
  for (const auto& message : worker.messages()) types.push_back(message.type);
  EXPECT_EQ(types, (std::vector{Type::kFree, Type::kFree, Type::kSynchronize}));
}

INSTANTIATE_TEST_SUITE_P(Transports, ClientTest, testing::ValuesIn(kTransports), name_of);

}  // namespace
}  // namespace torch_remote::remote

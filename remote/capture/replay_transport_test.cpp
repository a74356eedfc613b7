#include "remote/capture/replay_transport.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>

#include "remote/client/checkpoint.h"
#include "remote/client/client.h"
#include "remote/testing/fake_worker.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;
using Pair = std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>>;

Pair unix_pair() {
  int sockets[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  return {make_unix_transport(sockets[0]), make_unix_transport(sockets[1])};
}

// A client with fake workers, over each transport.
class ReplayTest : public testing::TestWithParam<Pair (*)()> {
 protected:
  void begin(uint64_t limit = 1 << 20) {
    auto [mine, its] = GetParam()();
    workers.push_back(std::make_unique<FakeWorker>(std::move(its)));
    ReplayOptions options{
        .folder = folder, .limit = limit, .connect = [this](const KeepWaiting&, auto* to) { return connect(to); }};
    options.retry_time = 1s;
    options.on_due = [this] { ++due; };
    options.log = [this](const std::string& what) {
      const std::lock_guard lock(telling);
      told += what + "\n";
    };
    std::unique_ptr<ReplayTransport> made;
    ASSERT_TRUE(ReplayTransport::open(std::move(mine), std::move(options), &made).ok());
    replaying = made.get();
    const auto build = [](const BuildRequest& request, std::vector<uint8_t>* program) {
      *program = FakeWorker::make_program(*request.graph);
      return Status();
    };
    const Status status = Client::connect(std::move(made), build, {}, &client);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void TearDown() override {
    client = nullptr;
    std::filesystem::remove_all(folder);
  }
  Status connect(std::unique_ptr<Transport>* to) {
    if (refuse) return Status::invalid("there is none");
    auto [mine, its] = GetParam()();
    workers.push_back(std::make_unique<FakeWorker>(std::move(its), hello));
    workers.back()->allow_gaps();
    if (deaths > 0) {
      --deaths;
      workers.back()->die();
    }
    *to = std::move(mine);
    return {};
  }
  void kill() {
    const auto worker = std::move(workers.back());
    worker->die();
  }
  // Kills the worker and waits until another one has replaced it.
  void lose() {
    kill();
    const Status status = synchronize();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  uint64_t upload(const std::string& text) {
    uint64_t id = 0;
    const auto fill = [&](std::byte* to) { std::memcpy(to, text.data(), text.size()); };
    EXPECT_TRUE(client->upload(text.size(), fill, &id).ok());
    return id;
  }
  std::string read(uint64_t buffer, size_t size) {
    const int64_t sizes[] = {static_cast<int64_t>(size)}, strides[] = {1};
    std::string text;
    const auto take = [&](std::span<const std::byte> bytes) {
      text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    OpError error;
    const Status status = client->read(buffer, 1, sizes, strides, 0, take, {}, &error);
    return status.ok() ? text : status.message();
  }
  Status synchronize() {
    OpError error;
    return client->synchronize({}, &error);
  }
  void load() {
    program = nullptr;
    auto graph = std::make_shared<ir::Graph>();
    graph->params = 1;
    graph->buffers.resize(2);
    graph->buffers[0].kind = ir::BufferKind::kInput;
    graph->nodes.resize(1);
    graph->nodes[0].opcode = 3;
    const int64_t sample[] = {1};
    ASSERT_TRUE(client->load(graph, {}, sample, {}, &program).ok());
  }
  void run(int64_t parameter, uint64_t input) {
    const int64_t params[] = {parameter};
    const uint64_t inputs[] = {input};
    uint64_t first_result_id;
    FlushInfo info;
    const Status status = client->run(program, {params, inputs, 1}, &first_result_id, &info);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // The messages of this type that a worker received.
  static std::vector<FakeWorker::Message> of(FakeWorker& worker, wire::Type type) {
    std::vector<FakeWorker::Message> all;
    for (auto& message : worker.messages()) {
      if (message.type == type) all.push_back(message);
    }
    return all;
  }
  void checkpoint() {
    bool created = false;
    std::vector<CheckpointBuffer> buffers;
    ASSERT_TRUE(replaying->begin_checkpoint().ok());
    ASSERT_TRUE(client->checkpoint().begin({}, &created, &buffers).ok());
    ASSERT_TRUE(created);
    for (const CheckpointBuffer& buffer : buffers) {
      const auto take = [&](std::span<const std::byte> bytes) { return replaying->add_buffer(buffer.id, bytes); };
      ASSERT_TRUE(client->checkpoint().read(buffer, take, {}).ok());
    }
    ASSERT_TRUE(replaying->commit_checkpoint().ok());
    ASSERT_TRUE(client->checkpoint().drop({}).ok());
  }

  std::mutex telling;
  std::string told;
  std::string folder = testing::TempDir() + "/replay";
  std::deque<std::unique_ptr<FakeWorker>> workers;
  ReplayTransport* replaying = nullptr;
  std::unique_ptr<Client> client;
  ProgramPtr program;
  // Waits for a log message. The transport's thread may log it after other threads have continued.
  bool tells(const std::string& what) {
    for (int i = 0; i < 1000; ++i) {
      {
        const std::lock_guard lock(telling);
        if (told.find(what) != std::string::npos) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  Status hello;
  std::atomic<bool> refuse = false;
  std::atomic<int> deaths = 0;
  std::atomic<int> due = 0;  // calls of ReplayOptions::on_due
};

INSTANTIATE_TEST_SUITE_P(Transports, ReplayTest, testing::Values(make_inproc_transport, unix_pair));

// A new worker gets only the programs that can still run, and those that a message since the checkpoint runs.
TEST_P(ReplayTest, ProgramsThatWereDroppedAreNotSentAgain) {
  begin();
  const uint64_t buffer = upload("data");
  for (int i = 0; i < 200; ++i) {
    load();
    run(i, buffer);
  }
  ASSERT_TRUE(synchronize().ok());
  load();  // drops all earlier programs
  run(200, buffer);
  ASSERT_TRUE(synchronize().ok());
  checkpoint();
  run(200, buffer);
  load();  // drops the previous program, which ran since the checkpoint
  run(201, buffer);
  ASSERT_TRUE(synchronize().ok());
  lose();
  EXPECT_EQ(of(*workers.back(), wire::Type::kLoadProgram).size(), 2u);
  EXPECT_EQ(of(*workers.back(), wire::Type::kRun).size(), 2u);
  run(202, buffer);
  EXPECT_TRUE(synchronize().ok());
  checkpoint();
  lose();
  EXPECT_EQ(of(*workers.back(), wire::Type::kLoadProgram).size(), 1u);
  run(203, buffer);
  EXPECT_TRUE(synchronize().ok());
}

TEST_P(ReplayTest, AnotherWorkerHearsTheSame) {
  begin();
  load();
  const std::string large(100'000, 'x');
  const uint64_t a = upload("abc"), b = upload(large);
  run(5, a);
  run(6, b);
  EXPECT_EQ(read(a, 3), "abc");
  lose();
  EXPECT_EQ(read(b, large.size()), large);
  ASSERT_EQ(workers.size(), 2u);
  run(7, a);
  EXPECT_TRUE(synchronize().ok());
  const auto runs = of(*workers[1], wire::Type::kRun);
  ASSERT_EQ(runs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(runs[i].params, std::vector<int64_t>{5 + static_cast<int64_t>(i)});
  EXPECT_EQ(runs[1].inputs, std::vector<uint64_t>{b});
  EXPECT_EQ(runs[2].inputs, std::vector<uint64_t>{a});
  EXPECT_EQ(replaying->restored(), 1u);
  EXPECT_TRUE(tells("are restored"));
}

TEST_P(ReplayTest, WhatWasMadeForALostWorkerGoesToTheNextOne) {
  begin();
  const std::string text(50'000, 'y');
  uint64_t id = 0;
  const auto fill = [&](std::byte* to) {
    std::memcpy(to, text.data(), text.size());
    kill();  // between the allocation and the message
    std::this_thread::sleep_for(50ms);
  };
  ASSERT_TRUE(client->upload(text.size(), fill, &id).ok());
  EXPECT_EQ(read(id, text.size()), text);
}

TEST_P(ReplayTest, ACheckpointStandsForAllThatWasBefore) {
  begin();
  load();
  const uint64_t a = upload("abc"), b = upload("defg");
  run(5, a);
  run(9, b);
  checkpoint();
  run(5, a);  // sends all of its parameters again
  run(6, a);
  EXPECT_EQ(read(b, 4), "defg");
  lose();
  EXPECT_EQ(read(a, 3), "abc");
  EXPECT_EQ(read(b, 4), "defg");
  const auto runs = of(*workers[1], wire::Type::kRun);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].params, std::vector<int64_t>{5});
  EXPECT_EQ(runs[1].params, std::vector<int64_t>{6});
  EXPECT_EQ(runs[1].inputs, std::vector<uint64_t>{a});
  const uint64_t c = upload("late");
  lose();  // again, from the same checkpoint
  EXPECT_EQ(read(c, 4), "late");
  EXPECT_EQ(read(b, 4), "defg");
  EXPECT_EQ(replaying->restored(), 2u);
}

TEST_P(ReplayTest, WorkersThatDieWhileTheyAreRebuilt) {
  begin();
  const uint64_t a = upload("abc");
  EXPECT_TRUE(synchronize().ok());
  deaths = 2;
  lose();
  EXPECT_EQ(read(a, 3), "abc");
  EXPECT_EQ(workers.size(), 4u);
}

TEST_P(ReplayTest, ThatDieAtTheSamePlaceAreGivenUp) {
  begin();
  upload("abc");
  EXPECT_TRUE(synchronize().ok());
  deaths = 100;
  kill();
  const Status status = synchronize();
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_NE(status.message().find("at the same message"), std::string::npos) << status.message();
}

TEST_P(ReplayTest, NoOtherWorkerIsThere) {
  begin();
  refuse = true;
  kill();
  const Status status = synchronize();
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_NE(status.message().find("there is none"), std::string::npos) << status.message();
}

TEST_P(ReplayTest, AWorkerThatRefusesIsNoOther) {
  begin();
  hello = {ErrorCode::kUnsupported, "not you"};
  kill();
  EXPECT_NE(synchronize().message().find("not you"), std::string::npos);
}

TEST_P(ReplayTest, WhatCannotBeRepeatedIsLostUntilACheckpoint) {
  begin();
  const uint64_t a = upload("abc");
  EXPECT_TRUE(client->cancel().ok());
  EXPECT_TRUE(replaying->checkpoint_due());
  checkpoint();
  EXPECT_FALSE(replaying->checkpoint_due());
  lose();
  EXPECT_EQ(read(a, 3), "abc");
  EXPECT_TRUE(client->cancel().ok());
  EXPECT_TRUE(synchronize().ok());
  kill();
  EXPECT_NE(synchronize().message().find("cancelled"), std::string::npos);
}

// The reply makes a checkpoint useless that was made during the call.
TEST_P(ReplayTest, TheReplyOfACallMakesACheckpointDue) {
  begin();
  const std::byte request[1] = {};
  uint64_t ticket = 0, first_result_id = 0;
  ASSERT_TRUE(client->functions().call(request, {}, &ticket, &first_result_id).ok());
  const int before = due;
  EXPECT_GT(before, 0);
  CallResult result;
  OpError error;
  ASSERT_TRUE(client->functions().wait(ticket, {}, &result, &error).ok());
  EXPECT_GT(due.load(), before);
  EXPECT_TRUE(replaying->checkpoint_due());
}

TEST_P(ReplayTest, TheLogHasALimit) {
  begin(20'000);
  upload(std::string(9'000, 'a'));
  EXPECT_FALSE(replaying->checkpoint_due());
  const uint64_t b = upload(std::string(9'000, 'b'));
  EXPECT_TRUE(replaying->checkpoint_due());
  upload(std::string(9'000, 'c'));  // exceeds the limit
  checkpoint();
  const uint64_t d = upload(std::string(9'000, 'd'));
  lose();
  EXPECT_EQ(read(b, 9'000), std::string(9'000, 'b'));
  EXPECT_EQ(read(d, 9'000), std::string(9'000, 'd'));
  upload(std::string(9'000, 'e'));
  upload(std::string(9'000, 'f'));
  EXPECT_TRUE(synchronize().ok());
  kill();
  EXPECT_NE(synchronize().message().find("reached its limit"), std::string::npos);
}

TEST_P(ReplayTest, AnEndWhileItIsRebuilt) {
  begin();
  upload("abc");
  refuse = true;
  kill();
  std::this_thread::sleep_for(20ms);
  client = nullptr;  // does not wait until `retry_time` is over
}

TEST_P(ReplayTest, NothingIsLeftInTheFolder) {
  begin();
  upload("abc");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace torch_remote::remote

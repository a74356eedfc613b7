#include "frontend/device/restore.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <utility>

#include "remote/client/testing/client_fixture.h"

namespace torch_remote::frontend {
namespace {

class RestoreTest : public testing::Test {
 protected:
  void SetUp() override {
    auto [mine, its] = remote::make_inproc_transport();
    worker = std::make_unique<remote::FakeWorker>(std::move(its));
    transport = std::move(mine);
    RestoreOptions options;
    options.folder = testing::TempDir();
    const Status status = Restore::wrap(options, {}, &transport, &restore);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void start() {
    ASSERT_TRUE(remote::Client::connect(std::move(transport), {}, {}, &client).ok());
    restore->start(*client);
  }

  std::unique_ptr<remote::FakeWorker> worker;  // must outlive the client
  std::unique_ptr<remote::Transport> transport;
  std::shared_ptr<Restore> restore;
  std::unique_ptr<remote::Client> client;
};

TEST_F(RestoreTest, TheTransportKeepsTheObjectThatItCalls) {
  const std::weak_ptr<Restore> watched = restore;
  restore = nullptr;
  EXPECT_FALSE(watched.expired());
  transport = nullptr;
  EXPECT_TRUE(watched.expired());
}

TEST_F(RestoreTest, TheEndInterruptsACheckpointOfAnotherThread) {
  start();
  worker->pause(true);
  std::promise<void> waits;
  bool called = false, made = true;
  Status status;
  std::thread other([&] {
    const auto keep_waiting = [&] {
      if (!std::exchange(called, true)) waits.set_value();
      return true;
    };
    status = restore->checkpoint(keep_waiting, &made);
  });
  waits.get_future().wait();
  restore->end();
  client = nullptr;
  other.join();
  EXPECT_EQ(status.code(), ErrorCode::kInterrupted);
  EXPECT_NE(status.message().find("restart()"), std::string::npos) << status.message();
  EXPECT_FALSE(made);
}

TEST_F(RestoreTest, ThereIsNoCheckpointAfterTheEnd) {
  start();
  bool made = false;
  EXPECT_TRUE(restore->checkpoint([] { return true; }, &made).ok());
  EXPECT_TRUE(made);
  restore->end();
  restore->end();  // does nothing
  EXPECT_EQ(restore->checkpoint([] { return true; }, &made).code(), ErrorCode::kInterrupted);
  EXPECT_FALSE(made);
}

}  // namespace
}  // namespace torch_remote::frontend

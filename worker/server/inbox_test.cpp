#include "worker/server/inbox.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "remote/transport/forwarding_transport.h"
#include "remote/wire/message.h"

namespace torch_remote::worker {
namespace {

using namespace std::chrono_literals;

class InboxTest : public ::testing::Test {
 protected:
  InboxTest() {
    std::tie(client, worker) = remote::make_inproc_transport();
    inbox = std::make_unique<Inbox>(*worker);
  }

  void send(uint64_t sequence, size_t bytes = 8, uint8_t flags = 0) {
    wire::Header header;
    header.flags = flags;
    header.type = static_cast<uint8_t>(wire::Type::kRun);
    header.sequence = sequence;
    ASSERT_TRUE(client->send(header, std::vector<uint8_t>(bytes), nullptr).ok());
  }

  void cancel(uint64_t last_sequence) {
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(wire::CreateCancel(builder, last_sequence));
    wire::Header header;
    header.type = static_cast<uint8_t>(wire::Type::kCancel);
    ASSERT_TRUE(client->send(header, {builder.GetBufferPointer(), builder.GetSize()}, nullptr).ok());
  }

  // Returns the sequence of the next message; 0: there is none.
  uint64_t next(std::chrono::nanoseconds timeout = 0ns) {
    remote::Frame frame;
    const Status status = inbox->receive(&frame, timeout);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.message();
      return 0;
    }
    inbox->begin(frame);
    return frame.header.sequence;
  }

  std::unique_ptr<remote::Transport> client, worker;
  std::unique_ptr<Inbox> inbox;
};

TEST_F(InboxTest, MessagesKeepTheirOrderWhetherTakenEarlyOrNot) {
  send(1);
  send(2);
  EXPECT_FALSE(inbox->poll_cancelled(1));  // Receives both.
  send(3);
  EXPECT_EQ(next(), 1u);
  EXPECT_EQ(next(), 2u);
  EXPECT_EQ(next(), 3u);
  EXPECT_EQ(next(), 0u);
}

TEST_F(InboxTest, ACancelIsSeenBeforeWhatCameBeforeItIsHandled) {
  send(1);
  send(2);
  send(3);
  cancel(2);
  EXPECT_TRUE(inbox->poll_cancelled(1));
  EXPECT_TRUE(inbox->is_cancelled(2));
  EXPECT_FALSE(inbox->is_cancelled(3));
  cancel(1);  // A late Cancel has no effect.
  EXPECT_TRUE(inbox->poll_cancelled(2));
  for (uint64_t sequence : {1, 2, 3}) EXPECT_EQ(next(), sequence);  // A Cancel is not returned as a message.
  EXPECT_EQ(next(), 0u);
}

// Other threads ask, too: those of ops in the background.
TEST_F(InboxTest, OnlyItsOwnThreadReceivesWhenItIsAskedAboutARun) {
  send(1);
  EXPECT_EQ(next(), 1u);
  EXPECT_EQ(inbox->current_message(), 1u);
  cancel(1);
  std::thread other([this] { EXPECT_FALSE(inbox->is_over(1)); });
  other.join();
  EXPECT_TRUE(inbox->is_over(1));
  EXPECT_FALSE(inbox->is_over(2));
}

TEST_F(InboxTest, ACancelThatIsNoneChangesNothing) {
  wire::Header header;
  header.type = static_cast<uint8_t>(wire::Type::kCancel);
  ASSERT_TRUE(client->send(header, std::vector<uint8_t>(3, 0xff), nullptr).ok());
  send(1);
  EXPECT_FALSE(inbox->poll_cancelled(1));
  EXPECT_EQ(next(), 1u);
}

TEST_F(InboxTest, MessagesThatNobodyHandlesWaitOutside) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  client = remote::make_unix_transport(sockets[0]);
  worker = remote::make_unix_transport(sockets[1]);
  inbox = std::make_unique<Inbox>(*worker);
  constexpr uint64_t kMessages = 24;
  std::atomic<uint64_t> sent = 0;
  std::thread sender([&] {
    for (uint64_t i = 1; i <= kMessages; ++i) {
      send(i, 16 << 20);
      sent = i;
    }
  });
  while (sent < 15) EXPECT_FALSE(inbox->poll_cancelled(1));  // 256 MB are received early.
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(inbox->poll_cancelled(1));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_LE(sent, 18u);  // No more are received, however often it looks.
  for (uint64_t i = 1; i <= kMessages; ++i) EXPECT_EQ(next(10s), i);
  sender.join();
}

TEST_F(InboxTest, WhatCameBeforeTheClientWentIsHandled) {
  send(1);
  send(2);
  EXPECT_FALSE(inbox->poll_cancelled(1));
  client.reset();
  EXPECT_FALSE(inbox->poll_cancelled(1));  // Notices the end of the connection.
  EXPECT_EQ(next(), 1u);
  EXPECT_EQ(next(), 2u);
  for (int i = 0; i < 2; ++i) {
    remote::Frame frame;
    EXPECT_EQ(inbox->receive(&frame, 10s).code(), ErrorCode::kLost);
  }
}

TEST_F(InboxTest, AWakeIsKeptUntilItIsForgotten) {
  inbox->wake();
  EXPECT_FALSE(inbox->poll_cancelled(1));  // May consume the transport's wake-up.
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(next(60s), 0u);
  EXPECT_EQ(next(60s), 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 30s);
  inbox->forget_wake();
  std::thread sender([this] {
    std::this_thread::sleep_for(5ms);
    send(1);
  });
  uint64_t found = next(60s);
  if (found == 0) found = next(60s);  // The transport's own wake-up, if it is still pending.
  EXPECT_EQ(found, 1u);
  sender.join();
}

TEST_F(InboxTest, AThreadThatWaitsIsWoken) {
  std::thread waker([this] {
    std::this_thread::sleep_for(5ms);
    inbox->wake();
  });
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(next(60s), 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 30s);
  waker.join();
}

TEST_F(InboxTest, OfAClientThatIsNoProcessNothingIsKnown) {
  inbox->watch_client(getpid());
  send(1);
  EXPECT_EQ(next(), 1u);
  EXPECT_EQ(inbox->client_activity(), TR_CLIENT_IDLE);
}

// A client that is a process of this machine.
class ProcessTransport : public remote::ForwardingTransport {
 public:
  ProcessTransport(std::unique_ptr<Transport> inner, int process)
      : ForwardingTransport(std::move(inner)), process_(process) {}
  int peer_process() const override { return process_; }

 private:
  const int process_;
};

TEST_F(InboxTest, AClientThatWasAnsweredComputes) {
  const pid_t process = fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    for (;;) pause();
  }
  worker = std::make_unique<ProcessTransport>(std::move(worker), process);
  inbox = std::make_unique<Inbox>(*worker);
  inbox->watch_client(0);
  uint64_t sequence = 0;
  const auto activity_in_a_run = [&] {
    send(++sequence);
    EXPECT_EQ(next(), sequence);
    return inbox->client_activity();
  };
  tr_client_activity activity = activity_in_a_run();
  for (int i = 0; i < 200 && activity != TR_CLIENT_IDLE; ++i) {
    std::this_thread::sleep_for(1ms);
    activity = activity_in_a_run();
  }
  EXPECT_EQ(activity, TR_CLIENT_IDLE);  // It has used no processor time for a while.
  send(++sequence, 8, wire::kWantsReply);
  EXPECT_EQ(next(), sequence);
  EXPECT_EQ(activity_in_a_run(), TR_CLIENT_COMPUTING);
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
}

}  // namespace
}  // namespace torch_remote::worker

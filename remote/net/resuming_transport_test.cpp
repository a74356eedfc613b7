// Tests sessions over connections that break: every frame arrives once, in order and unchanged.
#include "remote/net/resuming_transport.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "remote/net/testing/cutting_proxy.h"
#include "remote/net/testing/net_pairs.h"
#include "remote/transport/stream_transport.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;
using Connection = ResumingTransport::Connection;
using Freeze = ResumingTransport::Freeze;

constexpr auto kLong = 60s;
constexpr auto kHandshake = 1s;

uint64_t value_of(std::span<const uint8_t> bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// Both ends of a session over connections through a proxy. Instead of a handshake, each end sends the number of frames
// that it has received.
class Session {
 public:
  Session(bool tls, uint32_t seed, size_t between, size_t cuts, ResumingTransport::Options options) : tls_(tls) {
    bool loopback;
    EXPECT_TRUE(listen_tcp(&address_, &listener_, &loopback).ok());
    proxy = std::make_unique<testing::CuttingProxy>(address_.port, seed, between, cuts);
    if (tls_) {
      EXPECT_TRUE(TlsContext::for_client({"", "", certificates_.file("ca.pem")}, &clients_).ok());
      EXPECT_TRUE(TlsContext::for_worker(certificates_.of("worker"), &workers_).ok());
    }
    const auto none = [] { return uint64_t{0}; };
    std::unique_ptr<Connection> first = std::make_unique<Connection>(), second = std::make_unique<Connection>();
    std::thread other([&] {
      while (!accept_one(10ms, none, second.get()).ok()) {
      }
    });
    while (!connect_one(none, first.get()).ok()) {
    }
    other.join();
    options.reconnect_always = false;
    client = std::make_unique<ResumingTransport>(
        std::move(*first), options,
        [this](bool broken, std::chrono::milliseconds, const Freeze& freeze, Connection* connection) {
          return broken ? connect_one(freeze, connection) : Status(ErrorCode::kTimeout, "");
        });
    options.reconnect_always = true;
    worker = std::make_unique<ResumingTransport>(
        std::move(*second), options,
        [this](bool, std::chrono::milliseconds step, const Freeze& freeze, Connection* connection) {
          return accept_one(std::min<std::chrono::milliseconds>(step, 10ms), freeze, connection);
        });
  }
  ~Session() {
    client = nullptr;
    worker = nullptr;
    proxy = nullptr;
    close(listener_);
  }

  std::unique_ptr<testing::CuttingProxy> proxy;
  std::unique_ptr<ResumingTransport> client, worker;
  std::atomic<bool> gone{false};  // connections fail, as if nobody listened any more

 private:
  static Status exchange(ByteStream& stream, uint64_t mine, uint64_t* theirs) {
    const Deadline deadline(kHandshake);
    int none = -1;
    const iovec out{&mine, sizeof(mine)}, in{theirs, sizeof(*theirs)};
    size_t n = 0;
    Status status = stream.write({&out, 1}, &n, &none);
    while (status.ok()) {
      status = stream.read({&in, 1}, &n, nullptr);
      if (status.ok()) return n == sizeof(*theirs) ? Status() : Status(ErrorCode::kLost, "short");
      if (status.code() == ErrorCode::kTimeout) status = deadline.wait(stream.input(), POLLIN);
    }
    return status.ok() ? status : Status(ErrorCode::kLost, status.message());
  }

  Status begin(int socket, bool client_side, const Freeze& freeze, Connection* connection) {
    std::unique_ptr<ByteStream> stream;
    if (!tls_) {
      stream = make_socket_stream(socket, "tcp");
    } else {
      std::unique_ptr<TlsStream> made;
      const TlsPeer peer{.host = client_side ? "127.0.0.1" : ""};
      if (Status status =
              start_tls(socket, client_side ? *clients_ : *workers_, peer, Deadline(kHandshake), "tls", &made);
          !status.ok()) {
        return {ErrorCode::kLost, status.message()};
      }
      made->use_large_buffers();
      stream = std::move(made);
    }
    uint64_t theirs = 0;
    if (Status status = exchange(*stream, freeze(), &theirs); !status.ok()) return status;
    connection->transport = std::make_unique<StreamTransport>(std::move(stream), StreamTransport::Options());
    connection->received = theirs;
    return {};
  }

  Status connect_one(const Freeze& freeze, Connection* connection) {
    if (gone) return {ErrorCode::kUnsupported, "remote: nobody is there"};
    int socket = -1;
    if (Status status = connect_tcp({"127.0.0.1", proxy->port()}, Deadline(kHandshake), &socket); !status.ok()) {
      return {ErrorCode::kLost, status.message()};
    }
    return begin(socket, true, freeze, connection);
  }

  Status accept_one(std::chrono::milliseconds step, const Freeze& freeze, Connection* connection) {
    Status not_yet = {ErrorCode::kTimeout, ""};
    pollfd polled{listener_, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(step.count())) <= 0) return not_yet;
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return not_yet;
    set_up_tcp(socket);
    return begin(socket, false, freeze, connection).ok() ? Status() : not_yet;
  }

  const bool tls_;
  testing::Certificates certificates_;
  std::shared_ptr<const TlsContext> clients_, workers_;
  Address address_{"127.0.0.1", 0};
  int listener_ = -1;
};

// Bytes of the n-th frame's attachment: mostly none, some small, some large.
size_t attached(uint64_t n) { return n % 7 == 0 ? 200'000 + n % 1000 : n % 3 == 0 ? n % 5000 : 0; }

void send_all(Transport& transport, uint64_t count) {
  for (uint64_t n = 1; n <= count; ++n) {
    std::vector<uint8_t> control(8 + n % 300);
    std::memcpy(control.data(), &n, sizeof(n));
    for (size_t i = 8; i < control.size(); ++i) control[i] = static_cast<uint8_t>(n + i);
    AttachmentPtr bytes;
    if (const size_t size = attached(n)) {
      bytes = transport.allocate(size);
      for (size_t i = 0; i < size; ++i) bytes->bytes()[i] = static_cast<std::byte>(n * 7 + i);
    }
    wire::Header header;
    header.type = static_cast<uint8_t>(wire::Type::kRun);
    header.sequence = n;
    const Status status = transport.send(header, control, std::move(bytes));
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

void receive_all(Transport& transport, uint64_t count) {
  for (uint64_t n = 1; n <= count; ++n) {
    Frame frame;
    const Status status = transport.receive(&frame, kLong);
    ASSERT_TRUE(status.ok()) << n << ": " << status.message();
    ASSERT_EQ(frame.header.sequence, n);
    ASSERT_EQ(frame.control.size(), 8 + n % 300);
    ASSERT_EQ(value_of(frame.control), n);
    const size_t size = frame.attachment ? frame.attachment->bytes().size() : 0;
    ASSERT_EQ(size, attached(n));
    for (size_t i = 0; i < size; i += 997) {
      ASSERT_EQ(frame.attachment->bytes()[i], static_cast<std::byte>(n * 7 + i)) << n;
    }
  }
}

// TORCH_REMOTE_TEST_CUTS sets the number of cuts for manual runs.
size_t wanted_cuts(size_t normally) {
  const char* text = std::getenv("TORCH_REMOTE_TEST_CUTS");
  return text ? static_cast<size_t>(std::atoll(text)) : normally;
}

class CutTest : public ::testing::TestWithParam<bool> {};

TEST_P(CutTest, EverythingArrivesOnceWhereverConnectionsAreCut) {
  const size_t cuts = wanted_cuts(120);
  ResumingTransport::Options options;
  options.max_unacknowledged_bytes = 4 << 20;
  Session session(GetParam(), 7, 400'000, cuts, options);
  const uint64_t frames = 60 * cuts;
  std::thread clients_in([&] { receive_all(*session.client, frames); });
  std::thread workers_in([&] { receive_all(*session.worker, frames); });
  std::thread workers_out([&] { send_all(*session.worker, frames); });
  send_all(*session.client, frames);
  workers_out.join();
  workers_in.join();
  clients_in.join();
  EXPECT_EQ(session.proxy->cuts(), cuts);
  EXPECT_GE(session.client->resumed(), cuts / 2);  // some cuts hit a handshake
}

INSTANTIATE_TEST_SUITE_P(Streams, CutTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "tls" : "tcp"; });

ResumingTransport::Options quick() {
  ResumingTransport::Options options;
  options.heartbeat = 40ms;
  options.lease = 400ms;
  return options;
}

TEST(ResumingTransport, ASilentConnectionIsCutAndAnIdleOneIsNot) {
  Session session(false, 1, 0, 0, quick());
  std::this_thread::sleep_for(500ms);  // more than three heartbeats without a frame of the user
  EXPECT_EQ(session.client->resumed(), 0u);
  session.proxy->stall(true);
  std::this_thread::sleep_for(250ms);
  session.proxy->stall(false);
  send_all(*session.client, 3);
  receive_all(*session.worker, 3);
  EXPECT_GE(session.client->resumed(), 1u);
}

TEST(ResumingTransport, ASessionWithoutAConnectionEndsWithItsLease) {
  Session session(false, 1, 0, 0, quick());
  session.proxy->stall(true);
  const auto begin = std::chrono::steady_clock::now();
  Frame frame;
  const Status status = session.worker->receive(&frame, kLong);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_NE(status.message().find("could not be resumed within"), std::string::npos) << status.message();
  EXPECT_GE(took, 400ms);
  EXPECT_LT(took, 10s);
  EXPECT_EQ(session.worker->send({}, {}, nullptr).code(), ErrorCode::kLost);
}

TEST(ResumingTransport, WhatWillNotDoEndsTheSessionAtOnce) {
  Session session(false, 1, 0, 0, {});
  session.gone = true;
  session.proxy->cut();
  Frame frame;
  const Status status = session.client->receive(&frame, kLong);
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_EQ(status.message(), "remote: nobody is there");
}

TEST(ResumingTransport, WhatIsKeptIsBoundedAndSendingWaits) {
  ResumingTransport::Options options;
  options.max_unacknowledged_bytes = 1 << 20;
  Session session(false, 1, 0, 0, options);
  std::atomic<int> sent = 0;
  session.proxy->stall(true);
  std::thread sender([&] {
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(session.client->send({}, {}, session.client->allocate(300'000)).ok());
      ++sent;
    }
  });
  std::this_thread::sleep_for(100ms);
  EXPECT_LE(sent, 3);
  session.proxy->stall(false);
  Frame frame;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(session.worker->receive(&frame, kLong).ok());
  sender.join();
}

TEST(ResumingTransport, MemoryIsKeptUntilTheOtherEndHasIt) {
  Session session(false, 1, 0, 0, {});
  std::vector<std::byte> bytes(100'000);
  auto keep = std::make_shared<int>(1);
  std::weak_ptr<int> alive = keep;
  AttachmentPtr shared = session.client->share(bytes.data(), bytes.size(), std::move(keep));
  session.proxy->stall(true);
  ASSERT_TRUE(session.client->send({}, {}, std::move(shared)).ok());
  EXPECT_FALSE(alive.expired());
  session.proxy->stall(false);
  Frame frame;
  ASSERT_TRUE(session.worker->receive(&frame, kLong).ok());
  for (int i = 0; i < 1000 && !alive.expired(); ++i) (void)session.client->receive(&frame, 5ms);
  EXPECT_TRUE(alive.expired());
}

std::unique_ptr<StreamTransport> over(int socket) {
  return std::make_unique<StreamTransport>(make_socket_stream(socket, "tcp"), StreamTransport::Options());
}

std::unique_ptr<ResumingTransport> with_one_connection(int socket) {
  const auto gone = [](bool, std::chrono::milliseconds, const Freeze&, Connection*) {
    return Status(ErrorCode::kUnsupported, "remote: it is gone");
  };
  return std::make_unique<ResumingTransport>(Connection{over(socket), 0}, ResumingTransport::Options(), gone);
}

// If each step uploads a batch of 64 KiB, the receiver must not acknowledge every one, because that wakes the sender.
TEST(ResumingTransport, UploadsAreConfirmedSeveralAtATime) {
  constexpr int kFrames = 32;
  const auto [a, b] = testing::tcp_sockets();
  const auto end = with_one_connection(a);
  const auto other = over(b);
  wire::Header header;
  header.type = static_cast<uint8_t>(wire::Type::kUpload);
  Frame frame;
  for (int i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(other->send(header, {}, other->allocate(64 << 10)).ok());
    ASSERT_TRUE(end->receive(&frame, kLong).ok());
  }
  int confirmations = 0;
  uint64_t confirmed = 0;
  while (other->receive(&frame, 20ms).ok()) {
    ASSERT_EQ(frame.header.type, static_cast<uint8_t>(wire::Type::kReceivedAck));
    confirmed = frame.header.sequence;
    ++confirmations;
  }
  EXPECT_LE(confirmations, kFrames / 3);
  EXPECT_GE(confirmed, static_cast<uint64_t>(kFrames) - 4);
}

TEST(ResumingTransport, TheOtherEndsProcessIsKnownByItsSocket) {
  const auto [a, b] = testing::tcp_sockets();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(b);
    pause();
    _exit(0);
  }
  close(a);
  const auto end = with_one_connection(b);
  EXPECT_EQ(end->peer_process(), 0);
  EXPECT_TRUE(end->is_peer(child));
  EXPECT_FALSE(end->is_peer(0));
  EXPECT_FALSE(end->is_peer(getpid()));
  EXPECT_FALSE(end->is_peer(getppid()));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(end->is_peer(child));
}

TEST(ResumingTransport, AnEndThatGoesTellsTheOtherOne) {
  Session session(false, 1, 0, 0, {});
  session.worker = nullptr;
  Frame frame;
  const Status status = session.client->receive(&frame, kLong);
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_NE(status.message().find("has ended the session"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace torch_remote::remote

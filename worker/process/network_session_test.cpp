// A session's process whose client connects over a network: what it still knows after the first handshake, and what
// continues while clients reconnect.
#include "worker/process/network_session.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "remote/net/testing/net_pairs.h"
#include "remote/transport/stream_transport.h"
#include "worker/process/control_socket.h"
#include "worker/runner/testing/fake_runner.h"
#include "worker/targets/cpu/cpu_target.h"

namespace torch_remote::worker {
namespace {

using namespace std::chrono_literals;
using remote::ClientHello;
using remote::Deadline;
using remote::Digest;

// As at the start of the worker's program.
const bool g_overwrites = remote::enable_openssl_cleansing();

int read_client_hello(int socket, ClientHello* client_hello) {
  auto* to = reinterpret_cast<char*>(client_hello);
  size_t have = 0;
  for (ssize_t n; have < sizeof(*client_hello) && (n = recv(socket, to + have, sizeof(*client_hello) - have, 0)) > 0;) {
    have += static_cast<size_t>(n);
  }
  return static_cast<int>(have);
}

// A session in a process that is forked before there are secrets. This process acts as its listener.
class Session {
 public:
  explicit Session(std::chrono::milliseconds heartbeat) {
    EXPECT_TRUE(make_control_sockets(control_).ok());
    EXPECT_TRUE(make_control_sockets(begin_).ok());
    pid_ = fork();
    if (pid_ == 0) be_session(heartbeat);
    close(control_[1]);
    close(begin_[1]);
  }
  ~Session() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(control_[0]);
    close(begin_[0]);
  }

  // `secrets`: "token", or with TLS "token\ncertificate\nkey".
  void start(const std::string& secrets, int socket) {
    ClientHello client_hello;
    EXPECT_EQ(read_client_hello(socket, &client_hello), static_cast<int>(sizeof(client_hello)));
    const std::string said(reinterpret_cast<const char*>(&client_hello), sizeof(client_hello));
    EXPECT_TRUE(send_control(begin_[0], Control::kReconnect, said, socket));
    EXPECT_EQ(send(begin_[0], secrets.data(), secrets.size(), 0), static_cast<ssize_t>(secrets.size()));
    close(socket);
    pollfd polled{control_[0], POLLIN, 0};
    ControlMessage message;
    EXPECT_EQ(poll(&polled, 1, 30'000), 1);
    EXPECT_TRUE(receive_control(control_[0], &message).ok());
    EXPECT_EQ(message.type, Control::kAdmissionRequest);
    std::memcpy(routing_.data(), message.body.data(), routing_.size());
    EXPECT_TRUE(send_control(control_[0], Control::kAdmitted, {}));
  }
  void hand_over(int socket) {
    ClientHello client_hello;
    EXPECT_EQ(read_client_hello(socket, &client_hello), static_cast<int>(sizeof(client_hello)));
    EXPECT_TRUE(remote::is_from(client_hello, routing_));
    EXPECT_TRUE(send_control(control_[0], Control::kReconnect,
                             std::string(reinterpret_cast<const char*>(&client_hello), sizeof(client_hello)), socket));
    close(socket);
  }

  void signal(int number) const { kill(pid_, number); }
  // Waits until the process has ended. Returns its exit code, or a signal's number, negated.
  int exit_status() const {
    siginfo_t info{};
    (void)waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
    return info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
  }

  // Returns those of the secrets that are in the session's memory.
  std::vector<std::string> has(const std::vector<std::string>& secrets) const {
    std::vector<std::string> found;
    const std::string folder = "/proc/" + std::to_string(pid_);
    std::ifstream maps(folder + "/maps"), memory(folder + "/mem", std::ios::binary);
    EXPECT_TRUE(memory.good());
    size_t looked = 0;
    for (std::string line; std::getline(maps, line);) {
      size_t begin = 0, end = 0;
      char mode[8] = "";
      if (std::sscanf(line.c_str(), "%zx-%zx %7s", &begin, &end, mode) != 3 || mode[1] != 'w') continue;
      std::string bytes(end - begin, '\0');
      memory.clear();
      memory.seekg(static_cast<std::streamoff>(begin));
      if (!memory.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) continue;
      looked += bytes.size();
      for (const std::string& secret : secrets) {
        if (bytes.find(secret) != std::string::npos) found.push_back(secret);
      }
    }
    EXPECT_GT(looked, size_t{100'000});
    return found;
  }

 private:
  [[noreturn]] void be_session(std::chrono::milliseconds heartbeat) {
    pollfd polled{begin_[1], POLLIN, 0};
    (void)poll(&polled, 1, 60'000);
    ControlMessage message;
    if (!receive_control(begin_[1], &message).ok()) _exit(1);
    ClientHello client_hello;
    std::memcpy(&client_hello, message.body.data(), sizeof(client_hello));
    static std::array<char, 4096> secrets;
    const ssize_t size = recv(begin_[1], secrets.data(), secrets.size(), 0);
    if (size <= 0) _exit(1);
    ListenOptions options;
    std::string* const fields[] = {&options.token, &options.tls.certificate, &options.tls.key};
    size_t field = 0;
    for (ssize_t i = 0, begin = 0; i <= size; ++i) {
      if (i < size && secrets[static_cast<size_t>(i)] != '\n') continue;
      fields[field++]->assign(&secrets[static_cast<size_t>(begin)], static_cast<size_t>(i - begin));
      begin = i + 1;
    }
    OPENSSL_cleanse(secrets.data(), secrets.size());
    options.url = options.tls.key.empty() ? "tcp://" : "tls://";
    options.heartbeat = heartbeat;
    options.load = [](ServerOptions* its) {
      its->runner = testing::fake_runner();
      return Status();
    };
    std::shared_ptr<const remote::TlsContext> tls;
    if (!options.tls.key.empty() && !remote::TlsContext::for_worker(options.tls, &tls).ok()) _exit(2);
    ServerOptions server;
    server.open_device = open_cpu;
    server.hello_timeout = 60s;
    (void)serve_network_client(message.descriptor, client_hello, control_[1], std::move(options), std::move(tls),
                               server, nullptr);
    _exit(0);
  }

  int control_[2], begin_[2];
  pid_t pid_;
  Digest routing_{};
};

// The client's end, implemented by hand.
class Client {
 public:
  explicit Client(std::string token, const remote::TlsFiles* files = nullptr) : token_(std::move(token)) {
    EXPECT_TRUE(remote::TlsContext::for_keys(remote::TlsContext::Side::kClient, &keys_).ok());
    side_ = {.tls = files != nullptr,
             .token = token_,
             .certificates = nullptr,
             .keys = keys_.get(),
             .host = "127.0.0.1",
             .name = "host:1"};
    if (files != nullptr) {
      EXPECT_TRUE(remote::TlsContext::for_client(*files, &certificates_).ok());
      side_.certificates = certificates_.get();
    }
  }

  std::unique_ptr<remote::StreamTransport> connect(int socket, const remote::SessionToResume* resumed = nullptr) {
    std::unique_ptr<remote::ByteStream> stream;
    bool ended = false;
    const Status status = remote::client_handshake(socket, side_, resumed, Deadline(30s), &handshake, &stream, &ended);
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) return nullptr;
    return std::make_unique<remote::StreamTransport>(std::move(stream), remote::StreamTransport::Options());
  }

  // Sends the client hello of a reconnect, and nothing more.
  void come_back_silently(uint64_t attempt, int socket) {
    const remote::SessionToResume resumed{handshake.key, attempt, 0};
    remote::HandshakeResult unused;
    std::unique_ptr<remote::ByteStream> stream;
    bool ended = false;
    (void)remote::client_handshake(socket, side_, &resumed, Deadline(1ms), &unused, &stream, &ended);
  }

  remote::HandshakeResult handshake;

 private:
  std::string token_;
  std::shared_ptr<const remote::TlsContext> keys_, certificates_;
  remote::ClientSide side_;
};

std::string random_text() {
  Digest bytes;
  remote::fill_random(bytes);
  std::string text;
  for (const uint8_t byte : bytes) text += "0123456789abcdef"[byte % 16];
  return text;
}

std::string file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Connects the client to the session. Null: the handshake failed.
std::unique_ptr<remote::StreamTransport> begin(Session& session, Client& client, const std::string& secrets) {
  const auto [a, b] = remote::testing::tcp_sockets();
  std::thread listener([&, b = b] { session.start(secrets, b); });
  auto connection = client.connect(a);
  listener.join();
  return connection;
}

TEST(NetworkSession, KeepsNeitherTokenNorPrivateKeyAfterTheFirstHandshake) {
  for (const bool tls : {false, true}) {
    Session session(5s);
    const remote::testing::Certificates files;
    const std::string token = random_text();
    const remote::TlsFiles trusting{"", "", files.file("ca.pem")};
    Client client(token, tls ? &trusting : nullptr);
    const auto connection =
        begin(session, client, token + (tls ? "\n" + files.file("worker.pem") + "\n" + files.file("worker.key") : ""));
    ASSERT_NE(connection, nullptr);
    std::vector<std::string> secrets = {token};
    if (tls) {
      // The base64 text of the key, and the bytes of its numbers.
      std::istringstream lines(file(files.file("worker.key")));
      std::string line;
      std::getline(lines, line);
      while (std::getline(lines, line)) {
        if (line.size() > 40) secrets.push_back(line);
      }
      ASSERT_GT(secrets.size(), 1u);
      BIO* bio = BIO_new_file(files.file("worker.key").c_str(), "r");
      EVP_PKEY* key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
      BIO_free(bio);
      BIGNUM* number = nullptr;
      if (EVP_PKEY_get_bn_param(key, "priv", &number) == 1 || EVP_PKEY_get_bn_param(key, "d", &number) == 1) {
        std::string bytes(static_cast<size_t>(BN_num_bytes(number)), '\0');
        BN_bn2bin(number, reinterpret_cast<unsigned char*>(bytes.data()));
        secrets.push_back(bytes);                            // Byte order in a file.
        secrets.emplace_back(bytes.rbegin(), bytes.rend());  // Byte order in OpenSSL's memory.
      }
      ASSERT_GT(secrets.size(), 3u);
      BN_free(number);
      EVP_PKEY_free(key);
    }
    std::vector<std::string> left = secrets;
    for (int i = 0; i < 500 && !left.empty(); ++i) {  // The client finishes the handshake a moment before the worker.
      left = session.has(secrets);
      if (!left.empty()) std::this_thread::sleep_for(10ms);
    }
    EXPECT_TRUE(g_overwrites);
    for (const std::string& secret : left) {
      ADD_FAILURE() << "secret " << std::ranges::find(secrets, secret) - secrets.begin() << " of " << secrets.size()
                    << " is left, tls: " << tls;
    }
    // Checks the search itself: the session's own key stays in memory.
    EXPECT_FALSE(session.has({std::string(client.handshake.key.begin(), client.handshake.key.end())}).empty());
    // The session continues without the secrets.
    const auto [c, d] = remote::testing::tcp_sockets();
    std::thread again([&, d = d] { session.hand_over(d); });
    const remote::SessionToResume resumed{client.handshake.key, 1, 0};
    EXPECT_NE(client.connect(c, &resumed), nullptr);
    again.join();
  }
}

// Otherwise the client would try to reconnect for the whole lease.
TEST(ControlSocket, ReceivesOneDescriptorAtMost) {
  int ends[2];
  ASSERT_TRUE(make_control_sockets(ends).ok());
  char byte = static_cast<char>(Control::kReconnect);
  iovec piece{&byte, 1};
  const int sent[] = {ends[0], ends[0]};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(sent))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof(ancillary);
  cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(sent));
  std::memcpy(CMSG_DATA(part), sent, sizeof(sent));
  const auto count_open = [] {
    int count = 0;
    for (int descriptor = 0; descriptor < 1024; ++descriptor) count += fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
    return count;
  };
  const int before = count_open();
  ASSERT_EQ(sendmsg(ends[0], &message, 0), 1);
  ControlMessage received;
  ASSERT_TRUE(receive_control(ends[1], &received).ok());
  ASSERT_GE(received.descriptor, 0);
  close(received.descriptor);
  EXPECT_EQ(count_open(), before);
  for (const int end : ends) close(end);
}

TEST(NetworkSession, ATerminatedSessionTellsItsClient) {
  Session session(5s);
  const std::string token = random_text();
  Client client(token);
  const auto connection = begin(session, client, token);
  ASSERT_NE(connection, nullptr);
  session.signal(SIGTERM);
  remote::Frame frame;
  do {
    const Status status = connection->receive(&frame, 10s);
    ASSERT_TRUE(status.ok()) << status.message();
  } while (frame.header.type == static_cast<uint8_t>(wire::Type::kReceivedAck));
  EXPECT_EQ(frame.header.type, static_cast<uint8_t>(wire::Type::kSessionClosed));
  EXPECT_EQ(session.exit_status(), 0);
}

// Counts the frames that arrive in this time.
int heard(remote::StreamTransport& connection, std::chrono::milliseconds time) {
  int count = 0;
  const auto until = std::chrono::steady_clock::now() + time;
  for (auto now = until - time; now < until; now = std::chrono::steady_clock::now()) {
    remote::Frame frame;
    const Status status = connection.receive(&frame, until - now);
    if (status.ok()) ++count;
    if (!status.ok() && status.code() != ErrorCode::kTimeout) return -1;
  }
  return count;
}

TEST(NetworkSession, HeartbeatsGoOnWhileSilentClientsComeBack) {
  Session session(100ms);
  const std::string token = random_text();
  Client client(token);
  const auto connection = begin(session, client, token);
  ASSERT_NE(connection, nullptr);
  std::vector<int> silent;
  for (uint64_t attempt = 1; attempt <= 8; ++attempt) {  // The maximum number, each newer than the one before.
    const auto [c, d] = remote::testing::tcp_sockets();
    // A second descriptor keeps the connection open after `join` has given up.
    silent.push_back(dup(c));
    client.come_back_silently(attempt, c);
    session.hand_over(d);
  }
  std::atomic<bool> ends{false};
  std::thread speaks([&] {  // An idle client sends heartbeats.
    while (!ends) {
      wire::Header header;
      header.type = static_cast<uint8_t>(wire::Type::kReceivedAck);
      bool sent = false;
      (void)connection->send_at_once(header, {}, &sent);
      std::this_thread::sleep_for(50ms);
    }
  });
  // Each may take 5 s. Without threads of their own, no heartbeat would be sent and the connection would be lost.
  EXPECT_GE(heard(*connection, 2s), 8);
  // The client itself does not wait behind them.
  const auto [e, f] = remote::testing::tcp_sockets();
  std::thread again([&, f = f] { session.hand_over(f); });
  const remote::SessionToResume resumed{client.handshake.key, 9, 0};
  const auto begin = std::chrono::steady_clock::now();
  const auto newer = client.connect(e, &resumed);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
  again.join();
  ends = true;
  speaks.join();
  EXPECT_NE(newer, nullptr);
  for (const int socket : silent) close(socket);
}

}  // namespace
}  // namespace torch_remote::worker

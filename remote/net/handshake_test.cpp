// Tests which clients are admitted, and which errors the others get.
#include "remote/net/handshake.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include "remote/net/dial.h"
#include "remote/net/testing/net_pairs.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;

const std::string kToken = "0123456789abcdef0123456789abcdef";

bool says(const Status& status, const std::string& part) { return status.message().find(part) != std::string::npos; }

// Forwards bytes between two sockets and records them.
class Tap {
 public:
  Tap(int a, int b) : a_(a), b_(b), thread_([this] { run(); }) {}
  ~Tap() { finish(); }
  // Returns what a and b sent, after both have closed.
  const std::array<std::string, 2>& finish() {
    if (thread_.joinable()) thread_.join();
    return said_;
  }

 private:
  void run() {
    pollfd polled[] = {{a_, POLLIN, 0}, {b_, POLLIN, 0}};
    while (polled[0].fd >= 0 || polled[1].fd >= 0) {
      (void)poll(polled, 2, 30'000);
      for (int i : {0, 1}) {
        if (polled[i].revents == 0) continue;
        char bytes[4096];
        const ssize_t n = recv(polled[i].fd, bytes, sizeof(bytes), 0);
        if (n > 0) {
          said_[i].append(bytes, static_cast<size_t>(n));
          (void)!send(i == 0 ? b_ : a_, bytes, static_cast<size_t>(n), MSG_NOSIGNAL);
        } else {
          // NOLINTNEXTLINE(clang-analyzer-unix.StdCLibraryFunctions): both are open sockets
          shutdown(i == 0 ? b_ : a_, SHUT_WR);
          polled[i].fd = -1;
        }
      }
    }
    close(a_);
    close(b_);
  }

  const int a_, b_;
  std::array<std::string, 2> said_;
  std::thread thread_;
};

std::shared_ptr<const TlsContext> keys(TlsContext::Side side) {
  std::shared_ptr<const TlsContext> made;
  EXPECT_TRUE(TlsContext::for_keys(side, &made).ok());
  return made;
}

struct Joined {
  Status client, worker;
  HandshakeResult handshake;  // what the client knows
  PendingClient pending_client;
  std::unique_ptr<ByteStream> stream;  // the client's stream
  std::array<std::string, 2> said;     // what client and worker sent
};

struct Case {
  std::string clients_token = kToken, workers_token = kToken;
  const SessionToResume* clients_session = nullptr;
  const Digest* workers_session = nullptr;
  std::string refusal = {};
  const TlsFiles* clients_files = nullptr;  // for tls://
  const TlsFiles* workers_files = nullptr;
  ServerHello::Code answered = ServerHello::kGoOn;  // expected result of the listener's check
};

// Runs a whole handshake, including the listener's part.
Joined join_each_other(const Case& c) {
  const auto [a, heard] = testing::tcp_sockets();
  const auto [carried, b] = testing::tcp_sockets();
  Joined result;
  Tap tap(heard, carried);
  std::shared_ptr<const TlsContext> clients_certificates, workers_certificates;
  if (c.clients_files) {
    EXPECT_TRUE(TlsContext::for_client(*c.clients_files, &clients_certificates).ok());
    EXPECT_TRUE(TlsContext::for_worker(*c.workers_files, &workers_certificates).ok());
  }
  const bool tls = c.clients_files != nullptr;
  std::thread other([&, b = b] {
    std::array<uint8_t, sizeof(ClientHello)> bytes;
    size_t have = 0;
    for (ssize_t n; have < bytes.size() && (n = recv(b, bytes.data() + have, bytes.size() - have, 0)) > 0;) {
      have += static_cast<size_t>(n);
    }
    ClientHello client_hello;
    std::string text;
    const ServerHello::Code code =
        check_client_hello({bytes.data(), have}, tls, !c.workers_token.empty(), &client_hello, &text);
    EXPECT_EQ(code, c.answered);
    if (code != ServerHello::kGoOn) {
      const std::string answer = encode_server_hello(code, text);
      (void)!send(b, answer.data(), answer.size(), MSG_NOSIGNAL);
      close(b);
      return;
    }
    const auto its_keys = keys(TlsContext::Side::kWorker);
    const WorkerSide side{.token = c.workers_token,
                          .certificates = workers_certificates.get(),
                          .keys = its_keys.get(),
                          .session = c.workers_session};
    result.worker = authenticate_client(b, client_hello, side, Deadline(10s), "the client", &result.pending_client);
    if (!result.worker.ok()) {
      result.pending_client = {};
      return;
    }
    if (c.refusal.empty()) {
      result.worker = accept_client(result.pending_client, 17, 7s, 3s, Deadline(10s));
    } else {
      refuse(result.pending_client, c.refusal, Deadline(10s));
    }
  });
  const auto its_keys = keys(TlsContext::Side::kClient);
  const ClientSide side{.tls = tls,
                        .token = c.clients_token,
                        .certificates = clients_certificates.get(),
                        .keys = its_keys.get(),
                        .host = "127.0.0.1",
                        .name = "host:1"};
  bool ended = false;
  result.client =
      client_handshake(a, side, c.clients_session, Deadline(10s), &result.handshake, &result.stream, &ended);
  EXPECT_FALSE(ended);
  other.join();
  if (result.client.ok() && result.worker.ok()) {  // now data can be sent over the connection
    int none = -1;
    const char secret[] = "what nobody else should read";
    const iovec out{const_cast<char*>(secret), sizeof(secret)};
    size_t n = 0;
    EXPECT_TRUE(result.stream->write({&out, 1}, &n, &none).ok());
  }
  result.stream = nullptr;
  result.pending_client.stream = nullptr;
  result.said = tap.finish();
  return result;
}

bool contains(const std::array<std::string, 2>& said, std::string_view text) {
  return said[0].find(text) != std::string::npos || said[1].find(text) != std::string::npos;
}

std::string text_of(const Digest& digest) { return {digest.begin(), digest.end()}; }

TEST(Handshake, ATokenMeansEncryptionAndIsNeverSent) {
  const Joined joined = join_each_other({});
  ASSERT_TRUE(joined.client.ok()) << joined.client.message();
  ASSERT_TRUE(joined.worker.ok()) << joined.worker.message();
  EXPECT_EQ(joined.handshake.key, joined.pending_client.key);
  EXPECT_EQ(joined.handshake.received, 17u);
  EXPECT_EQ(joined.handshake.lease, 7s);
  EXPECT_EQ(joined.handshake.heartbeat, 3s);
  EXPECT_FALSE(contains(joined.said, "what nobody else should read"));
  EXPECT_FALSE(contains(joined.said, kToken));
  EXPECT_FALSE(contains(joined.said, kToken.substr(0, 8)));
  EXPECT_FALSE(contains(joined.said, text_of(joined.handshake.key)));
  EXPECT_NE(join_each_other({}).handshake.key, joined.handshake.key);  // each session has its own key
}

TEST(Handshake, WithoutTokensEverybodyOnThisMachineIsLetIn) {
  const Joined joined = join_each_other({.clients_token = "", .workers_token = ""});
  EXPECT_TRUE(joined.client.ok()) << joined.client.message();
  EXPECT_EQ(joined.handshake.key, joined.pending_client.key);
  EXPECT_TRUE(contains(joined.said, "what nobody else should read"));
}

TEST(Handshake, AnotherTokenOpensNothingAndErrorsNameTheFix) {
  const testing::Certificates files;
  const TlsFiles client{"", "", files.file("ca.pem")}, worker = files.of("worker");
  for (const bool tls : {false, true}) {
    const TlsFiles* const clients = tls ? &client : nullptr;
    const TlsFiles* const workers = tls ? &worker : nullptr;
    Joined joined = join_each_other(
        {.clients_token = "another token, as long", .clients_files = clients, .workers_files = workers});
    EXPECT_EQ(joined.client.code(), ErrorCode::kUnsupported);
    EXPECT_TRUE(says(joined.client, "the token is not that of the worker at host:1")) << joined.client.message();
    EXPECT_TRUE(says(joined.client, "TORCH_REMOTE_TOKEN_FILE")) << joined.client.message();
    EXPECT_FALSE(joined.worker.ok());
    EXPECT_TRUE(says(joined.worker, "its proof is wrong")) << joined.worker.message();

    joined = join_each_other({.clients_token = "",
                              .clients_files = clients,
                              .workers_files = workers,
                              .answered = ServerHello::kWantsToken});
    EXPECT_TRUE(says(joined.client, "requires a token; set TORCH_REMOTE_TOKEN_FILE")) << joined.client.message();

    joined = join_each_other({.workers_token = "",
                              .clients_files = clients,
                              .workers_files = workers,
                              .answered = ServerHello::kHasNoToken});
    EXPECT_TRUE(says(joined.client, "has none, so it cannot prove that it is yours")) << joined.client.message();
  }
}

TEST(Handshake, OverTlsBothProveTheTokenToo) {
  const testing::Certificates files;
  const TlsFiles client{"", "", files.file("ca.pem")}, worker = files.of("worker");
  const Joined joined = join_each_other({.clients_files = &client, .workers_files = &worker});
  EXPECT_TRUE(joined.client.ok()) << joined.client.message();
  EXPECT_EQ(joined.handshake.key, joined.pending_client.key);
  EXPECT_FALSE(contains(joined.said, kToken));
  // A proof from another connection is refused, because it covers a secret of that connection.
  const auto [a, b] = testing::tcp_sockets();
  const auto stream = make_socket_stream(a, "the worker");
  const Digest here{1}, there{2};
  std::thread other([&, b = b] {
    const auto its = make_socket_stream(b, "the client");
    uint64_t received = 0;
    EXPECT_TRUE(says(read_request(*its, there, kToken, Deadline(10s), &received), "its proof is wrong"));
  });
  HandshakeResult handshake;
  EXPECT_TRUE(says(request(*stream, here, kToken, 0, "host:1", Deadline(10s), &handshake), "the token is not"));
  other.join();
}

// A server that does not know the token learns nothing, and the client does not trust it.
TEST(Handshake, AWorkerThatDoesNotKnowTheTokenIsNotBelieved) {
  const auto [a, b] = testing::key_streams({1}, {2});
  EXPECT_EQ(a.status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(b.status.code(), ErrorCode::kUnsupported);
  // The same holds if the server has a certificate.
  const testing::Certificates files;
  std::shared_ptr<const TlsContext> server;
  ASSERT_TRUE(TlsContext::for_worker(files.of("worker"), &server).ok());
  const Digest key{1};
  const auto client = keys(TlsContext::Side::kClient);
  const auto [c, d] = testing::shake_hands(*client, {.key = &key}, *server, {});
  EXPECT_EQ(c.status.code(), ErrorCode::kUnsupported);
}

TEST(Handshake, ARefusalIsToldToWhoeverIsKnown) {
  const Joined joined = join_each_other({.refusal = "remote: it is \033[31mbusy"});
  EXPECT_EQ(joined.client.message(), "remote: it is ?[31mbusy");
}

TEST(Handshake, ASessionGoesOnWithItsKeyAndNoOther) {
  const SessionToResume session{{4, 5, 6}, 1, 12}, stolen{{9}, 1, 12};
  for (const char* token : {"", kToken.c_str()}) {
    Joined joined = join_each_other(
        {.clients_token = token, .workers_token = token, .clients_session = &session, .workers_session = &session.key});
    ASSERT_TRUE(joined.client.ok()) << joined.client.message();
    EXPECT_EQ(joined.pending_client.received, 12u);
    EXPECT_EQ(joined.handshake.received, 17u);
    EXPECT_EQ(joined.handshake.key, session.key);
    EXPECT_EQ(joined.pending_client.key, session.key);
    EXPECT_FALSE(contains(joined.said, "what nobody else should read"));
    // Without the session's key, knowing the token does not help.
    joined = join_each_other(
        {.clients_token = token, .workers_token = token, .clients_session = &stolen, .workers_session = &session.key});
    EXPECT_FALSE(joined.client.ok());
    EXPECT_FALSE(joined.worker.ok());
  }
}

TEST(Handshake, OnlyTheClientOfASessionMakesItsClientHellos) {
  const SessionToResume session{{4, 5, 6}, 7, 0};
  const Joined joined = join_each_other({.clients_session = &session, .workers_session = &session.key});
  ClientHello client_hello;
  ASSERT_GE(joined.said[0].size(), sizeof(client_hello));
  std::memcpy(&client_hello, joined.said[0].data(), sizeof(client_hello));
  EXPECT_TRUE(is_from(client_hello, routing_key(session.key)));
  EXPECT_FALSE(is_from(client_hello, routing_key({4, 5, 7})));
  ++client_hello.attempt;  // only the session's client can make the next attempt
  EXPECT_FALSE(is_from(client_hello, routing_key(session.key)));
  EXPECT_FALSE(is_from(ClientHello(), routing_key(session.key)));
  EXPECT_FALSE(contains(joined.said, text_of(routing_key(session.key))));
}

// Messages recorded on one connection cannot be replayed on another one.
TEST(Handshake, WhatWasHeardCannotBeSaidAgain) {
  const std::string heard = join_each_other({}).said[0];
  ClientHello client_hello;
  std::memcpy(&client_hello, heard.data(), sizeof(client_hello));
  const auto its_keys = keys(TlsContext::Side::kWorker);
  for (int i = 0; i < 100; ++i) {
    const auto [a, b] = testing::tcp_sockets();
    const std::string words = heard.substr(sizeof(client_hello));
    EXPECT_EQ(send(a, words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
    PendingClient pending_client;
    const WorkerSide side{.token = kToken, .keys = its_keys.get()};
    const Status status = authenticate_client(b, client_hello, side, Deadline(10s), "a stranger", &pending_client);
    EXPECT_TRUE(says(status, "its proof is wrong")) << status.message();
    // The worker only sent the answer and an alert. Its first TLS flight would come after a valid proof.
    std::string answer(4096, '\0');
    answer.resize(static_cast<size_t>(std::max<ssize_t>(recv(a, answer.data(), answer.size(), 0), 0)));
    constexpr size_t kAnswer = sizeof(ServerHello) + sizeof(Digest);
    ASSERT_GE(answer.size(), kAnswer);
    EXPECT_LE(answer.size(), kAnswer + 7);
    close(a);
  }
}

TEST(Handshake, ASilentOrEndlessPeerIsLeftInTime) {
  const auto clients_keys = keys(TlsContext::Side::kClient), workers_keys = keys(TlsContext::Side::kWorker);
  for (const bool client : {false, true}) {
    for (const std::string& token : {std::string(), kToken}) {
      const auto [a, b] = testing::tcp_sockets();
      const auto begin = std::chrono::steady_clock::now();
      HandshakeResult handshake;
      PendingClient pending_client;
      std::unique_ptr<ByteStream> stream;
      bool ended = false;
      const Status status =
          client ? client_handshake(a, {.token = token, .keys = clients_keys.get(), .host = "", .name = "host:1"},
                                    nullptr, Deadline(50ms), &handshake, &stream, &ended)
                 : authenticate_client(a, ClientHello(), {.token = token, .keys = workers_keys.get()}, Deadline(50ms),
                                       "x", &pending_client);
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(says(status, "sent nothing"), client) << status.message();
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
      close(b);
    }
  }
}

// --- the client hello ------------------------------------------------------------------------------------------------

TEST(ClientHello, IsCheckedForProtocolVersionAndTls) {
  const auto check = [](ClientHello client_hello, bool tls, size_t size = sizeof(ClientHello)) {
    ClientHello read;
    std::string text;
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(&client_hello), size);
    const ServerHello::Code code = check_client_hello(bytes, tls, false, &read, &text);
    EXPECT_TRUE(code != ServerHello::kGoOn || is_whole(bytes));
    return code;
  };
  ClientHello plain, tls, version, other;
  tls.flags = ClientHello::kTls;
  version.version = 9;
  other.magic[0] = 'G';
  EXPECT_EQ(check(plain, false), ServerHello::kGoOn);
  EXPECT_EQ(check(tls, true), ServerHello::kGoOn);
  EXPECT_EQ(check(plain, true), ServerHello::kWantsTls);
  EXPECT_EQ(check(tls, false), ServerHello::kHasNoTls);
  EXPECT_EQ(check(version, false), ServerHello::kOtherVersion);
  EXPECT_EQ(check(other, false), ServerHello::kRefused);
  EXPECT_EQ(check(plain, false, 3), ServerHello::kRefused);
  EXPECT_EQ(check(plain, false, 63), ServerHello::kRefused);
  // A client hello of an older version is shorter, so the worker must not wait for more bytes.
  EXPECT_EQ(check(version, false, 24), ServerHello::kOtherVersion);
  EXPECT_TRUE(is_whole({reinterpret_cast<const uint8_t*>(&version), 24}));
  EXPECT_TRUE(is_whole({reinterpret_cast<const uint8_t*>(&other), 4}));
  EXPECT_FALSE(is_whole({reinterpret_cast<const uint8_t*>(&plain), 63}));
  EXPECT_FALSE(is_whole({reinterpret_cast<const uint8_t*>(&plain), 4}));
}

// The error of a client whose worker sends this answer.
Status open_against(const std::string& answer, bool tls = false, std::chrono::milliseconds time = 10s) {
  const auto [a, b] = testing::tcp_sockets();
  (void)!send(b, answer.data(), answer.size(), MSG_NOSIGNAL);
  shutdown(b, SHUT_WR);
  HandshakeResult handshake;
  std::unique_ptr<ByteStream> stream;
  bool ended = false;
  const Status status = client_handshake(a, {.tls = tls, .token = "", .host = "", .name = "host:1"}, nullptr,
                                         Deadline(time), &handshake, &stream, &ended);
  EXPECT_EQ(ended, says(status, "no such session"));
  close(b);
  return status;
}

TEST(ClientHello, EachAnswerHasItsError) {
  EXPECT_TRUE(
      says(open_against(encode_server_hello(ServerHello::kGoOn)), "ended the connection before its server hello"));
  EXPECT_TRUE(
      says(open_against(encode_server_hello(ServerHello::kWantsTls)), "requires TLS; connect with tls://host:1"));
  EXPECT_TRUE(
      says(open_against(encode_server_hello(ServerHello::kHasNoTls), true), "has no TLS; connect with tcp://host:1"));
  EXPECT_TRUE(says(open_against(encode_server_hello(ServerHello::kUnknownSession, "it was killed")), "it was killed"));
  EXPECT_TRUE(says(open_against(encode_server_hello(ServerHello::kRefused, "too many")), "refuses: too many"));
  EXPECT_TRUE(says(open_against(std::string("TRRW\x01\x02\x00\x00", 8)), "speaks version 1 of the handshake"));
  EXPECT_TRUE(says(open_against("HTTP/1.1 400 Bad Request\r\n"), "is not a worker of torch-remote"));
  EXPECT_TRUE(says(open_against("HTTP"), "is not a worker of torch-remote"));
  EXPECT_TRUE(says(open_against(""), "ended the connection before its server hello"));
}

// --- tokens ----------------------------------------------------------------------------------------------------------

TEST(Token, IsTheFirstLineOfAFileAndLongEnough) {
  const testing::Certificates folder;
  const std::string path = folder.file("token");
  std::ofstream(path) << kToken << "\nmore\n";
  chmod(path.c_str(), 0600);
  std::string token;
  bool others = true;
  ASSERT_TRUE(read_token_file(path, &token, &others).ok());
  EXPECT_EQ(token, kToken);
  EXPECT_FALSE(others);
  chmod(path.c_str(), 0644);
  ASSERT_TRUE(read_token_file(path, &token, &others).ok());
  EXPECT_TRUE(others);
  std::ofstream(path) << "short";
  const Status status = read_token_file(path, &token, &others);
  EXPECT_TRUE(says(status, "has 5 bytes; it needs 16 to 4096")) << status.message();
  EXPECT_EQ(status.message().find("short"), std::string::npos);
  EXPECT_TRUE(says(read_token_file(folder.file("none"), &token, &others), "No such file"));
}

TEST(Token, ProofsAreHmacSha256) {
  // RFC 4231, test case 2.
  const std::string key = "Jefe", text = "what do ya want for nothing?";
  const auto bytes = [](const std::string& s) {
    return std::span<const uint8_t>(reinterpret_cast<const uint8_t*>(s.data()), s.size());
  };
  const Digest digest = hmac_sha256(bytes(key), bytes(text));
  EXPECT_EQ(digest[0], 0x5b);
  EXPECT_EQ(digest[1], 0xdc);
  EXPECT_EQ(digest[31], 0x43);
}

// --- TLS -------------------------------------------------------------------------------------------------------------

class Tls : public ::testing::Test {
 protected:
  testing::Certificates files;
  TlsFiles trusting{"", "", files.file("ca.pem")};
};

TEST_F(Tls, BothEndsHaveOneBindingAndEachConnectionAnother) {
  auto [a, b] = testing::tls_streams(trusting, files.of("worker"), "127.0.0.1");
  ASSERT_TRUE(a.status.ok()) << a.status.message();
  ASSERT_TRUE(b.status.ok()) << b.status.message();
  EXPECT_EQ(a.secret(), b.secret());
  auto [c, d] = testing::tls_streams(trusting, files.of("worker"), "127.0.0.1");
  EXPECT_NE(a.secret(), c.secret());
}

// As that of OpenSSL 3.5, which has a key for X25519MLKEM768.
TEST_F(Tls, AClientHelloMayContinueInTheNextRecord) {
  std::shared_ptr<const TlsContext> client, worker;
  ASSERT_TRUE(TlsContext::for_client(trusting, &client).ok());
  ASSERT_TRUE(TlsContext::for_worker(files.of("worker"), &worker).ok());
  std::string protocols;
  for (int i = 0; i < 20; ++i) protocols += '\x64' + std::string(100, 'p');
  ASSERT_EQ(SSL_CTX_set_alpn_protos(client->get(), reinterpret_cast<const unsigned char*>(protocols.data()),
                                    static_cast<unsigned>(protocols.size())),
            0);
  const auto [a, b] = testing::shake_hands(*client, {.host = "127.0.0.1"}, *worker, {});
  EXPECT_TRUE(a.status.ok()) << a.status.message();
  EXPECT_TRUE(b.status.ok()) << b.status.message();
}

TEST_F(Tls, AWorkerThatIsNotTrustedIsRefusedWithTheReason) {
  testing::make_certificate(files.file("stranger"), {.name = "127.0.0.1"});
  testing::make_certificate(files.file("old"), {.name = "127.0.0.1", .until = -60, .authority = files.file("ca")});
  testing::make_certificate(files.file("early"),
                            {.name = "127.0.0.1", .from = 3600, .until = 7200, .authority = files.file("ca")});
  testing::make_certificate(files.file("named"), {.name = "gpu.example.org", .authority = files.file("ca")});
  const auto why = [&](const std::string& certificate, const std::string& host) {
    const auto [a, b] = testing::tls_streams(trusting, files.of(certificate), host);
    EXPECT_EQ(a.status.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(a.stream, nullptr);
    return a.status;
  };
  EXPECT_TRUE(says(why("stranger", "127.0.0.1"), "set TORCH_REMOTE_TLS_CA")) << why("stranger", "127.0.0.1").message();
  EXPECT_TRUE(says(why("old", "127.0.0.1"), "has expired"));
  EXPECT_TRUE(says(why("early", "127.0.0.1"), "not valid yet"));
  EXPECT_TRUE(says(why("worker", "127.0.0.2"), "is not for '127.0.0.2'"));
  EXPECT_TRUE(says(why("named", "example.org"), "is not for 'example.org'"));
  const auto [a, b] = testing::tls_streams(trusting, files.of("named"), "gpu.example.org");
  EXPECT_TRUE(a.status.ok()) << a.status.message();
}

TEST_F(Tls, AConnectionThatBreaksMeanwhileMayBeTriedAgain) {
  const auto [a, b] = testing::tcp_sockets();
  close(b);
  std::shared_ptr<const TlsContext> context;
  ASSERT_TRUE(TlsContext::for_client(trusting, &context).ok());
  std::unique_ptr<TlsStream> stream;
  EXPECT_EQ(start_tls(a, *context, {.host = "127.0.0.1"}, Deadline(10s), "a worker", &stream).code(), ErrorCode::kLost);
}

TEST_F(Tls, AWorkerMayWantCertificatesOfItsClients) {
  TlsFiles worker = files.of("worker");
  worker.authorities = files.file("ca.pem");
  testing::make_certificate(files.file("client"), {.name = "client", .authority = files.file("ca")});
  testing::make_certificate(files.file("stranger"), {.name = "client"});
  const auto attempt = [&](const std::string& certificate) {
    TlsFiles client = certificate.empty() ? TlsFiles() : files.of(certificate);
    client.authorities = files.file("ca.pem");
    auto [a, b] = testing::tls_streams(client, worker, "127.0.0.1");
    EXPECT_EQ(b.status.ok(), certificate == "client");
    // The client learns of it when it reads.
    HandshakeResult handshake;
    if (b.status.ok() || !a.status.ok()) return a.status;
    b.stream = nullptr;
    return request(*a.stream, {}, kToken, 0, "host:1", Deadline(10s), &handshake);
  };
  EXPECT_TRUE(attempt("client").ok());
  EXPECT_TRUE(says(attempt(""), "set TORCH_REMOTE_TLS_CERT and TORCH_REMOTE_TLS_KEY")) << attempt("").message();
  EXPECT_TRUE(says(attempt("stranger"), "does not trust the certificate of this one")) << attempt("stranger").message();
}

TEST_F(Tls, FilesThatCannotBeUsedAreNamed) {
  std::shared_ptr<const TlsContext> context;
  EXPECT_TRUE(says(TlsContext::for_worker({}, &context), "--tls-cert FILE --tls-key FILE"));
  EXPECT_TRUE(says(TlsContext::for_worker({"/no/cert.pem", "/no/key.pem", ""}, &context), "'/no/cert.pem'"));
  EXPECT_TRUE(says(TlsContext::for_client({"", "", "/no/ca.pem"}, &context), "'/no/ca.pem'"));
  EXPECT_TRUE(says(TlsContext::for_client({"x", "", ""}, &context), "needs its key"));
  testing::make_certificate(files.file("other"), {});
  EXPECT_TRUE(says(TlsContext::for_worker({files.file("worker.pem"), files.file("other.key"), ""}, &context),
                   "cannot use the key"));
}

// --- dialing ---------------------------------------------------------------------------------------------------------

Status dial_to(const std::string& url, const DialOptions& options = {}, const KeepWaiting& keep_waiting = {}) {
  std::unique_ptr<Transport> transport;
  return dial(url, options, keep_waiting, &transport);
}

TEST(Dial, WhatIsNoAddressIsSaid) {
  for (const char* url : {"tcp://", "tcp://host", "tcp://host:", "tcp://host:99999", "tcp://host:1/x", "tcp://::1:80",
                          "tcp://user@host:1"}) {
    EXPECT_TRUE(says(dial_to(url), "write it like tcp://127.0.0.1:4500")) << url;
  }
  Address address;
  ASSERT_TRUE(parse_address("[::1]:80", "", &address).ok());
  EXPECT_EQ(address.host, "::1");
  EXPECT_EQ(address.text(), "[::1]:80");
  ASSERT_TRUE(parse_address(":80", "", &address).ok());
  EXPECT_EQ(address.host, "127.0.0.1");
}

TEST(Dial, NobodyThereIsRefused) {
  Address address{"127.0.0.1", 0};
  int listener = -1;
  bool loopback = false;
  ASSERT_TRUE(listen_tcp(&address, &listener, &loopback).ok());
  close(listener);
  const Status status = dial_to("tcp://" + address.text());
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_TRUE(says(status, "torch-remote-worker --listen tcp://" + address.text())) << status.message();
}

// A listener whose queue of connections is full: the kernel drops the packets of further connections.
class SilentListener {
 public:
  SilentListener() {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof(address_);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address_), size), 0);
    EXPECT_EQ(listen(listener_, 0), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &size), 0);
    for (int& waiting : waiting_) {  // the first one fills the queue
      const int flags = &waiting == waiting_ ? SOCK_CLOEXEC : SOCK_CLOEXEC | SOCK_NONBLOCK;
      waiting = socket(AF_INET, SOCK_STREAM | flags, 0);
      (void)connect(waiting, address(), size);
    }
  }
  ~SilentListener() {
    for (const int waiting : waiting_) close(waiting);
    close(listener_);
  }
  sockaddr* address() { return reinterpret_cast<sockaddr*>(&address_); }

 private:
  sockaddr_in address_{};
  int listener_ = -1;
  int waiting_[4];
};

TEST(Dial, AnAddressThatDropsPacketsLeavesTimeForTheNext) {
  SilentListener silent;
  Address accepting{"127.0.0.1", 0};
  int listener = -1, connected = -1, error = -1;
  bool loopback = false;
  ASSERT_TRUE(listen_tcp(&accepting, &listener, &loopback).ok());
  sockaddr_in its{};
  its.sin_family = AF_INET;
  its.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  its.sin_port = htons(accepting.port);
  addrinfo last{}, first{};
  last.ai_family = first.ai_family = AF_INET;
  last.ai_addrlen = first.ai_addrlen = sizeof(its);
  last.ai_addr = reinterpret_cast<sockaddr*>(&its);
  first.ai_addr = silent.address();
  EXPECT_EQ(connect_first(&first, Deadline(20ms), &connected, &error).code(), ErrorCode::kTimeout);
  first.ai_next = &last;
  const Status status = connect_first(&first, Deadline(1s), &connected, &error);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(error, 0);
  close(connected);
  close(listener);
  EXPECT_TRUE(connect_first(&first, Deadline(100ms), &connected, &error).ok());  // nobody listens at the last one
  EXPECT_EQ(error, ECONNREFUSED);
}

TEST(Dial, ANameThatIsNoneIsSaid) {
  DialOptions options;
  options.time = 20s;
  const Status status = dial_to("tcp://no-such-machine.invalid:1", options);
  EXPECT_TRUE(says(status, "'no-such-machine.invalid'")) << status.message();
}

TEST(Dial, ASilentPortTimesOutAndCanBeInterrupted) {
  Address address{"127.0.0.1", 0};
  int listener = -1;
  bool loopback = false;
  ASSERT_TRUE(listen_tcp(&address, &listener, &loopback).ok());
  DialOptions options;
  options.time = 50ms;
  EXPECT_EQ(dial_to("tcp://" + address.text(), options).code(), ErrorCode::kTimeout);
  options.time = 60s;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(dial_to("tcp://" + address.text(), options, [&] { return std::chrono::steady_clock::now() - begin < 20ms; })
                .code(),
            ErrorCode::kInterrupted);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  close(listener);
}

}  // namespace
}  // namespace torch_remote::remote

// Who is let in, and what the others are told.
#include "remote/net/handshake.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include "remote/net/dial.h"
#include "remote/net/testing/net_pairs.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;

const std::string kToken = "0123456789abcdef0123456789abcdef";

// Keeps what passes.
class Tap : public ByteStream {
 public:
  Tap(std::unique_ptr<ByteStream> inner, std::string* sent) : inner_(std::move(inner)), sent_(sent) {}
  Status read(std::span<const iovec> to, size_t* bytes, std::deque<int>* descriptors) override {
    return inner_->read(to, bytes, descriptors);
  }
  Status write(std::span<const iovec> from, size_t* bytes, int* descriptor) override {
    const Status status = inner_->write(from, bytes, descriptor);
    if (status.ok()) sent_->append(static_cast<const char*>(from.front().iov_base), *bytes);
    return status;
  }
  int input() const override { return inner_->input(); }
  int output() const override { return inner_->output(); }
  void shut_down() override { inner_->shut_down(); }
  void abandon() override { inner_->abandon(); }
  std::string description() const override { return inner_->description(); }

 private:
  std::unique_ptr<ByteStream> inner_;
  std::string* sent_;
};

struct Proven {
  Status client, worker;
  Greeted clients, workers;
  std::string sent;  // by both
};

struct Case {
  std::string clients_token = kToken, workers_token = kToken;
  const Resumed* clients_session = nullptr;
  const Resumed* workers_session = nullptr;
  const ChannelBinding* clients_binding = nullptr;
  const ChannelBinding* workers_binding = nullptr;
  Status admitted = {};
};

Proven prove(const Case& c) {
  const auto [a, b] = testing::tcp_sockets();
  Proven result;
  std::string to_worker, to_client;
  Tap client(make_socket_stream(a, "the worker"), &to_worker), worker(make_socket_stream(b, "the client"), &to_client);
  Opening opening;
  if (c.clients_session) opening.session = c.clients_session->session;
  std::thread other([&] {
    const Proof proof{c.workers_token, c.workers_session, 7s, 3s};
    const Admit admit = [&](SessionId* session, uint64_t* received) {
      if (c.workers_session) {
        *received = 17;
      } else {
        fill_random(*session);
      }
      return c.admitted;
    };
    result.worker = prove_worker(worker, opening, c.workers_binding, proof, admit, Patience(10s), &result.workers);
  });
  result.client = prove_client(client, opening, c.clients_binding, c.clients_token, c.clients_session, "host:1",
                               Patience(10s), &result.clients);
  client.shut_down();
  other.join();
  result.sent = to_worker + to_client;
  return result;
}

bool says(const Status& status, const std::string& part) { return status.message().find(part) != std::string::npos; }

TEST(Handshake, BothLearnThatTheOtherKnowsTheTokenWhichIsNeverSent) {
  const Proven proven = prove({});
  ASSERT_TRUE(proven.client.ok()) << proven.client.message();
  ASSERT_TRUE(proven.worker.ok()) << proven.worker.message();
  EXPECT_EQ(proven.clients.session, proven.workers.session);
  EXPECT_NE(proven.clients.session, SessionId{});
  EXPECT_EQ(proven.clients.key, proven.workers.key);
  EXPECT_EQ(proven.clients.lease, 7s);
  EXPECT_EQ(proven.clients.heartbeat, 3s);
  EXPECT_EQ(proven.sent.find(kToken), std::string::npos);
  EXPECT_EQ(proven.sent.find(kToken.substr(0, 8)), std::string::npos);
  const std::string key(proven.clients.key.begin(), proven.clients.key.end());
  EXPECT_EQ(proven.sent.find(key), std::string::npos);
  EXPECT_LT(proven.sent.size(), 512u);
  EXPECT_NE(prove({}).clients.key, proven.clients.key);  // each session has its own
}

TEST(Handshake, WithoutTokensEverybodyIsLetIn) {
  EXPECT_TRUE(prove({.clients_token = "", .workers_token = ""}).client.ok());
}

TEST(Handshake, AnotherTokenOpensNothingAndErrorsNameTheFix) {
  Proven proven = prove({.clients_token = "another token, as long"});
  EXPECT_EQ(proven.client.code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(says(proven.client, "the token is not that of the worker at host:1")) << proven.client.message();
  EXPECT_TRUE(says(proven.client, "TORCH_REMOTE_TOKEN_FILE")) << proven.client.message();
  EXPECT_FALSE(proven.worker.ok());
  EXPECT_TRUE(says(proven.worker, "its proof is wrong")) << proven.worker.message();

  proven = prove({.clients_token = ""});
  EXPECT_TRUE(says(proven.client, "wants a token; set TORCH_REMOTE_TOKEN_FILE")) << proven.client.message();
  EXPECT_FALSE(proven.worker.ok());

  proven = prove({.workers_token = ""});
  EXPECT_TRUE(says(proven.client, "has none, so it cannot prove that it is yours")) << proven.client.message();
  EXPECT_FALSE(proven.worker.ok());
}

TEST(Handshake, ARefusalIsToldToWhoeverIsKnown) {
  const Proven proven = prove({.admitted = {ErrorCode::kUnsupported, "remote: it is \033[31mbusy"}});
  EXPECT_EQ(proven.client.message(), "remote: it is ?[31mbusy");
  EXPECT_FALSE(proven.worker.ok());
}

TEST(Handshake, AProofIsOfOneTlsConnection) {
  const ChannelBinding one{1}, another{2};
  EXPECT_TRUE(prove({.clients_binding = &one, .workers_binding = &one}).worker.ok());
  EXPECT_FALSE(prove({.clients_binding = &one, .workers_binding = &another}).worker.ok());
  EXPECT_FALSE(prove({.clients_binding = &one}).worker.ok());
}

TEST(Handshake, ASessionGoesOnWithItsKeyAndNoOther) {
  const Resumed session{{1, 2, 3}, {4, 5, 6}, 12}, stolen{{1, 2, 3}, {9}, 12};
  Proven proven = prove({.clients_session = &session, .workers_session = &session});
  ASSERT_TRUE(proven.client.ok()) << proven.client.message();
  EXPECT_EQ(proven.workers.received, 12u);
  EXPECT_EQ(proven.clients.received, 17u);
  EXPECT_EQ(proven.clients.session, session.session);
  // Who knows the token and saw the session's id gets nowhere.
  proven = prove({.clients_session = &stolen, .workers_session = &session});
  EXPECT_FALSE(proven.client.ok());
  EXPECT_FALSE(proven.worker.ok());
  proven = prove({.workers_session = &session});
  EXPECT_FALSE(proven.worker.ok());
}

// What was heard on one connection is of no use on another one.
TEST(Handshake, WhatWasHeardCannotBeSaidAgain) {
  std::string heard;
  for (int i = 0; i < 200; ++i) {
    const auto [a, b] = testing::tcp_sockets();
    std::string said;
    auto worker = std::make_unique<Tap>(make_socket_stream(b, "the client"), &said);
    Status status;
    std::thread other([&] {
      Greeted greeted;
      const Admit admit = [](SessionId*, uint64_t*) { return Status(); };
      status = prove_worker(*worker, Opening(), nullptr, {kToken}, admit, Patience(10s), &greeted);
      worker->shut_down();
    });
    if (i == 0) {
      Tap client(make_socket_stream(a, "the worker"), &heard);
      Greeted greeted;
      EXPECT_TRUE(prove_client(client, Opening(), nullptr, kToken, nullptr, "", Patience(10s), &greeted).ok());
      other.join();
      EXPECT_TRUE(status.ok());
    } else {
      EXPECT_EQ(send(a, heard.data(), heard.size(), MSG_NOSIGNAL), static_cast<ssize_t>(heard.size()));
      other.join();
      EXPECT_FALSE(status.ok());
      close(a);
    }
  }
}

TEST(Handshake, ASilentOrEndlessPeerIsLeftInTime) {
  for (const bool client : {false, true}) {
    const auto [a, b] = testing::tcp_sockets();
    const auto stream = make_socket_stream(a, "somebody");
    Greeted greeted;
    const auto begin = std::chrono::steady_clock::now();
    const Admit admit = [](SessionId*, uint64_t*) { return Status(); };
    const Status status =
        client ? prove_client(*stream, Opening(), nullptr, kToken, nullptr, "host:1", Patience(50ms), &greeted)
               : prove_worker(*stream, Opening(), nullptr, {kToken}, admit, Patience(50ms), &greeted);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(says(status, "is silent"), client) << status.message();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
    close(b);
  }
}

// --- the opening -----------------------------------------------------------------------------------------------------

TEST(Opening, IsCheckedForProtocolVersionAndTls) {
  const auto check = [](Opening opening, bool tls, size_t size = sizeof(Opening)) {
    Opening read;
    std::string text;
    return check_opening({reinterpret_cast<const uint8_t*>(&opening), size}, tls, &read, &text);
  };
  Opening plain, tls, version, other;
  tls.flags = Opening::kTls;
  version.version = 9;
  other.magic[0] = 'G';
  EXPECT_EQ(check(plain, false), Answer::kGoOn);
  EXPECT_EQ(check(tls, true), Answer::kGoOn);
  EXPECT_EQ(check(plain, true), Answer::kWantsTls);
  EXPECT_EQ(check(tls, false), Answer::kHasNoTls);
  EXPECT_EQ(check(version, false), Answer::kOtherVersion);
  EXPECT_EQ(check(other, false), Answer::kRefused);
  EXPECT_EQ(check(plain, false, 3), Answer::kRefused);
}

// What a client says to a worker that answers so.
Status open_against(const std::string& answer, bool tls = false, std::chrono::milliseconds time = 10s) {
  const auto [a, b] = testing::tcp_sockets();
  (void)!send(b, answer.data(), answer.size(), MSG_NOSIGNAL);
  shutdown(b, SHUT_WR);
  Opening opening;
  const Status status = open_connection(a, tls, nullptr, "host:1", Patience(time), &opening);
  close(a);
  close(b);
  return status;
}

TEST(Opening, EachAnswerHasItsError) {
  EXPECT_TRUE(open_against(encode_answer(Answer::kGoOn)).ok());
  EXPECT_TRUE(says(open_against(encode_answer(Answer::kWantsTls)), "wants TLS; connect with tls://host:1"));
  EXPECT_TRUE(says(open_against(encode_answer(Answer::kHasNoTls), true), "has no TLS; connect with tcp://host:1"));
  EXPECT_TRUE(says(open_against(encode_answer(Answer::kUnknownSession, "it was killed")), "it was killed"));
  EXPECT_TRUE(says(open_against(encode_answer(Answer::kRefused, "too many")), "refuses: too many"));
  EXPECT_TRUE(says(open_against("HTTP/1.1 400 Bad Request\r\n"), "is no worker of torch-remote"));
  EXPECT_TRUE(says(open_against("HTTP"), "is no worker of torch-remote"));
  EXPECT_TRUE(says(open_against(""), "ended the connection before it says who it is"));
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
  const auto [a, b] = testing::tls_streams(trusting, files.of("worker"), "127.0.0.1");
  ASSERT_TRUE(a.status.ok()) << a.status.message();
  ASSERT_TRUE(b.status.ok()) << b.status.message();
  EXPECT_EQ(a.binding, b.binding);
  const auto [c, d] = testing::tls_streams(trusting, files.of("worker"), "127.0.0.1");
  EXPECT_NE(a.binding, c.binding);
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
  std::unique_ptr<ByteStream> stream;
  ChannelBinding binding;
  EXPECT_EQ(start_tls(a, context, "127.0.0.1", Patience(10s), "a worker", &stream, &binding).code(), ErrorCode::kLost);
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
    // The client knows when it reads.
    Greeted greeted;
    if (b.status.ok() || !a.status.ok()) return a.status;
    b.stream = nullptr;
    return prove_client(*a.stream, Opening(), &a.binding, kToken, nullptr, "host:1", Patience(10s), &greeted);
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

// --- dialling --------------------------------------------------------------------------------------------------------

Status dial_to(const std::string& url, DialOptions options = {}, const KeepWaiting& keep_waiting = {}) {
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

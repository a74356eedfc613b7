// Tests that an unauthenticated client makes a worker allocate less than SECURITY.md says.
#include <gtest/gtest.h>
#include <malloc.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "remote/net/handshake.h"
#include "remote/net/testing/net_pairs.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;

// OpenSSL's allocations on the thread that counts.
thread_local bool t_counts = false;
thread_local int64_t t_now = 0, t_most = 0;

void note(void* before, int64_t size_before, void* after) {
  if (!t_counts) return;
  t_now += (after ? static_cast<int64_t>(malloc_usable_size(after)) : 0) - (before ? size_before : 0);
  t_most = std::max(t_most, t_now);
}
int64_t size_of(void* memory) { return memory ? static_cast<int64_t>(malloc_usable_size(memory)) : 0; }

void* count_malloc(size_t size, const char*, int) {
  void* const made = std::malloc(size);
  note(nullptr, 0, made);
  return made;
}
void* count_realloc(void* memory, size_t size, const char*, int) {
  const int64_t before = size_of(memory);
  const bool had = memory != nullptr;
  void* const made = std::realloc(memory, size);
  note(had ? made : nullptr, before, made);
  return made;
}
void count_free(void* memory, const char*, int) {
  note(memory, size_of(memory), nullptr);
  std::free(memory);
}
// Runs before OpenSSL allocates anything.
const bool g_counting = CRYPTO_set_mem_functions(count_malloc, count_realloc, count_free) == 1;

// OpenSSL 3.5 agrees on keys by X25519MLKEM768, which needs more.
constexpr int64_t kLimit = (OPENSSL_VERSION_NUMBER >= 0x30500000L ? 80 : 64) << 10;
constexpr int64_t kCertificate = 16 << 10;  // memory for a client's certificate and its verification

// TLS handshake records with the first `size` bytes of an even longer client hello.
std::string long_hello(size_t size, size_t record = 16000) {
  std::string bytes;
  std::string message = {1, 0, 0x3F, static_cast<char>(0xF0)};
  message += std::string(size, '\x03');
  for (size_t at = 0; at < message.size(); at += record) {
    const std::string part = message.substr(at, record);
    bytes += {22, 3, 1, static_cast<char>(part.size() >> 8), static_cast<char>(part.size())};
    bytes += part;
  }
  return bytes;
}

ssize_t receive_all(int socket, std::span<char> to) {
  size_t have = 0;
  pollfd polled{socket, POLLIN, 0};
  while (have < to.size() && poll(&polled, 1, 10'000) > 0) {
    const ssize_t n = recv(socket, to.data() + have, to.size() - have, 0);
    if (n <= 0) break;
    have += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(have);
}

// The memory that the worker allocates for a client that sends `words` after its client hello.
int64_t taken(const WorkerSide& side, const std::string& words) {
  const auto [a, b] = testing::tcp_sockets();
  std::thread stranger([&, a = a] {
    for (size_t at = 0; at < words.size();) {
      const ssize_t n = send(a, words.data() + at, words.size() - at, MSG_NOSIGNAL);
      if (n > 0) at += static_cast<size_t>(n);
      if (n < 0 && errno != EAGAIN) break;
      if (n < 0) std::this_thread::sleep_for(1ms);
    }
    std::this_thread::sleep_for(100ms);
    close(a);
  });
  PendingClient pending_client;
  t_now = t_most = 0;
  t_counts = true;
  const Status status = authenticate_client(b, ClientHello(), side, Deadline(2s), "a stranger", &pending_client);
  t_counts = false;
  stranger.join();
  EXPECT_FALSE(status.ok());
  EXPECT_GT(t_most, 1000) << "nothing was counted";
  return t_most;
}

TEST(HandshakeMemory, OfAStrangerIsLittle) {
  ASSERT_TRUE(g_counting);
  const testing::Certificates files;
  std::shared_ptr<const TlsContext> keys, certificates, clients;
  ASSERT_TRUE(TlsContext::for_keys(TlsContext::Side::kWorker, &keys).ok());
  ASSERT_TRUE(TlsContext::for_worker(files.of("worker"), &certificates).ok());
  TlsFiles both = files.of("worker");
  both.authorities = files.file("ca.pem");
  ASSERT_TRUE(TlsContext::for_worker(both, &clients).ok());
  const std::string token = "a token that only both ends know";
  const Digest session{1};
  const WorkerSide sides[] = {
      {.token = token, .certificates = nullptr, .keys = keys.get(), .session = nullptr},
      {.token = token, .certificates = certificates.get(), .keys = keys.get(), .session = nullptr},
      {.token = token, .certificates = clients.get(), .keys = keys.get(), .session = nullptr},
      {.token = {}, .certificates = nullptr, .keys = keys.get(), .session = &session}};
  const std::string noise(1 << 20, 'x');
  // The first handshake of a process makes OpenSSL look up its algorithms, which must not count.
  (void)taken(sides[0], {});
  for (const WorkerSide& side : sides) {
    for (const std::string& words :
         {std::string(), noise, long_hello(100), long_hello(200'000), long_hello(200'000, 3)}) {
      const int64_t most = taken(side, words);
      EXPECT_LT(most, kLimit) << words.size() << " bytes";
      std::printf("a stranger took %lld bytes\n", static_cast<long long>(most));
    }
  }
}

// The memory that OpenSSL allocates for a client that completes the TLS handshake but cannot prove that it knows the
// token.
int64_t taken_by_hands(const TlsContext& server, const TlsContext& client) {
  const auto [a, b] = testing::tcp_sockets();
  std::thread stranger([&, a = a] {
    std::array<char, sizeof(ServerHello) + sizeof(Digest)> answer;
    EXPECT_EQ(receive_all(a, answer), static_cast<ssize_t>(answer.size()));
    std::unique_ptr<TlsStream> stream;
    const Status status = start_tls(a, client, {.host = "127.0.0.1", .key = nullptr}, Deadline(10s), "w", &stream);
    EXPECT_TRUE(status.ok()) << status.message();
    if (!status.ok()) return;
    HandshakeResult handshake;
    EXPECT_FALSE(request(*stream, {}, "another token, as long", 0, "host:1", Deadline(10s), &handshake).ok());
  });
  PendingClient pending_client;
  const WorkerSide side{
      .token = "a token that only both ends know", .certificates = &server, .keys = nullptr, .session = nullptr};
  t_now = t_most = 0;
  t_counts = true;
  const Status status = authenticate_client(b, ClientHello(), side, Deadline(10s), "a stranger", &pending_client);
  t_counts = false;
  pending_client.stream = nullptr;
  stranger.join();
  EXPECT_NE(status.message().find("its proof is wrong"), std::string::npos) << status.message();
  EXPECT_GT(t_most, 10'000);
  return t_most;
}

TEST(HandshakeMemory, OfAStrangerThatShakesHandsIsLittle) {
  ASSERT_TRUE(g_counting);
  const testing::Certificates files;
  testing::make_certificate(files.file("client"), {.name = "client", .authority = files.file("ca")});
  TlsFiles worker = files.of("worker");
  for (const bool wants_certificates : {false, true}) {
    if (wants_certificates) worker.authorities = files.file("ca.pem");
    std::shared_ptr<const TlsContext> server, client;
    ASSERT_TRUE(TlsContext::for_worker(worker, &server).ok());
    TlsFiles strangers = wants_certificates ? files.of("client") : TlsFiles();
    strangers.authorities = files.file("ca.pem");
    ASSERT_TRUE(TlsContext::for_client(strangers, &client).ok());
    // The first handshake of a process makes OpenSSL look up its algorithms, which must not count.
    (void)taken_by_hands(*server, *client);
    const int64_t most = taken_by_hands(*server, *client);
    EXPECT_LT(most, kLimit + (wants_certificates ? kCertificate : 0)) << wants_certificates;
    std::printf("a stranger %s took %lld bytes\n", wants_certificates ? "with a certificate" : "inside of TLS",
                static_cast<long long>(most));
  }
}

}  // namespace
}  // namespace torch_remote::remote

#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "remote/net/tcp.h"
#include "remote/net/testing/certificates.h"
#include "remote/net/tls.h"

// Pairs of connected ends in one process.
namespace torch_remote::remote::testing {

inline constexpr std::chrono::seconds kPatience{30};

inline std::pair<int, int> tcp_sockets() {
  Address address{"127.0.0.1", 0};
  int listener = -1, a = -1;
  bool loopback = false;
  EXPECT_TRUE(listen_tcp(&address, &listener, &loopback).ok());
  EXPECT_TRUE(loopback);
  EXPECT_TRUE(connect_tcp(address, Deadline(kPatience), &a).ok());
  pollfd polled{listener, POLLIN, 0};
  (void)poll(&polled, 1, 30'000);
  const int b = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  set_up_tcp(b);
  close(listener);
  return {a, b};
}

// A folder with an authority ("ca") and a certificate for 127.0.0.1 that it signed ("worker").
class Certificates {
 public:
  Certificates() {
    char name[] = "/tmp/certificates.XXXXXX";
    folder_ = mkdtemp(name);
    make_certificate(file("ca"), {.name = "authority", .is_authority = true});
    make_certificate(file("worker"), {.name = "127.0.0.1", .authority = file("ca")});
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  TlsFiles of(const std::string& name) const { return {file(name) + ".pem", file(name) + ".key", ""}; }

 private:
  std::string folder_;
};

struct TlsEnd {
  std::unique_ptr<TlsStream> stream;
  Status status;

  // A secret that both ends of this connection share, and no other connection has (TLS exporter).
  Digest secret() {
    Digest secret{};
    EXPECT_TRUE(stream->export_secret("EXPORTER-test", {}, &secret).ok());
    return secret;
  }
};

// Runs the TLS handshake of both ends at the same time.
inline std::pair<TlsEnd, TlsEnd> shake_hands(const TlsContext& client, const TlsPeer& worker, const TlsContext& server,
                                             const TlsPeer& peer) {
  auto [a, b] = tcp_sockets();
  TlsEnd clients, workers;
  std::thread other(
      [&, b = b] { workers.status = start_tls(b, server, peer, Deadline(kPatience), "a client", &workers.stream); });
  clients.status = start_tls(a, client, worker, Deadline(kPatience), "a worker", &clients.stream);
  other.join();
  return {std::move(clients), std::move(workers)};
}

inline std::pair<TlsEnd, TlsEnd> tls_streams(const TlsFiles& client, const TlsFiles& worker, const std::string& host) {
  std::shared_ptr<const TlsContext> ca, cb;
  EXPECT_TRUE(TlsContext::for_client(client, &ca).ok());
  EXPECT_TRUE(TlsContext::for_worker(worker, &cb).ok());
  return shake_hands(*ca, {.host = host}, *cb, {});
}

// Ends that authenticate by these pre-shared keys.
inline std::pair<TlsEnd, TlsEnd> key_streams(const Digest& client, const Digest& worker) {
  std::shared_ptr<const TlsContext> ca, cb;
  EXPECT_TRUE(TlsContext::for_keys(TlsContext::Side::kClient, &ca).ok());
  EXPECT_TRUE(TlsContext::for_keys(TlsContext::Side::kWorker, &cb).ok());
  return shake_hands(*ca, {.host = {}, .key = &client}, *cb, {.host = {}, .key = &worker});
}

}  // namespace torch_remote::remote::testing

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "ir/status.h"
#include "remote/net/patience.h"
#include "remote/transport/byte_stream.h"

struct ssl_ctx_st;

// TLS 1.3, and nothing older, over a connected socket.
namespace torch_remote::remote {

// Names of PEM files; empty ones are not given.
struct TlsFiles {
  std::string certificate;  // of this end, with those between it and the authority
  std::string key;          // of that certificate
  std::string authorities;  // that the other end's certificate must come from
};

// What connections of one end have in common. Thread safe.
class TlsContext {
 public:
  // For clients: `authorities` or, without, those that the system trusts. A certificate is for workers that want one.
  static Status for_client(const TlsFiles& files, std::shared_ptr<const TlsContext>* context);
  // For workers: certificate and key. With `authorities` clients need a certificate, too.
  static Status for_worker(const TlsFiles& files, std::shared_ptr<const TlsContext>* context);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* get() const { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

// Of one connection, known to both its ends and nobody else (RFC 9266, tls-exporter).
using ChannelBinding = std::array<uint8_t, 32>;

// Shakes hands over a socket, of which the stream becomes the owner (also if this fails). A client gives the worker's
// `host`, which must be in its certificate, a worker none. Errors name the fix.
Status start_tls(int socket, std::shared_ptr<const TlsContext> context, const std::string& host,
                 const Patience& patience, std::string description, std::unique_ptr<ByteStream>* stream,
                 ChannelBinding* binding);

}  // namespace torch_remote::remote

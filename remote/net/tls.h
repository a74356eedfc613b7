#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/deadline.h"
#include "remote/net/token.h"
#include "remote/transport/byte_stream.h"

struct ssl_ctx_st;

// TLS 1.3, and nothing older, over a connected socket. The ends authenticate each other by certificates, or by a key
// that both know (RFC 8446: an external pre-shared key with an ephemeral Diffie-Hellman exchange).
namespace torch_remote::remote {

// Makes OpenSSL overwrite all memory that it frees, for programs that must not keep secrets in memory. By default
// OpenSSL leaves traces of a private key's file there. Must be called before anything uses OpenSSL; returns false if
// something did.
bool enable_openssl_cleansing();

// Names of PEM files; an empty name means that there is none.
struct TlsFiles {
  std::string certificate;  // of this end, with the intermediate certificates
  std::string key;          // of that certificate
  std::string authorities;  // trusted authorities for the other end's certificate
};

// The connections of one end share a context. Thread safe.
class TlsContext {
 public:
  // For clients. Trusts `authorities` or, if empty, those of the system. A certificate is for workers that require one.
  // This function and the next one return kInvalid if a file is missing or cannot be used.
  static Status for_client(const TlsFiles& files, std::shared_ptr<const TlsContext>* context);
  // For workers, with certificate and key. With `authorities`, clients need a certificate, too.
  static Status for_worker(const TlsFiles& files, std::shared_ptr<const TlsContext>* context);
  // For connections whose ends share a key, without certificates.
  enum class Side : uint8_t { kClient, kWorker };
  static Status for_keys(Side side, std::shared_ptr<const TlsContext>* context);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* get() const { return context_; }
  // Holds this end's certificate and private key, or is null. Connections hold references until the handshake is done.
  // If the context is destroyed after that, OpenSSL frees the private key (see enable_openssl_cleansing).
  ssl_ctx_st* credentials() const { return credentials_; }
  Side side() const { return side_; }

 private:
  TlsContext(Side side, ssl_ctx_st* context) : side_(side), context_(context) {}
  const Side side_;
  ssl_ctx_st* const context_;
  ssl_ctx_st* credentials_ = nullptr;
};

// How a connection authenticates the other end.
struct TlsPeer {
  // For clients of workers with certificates: the host that the certificate must name.
  std::string host = {};
  // For contexts from for_keys. A key is used for one connection only, because OpenSSL may leave copies of it in
  // memory.
  const Digest* key = nullptr;
};

class TlsStream : public ByteStream {
 public:
  // Derives a secret that only the two ends of this connection know (RFC 8446, section 7.5).
  virtual Status export_secret(std::string_view label, std::span<const uint8_t> context, Digest* secret) = 0;
  // Until this call the buffers are small, so that a client that is not authenticated makes this end use less than 64
  // KiB.
  virtual void use_large_buffers() = 0;
};

// Runs the TLS handshake over a socket. The stream owns the socket; if the handshake fails, the socket is closed.
// `context` and `peer` are not used afterwards. `description` names the other end in errors. Errors name the fix.
// kUnsupported: one end does not trust the other, or does not speak TLS 1.3. kLost: the connection ended. kTimeout and
// kInterrupted: see Deadline.
Status start_tls(int socket, const TlsContext& context, const TlsPeer& peer, const Deadline& deadline,
                 std::string description, std::unique_ptr<TlsStream>* stream);

}  // namespace torch_remote::remote

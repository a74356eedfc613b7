#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/patience.h"
#include "remote/net/token.h"
#include "remote/transport/byte_stream.h"

struct ssl_ctx_st;

// TLS 1.3, and nothing older, over a connected socket. The ends authenticate each other by certificates, or by a key
// that both know (RFC 8446, an external pre-shared key with a fresh Diffie-Hellman exchange).
namespace torch_remote::remote {

// From now on OpenSSL overwrites what it frees, which it does not do with all that a private key's file becomes on its
// way. For programs whose memory is to keep no secrets; call it before anything uses OpenSSL. False: something did.
bool overwrite_what_openssl_frees();

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
  // For connections whose ends know a key: no certificates.
  enum class Side : uint8_t { kClient, kWorker };
  static Status for_keys(Side side, std::shared_ptr<const TlsContext>* context);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* get() const { return context_; }
  // Has this end's certificate and private key; null: there are none. Connections get references of their own, which
  // they drop after the handshake: when the context goes, too, the private key is gone from the process.
  ssl_ctx_st* credentials() const { return credentials_; }
  Side side() const { return side_; }

 private:
  TlsContext(Side side, ssl_ctx_st* context) : side_(side), context_(context) {}
  const Side side_;
  ssl_ctx_st* const context_;
  ssl_ctx_st* credentials_ = nullptr;
};

// Who is at the other end: for clients of workers with certificates, the host that the certificate must name; for
// contexts `for_keys`, the key, which is of one connection only (what OpenSSL keeps of it opens no other one).
struct TlsPeer {
  std::string host;
  const Digest* key = nullptr;
};

class TlsStream : public ByteStream {
 public:
  // A secret of this connection that both its ends know and nobody else (RFC 8446, section 7.5).
  virtual Status export_secret(std::string_view label, std::span<const uint8_t> context, Digest* secret) = 0;
  // Until this is called the buffers are small: a stranger makes this end take less than 64 KiB.
  virtual void use_large_buffers() = 0;
};

// Shakes hands over a socket, of which the stream becomes the owner (also if this fails). Errors name the fix;
// kUnsupported: the other end is not the one that was meant, or does not believe that this one is.
Status start_tls(int socket, const TlsContext& context, const TlsPeer& peer, const Patience& patience,
                 std::string description, std::unique_ptr<TlsStream>* stream);

}  // namespace torch_remote::remote

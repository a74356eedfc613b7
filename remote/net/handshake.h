#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/deadline.h"
#include "remote/net/tls.h"
#include "remote/net/token.h"
#include "remote/transport/byte_stream.h"

// The handshake between a client and a worker over a network, before the first frame. Each message has a fixed size,
// except for texts of at most kMaxText bytes.
//
//   client  ClientHello  version, scheme, a nonce; to resume a session, a tag that proves its client
//   worker  ServerHello  continue, and a nonce; or an error
//   [TLS 1.3, except for a new session over tcp:// without a token]
//   client  Request      the number of frames that it has received, and a proof
//   worker  Result       success, the number of frames that it has received and a proof; or an error
//
// The two ends authenticate each other as follows:
//   tcp:// with a token    TLS with a pre-shared key, derived from the token and all plaintext messages
//   tls://                 TLS with certificates; with a token, each end also proves that it knows the token, by an
//                          HMAC over a secret of this connection (RFC 9266)
//   resumed session        TLS with a pre-shared key, derived from the session's key and all plaintext messages
//   tcp:// without a token no authentication and no encryption: both ends insist on the loopback interface
//
// The session's key comes from its first connection (a TLS exporter), so later connections need neither token nor
// certificate. Each connection has its own pre-shared key, because the worker's nonce is part of it. So messages cannot
// be replayed, and key material left in memory opens no other connection. The client proves that it knows the token
// first, so a stranger who finds the port gets nothing that helps to guess it.
namespace torch_remote::remote {

inline constexpr size_t kMaxText = 1024;
// Time limits of a worker: until a client hello has arrived, and for the authentication of its client.
inline constexpr std::chrono::seconds kHelloTimeout{10};
inline constexpr std::chrono::seconds kAuthenticationTimeout{10};

// The client hello; little endian.
struct ClientHello {
  static constexpr std::array<char, 4> kMagic = {'T', 'R', 'R', 'C'};
  static constexpr uint8_t kVersion = 2;
  enum Flags : uint8_t { kTls = 1, kHasToken = 2 };  // kTls: the scheme is tls://

  std::array<char, 4> magic = kMagic;
  uint8_t version = kVersion;
  uint8_t flags = 0;
  uint16_t reserved = 0;
  uint64_t attempt = 0;           // counts this client's attempts to resume its session, from 1; 0: a new session
  std::array<uint8_t, 16> tag{};  // proves that the session's client made this attempt (see is_from)
  Digest nonce{};

  bool resumes() const { return attempt != 0; }
};
static_assert(sizeof(ClientHello) == 64);

struct ServerHello {
  static constexpr std::array<char, 4> kMagic = {'T', 'R', 'R', 'W'};
  enum Code : uint8_t {
    kGoOn = 0,  // the nonce follows
    kRefused,
    kOtherVersion,
    kWantsTls,
    kHasNoTls,
    kUnknownSession,
    kWantsToken,
    kHasNoToken
  };

  std::array<char, 4> magic = kMagic;
  uint8_t version = ClientHello::kVersion;
  uint8_t code = kGoOn;
  uint16_t text = 0;  // bytes of text that follow, if code is not kGoOn
};
static_assert(sizeof(ServerHello) == 8);

// Both ends know this about a connection after the handshake.
struct HandshakeResult {
  Digest key{};                                // of the session
  uint64_t received = 0;                       // frames that the other end has received
  std::chrono::milliseconds lease{60'000};     // how long a session lives without a connection
  std::chrono::milliseconds heartbeat{5'000};  // how often an idle end sends a message
};

// Derives the key with which a listener recognizes the session of a client hello, without knowing the session's key.
Digest routing_key(const Digest& session_key);
// Whether the session's client sent this client hello: that requires the session's key. A listener accepts each attempt
// once, and no attempt older than the last one, so an overheard client hello cannot be replayed.
bool is_from(const ClientHello& client_hello, const Digest& routing_key);

// --- the client's side -----------------------------------------------------------------------------------------------

struct ClientSide {
  bool tls = false;                          // the scheme is tls://
  std::string_view token;                    // may be empty
  const TlsContext* certificates = nullptr;  // for tls://
  const TlsContext* keys = nullptr;
  std::string host, name;  // name is "host:port", for errors
};
// A session to resume.
struct SessionToResume {
  Digest key{};
  uint64_t attempt = 0;
  uint64_t received = 0;  // frames that this end has received
};

// Runs the client's part of the handshake on a connected socket, which it owns, for a new session or for `resumed`.
// Errors name the fix. kUnsupported means that another attempt would fail as well. *ended is true if the listener says
// that it has no such session.
Status client_handshake(int socket, const ClientSide& side, const SessionToResume* resumed, const Deadline& deadline,
                        HandshakeResult* handshake, std::unique_ptr<ByteStream>* stream, bool* ended);

// --- the worker's side -----------------------------------------------------------------------------------------------

// Whether these bytes are enough for check_client_hello: a whole client hello, or enough to see that they are not one
// of this version.
bool is_whole(std::span<const uint8_t> bytes);
// The answer to a client hello's bytes, with the reason in *text. kGoOn means that nothing is wrong so far. Accepts any
// bytes.
ServerHello::Code check_client_hello(std::span<const uint8_t> bytes, bool tls, bool has_token,
                                     ClientHello* client_hello, std::string* text);
// Why a client is refused, for the log. `code` is not kGoOn.
std::string_view refusal_reason(ServerHello::Code code);
// Encodes an answer that ends the connection. The text is truncated to kMaxText.
std::string encode_server_hello(ServerHello::Code code, const std::string& text = {});

struct WorkerSide {
  std::string_view token;                    // may be empty
  const TlsContext* certificates = nullptr;  // for tls://
  const TlsContext* keys = nullptr;
  const Digest* session = nullptr;  // key of the session to resume; null: a new session
};
// An authenticated client that waits for the result.
struct PendingClient {
  std::unique_ptr<ByteStream> stream;
  TlsStream* tls = nullptr;  // `stream`, if it uses TLS
  Digest binding{};          // a secret of the connection
  Digest key{};              // of the session
  Digest proof{};            // the worker's proof
  uint64_t received = 0;     // frames that the client has received
};

// Answers a client hello and authenticates the client. Owns the socket. kUnsupported means that the client is not
// admitted.
Status authenticate_client(int socket, const ClientHello& client_hello, const WorkerSide& side,
                           const Deadline& deadline, const std::string& description, PendingClient* pending_client);
// Sends success. `received` is the number of frames that this end has received; from now on no earlier connection may
// receive frames.
Status accept_client(PendingClient& pending_client, uint64_t received, std::chrono::milliseconds lease,
                     std::chrono::milliseconds heartbeat, const Deadline& deadline);
void refuse(PendingClient& pending_client, const std::string& why, const Deadline& deadline);

// --- parts of these, for fuzzers -------------------------------------------------------------------------------------

// Sends a client's request and reads the result.
Status request(ByteStream& stream, const Digest& binding, std::string_view token, uint64_t received,
               const std::string& name, const Deadline& deadline, HandshakeResult* handshake);
// Reads a client's request. kUnsupported means that its proof is wrong; the client has been sent an error.
Status read_request(ByteStream& stream, const Digest& binding, std::string_view token, const Deadline& deadline,
                    uint64_t* received);

}  // namespace torch_remote::remote

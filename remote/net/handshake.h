#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/patience.h"
#include "remote/net/tls.h"
#include "remote/net/token.h"
#include "remote/transport/byte_stream.h"

// What a client and a worker that is reached over a network say before the first frame. All of it has a fixed size, but
// for texts of at most kMaxText bytes.
//
//   client  Opening   version, scheme, a nonce; of a session that goes on, a tag that only its client can make
//   worker  Answer    go on, and a nonce; or why not
//   [TLS 1.3, but for a new session over tcp:// without a token]
//   client  Request   how many frames it has, and a proof
//   worker  Result    yes, with how many frames it has and a proof; or why not
//
// How the two authenticate each other:
//   tcp:// with a token    TLS with a pre-shared key, derived from the token and all that was said in the clear
//   tls://                 TLS with certificates; with a token, each proves by HMAC over a secret of this connection
//                          (RFC 9266) that it knows the token
//   a session that goes on TLS with a pre-shared key, derived from the session's key and all that was said in the clear
//   tcp:// without a token not at all, and nothing is encrypted: both ends insist on the loopback interface
//
// The session's key comes out of its first connection (a TLS exporter); later connections need neither token nor
// certificate. Each connection has its own pre-shared key, as the worker's nonce is part of it. So what one end said
// can be said to nobody again, and what is left in memory of one connection opens no other one. A client proves first:
// who only finds the port gets nothing to guess tokens with.
namespace torch_remote::remote {

inline constexpr size_t kMaxText = 1024;
// What a client, and what a worker does for one, may take until it is let in.
inline constexpr std::chrono::seconds kOpeningTime{10};
inline constexpr std::chrono::seconds kProofTime{10};

// Little endian.
struct Opening {
  static constexpr std::array<char, 4> kMagic = {'T', 'R', 'R', 'C'};
  static constexpr uint8_t kVersion = 2;
  enum Flags : uint8_t { kTls = 1, kHasToken = 2 };  // the scheme is tls://

  std::array<char, 4> magic = kMagic;
  uint8_t version = kVersion;
  uint8_t flags = 0;
  uint16_t reserved = 0;
  uint64_t attempt = 0;           // of this client to go on with its session, from 1 on; 0: a new session
  std::array<uint8_t, 16> tag{};  // of that attempt (`is_from`)
  Digest nonce{};

  bool resumes() const { return attempt != 0; }
};
static_assert(sizeof(Opening) == 64);

struct Answer {
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
  uint8_t version = Opening::kVersion;
  uint8_t code = kGoOn;
  uint16_t text = 0;  // bytes that follow, of others than kGoOn
};
static_assert(sizeof(Answer) == 8);

// What both ends know of a connection when it is open.
struct Greeted {
  Digest key{};                                // of the session
  uint64_t received = 0;                       // frames that the other end has
  std::chrono::milliseconds lease{60'000};     // that a session lives without a connection
  std::chrono::milliseconds heartbeat{5'000};  // an end that has nothing to say says so that often
};

// Lets a listener, which does not know the session's key, see whose session an opening is for.
Digest routing_key(const Digest& session_key);
// Only who knows the session's key can make such an opening. A listener takes each attempt once, and none that is older
// than one that it took: what was overheard cannot be said again.
bool is_from(const Opening& opening, const Digest& routing_key);

// --- the client's side -----------------------------------------------------------------------------------------------

struct ClientSide {
  bool tls = false;                          // the scheme is tls://
  std::string_view token;                    // may be empty
  const TlsContext* certificates = nullptr;  // of tls://
  const TlsContext* keys = nullptr;
  std::string host, name;  // the latter is "host:port", for errors
};
// A session that goes on.
struct Resumed {
  Digest key{};
  uint64_t attempt = 0;
  uint64_t received = 0;  // frames that this end has
};

// Makes a connected socket, which it owns, a connection of a new session, or of that one. Errors name the fix.
// kUnsupported: it will not do, whatever is tried again. *ended: the listener says that it has no such session.
Status join(int socket, const ClientSide& side, const Resumed* resumed, const Patience& patience, Greeted* greeted,
            std::unique_ptr<ByteStream>* stream, bool* ended);

// --- the worker's side -----------------------------------------------------------------------------------------------

// Whether so many bytes are enough for `check_opening`: all, or what shows that they are none of this version.
bool is_whole(std::span<const uint8_t> bytes);
// What to answer to an opening's bytes, and why; kGoOn: nothing is wrong with it so far. Accepts any bytes.
Answer::Code check_opening(std::span<const uint8_t> bytes, bool tls, bool has_token, Opening* opening,
                           std::string* text);
// The bytes of an answer that ends the connection. The text is cut at kMaxText.
std::string encode_answer(Answer::Code code, const std::string& text = {});

struct WorkerSide {
  std::string_view token;                    // may be empty
  const TlsContext* certificates = nullptr;  // of tls://
  const TlsContext* keys = nullptr;
  const Digest* session = nullptr;  // the key of the one that goes on
};
// A client that is known, and waits for the result.
struct Applicant {
  std::unique_ptr<ByteStream> stream;
  TlsStream* tls = nullptr;  // the same
  Digest binding{};          // a secret of the connection
  Digest key{};              // of the session
  Digest proof{};            // the worker's
  uint64_t received = 0;     // frames that it has
};

// Answers an opening and finds out whether the client may be let in. Owns the socket. kUnsupported: it may not.
Status hear(int socket, const Opening& opening, const WorkerSide& side, const Patience& patience,
            const std::string& description, Applicant* applicant);
// `received`: frames that this end has, which are not to become more over another connection.
Status let_in(Applicant& applicant, uint64_t received, std::chrono::milliseconds lease,
              std::chrono::milliseconds heartbeat, const Patience& patience);
void refuse(Applicant& applicant, const std::string& why, const Patience& patience);

// --- parts of these, for fuzzers -------------------------------------------------------------------------------------

// A client's request and what it gets for it.
Status request(ByteStream& stream, const Digest& binding, std::string_view token, uint64_t received,
               const std::string& name, const Patience& patience, Greeted* greeted);
// A worker reads a request; kUnsupported: its proof is wrong, and the client was told.
Status hear_request(ByteStream& stream, const Digest& binding, std::string_view token, const Patience& patience,
                    uint64_t* received);

}  // namespace torch_remote::remote

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "ir/status.h"
#include "remote/net/patience.h"
#include "remote/net/tls.h"
#include "remote/net/token.h"
#include "remote/transport/byte_stream.h"

// What a client and a worker that is reached over a network say before the first frame. All of it has a fixed size, but
// for texts of at most kMaxText bytes.
//
//   client  Opening        which version, whether TLS follows, which session goes on (0: a new one)
//   worker  Answer         go on, or why not
//   [TLS 1.3]
//   worker  Challenge      a nonce
//   client  Response       a nonce, how many frames it has, and proof that it knows the secret
//   worker  Verdict        yes with the session, how many frames it has, and the worker's proof; or why not
//
// A proof is HMAC-SHA256 with the secret over who proves, all that was said before in both directions, the proven
// fields, and under TLS the channel binding. So neither can be replayed, sent back, or used on another connection; the
// secret itself is never sent. The client proves first: who only finds the port gets nothing to guess secrets with.
// For a new session the secret is the token; for one that goes on, a key that both ends derived when it began.
namespace torch_remote::remote {

using SessionId = std::array<uint8_t, 16>;

inline constexpr size_t kMaxText = 1024;
// What a client, and what a worker does for one, may take until it is let in.
inline constexpr std::chrono::seconds kOpeningTime{10};
inline constexpr std::chrono::seconds kProofTime{10};

// Little endian.
struct Opening {
  static constexpr std::array<char, 4> kMagic = {'T', 'R', 'R', 'C'};
  static constexpr uint8_t kVersion = 1;
  enum Flags : uint8_t { kTls = 1 };

  std::array<char, 4> magic = kMagic;
  uint8_t version = kVersion;
  uint8_t flags = 0;
  uint16_t reserved = 0;
  SessionId session{};

  bool resumes() const { return session != SessionId{}; }
};
static_assert(sizeof(Opening) == 24);

struct Answer {
  static constexpr std::array<char, 4> kMagic = {'T', 'R', 'R', 'W'};
  enum Code : uint8_t { kGoOn = 0, kRefused, kOtherVersion, kWantsTls, kHasNoTls, kUnknownSession };

  std::array<char, 4> magic = kMagic;
  uint8_t version = Opening::kVersion;
  uint8_t code = kGoOn;
  uint16_t text = 0;  // bytes that follow
};
static_assert(sizeof(Answer) == 8);

// What both ends know of a connection when it is open.
struct Greeted {
  SessionId session{};
  Digest key{};                                // of the session
  uint64_t received = 0;                       // frames that the other end has
  std::chrono::milliseconds lease{60'000};     // that a session lives without a connection
  std::chrono::milliseconds heartbeat{5'000};  // an end that has nothing to say says so that often
};

// --- the client's side -----------------------------------------------------------------------------------------------

// A session that goes on.
struct Resumed {
  SessionId session{};
  Digest key{};
  uint64_t received = 0;  // frames that this end has
};

// Says the opening on a socket and reads the answer: errors name the fix. `name`: of the worker, for them.
// kUnsupported: it will not do, whatever is tried again.
Status open_connection(int socket, bool tls, const Resumed* resumed, const std::string& name, const Patience& patience,
                       Opening* opening);
// Proves who both are. `binding` is null without TLS; `token` may be empty.
Status prove_client(ByteStream& stream, const Opening& opening, const ChannelBinding* binding, const std::string& token,
                    const Resumed* resumed, const std::string& name, const Patience& patience, Greeted* greeted);

// --- the worker's side -----------------------------------------------------------------------------------------------

// The bytes of an answer. The text is cut at kMaxText.
std::string encode_answer(Answer::Code code, const std::string& text = {});
// What to answer to an opening's bytes, and why; kGoOn: nothing is wrong with it so far. Accepts any bytes.
Answer::Code check_opening(std::span<const uint8_t> bytes, bool tls, Opening* opening, std::string* text);

struct Proof {
  std::string token;                 // may be empty
  const Resumed* resumed = nullptr;  // its session and key
  std::chrono::milliseconds lease{60'000}, heartbeat{5'000};
};
// Asked when the client is known: not ok refuses it, with this message. Gives a new session its id; of one that goes on
// it says how many frames this end has, which are not to become more by the old connection.
using Admit = std::function<Status(SessionId* session, uint64_t* received)>;

// kUnsupported: the client was refused, or not let in.
Status prove_worker(ByteStream& stream, const Opening& opening, const ChannelBinding* binding, const Proof& proof,
                    const Admit& admit, const Patience& patience, Greeted* greeted);

}  // namespace torch_remote::remote

#include "remote/net/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

namespace torch_remote::remote {
namespace {

struct Challenge {
  std::array<char, 4> magic = {'T', 'R', 'R', 'N'};
  uint8_t has_token = 0;  // for errors only: a proof tells
  std::array<uint8_t, 3> reserved{};
  Digest nonce{};
};
static_assert(sizeof(Challenge) == 40);

struct Response {
  Digest nonce{};
  uint64_t received = 0;
  Digest proof{};  // of all before
};
static_assert(sizeof(Response) == 72);

struct Verdict {
  enum Code : uint8_t { kWelcome = 0, kRefused, kNoProof };

  uint8_t code = kWelcome;
  uint8_t reserved = 0;
  uint16_t text = 0;                  // bytes that follow, of a refusal
  uint32_t lease = 0, heartbeat = 0;  // ms
  uint32_t reserved_too = 0;
  uint64_t received = 0;
  SessionId session{};
  Digest proof{};  // of all before
};
static_assert(sizeof(Verdict) == 72);

constexpr std::string_view kClientProves = "torch-remote 1: the client proves";
constexpr std::string_view kWorkerProves = "torch-remote 1: the worker proves";
constexpr std::string_view kSessionKey = "torch-remote 1: the key of the session";

// Of the worker's texts: letters of ASCII only, as they end in a terminal.
std::string printable(std::string text) {
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c > 0x7E; }, '?');
  return text;
}

// What was said so far.
class Transcript {
 public:
  Transcript(const Opening& opening, const ChannelBinding* binding) {
    add(&opening, sizeof(opening));
    const uint8_t tls = binding != nullptr;
    add(&tls, 1);
    if (binding) add(binding->data(), binding->size());
  }
  void add(const void* data, size_t size) {
    const auto* p = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), p, p + size);
  }
  Digest prove(std::span<const uint8_t> secret, std::string_view what) const {
    std::vector<uint8_t> message(what.begin(), what.end());
    message.push_back(0);
    message.insert(message.end(), bytes_.begin(), bytes_.end());
    return hmac_sha256(secret, message);
  }

 private:
  std::vector<uint8_t> bytes_;
};

std::span<const uint8_t> secret_of(const std::string& token, const Resumed* resumed) {
  if (resumed) return resumed->key;
  return {reinterpret_cast<const uint8_t*>(token.data()), token.size()};
}

Status write_all(ByteStream& stream, const void* data, size_t size, const Patience& patience) {
  const auto* p = static_cast<const char*>(data);
  int no_descriptor = -1;
  while (size > 0) {
    const iovec piece{const_cast<char*>(p), size};
    size_t n = 0;
    Status status = stream.write({&piece, 1}, &n, &no_descriptor);
    if (status.code() == ErrorCode::kTimeout) status = patience.wait(stream.output(), POLLOUT);
    if (!status.ok()) return status;
    p += n;
    size -= n;
  }
  return {};
}

// Exactly so many bytes: what comes behind them is somebody else's.
Status read_all(ByteStream& stream, void* data, size_t size, const Patience& patience) {
  auto* p = static_cast<char*>(data);
  while (size > 0) {
    const iovec piece{p, size};
    size_t n = 0;
    Status status = stream.read({&piece, 1}, &n, nullptr);
    const bool waits = status.code() == ErrorCode::kTimeout;
    if (waits) status = patience.wait(stream.input(), POLLIN);
    if (!status.ok()) return status;
    if (!waits && n == 0) return {ErrorCode::kLost, "it was closed"};
    p += n;
    size -= n;
  }
  return {};
}

// The same on a bare socket, before there is a stream.
Status exchange(int socket, bool sends, void* data, size_t size, const Patience& patience, size_t* done) {
  auto* p = static_cast<char*>(data);
  for (*done = 0; *done < size;) {
    const ssize_t n = sends ? send(socket, p + *done, size - *done, MSG_NOSIGNAL | MSG_DONTWAIT)
                            : recv(socket, p + *done, size - *done, MSG_DONTWAIT);
    if (n > 0) {
      *done += static_cast<size_t>(n);
      continue;
    }
    if (n == 0) return {ErrorCode::kLost, "it was closed"};
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return {ErrorCode::kLost, std::strerror(errno)};
    if (Status status = patience.wait(socket, sends ? POLLOUT : POLLIN); !status) return status;
  }
  return {};
}

Status no_worker(const std::string& name, const std::string& what) {
  return {ErrorCode::kUnsupported,
          "remote: what answers at " + name + " is no worker of torch-remote (" + what + "); check host and port"};
}

Status explain(const Status& status, const std::string& name, const std::string& when) {
  if (status.code() == ErrorCode::kTimeout) {
    return {ErrorCode::kTimeout, "remote: the worker at " + name + " is silent " + when +
                                     "; is another program there, or does it stand still?"};
  }
  if (status.code() == ErrorCode::kLost) {
    return {ErrorCode::kLost,
            "remote: the worker at " + name + " ended the connection " + when + ": " + status.message()};
  }
  return status;
}

}  // namespace

// --- the client's side -----------------------------------------------------------------------------------------------

Status open_connection(int socket, bool tls, const Resumed* resumed, const std::string& name, const Patience& patience,
                       Opening* opening) {
  constexpr const char* kWhen = "before it says who it is";
  *opening = Opening();
  opening->flags = tls ? Opening::kTls : 0;
  if (resumed) opening->session = resumed->session;
  size_t done = 0;
  Status status = exchange(socket, true, opening, sizeof(*opening), patience, &done);
  Answer answer;
  if (status.ok()) status = exchange(socket, false, &answer, sizeof(answer), patience, &done);
  if (!status.ok() && status.code() == ErrorCode::kLost && done > 0 &&
      std::memcmp(&answer, Answer::kMagic.data(), std::min(done, answer.magic.size())) != 0) {
    return no_worker(name, "it says something else");
  }
  if (!status.ok()) return explain(status, name, kWhen);
  if (answer.magic != Answer::kMagic) return no_worker(name, "it says something else");
  std::string text(std::min<size_t>(answer.text, kMaxText), '\0');
  if (status = exchange(socket, false, text.data(), text.size(), patience, &done); !status) {
    return explain(status, name, kWhen);
  }
  text = printable(std::move(text));
  const auto refused = [&](const std::string& why) -> Status { return {ErrorCode::kUnsupported, "remote: " + why}; };
  switch (answer.code) {
    case Answer::kGoOn:
      return {};
    case Answer::kWantsTls:
      return refused("the worker at " + name + " wants TLS; connect with tls://" + name);
    case Answer::kHasNoTls:
      return refused("the worker at " + name + " has no TLS; connect with tcp://" + name +
                     ", or start it with --listen tls://" + name);
    case Answer::kOtherVersion:
      return refused("the worker at " + name + " speaks version " + std::to_string(answer.version) +
                     " of the handshake, this client " + std::to_string(Opening::kVersion) +
                     "; install the same torch-remote on both");
    case Answer::kUnknownSession:
      return refused("the worker at " + name + " has no such session any more" + (text.empty() ? "" : ": " + text));
    default:
      return refused("the worker at " + name + " refuses" + (text.empty() ? "" : ": " + text));
  }
}

Status prove_client(ByteStream& stream, const Opening& opening, const ChannelBinding* binding, const std::string& token,
                    const Resumed* resumed, const std::string& name, const Patience& patience, Greeted* greeted) {
  constexpr const char* kWhen = "while both prove who they are";
  const auto refused = [&](const std::string& why) -> Status { return {ErrorCode::kUnsupported, "remote: " + why}; };
  Challenge challenge;
  if (Status status = read_all(stream, &challenge, sizeof(challenge), patience); !status) {
    return explain(status, name, kWhen);
  }
  if (challenge.magic != Challenge().magic) return no_worker(name, "its challenge is none");
  if (!resumed && challenge.has_token && token.empty()) {
    return refused("the worker at " + name +
                   " wants a token; set TORCH_REMOTE_TOKEN_FILE to the file that has it (or TORCH_REMOTE_TOKEN)");
  }
  if (!resumed && !challenge.has_token && !token.empty()) {
    return refused("a token is set, but the worker at " + name +
                   " has none, so it cannot prove that it is yours; start it with --token-file, or unset "
                   "TORCH_REMOTE_TOKEN_FILE and TORCH_REMOTE_TOKEN");
  }
  const std::span<const uint8_t> secret = secret_of(token, resumed);
  Transcript transcript(opening, binding);
  transcript.add(&challenge, sizeof(challenge));
  Response response;
  fill_random(response.nonce);
  response.received = resumed ? resumed->received : 0;
  transcript.add(&response, offsetof(Response, proof));
  response.proof = transcript.prove(secret, kClientProves);
  Status status = write_all(stream, &response, sizeof(response), patience);
  Verdict verdict;
  if (status.ok()) status = read_all(stream, &verdict, sizeof(verdict), patience);
  if (!status.ok()) return explain(status, name, kWhen);
  if (verdict.code == Verdict::kNoProof) {
    return resumed ? refused("the worker at " + name + " does not take this client for the session's own")
                   : refused("the token is not that of the worker at " + name +
                             "; set TORCH_REMOTE_TOKEN_FILE to the file that the worker was given (--token-file)");
  }
  if (verdict.code != Verdict::kWelcome) {
    std::string text(std::min<size_t>(verdict.text, kMaxText), '\0');
    if (status = read_all(stream, text.data(), text.size(), patience); !status) return explain(status, name, kWhen);
    return {ErrorCode::kUnsupported, printable(std::move(text))};
  }
  transcript.add(&verdict, offsetof(Verdict, proof));
  if (!equal(verdict.proof, transcript.prove(secret, kWorkerProves))) {
    return refused("the worker at " + name +
                   " does not know the token; it is not the one that was meant, or somebody is in between");
  }
  greeted->session = verdict.session;
  greeted->key = resumed ? resumed->key : transcript.prove(secret, kSessionKey);
  greeted->received = verdict.received;
  greeted->lease = std::chrono::milliseconds(verdict.lease);
  greeted->heartbeat = std::chrono::milliseconds(std::max(verdict.heartbeat, 1u));
  return {};
}

// --- the worker's side -----------------------------------------------------------------------------------------------

std::string encode_answer(Answer::Code code, const std::string& text) {
  Answer answer;
  answer.code = code;
  answer.text = static_cast<uint16_t>(std::min(text.size(), kMaxText));
  std::string bytes(reinterpret_cast<const char*>(&answer), sizeof(answer));
  return bytes + text.substr(0, answer.text);
}

Answer::Code check_opening(std::span<const uint8_t> bytes, bool tls, Opening* opening, std::string* text) {
  text->clear();
  if (bytes.size() != sizeof(*opening)) {
    *text = "the greeting is no client's of torch-remote";
    return Answer::kRefused;
  }
  std::memcpy(opening, bytes.data(), sizeof(*opening));
  if (opening->magic != Opening::kMagic) {
    *text = "the greeting is no client's of torch-remote";
    return Answer::kRefused;
  }
  if (opening->version != Opening::kVersion) return Answer::kOtherVersion;
  const bool wants_tls = opening->flags & Opening::kTls;
  if (tls && !wants_tls) return Answer::kWantsTls;
  if (!tls && wants_tls) return Answer::kHasNoTls;
  return Answer::kGoOn;
}

Status prove_worker(ByteStream& stream, const Opening& opening, const ChannelBinding* binding, const Proof& proof,
                    const Admit& admit, const Patience& patience, Greeted* greeted) {
  const auto gone = [&](const Status& status) -> Status {
    return {ErrorCode::kUnsupported, "remote: " + stream.description() + " was not let in: " + status.message()};
  };
  const auto refuse = [&](Verdict::Code code, const std::string& why) {
    Verdict verdict;
    verdict.code = code;
    const std::string text = code == Verdict::kNoProof ? std::string() : why.substr(0, kMaxText);
    verdict.text = static_cast<uint16_t>(text.size());
    Status status = write_all(stream, &verdict, sizeof(verdict), patience);
    if (status.ok()) status = write_all(stream, text.data(), text.size(), patience);
    return gone({ErrorCode::kUnsupported, why});
  };
  const std::span<const uint8_t> secret = secret_of(proof.token, proof.resumed);
  Challenge challenge;
  challenge.has_token = !proof.token.empty();
  fill_random(challenge.nonce);
  Transcript transcript(opening, binding);
  transcript.add(&challenge, sizeof(challenge));
  Response response;
  Status status = write_all(stream, &challenge, sizeof(challenge), patience);
  if (status.ok()) status = read_all(stream, &response, sizeof(response), patience);
  if (!status.ok()) return gone(status);
  transcript.add(&response, offsetof(Response, proof));
  if (!equal(response.proof, transcript.prove(secret, kClientProves))) {
    return refuse(Verdict::kNoProof, "its proof is wrong");
  }
  Verdict verdict;
  if (proof.resumed) verdict.session = proof.resumed->session;
  if (status = admit(&verdict.session, &verdict.received); !status.ok()) {
    return refuse(Verdict::kRefused, status.message());
  }
  verdict.lease = static_cast<uint32_t>(proof.lease.count());
  verdict.heartbeat = static_cast<uint32_t>(proof.heartbeat.count());
  transcript.add(&verdict, offsetof(Verdict, proof));
  verdict.proof = transcript.prove(secret, kWorkerProves);
  if (status = write_all(stream, &verdict, sizeof(verdict), patience); !status.ok()) return gone(status);
  greeted->session = verdict.session;
  greeted->key = proof.resumed ? proof.resumed->key : transcript.prove(secret, kSessionKey);
  greeted->received = response.received;
  greeted->lease = proof.lease;
  greeted->heartbeat = proof.heartbeat;
  return {};
}

}  // namespace torch_remote::remote

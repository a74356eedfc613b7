#include "remote/net/handshake.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "remote/net/tcp.h"

namespace torch_remote::remote {
namespace {

struct Request {
  std::array<char, 4> magic = {'T', 'R', 'R', 'Q'};
  uint32_t reserved = 0;
  uint64_t received = 0;
  Digest proof{};
};
static_assert(sizeof(Request) == 48);

struct Result {
  enum Code : uint8_t { kWelcome = 0, kRefused, kNoProof };

  uint8_t code = kWelcome;
  uint8_t reserved = 0;
  uint16_t text = 0;                  // bytes that follow, of a refusal
  uint32_t lease = 0, heartbeat = 0;  // ms
  uint32_t reserved_too = 0;
  uint64_t received = 0;
  Digest proof{};
};
static_assert(sizeof(Result) == 56);

// Labels of derived keys and proofs; each has one purpose.
constexpr std::string_view kTokenKey = "torch-remote 2: connection by token";
constexpr std::string_view kResumedKey = "torch-remote 2: connection of a session";
constexpr std::string_view kClientProves = "torch-remote 2: the client proves";
constexpr std::string_view kWorkerProves = "torch-remote 2: the worker proves";
constexpr std::string_view kRoutingKey = "torch-remote 2: routing";
constexpr std::string_view kBinding = "EXPORTER-torch-remote-binding";
constexpr std::string_view kSessionKey = "EXPORTER-torch-remote-session-key";

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Replaces everything but printable ASCII in a worker's text, because it is printed to a terminal.
std::string printable(std::string text) {
  std::ranges::replace_if(text, [](unsigned char c) { return c < 0x20 || c > 0x7E; }, '?');
  return text;
}

// The plaintext part of the handshake: the client hello and the worker's nonce.
using Preamble = std::array<uint8_t, sizeof(ClientHello) + sizeof(Digest)>;

Preamble preamble_of(const ClientHello& client_hello, const Digest& nonce) {
  Preamble said;
  std::memcpy(said.data(), &client_hello, sizeof(client_hello));
  std::memcpy(said.data() + sizeof(client_hello), nonce.data(), nonce.size());
  return said;
}

std::array<uint8_t, 16> tag_of(uint64_t attempt, const Digest& routing_key) {
  std::array<uint8_t, sizeof(attempt)> message;
  std::memcpy(message.data(), &attempt, sizeof(attempt));
  const Digest digest = hmac_sha256(routing_key, message);
  std::array<uint8_t, 16> tag;
  std::copy_n(digest.begin(), tag.size(), tag.begin());
  return tag;
}

Digest prove(std::string_view token, std::string_view who, const Digest& binding) {
  std::vector<uint8_t> message(who.begin(), who.end());
  message.insert(message.end(), binding.begin(), binding.end());
  return hmac_sha256(bytes_of(token), message);
}

// Makes the stream of a socket on which the preamble was exchanged, its binding, and the key of a new session.
Status secure(int socket, const TlsContext* tls, const TlsPeer& peer, const Preamble& said, const Deadline& deadline,
              std::string description, PendingClient* made) {
  if (tls == nullptr) {  // any process on this machine may connect
    made->stream = make_socket_stream(socket, std::move(description));
    made->binding = derive_key({}, said, kBinding);
    made->key = derive_key({}, said, kSessionKey);
    return {};
  }
  std::unique_ptr<TlsStream> stream;
  if (Status status = start_tls(socket, *tls, peer, deadline, std::move(description), &stream); !status) return status;
  if (Status status = stream->export_secret(kBinding, said, &made->binding); !status) return status;
  if (Status status = stream->export_secret(kSessionKey, said, &made->key); !status) return status;
  made->tls = stream.get();
  made->stream = std::move(stream);
  return {};
}

Status write_all(ByteStream& stream, const void* data, size_t size, const Deadline& deadline) {
  const auto* p = static_cast<const char*>(data);
  int no_descriptor = -1;
  while (size > 0) {
    const iovec piece{const_cast<char*>(p), size};
    size_t n = 0;
    Status status = stream.write({&piece, 1}, &n, &no_descriptor);
    if (status.code() == ErrorCode::kTimeout) status = deadline.wait(stream.output(), POLLOUT);
    if (!status.ok()) return status;
    p += n;
    size -= n;
  }
  return {};
}

// Reads exactly `size` bytes, because later bytes belong to other code.
Status read_all(ByteStream& stream, void* data, size_t size, const Deadline& deadline) {
  auto* p = static_cast<char*>(data);
  while (size > 0) {
    const iovec piece{p, size};
    size_t n = 0;
    Status status = stream.read({&piece, 1}, &n, nullptr);
    const bool waits = status.code() == ErrorCode::kTimeout;
    if (waits) status = deadline.wait(stream.input(), POLLIN);
    if (!status.ok()) return status;
    if (!waits && n == 0) return {ErrorCode::kLost, "it was closed"};
    p += n;
    size -= n;
  }
  return {};
}

// Sends or receives on a bare socket, before there is a stream.
Status exchange(int socket, bool sends, void* data, size_t size, const Deadline& deadline, size_t* done) {
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
    if (Status status = deadline.wait(socket, sends ? POLLOUT : POLLIN); !status) return status;
  }
  return {};
}

Status no_worker(const std::string& name, const std::string& what) {
  return {ErrorCode::kUnsupported,
          "remote: the server at " + name + " is not a worker of torch-remote (" + what + "); check host and port"};
}

Status explain(const Status& status, const std::string& name, const std::string& when) {
  if (status.code() == ErrorCode::kTimeout) {
    return {ErrorCode::kTimeout, "remote: the worker at " + name + " sent nothing " + when +
                                     "; is another program there, or is the worker stopped?"};
  }
  if (status.code() == ErrorCode::kLost) {
    return {ErrorCode::kLost,
            "remote: the worker at " + name + " ended the connection " + when + ": " + status.message()};
  }
  return status;
}

std::string not_the_token(const std::string& name) {
  return "the token is not that of the worker at " + name +
         "; set TORCH_REMOTE_TOKEN_FILE to the file that the worker was given (--token-file)";
}

Status refused(const std::string& why) { return {ErrorCode::kUnsupported, "remote: " + why}; }

Status exchange_hellos(int socket, const ClientHello& client_hello, const std::string& name, const Deadline& deadline,
                       Digest* nonce, bool* ended) {
  constexpr const char* kWhen = "before its server hello";
  size_t done = 0;
  ClientHello said = client_hello;
  Status status = exchange(socket, true, &said, sizeof(said), deadline, &done);
  ServerHello server_hello;
  if (status.ok()) status = exchange(socket, false, &server_hello, sizeof(server_hello), deadline, &done);
  if (!status.ok() && status.code() == ErrorCode::kLost && done > 0 &&
      std::memcmp(&server_hello, ServerHello::kMagic.data(), std::min(done, server_hello.magic.size())) != 0) {
    return no_worker(name, "it sent no server hello");
  }
  if (!status.ok()) return explain(status, name, kWhen);
  if (server_hello.magic != ServerHello::kMagic) return no_worker(name, "it sent no server hello");
  if (server_hello.code == ServerHello::kGoOn && server_hello.version == ClientHello::kVersion) {
    status = exchange(socket, false, nonce->data(), nonce->size(), deadline, &done);
    return status.ok() ? status : explain(status, name, kWhen);
  }
  std::string text(std::min<size_t>(server_hello.text, kMaxText), '\0');
  if (status = exchange(socket, false, text.data(), text.size(), deadline, &done); !status) {
    return explain(status, name, kWhen);
  }
  text = printable(std::move(text));
  if (server_hello.version != ClientHello::kVersion) server_hello.code = ServerHello::kOtherVersion;
  switch (server_hello.code) {
    case ServerHello::kWantsTls:
      return refused("the worker at " + name + " requires TLS; connect with tls://" + name);
    case ServerHello::kHasNoTls:
      return refused("the worker at " + name + " has no TLS; connect with tcp://" + name +
                     ", or start it with --listen tls://" + name);
    case ServerHello::kOtherVersion:
      return refused("the worker at " + name + " speaks version " + std::to_string(server_hello.version) +
                     " of the handshake, this client " + std::to_string(ClientHello::kVersion) +
                     "; install the same torch-remote on both");
    case ServerHello::kUnknownSession:
      *ended = true;
      return refused("the worker at " + name + " has no such session any more" + (text.empty() ? "" : ": " + text));
    case ServerHello::kWantsToken:
      return refused(
          "the worker at " + name +
          " requires a token; set TORCH_REMOTE_TOKEN_FILE to the file that contains it (or set TORCH_REMOTE_TOKEN)");
    case ServerHello::kHasNoToken:
      return refused("a token is set, but the worker at " + name +
                     " has none, so it cannot prove that it is yours; start it with --token-file, or unset "
                     "TORCH_REMOTE_TOKEN_FILE and TORCH_REMOTE_TOKEN");
    default:
      return refused("the worker at " + name + " refuses" + (text.empty() ? "" : ": " + text));
  }
}

Status not_let_in(ByteStream& stream, const std::string& why) {
  return {ErrorCode::kUnsupported, "remote: " + stream.description() + " was refused: " + why};
}

Status write_result(ByteStream& stream, Result result, const std::string& why, const Deadline& deadline) {
  const std::string text = why.substr(0, kMaxText);
  result.text = static_cast<uint16_t>(text.size());
  if (Status status = write_all(stream, &result, sizeof(result), deadline); !status.ok()) return status;
  return write_all(stream, text.data(), text.size(), deadline);
}

}  // namespace

Digest routing_key(const Digest& session_key) { return derive_key(session_key, {}, kRoutingKey); }

bool is_from(const ClientHello& client_hello, const Digest& routing_key) {
  return client_hello.resumes() && equal(client_hello.tag, tag_of(client_hello.attempt, routing_key));
}

// --- the client's side -----------------------------------------------------------------------------------------------

Status client_handshake(int socket, const ClientSide& side, const SessionToResume* resumed, const Deadline& deadline,
                        HandshakeResult* handshake, std::unique_ptr<ByteStream>* stream, bool* ended) {
  *ended = false;
  ClientHello client_hello;
  client_hello.flags =
      static_cast<uint8_t>((side.tls ? ClientHello::kTls : 0) | (side.token.empty() ? 0 : ClientHello::kHasToken));
  fill_random(client_hello.nonce);
  if (resumed != nullptr) {
    client_hello.attempt = resumed->attempt;
    client_hello.tag = tag_of(resumed->attempt, routing_key(resumed->key));
  }
  const bool by_certificate = resumed == nullptr && side.tls;
  const bool by_key = resumed != nullptr || (!side.tls && !side.token.empty());
  Digest nonce{};
  Status status;
  if (!by_certificate && !by_key && !is_loopback_peer(socket)) {
    status = Status::invalid(
        "remote: tcp:// without a token is for workers on this machine only, as nothing is "
        "encrypted, and " +
        side.name +
        " is another one; start the worker with --token-file and "
        "set TORCH_REMOTE_TOKEN_FILE, or use a tunnel to 127.0.0.1");
  }
  if (status.ok()) status = exchange_hellos(socket, client_hello, side.name, deadline, &nonce, ended);
  if (!status.ok()) {
    close(socket);
    return status;
  }
  const Preamble said = preamble_of(client_hello, nonce);
  Digest key{};
  if (resumed != nullptr) {
    key = derive_key(resumed->key, said, kResumedKey);
  } else if (by_key) {
    key = derive_key(bytes_of(side.token), said, kTokenKey);
  }
  PendingClient made;
  status =
      secure(socket,
             by_certificate ? side.certificates
             : by_key       ? side.keys
                            : nullptr,
             {side.host, by_key ? &key : nullptr}, said, deadline, (side.tls ? "tls " : "tcp ") + side.name, &made);
  if (by_key && status.code() == ErrorCode::kUnsupported) {
    return refused(resumed != nullptr
                       ? "the worker at " + side.name + " did not recognize this client as the owner of the session"
                       : not_the_token(side.name));
  }
  if (!status.ok()) return status;
  const std::string_view token = by_certificate ? side.token : std::string_view();
  status = request(*made.stream, made.binding, token, resumed != nullptr ? resumed->received : 0, side.name, deadline,
                   handshake);
  if (!status.ok()) return status;
  handshake->key = resumed != nullptr ? resumed->key : made.key;
  if (made.tls != nullptr) made.tls->use_large_buffers();
  *stream = std::move(made.stream);
  return {};
}

Status request(ByteStream& stream, const Digest& binding, std::string_view token, uint64_t received,
               const std::string& name, const Deadline& deadline, HandshakeResult* handshake) {
  constexpr const char* kWhen = "during the authentication";
  Request request;
  request.received = received;
  request.proof = prove(token, kClientProves, binding);
  Status status = write_all(stream, &request, sizeof(request), deadline);
  Result result;
  if (status.ok()) status = read_all(stream, &result, sizeof(result), deadline);
  if (!status.ok()) return explain(status, name, kWhen);
  if (result.code == Result::kNoProof) return refused(not_the_token(name));
  if (result.code != Result::kWelcome) {
    std::string text(std::min<size_t>(result.text, kMaxText), '\0');
    if (status = read_all(stream, text.data(), text.size(), deadline); !status) return explain(status, name, kWhen);
    return {ErrorCode::kUnsupported, printable(std::move(text))};
  }
  if (!equal(result.proof, prove(token, kWorkerProves, binding))) {
    return refused(
        "the worker at " + name +
        " did not prove that it knows the token; it is another worker, or somebody intercepts the connection");
  }
  handshake->received = result.received;
  handshake->lease = std::chrono::milliseconds(result.lease);
  handshake->heartbeat = std::chrono::milliseconds(std::max(result.heartbeat, 1u));
  return {};
}

// --- the worker's side -----------------------------------------------------------------------------------------------

std::string_view refusal_reason(ServerHello::Code code) {
  switch (code) {
    case ServerHello::kGoOn:
    case ServerHello::kRefused:
      break;
    case ServerHello::kOtherVersion:
      return "it uses another version of the handshake";
    case ServerHello::kWantsTls:
      return "it does not use TLS (tls://)";
    case ServerHello::kHasNoTls:
      return "it uses TLS, and this worker has no certificate";
    case ServerHello::kUnknownSession:
      return "its session has ended";
    case ServerHello::kWantsToken:
      return "it has no token";
    case ServerHello::kHasNoToken:
      return "it has a token, and this worker has none";
  }
  return "it is not admitted";
}

std::string encode_server_hello(ServerHello::Code code, const std::string& text) {
  ServerHello server_hello;
  server_hello.code = code;
  server_hello.text = static_cast<uint16_t>(std::min(text.size(), kMaxText));
  std::string bytes(reinterpret_cast<const char*>(&server_hello), sizeof(server_hello));
  return bytes + text.substr(0, server_hello.text);
}

bool is_whole(std::span<const uint8_t> bytes) {
  constexpr size_t kMagicSize = ClientHello::kMagic.size();
  if (bytes.size() >= sizeof(ClientHello)) return true;
  if (std::memcmp(bytes.data(), ClientHello::kMagic.data(), std::min(bytes.size(), kMagicSize)) != 0) return true;
  return bytes.size() > kMagicSize && bytes[kMagicSize] != ClientHello::kVersion;
}

ServerHello::Code check_client_hello(std::span<const uint8_t> bytes, bool tls, bool has_token,
                                     ClientHello* client_hello, std::string* text) {
  text->clear();
  constexpr size_t kMagicSize = ClientHello::kMagic.size();
  if (bytes.size() <= kMagicSize || std::memcmp(bytes.data(), ClientHello::kMagic.data(), kMagicSize) != 0) {
    *text = "the first message is not a client hello of torch-remote";
    return ServerHello::kRefused;
  }
  if (bytes[kMagicSize] != ClientHello::kVersion) return ServerHello::kOtherVersion;
  if (bytes.size() != sizeof(*client_hello)) {
    *text = "the first message is not a client hello of torch-remote";
    return ServerHello::kRefused;
  }
  std::memcpy(client_hello, bytes.data(), sizeof(*client_hello));
  const bool wants_tls = client_hello->flags & ClientHello::kTls,
             token_too = client_hello->flags & ClientHello::kHasToken;
  if (tls && !wants_tls) return ServerHello::kWantsTls;
  if (!tls && wants_tls) return ServerHello::kHasNoTls;
  if (client_hello->resumes()) return ServerHello::kGoOn;
  if (has_token && !token_too) return ServerHello::kWantsToken;
  if (!has_token && token_too) return ServerHello::kHasNoToken;
  return ServerHello::kGoOn;
}

Status authenticate_client(int socket, const ClientHello& client_hello, const WorkerSide& side,
                           const Deadline& deadline, const std::string& description, PendingClient* pending_client) {
  const bool resumes = side.session != nullptr;
  const bool by_certificate = !resumes && side.certificates != nullptr;
  const bool by_key = resumes || (!by_certificate && !side.token.empty());
  Digest nonce{};
  fill_random(nonce);
  std::string answer = encode_server_hello(ServerHello::kGoOn);
  answer.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  size_t done = 0;
  Status status = exchange(socket, true, answer.data(), answer.size(), deadline, &done);
  if (!status.ok()) {
    close(socket);
    return {ErrorCode::kUnsupported, "remote: " + description + " was refused: " + status.message()};
  }
  const Preamble said = preamble_of(client_hello, nonce);
  Digest key{};
  if (resumes) {
    key = derive_key(*side.session, said, kResumedKey);
  } else if (by_key) {
    key = derive_key(bytes_of(side.token), said, kTokenKey);
  }
  status = secure(socket,
                  by_certificate ? side.certificates
                  : by_key       ? side.keys
                                 : nullptr,
                  {{}, by_key ? &key : nullptr}, said, deadline, description, pending_client);
  if (!status.ok()) {
    const bool other_key = by_key && status.code() == ErrorCode::kUnsupported;
    return {ErrorCode::kUnsupported, "remote: " + description +
                                         " was refused: " + (other_key ? "its proof is wrong (" : "") +
                                         status.message() + (other_key ? ")" : "")};
  }
  const std::string_view token = by_certificate ? side.token : std::string_view();
  if (status =
          read_request(*pending_client->stream, pending_client->binding, token, deadline, &pending_client->received);
      !status.ok()) {
    return status;
  }
  pending_client->proof = prove(token, kWorkerProves, pending_client->binding);
  if (resumes) pending_client->key = *side.session;
  return {};
}

Status read_request(ByteStream& stream, const Digest& binding, std::string_view token, const Deadline& deadline,
                    uint64_t* received) {
  Request request;
  if (Status status = read_all(stream, &request, sizeof(request), deadline); !status.ok()) {
    return not_let_in(stream, status.message());
  }
  if (request.magic != Request().magic || !equal(request.proof, prove(token, kClientProves, binding))) {
    Result result;
    result.code = Result::kNoProof;
    (void)write_result(stream, result, {}, deadline);
    return not_let_in(stream, "its proof is wrong");
  }
  *received = request.received;
  return {};
}

Status accept_client(PendingClient& pending_client, uint64_t received, std::chrono::milliseconds lease,
                     std::chrono::milliseconds heartbeat, const Deadline& deadline) {
  Result result;
  result.lease = static_cast<uint32_t>(lease.count());
  result.heartbeat = static_cast<uint32_t>(heartbeat.count());
  result.received = received;
  result.proof = pending_client.proof;
  if (Status status = write_result(*pending_client.stream, result, {}, deadline); !status.ok()) {
    return not_let_in(*pending_client.stream, status.message());
  }
  if (pending_client.tls != nullptr) pending_client.tls->use_large_buffers();
  return {};
}

void refuse(PendingClient& pending_client, const std::string& why, const Deadline& deadline) {
  Result result;
  result.code = Result::kRefused;
  (void)write_result(*pending_client.stream, result, why, deadline);
}

}  // namespace torch_remote::remote

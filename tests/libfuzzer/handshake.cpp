// Decodes bytes as the handshake of a stranger with a worker or a client. No peer without the secret may get through,
// and nothing after the handshake may be read.
//
// The first byte of an input selects the receiver; the rest is what the peer sends.
//   0: the listener gets a client hello.
//   1, 2: a worker and a client, inside TLS.
//   3, 4: a worker after its server hello, for a new and for a resumed session.
//   5, 6: a client after its client hello, for a new and for a resumed session.
#include "remote/net/handshake.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "remote/transport/byte_stream.h"
#include "tests/libfuzzer/fuzzer.h"

namespace torch_remote::fuzzers {
namespace {

using namespace remote;

// A stream whose peer has already sent everything.
class ReplayStream : public ByteStream {
 public:
  explicit ReplayStream(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  Status read(std::span<const iovec> to, size_t* bytes, std::deque<int>*) override {
    *bytes = std::min(to.front().iov_len, bytes_.size());
    std::copy_n(bytes_.begin(), *bytes, static_cast<uint8_t*>(to.front().iov_base));
    bytes_ = bytes_.subspan(*bytes);
    read_ += *bytes;
    return {};
  }
  Status write(std::span<const iovec> from, size_t* bytes, int*) override {
    *bytes = from.front().iov_len;
    return {};
  }
  int input() const override { return -1; }
  int output() const override { return -1; }
  void shut_down() override {}
  void abandon() override {}
  std::string description() const override { return "a stranger"; }
  size_t taken() const { return read_; }

 private:
  std::span<const uint8_t> bytes_;
  size_t read_ = 0;
};

const std::string kToken = "a token of enough bytes";

bool prove(std::span<const uint8_t> bytes, bool worker) {
  const Deadline deadline(std::chrono::seconds(10));
  ReplayStream replay(bytes);
  HandshakeResult handshake;
  uint64_t received = 0;
  const Digest binding{1, 2, 3};
  const Status status = worker ? read_request(replay, binding, kToken, deadline, &received)
                               : request(replay, binding, kToken, 0, "somewhere", deadline, &handshake);
  if (status.ok()) wrong("who does not know the secret was believed");
  if (replay.taken() > 2 * kMaxText) wrong("too much was read");
  return false;
}

// A socket on which the peer has already sent everything.
int replay_on_socket(std::span<const uint8_t> bytes, int* other) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) wrong("no sockets");
  (void)!send(ends[1], bytes.data(), std::min<size_t>(bytes.size(), 65536), MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(ends[1], SHUT_WR);
  *other = ends[1];
  return ends[0];
}

void check_text(const Status& status) {
  if (status.ok()) wrong("who does not know the secret was believed");
  if (!std::ranges::all_of(status.message(), [](char c) { return c >= 0x20 && c < 0x7F; }))
    wrong("an error with signs");
}

// A client that receives these bytes: a server hello, and what follows.
bool open(std::span<const uint8_t> bytes, const SessionToResume* resumed) {
  static const std::shared_ptr<const TlsContext> keys = [] {
    std::shared_ptr<const TlsContext> made;
    if (!TlsContext::for_keys(TlsContext::Side::kClient, &made).ok()) wrong("no TLS");
    return made;
  }();
  int other;
  const int socket = replay_on_socket(bytes, &other);
  ClientSide side;
  side.token = kToken;
  side.keys = keys.get();
  side.name = "somewhere";
  HandshakeResult handshake;
  std::unique_ptr<ByteStream> stream;
  bool ended = false;
  check_text(client_handshake(socket, side, resumed, Deadline(std::chrono::seconds(10)), &handshake, &stream, &ended));
  close(other);
  return ended;
}

// A worker that receives these bytes after a client hello.
bool run_worker_handshake(std::span<const uint8_t> bytes, const Digest* session) {
  static const std::shared_ptr<const TlsContext> keys = [] {
    std::shared_ptr<const TlsContext> made;
    if (!TlsContext::for_keys(TlsContext::Side::kWorker, &made).ok()) wrong("no TLS");
    return made;
  }();
  int other;
  const int socket = replay_on_socket(bytes, &other);
  const WorkerSide side{.token = kToken, .keys = keys.get(), .session = session};
  PendingClient pending_client;
  check_text(authenticate_client(socket, ClientHello(), side, Deadline(std::chrono::seconds(10)), "a stranger",
                                 &pending_client));
  close(other);
  return false;
}

}  // namespace
}  // namespace torch_remote::fuzzers

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torch_remote::fuzzers;
  if (size == 0) return count_outcome(false);
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  const SessionToResume resumed{{1}, 2, 3};
  switch (data[0] % 7) {
    case 0: {
      ClientHello client_hello;
      std::string text;
      const bool good = check_client_hello(bytes, false, true, &client_hello, &text) == ServerHello::kGoOn;
      if (good && is_from(client_hello, routing_key(resumed.key))) wrong("who does not know the secret was believed");
      if (good && !is_whole(bytes)) wrong("a listener would wait for more");
      return count_outcome(good);
    }
    case 1:
      return count_outcome(prove(bytes, true));
    case 2:
      return count_outcome(prove(bytes, false));
    case 3:
      return count_outcome(run_worker_handshake(bytes, nullptr));
    case 4:
      return count_outcome(run_worker_handshake(bytes, &resumed.key));
    case 5:
      return count_outcome(open(bytes, nullptr));
    default:
      return count_outcome(open(bytes, &resumed));
  }
}

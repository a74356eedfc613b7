// What strangers say to a worker before they are let in, and what answers to a client: nobody who does not know the
// secret gets through, and nothing is read beyond what the handshake has.
//
// An input is a byte that says who hears it (0: the listener; 1: a worker; 2: a client; 3, 4: the same of a session
// that goes on; 5: a client's opening), and what the other one says.
#include "remote/net/handshake.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "remote/transport/byte_stream.h"
#include "tests/fuzzers/fuzzer.h"

namespace torch_remote::fuzzers {
namespace {

using namespace remote;

// The other end has said all of it already.
class Said : public ByteStream {
 public:
  explicit Said(std::span<const uint8_t> bytes) : bytes_(bytes) {}

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

bool prove(std::span<const uint8_t> bytes, bool worker, const Resumed* resumed) {
  const std::string token = "a token of enough bytes";
  const Patience patience(std::chrono::seconds(10));
  const Admit admit = [](SessionId*, uint64_t*) { return Status(); };
  Said said(bytes);
  Greeted greeted;
  const Status status = worker
                            ? prove_worker(said, Opening(), nullptr, {token, resumed}, admit, patience, &greeted)
                            : prove_client(said, Opening(), nullptr, token, resumed, "somewhere", patience, &greeted);
  if (status.ok()) wrong("who does not know the secret was believed");
  if (said.taken() > 2 * kMaxText) wrong("too much was read");
  return false;
}

// What a client makes of an answer.
bool open(std::span<const uint8_t> bytes) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) wrong("no sockets");
  (void)!send(ends[1], bytes.data(), std::min<size_t>(bytes.size(), 4096), MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(ends[1], SHUT_WR);
  Opening opening;
  const Status status =
      open_connection(ends[0], false, nullptr, "somewhere", Patience(std::chrono::seconds(10)), &opening);
  close(ends[0]);
  close(ends[1]);
  if (!std::ranges::all_of(status.message(), [](char c) { return c >= 0x20 && c < 0x7F; }))
    wrong("an error with signs");
  return status.ok();
}

}  // namespace
}  // namespace torch_remote::fuzzers

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torch_remote::fuzzers;
  if (size == 0) return verdict(false);
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  const Resumed resumed{{1}, {2}, 3};
  switch (data[0] % 6) {
    case 0: {
      Opening opening;
      std::string text;
      return verdict(check_opening(bytes, false, &opening, &text) == Answer::kGoOn);
    }
    case 5:
      return verdict(open(bytes));
    default:
      return verdict(prove(bytes, data[0] % 2 == 1, data[0] % 6 >= 3 ? &resumed : nullptr));
  }
}

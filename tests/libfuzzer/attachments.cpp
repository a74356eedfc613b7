// A peer on a Unix socket. It sends frames with tensor bytes inline or in shared memory, announces, returns and retires
// segments, and sends arbitrary bytes. Everything that the transport returns must be readable, and no descriptor may
// leak.
//
//   input   := command*
//   command := kind (1 byte) and, by kind:
//     kBytes       length (2) bytes               sent as they are
//     kAnnounce    number (4) size (4) told (4) seals (1) a segment of `size` bytes, announced as `told` bytes
//     kInlineFrame length (2) bytes               a frame with an inline attachment
//     kSharedFrame segment (4) offset (8) size (8) token (8) flags (4)   a frame with this attachment header
//     kSegments    op (4) count (2) words (8 each) a message about segments
//     kAllocate    size (4)                       this end sends an attachment
//     kReceive     receives all pending frames, and reads every attachment
//     kRelease     releases the attachments received so far
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "remote/transport/byte_stream.h"
#include "remote/transport/transport.h"
#include "remote/wire/wire.h"
#include "tests/libfuzzer/fuzzer.h"

namespace torch_remote::fuzzers {
namespace {

enum Command : uint8_t {
  kBytes,
  kAnnounce,
  kInlineFrame,
  kSharedFrame,
  kSegments,
  kAllocate,
  kReceive,
  kRelease,
  kCommands
};

// Must equal remote/transport/frame_parser.h and shared_memory.h.
constexpr uint32_t kInline = 1, kSegmentAnnounce = 1;
struct AttachmentHeader {
  uint64_t size, offset, token;
  uint32_t segment, flags;
};

constexpr size_t kLargest = 1 << 20;  // bytes of a segment here

class Peer {
 public:
  Peer() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) wrong("no socket pair");
    transport_ = remote::make_unix_transport(ends[0]);
    socket_ = ends[1];
    // A frame that does not fit ends the input, because no other thread would drain the socket.
    fcntl(socket_, F_SETFL, O_NONBLOCK);
  }
  ~Peer() {
    if (socket_ >= 0) ::close(socket_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool obey(Input& input) {
    switch (input.number<uint8_t>() % kCommands) {
      case kBytes:
        return write(input.take(input.number<uint16_t>()));
      case kAnnounce:
        return announce(input);
      case kInlineFrame: {
        const auto bytes = input.take(input.number<uint16_t>());
        return write_frame(1, {}, wire::kAttachment) && write_header({bytes.size(), 0, 0, 0, kInline}) && write(bytes);
      }
      case kSharedFrame: {
        AttachmentHeader header{};
        header.segment = input.number<uint32_t>();
        header.offset = input.number<uint64_t>();
        header.size = input.number<uint64_t>();
        header.token = input.number<uint64_t>();
        header.flags = input.number<uint32_t>();
        return write_frame(1, {}, wire::kAttachment) && write_header(header);
      }
      case kSegments: {
        const auto op = input.number<uint32_t>();
        const uint32_t count = input.number<uint16_t>() % 64;
        return write_segments(op, count, input.take(8 * size_t{count}));
      }
      case kAllocate:
        return lend(input.number<uint32_t>() % kLargest);
      case kReceive:
        return receive();
      default:
        held_.clear();
        return true;
    }
  }

  // Receives what is pending, then closes the peer's end.
  bool end() {
    const bool good = receive();
    ::close(std::exchange(socket_, -1));
    return good;
  }

 private:
  bool write(std::span<const uint8_t> bytes, int descriptor = -1) {
    if (bytes.empty()) return true;
    const iovec piece{const_cast<uint8_t*>(bytes.data()), bytes.size()};
    return remote::send_pieces(socket_, {&piece, 1}, descriptor, 0) == static_cast<ssize_t>(bytes.size());
  }

  bool write_frame(uint8_t type, std::span<const uint8_t> control, uint16_t flags, int descriptor = -1) {
    wire::Header header;
    header.type = type;
    header.flags = flags;
    header.length = static_cast<uint32_t>(control.size());
    header.checksum = wire::crc32c(control.data(), control.size());
    std::vector<uint8_t> bytes(sizeof(header) + control.size());
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::copy(control.begin(), control.end(), bytes.begin() + sizeof(header));
    return write(bytes, descriptor);
  }

  bool write_header(const AttachmentHeader& header) {
    static_assert(sizeof(header) == 32);
    uint8_t bytes[sizeof(header)];
    std::memcpy(bytes, &header, sizeof(header));
    return write(bytes);
  }

  bool write_segments(uint32_t op, uint32_t count, std::span<const uint8_t> words, int descriptor = -1) {
    std::vector<uint8_t> control(8);
    std::memcpy(control.data(), &op, 4);
    std::memcpy(control.data() + 4, &count, 4);
    control.insert(control.end(), words.begin(), words.end());
    return write_frame(static_cast<uint8_t>(wire::Type::kTransport), control, 0, descriptor);
  }

  bool announce(Input& input) {
    const uint64_t number = input.number<uint32_t>();
    const size_t size = input.number<uint32_t>() % kLargest;
    const uint64_t told = input.number<uint32_t>();
    const auto seals = input.number<uint8_t>();
    const int file = memfd_create("fuzzer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) wrong("no segment");
    fcntl(file, F_ADD_SEALS, seals & (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
    const uint64_t words[] = {number, told};
    const auto* bytes = reinterpret_cast<const uint8_t*>(words);
    const bool written = write_segments(kSegmentAnnounce, 2, {bytes, sizeof(words)}, file);
    ::close(file);
    return written;
  }

  // Sends memory of this end, which the peer may name afterwards.
  bool lend(size_t size) {
    remote::AttachmentPtr attachment = transport_->allocate(size);
    if (!attachment) return false;
    if (size > 0) attachment->bytes()[size - 1] = std::byte{1};
    if (!drain()) return false;
    wire::Header header;
    header.type = 1;
    return transport_->send(header, {}, std::move(attachment)).ok();
  }

  // Reads what this end sent from the socket; otherwise sending would block forever.
  bool drain() {
    char bytes[4096];
    for (;;) {
      int descriptor;
      const ssize_t size = remote::receive_piece(socket_, bytes, &descriptor, MSG_DONTWAIT);
      if (descriptor >= 0) ::close(descriptor);
      if (size <= 0) return size != 0;
    }
  }

  bool receive() {
    for (;;) {
      if (!drain()) return false;
      remote::Frame frame;
      const Status status = transport_->receive(&frame, std::chrono::nanoseconds::zero());
      if (status.code() == ErrorCode::kTimeout) return true;
      if (!status.ok()) return false;
      if (!frame.attachment) continue;
      uint8_t sum = 0;
      for (const std::byte byte : frame.attachment->bytes()) sum ^= static_cast<uint8_t>(byte);
      [[maybe_unused]] static volatile uint8_t sink;
      sink = sum;
      held_.push_back(std::move(frame.attachment));
    }
  }

  int socket_ = -1;
  std::unique_ptr<remote::Transport> transport_;
  std::vector<remote::AttachmentPtr> held_;
};

// The number that the next descriptor would get. It rises if a descriptor leaks.
int next_descriptor() {
  const int descriptor = fcntl(0, F_DUPFD_CLOEXEC, 3);
  if (descriptor < 0) wrong("no descriptor left");
  ::close(descriptor);
  return descriptor;
}

}  // namespace
}  // namespace torch_remote::fuzzers

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torch_remote::fuzzers;
  const int before = next_descriptor();
  bool good = true;
  {
    Peer peer;
    Input input(data, size);
    while (good && !input.empty()) good = peer.obey(input);
    good = peer.end() && good;
  }
  if (next_descriptor() != before) wrong("a descriptor is left open");
  return count_outcome(good);
}

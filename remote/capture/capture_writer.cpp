#include "remote/capture/capture_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "remote/capture/capture_generated.h"
#include "remote/transport/forwarding_transport.h"

namespace torch_remote::remote {
namespace {

using capture::ChunkHeader;
using capture::ChunkType;

// Reserved for the chunk that says that the limit was reached.
constexpr uint64_t kEndBytes = capture::chunk_bytes(64, 0);

constexpr std::byte kZeros[capture::kAlignment] = {};

template <class Clock>
uint64_t nanoseconds() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}

bool write_all(int file, iovec* pieces, size_t count) {
  while (count > 0) {
    const ssize_t written = writev(file, pieces, static_cast<int>(count));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    auto left = static_cast<size_t>(written);
    for (; count > 0 && left >= pieces->iov_len; ++pieces, --count) left -= pieces->iov_len;
    if (count > 0) {
      pieces->iov_base = static_cast<char*>(pieces->iov_base) + left;
      pieces->iov_len -= left;
    }
  }
  return true;
}

std::span<const std::byte> bytes_of(const AttachmentPtr& attachment) {
  return attachment ? attachment->bytes() : std::span<std::byte>();
}

class CapturingTransport : public ForwardingTransport {
 public:
  CapturingTransport(std::unique_ptr<Transport> inner, std::shared_ptr<CaptureWriter> writer)
      : ForwardingTransport(std::move(inner)), writer_(std::move(writer)) {}

  // We write the frame before sending it. Once it is sent, the worker owns the memory and may overwrite it.
  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override {
    writer_->sent(header, control, bytes_of(attachment));
    return inner().send(header, control, std::move(attachment));
  }
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override {
    Status status = inner().receive(frame, timeout);
    if (status.ok()) writer_->received(frame->header, frame->control, bytes_of(frame->attachment));
    return status;
  }
  void abandon() override {
    writer_->abandon();
    inner().abandon();
  }

 private:
  const std::shared_ptr<CaptureWriter> writer_;
};

}  // namespace

// --- the file --------------------------------------------------------------------------------------------------------

CaptureWriter::CaptureWriter(int file, const CaptureOptions& options)
    : file_(file), path_(options.path), limit_(options.limit), began_(nanoseconds<std::chrono::steady_clock>()) {}

Status CaptureWriter::open(const CaptureOptions& options, std::shared_ptr<CaptureWriter>* writer) {
  const auto fail = [&](const std::string& why) {
    return Status::invalid("remote: cannot write the capture '" + options.path + "': " + why);
  };
  // A capture contains tensors, so only this user may read it. We do not follow a symbolic link, or write to a file
  // that belongs to another user.
  const int file = ::open(options.path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return fail(errno == ELOOP ? "it is a symbolic link; name the file itself" : std::strerror(errno));
  struct stat about{};
  const bool regular = fstat(file, &about) == 0 && S_ISREG(about.st_mode);
  if (regular && (about.st_uid != geteuid() || fchmod(file, 0600) != 0)) {
    ::close(file);
    return fail("the file belongs to another user");
  }
  if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(file);
    return fail("another process writes it; put %p into the name to give each process its own file");
  }
  if (ftruncate(file, 0) != 0 && errno != EINVAL) {  // EINVAL: a pipe or a device
    const std::string why = std::strerror(errno);
    ::close(file);
    return fail(why);
  }
  std::shared_ptr<CaptureWriter> made(new CaptureWriter(file, options));

  capture::FileHeader header{};
  std::memcpy(header.magic, capture::kMagic, sizeof(header.magic));
  header.version = capture::kFormatVersion;
  iovec piece{&header, sizeof(header)};
  if (!write_all(file, &piece, 1)) {
    made->open_ = false;
    const std::string why = std::strerror(errno);
    ::close(file);
    return fail(why);
  }
  made->written_ = sizeof(header);
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(capture::CreateInfoDirect(builder, options.torch_version.c_str(), static_cast<uint32_t>(getpid()),
                                           static_cast<int64_t>(nanoseconds<std::chrono::system_clock>())));
  made->write_chunk(ChunkType::kInfo, {builder.GetBufferPointer(), builder.GetSize()}, {}, {});
  *writer = std::move(made);
  return {};
}

CaptureWriter::~CaptureWriter() {
  if (!open_) return;
  put_end(0);
  if (open_) ::close(file_);
}

uint64_t CaptureWriter::written() const {
  std::lock_guard lock(mutex_);
  return written_;
}

void CaptureWriter::abandon() {
  if (open_.exchange(false)) ::close(file_);
}

void CaptureWriter::stop(const std::string& why) {
  if (!open_.exchange(false)) return;
  ::close(file_);
  std::fprintf(stderr, "remote: the capture '%s' ends here: %s\n", path_.c_str(), why.c_str());
}

void CaptureWriter::put_end(uint64_t limit) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(capture::CreateEnd(builder, limit));
  put(ChunkType::kEnd, {builder.GetBufferPointer(), builder.GetSize()}, {}, {});
}

// --- chunks ----------------------------------------------------------------------------------------------------------

void CaptureWriter::frame(ChunkType type, wire::Header& header, std::span<const uint8_t> control,
                          std::span<const std::byte> attachment) {
  header.length = static_cast<uint32_t>(control.size());
  header.checksum = 0;  // the chunk has a checksum
  write_chunk(type, {&header, sizeof(header)}, {control.data(), control.size()}, attachment);
}

void CaptureWriter::sent(wire::Header header, std::span<const uint8_t> control, std::span<const std::byte> attachment) {
  frame(ChunkType::kSent, header, control, attachment);
}

void CaptureWriter::received(wire::Header header, std::span<const uint8_t> control,
                             std::span<const std::byte> attachment) {
  frame(ChunkType::kReceived, header, control, attachment);
}

void CaptureWriter::source_graph(uint32_t number, std::span<const uint8_t> program) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(capture::CreateSourceGraph(builder, number));
  write_chunk(ChunkType::kSourceGraph, {builder.GetBufferPointer(), builder.GetSize()}, {}, std::as_bytes(program));
}

void CaptureWriter::write_chunk(ChunkType type, Piece first, Piece second, std::span<const std::byte> attachment) {
  if (!open_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  if (!open_) return;
  if (written_ + capture::chunk_bytes(first.size + second.size, attachment.size()) + kEndBytes > limit_) {
    put_end(limit_);
    return stop("it reached its limit of " + std::to_string(limit_) + " bytes (TORCH_REMOTE_CAPTURE_LIMIT)");
  }
  put(type, first, second, attachment);
}

void CaptureWriter::put(ChunkType type, Piece first, Piece second, std::span<const std::byte> attachment) {
  ChunkHeader header{};
  header.type = type;
  header.time = nanoseconds<std::chrono::steady_clock>() - began_;
  header.control = static_cast<uint32_t>(first.size + second.size);
  header.attachment = attachment.size();
  const auto padding = [](uint64_t size) { return static_cast<size_t>(capture::align(size) - size); };
  iovec pieces[] = {
      {&header, sizeof(header)},
      {const_cast<void*>(first.data), first.size},
      {const_cast<void*>(second.data), second.size},
      {const_cast<std::byte*>(kZeros), padding(sizeof(header) + header.control)},
      {const_cast<std::byte*>(attachment.data()), attachment.size()},
      {const_cast<std::byte*>(kZeros), padding(header.attachment)},
  };
  for (size_t i = 1; i < std::size(pieces); ++i) {
    header.checksum = wire::crc32c(pieces[i].iov_base, pieces[i].iov_len, header.checksum);
  }
  header.header_checksum = wire::crc32c(reinterpret_cast<const std::byte*>(&header) + capture::kHeaderChecked,
                                        sizeof(header) - capture::kHeaderChecked);
  if (!write_all(file_, pieces, std::size(pieces))) return stop(std::strerror(errno));
  written_ += capture::chunk_bytes(header.control, header.attachment);
}

std::unique_ptr<Transport> capture_frames(std::unique_ptr<Transport> inner, std::shared_ptr<CaptureWriter> writer) {
  return std::make_unique<CapturingTransport>(std::move(inner), std::move(writer));
}

// --- the environment -------------------------------------------------------------------------------------------------

Status capture_options(const char* path, const char* limit, CaptureOptions* options) {
  options->path.clear();
  if (path == nullptr || *path == '\0') return {};
  options->path = path;
  if (const size_t at = options->path.find("%p"); at != std::string::npos) {
    options->path.replace(at, 2, std::to_string(getpid()));
  }
  static std::atomic<int> sessions{0};
  if (const int session = ++sessions; session > 1) {
    constexpr std::string_view kSuffix = ".rreplay";
    const bool suffix = options->path.ends_with(kSuffix);
    options->path.insert(options->path.size() - (suffix ? kSuffix.size() : 0), "." + std::to_string(session));
  }
  if (limit == nullptr || *limit == '\0') return {};
  return parse_bytes("TORCH_REMOTE_CAPTURE_LIMIT", limit, &options->limit);
}

Status parse_bytes(const char* name, const char* text, uint64_t* bytes) {
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, *bytes);
  const std::string_view suffix(rest, static_cast<size_t>(end - rest));
  const size_t power = suffix.empty() ? 0 : std::string_view("KMG").find(suffix) + 1;
  if (error != std::errc() || suffix.size() > 1 || (!suffix.empty() && power == 0) ||
      *bytes > UINT64_MAX >> (10 * power)) {
    return Status::invalid("remote: " + std::string(name) + "='" + std::string(text) +
                           "' is not a number of bytes; write it like 500M or 4G");
  }
  *bytes <<= 10 * power;
  return {};
}

}  // namespace torch_remote::remote

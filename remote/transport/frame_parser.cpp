#include "remote/transport/frame_parser.h"

#include <algorithm>
#include <cstring>

namespace torch_remote::remote {
namespace {

// The buffer of a long control message grows with the bytes received. So a header alone cannot make us allocate much.
constexpr size_t kFirstControl = 1 << 20;
constexpr size_t kSkippedAtOnce = 256 << 10;

}  // namespace

Status FrameParser::parse(std::span<const uint8_t> bytes, std::deque<Frame>& frames) {
  while (!bytes.empty()) {
    const std::span<uint8_t> to = writable_bytes();
    const size_t n = std::min(to.size(), bytes.size());
    std::memcpy(to.data(), bytes.data(), n);
    bytes = bytes.subspan(n);
    if (Status status = advance(n, frames); !status) return status;
  }
  return {};
}

Status FrameParser::advance(size_t bytes, std::deque<Frame>& frames) {
  have_ += bytes;
  while (have_ == size_) {
    Status status;
    switch (state_) {
      case State::kHeader:
        status = end_header();
        break;
      case State::kControl:
        status = end_control(frames);
        break;
      case State::kAttachment:
        status = end_attachment(frames);
        break;
      case State::kBytes:
        end_frame(frames);
        break;
      case State::kSkipped:
        to_skip_ -= size_;
        if (to_skip_ > 0) {
          skip();
        } else {
          skipped_ = {};
          end_frame(frames);
        }
        break;
    }
    if (!status) return status;
  }
  return {};
}

Status FrameParser::end_header() {
  const wire::Header& header = header_bytes_;
  if (header.magic != wire::kMagic) {
    return Status::invalid("remote: the received data is not a frame of torch-remote (it begins with " +
                           std::to_string(header.magic) + "); is another program at the other end?");
  }
  if (header.version != wire::kVersion) {
    return Status::invalid("remote: the other end speaks protocol version " + std::to_string(header.version) +
                           ", this one " + std::to_string(wire::kVersion) + "; install the same torch-remote on both");
  }
  if (header.length > wire::kMaxControl) {
    return Status::invalid("remote: a control message has " + std::to_string(header.length) + " bytes; the limit is " +
                           std::to_string(wire::kMaxControl));
  }
  frame_.header = header;
  frame_.control.resize(std::min<size_t>(header.length, kFirstControl));
  state_ = State::kControl;
  begin_piece(frame_.control.data(), frame_.control.size());
  return {};
}

Status FrameParser::end_control(std::deque<Frame>& frames) {
  const size_t length = frame_.header.length;
  if (const size_t have = frame_.control.size(); have < length) {
    frame_.control.resize(std::min(length, 2 * have));
    begin_piece(frame_.control.data() + have, frame_.control.size() - have);
    return {};
  }
  if (const uint32_t checksum = wire::crc32c(frame_.control.data(), length); checksum != frame_.header.checksum) {
    return Status::invalid("remote: a control message of " + std::to_string(length) +
                           " bytes was damaged on the way: checksum " + std::to_string(checksum) + ", not " +
                           std::to_string(frame_.header.checksum));
  }
  const bool attachment = frame_.header.flags & wire::kAttachment;
  if (frame_.header.type == static_cast<uint8_t>(wire::Type::kTransport)) {
    if (attachment) return Status::invalid("remote: a message of the transport has an attachment");
    Status status = handler_.transport_message(frame_.control);
    begin_frame();
    return status;
  }
  if (attachment) {
    state_ = State::kAttachment;
    begin_piece(&attachment_bytes_, sizeof(attachment_bytes_));
  } else {
    end_frame(frames);
  }
  return {};
}

Status FrameParser::end_attachment(std::deque<Frame>& frames) {
  if (Status status = handler_.attachment(attachment_bytes_, &frame_.attachment); !status) return status;
  if (!frame_.attachment) {
    frame_.refused_bytes = to_skip_ = attachment_bytes_.size;
    if (to_skip_ == 0) return Status{ErrorCode::kOutOfMemory, "remote: no memory for a message"};
    skipped_.resize(kSkippedAtOnce);
    state_ = State::kSkipped;
    skip();
    return {};
  }
  const std::span<std::byte> bytes = frame_.attachment->bytes();
  if ((attachment_bytes_.flags & kInline) && !bytes.empty()) {
    state_ = State::kBytes;
    begin_piece(bytes.data(), bytes.size());
  } else {
    end_frame(frames);
  }
  return {};
}

void FrameParser::skip() { begin_piece(skipped_.data(), std::min<uint64_t>(to_skip_, skipped_.size())); }

void FrameParser::end_frame(std::deque<Frame>& frames) {
  frames.push_back(std::move(frame_));
  begin_frame();
}

void FrameParser::begin_frame() {
  frame_ = Frame();
  state_ = State::kHeader;
  begin_piece(&header_bytes_, sizeof(header_bytes_));
}

}  // namespace torch_remote::remote

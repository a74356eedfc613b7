#pragma once

#include <deque>

#include "remote/transport/transport.h"

// Bytes of a stream into frames.
//
//   frame := header control [attachment bytes?]
//
// `attachment` (32 bytes) is there if the header has kAttachment; `bytes` if the attachment is kInline.
namespace torch_remote::remote {

enum AttachmentFlags : uint32_t {
  kInline = 1,            // its bytes follow
  kReceiversSegment = 2,  // it lies in a segment that the receiver made
};

// Little endian.
struct AttachmentHeader {
  uint64_t size = 0;
  uint64_t offset = 0;   // in the segment
  uint64_t token = 0;    // to give it back
  uint32_t segment = 0;  // of the sender's, unless kReceiversSegment
  uint32_t flags = 0;
};
static_assert(sizeof(AttachmentHeader) == 32);

class FrameParser {
 public:
  // What depends on the transport. An error makes the connection useless.
  class Handler {
   public:
    virtual ~Handler() = default;
    // The memory of an attachment: where its bytes are, or for kInline will be put; null: there is none, and they are
    // skipped.
    virtual Status attachment(const AttachmentHeader& header, AttachmentPtr* attachment) = 0;
    // A frame of type kTransport.
    virtual Status transport_message(std::span<const uint8_t> control) = 0;
  };

  explicit FrameParser(Handler& handler) : handler_(handler) { begin_frame(); }

  // Where the next bytes belong; never empty. They may be received straight into it.
  std::span<uint8_t> rest() { return {piece_ + have_, size_ - have_}; }
  // That many bytes of `rest` are there now. Complete frames go to `frames`. Nothing may be parsed after an error.
  Status advance(size_t bytes, std::deque<Frame>& frames);
  // Copies bytes into place.
  Status parse(std::span<const uint8_t> bytes, std::deque<Frame>& frames);

  // False in the middle of a frame.
  bool between_frames() const { return state_ == State::kHeader && have_ == 0; }

 private:
  enum class State { kHeader, kControl, kAttachment, kBytes, kSkipped };

  void begin_piece(void* memory, size_t size) {
    piece_ = static_cast<uint8_t*>(memory);
    size_ = size;
    have_ = 0;
  }
  Status end_header();
  Status end_control(std::deque<Frame>& frames);
  Status end_attachment(std::deque<Frame>& frames);
  void skip();
  void end_frame(std::deque<Frame>& frames);
  void begin_frame();

  Handler& handler_;
  State state_ = State::kHeader;
  uint8_t* piece_ = nullptr;
  size_t size_ = 0;
  size_t have_ = 0;
  Frame frame_;
  wire::Header header_bytes_;
  AttachmentHeader attachment_bytes_;
  uint64_t to_skip_ = 0;
  std::vector<uint8_t> skipped_;  // made when it is needed
};

}  // namespace torch_remote::remote

#pragma once

#include <deque>

#include "remote/transport/transport.h"

// Parses a stream of bytes into frames.
//
//   frame := header control [attachment bytes?]
//
// `attachment` (32 bytes) is present if the header has kAttachment, and `bytes` if the attachment is kInline. Otherwise
// the attachment's bytes are in a segment: shared memory that one of the two ends created.
namespace torch_remote::remote {

enum AttachmentFlags : uint32_t {
  kInline = 1,             // the attachment's bytes follow in the stream
  kSegmentOfReceiver = 2,  // they are in a segment that the receiver created; else: that the sender created
};

// The attachment part of a frame; little endian.
struct AttachmentHeader {
  uint64_t size = 0;
  uint64_t offset = 0;   // bytes from the start of the segment
  uint64_t token = 0;    // names the attachment when the receiver gives it back
  uint32_t segment = 0;  // number of the segment among those of the end that created it
  uint32_t flags = 0;
};
static_assert(sizeof(AttachmentHeader) == 32);

class FrameParser {
 public:
  // Handles what depends on the transport. After an error the connection is unusable.
  class Handler {
   public:
    virtual ~Handler() = default;
    // Sets `attachment` to the memory that has the attachment's bytes, or, for kInline, that will receive them. If it
    // is null, there is no memory and the bytes are skipped.
    virtual Status attachment(const AttachmentHeader& header, AttachmentPtr* attachment) = 0;
    // Handles a frame of type kTransport.
    virtual Status transport_message(std::span<const uint8_t> control) = 0;
  };

  explicit FrameParser(Handler& handler) : handler_(handler) { begin_frame(); }

  // Where the next bytes belong; never empty. The caller may receive directly into it and then call advance().
  std::span<uint8_t> writable_bytes() { return {piece_ + have_, size_ - have_}; }
  // Says that the first `bytes` bytes of writable_bytes() were filled. Complete frames are appended to `frames`. After
  // an error nothing more may be parsed.
  Status advance(size_t bytes, std::deque<Frame>& frames);
  // Copies `bytes` to where they belong and advances.
  Status parse(std::span<const uint8_t> bytes, std::deque<Frame>& frames);

  // False if a frame is incomplete.
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
  std::vector<uint8_t> skipped_;  // allocated on first use
};

}  // namespace torch_remote::remote

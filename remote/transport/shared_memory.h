#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "remote/transport/frame_parser.h"
#include "remote/transport/memory_access.h"
#include "remote/transport/memory_pool.h"
#include "remote/transport/transport.h"

// Tensor bytes in memory that both processes map: memfd segments. A segment's descriptor is sent once; from then on
// both ends refer to the segment by its number.
//
// The two ends exchange frames of type wire::Type::kTransport. The control bytes are an 8-byte SegmentMessage, then
//   kAnnounce  number, size (8 bytes each); the segment's descriptor is sent along
//   kGiveBack  `count` tokens of attachments that their receiver has released
//   kRetire    numbers of segments that their owner will not use again
namespace torch_remote::remote {

enum class SegmentOp : uint32_t { kAnnounce = 1, kGiveBack, kRetire };

struct SegmentMessage {
  uint32_t op = 0;
  uint32_t count = 0;  // of the tokens or numbers that follow
};

inline constexpr size_t kMaxTokens = 512;  // in one message

// A mapped memfd, which is in the list of mapped regions (mapped_regions.h). The destructor unmaps it.
class SharedSegment {
 public:
  // Creates a segment that is sealed against shrinking, so that neither end can take pages away from the other. With
  // MemoryAccess::kReadOnly only this mapping can write to it. Returns null if memory or descriptors are exhausted, or
  // if the kernel lacks the seals.
  static std::shared_ptr<SharedSegment> create(size_t size, MemoryAccess access);
  // Maps a segment of the peer, read-only if it is sealed against writing. Closes the descriptor. Refuses a segment
  // that is smaller than `size` or not sealed against shrinking: access to it could kill this process with SIGBUS.
  static Status map(int descriptor, uint64_t size, std::shared_ptr<SharedSegment>* segment);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool contains(const void* memory, size_t size) const {
    const size_t offset = static_cast<size_t>(static_cast<const std::byte*>(memory) - data_);
    return memory >= data_ && offset <= size_ && size <= size_ - offset;
  }
  // Returns the descriptor, which the caller must close. Later calls return -1.
  int take_descriptor() { return std::exchange(descriptor_, -1); }
  bool announced() const { return descriptor_ < 0; }

  uint32_t number = 0;  // unique among the segments of the end that created it
  bool own = false;     // created by this end

 private:
  SharedSegment(std::byte* data, size_t size, int descriptor, bool is_writable);

  std::byte* data_;
  size_t size_;
  int descriptor_;  // -1 after the segment was announced
};
using SharedSegmentPtr = std::shared_ptr<SharedSegment>;

// The segments of one connection. Thread safe. Attachments hold a reference to it.
class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  explicit SharedMemory(MemoryAccess access) : access_(access) {}

  // Allocates an attachment in a segment of this end; for sizes from kSmallAttachment on.
  AttachmentPtr allocate(size_t size);
  // Returns null if the memory is not in a segment.
  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> owner);

  // Exports an attachment to the peer. Returns false if it is not in a segment, or after close. If the peer does not
  // know the segment yet, outgoing() announces it.
  bool export_attachment(const AttachmentPtr& attachment, AttachmentHeader* header);
  // Accepts an attachment that the peer lends us: a part of one of its segments, or of memory that we lent it.
  Status import_attachment(const AttachmentHeader& header, AttachmentPtr* attachment);

  // Appends, as whole frames, the messages that the peer must have before the attachment that was lent last. These
  // messages give back at most `max_tokens` attachments, rounded up to a multiple of kMaxTokens. Must be called after
  // each export_attachment(). Sets *descriptor if a descriptor must be sent along; the caller closes it.
  void outgoing(size_t max_tokens, std::vector<uint8_t>& frames, int* descriptor);
  bool has_outgoing();
  // Handles a message of the peer. Attachments that the peer gave back are appended to `released`; the caller destroys
  // them without holding a lock. An announcement takes the first of `descriptors`.
  Status incoming(std::span<const uint8_t> control, std::deque<int>& descriptors,
                  std::vector<std::shared_ptr<void>>& released);

  // Says that the connection is gone, so that nothing will be given back.
  void close();

 private:
  class SegmentAttachment;
  class SharedAttachment;
  class PeerAttachment;

  void put_back(SharedSegmentPtr segment);
  void give_back(uint64_t token);
  // The following require mutex_.
  SharedSegmentPtr find(const void* memory, size_t size);
  AttachmentPtr find_exported(const std::byte* memory, size_t size) const;
  Status announced(std::span<const uint8_t> body, std::deque<int>& descriptors);

  const MemoryAccess access_;
  std::mutex mutex_;
  bool closed_ = false;
  std::map<const std::byte*, SharedSegmentPtr> by_address_;  // segments of both ends
  std::unordered_map<uint32_t, SharedSegmentPtr> own_;
  std::unordered_map<uint32_t, SharedSegmentPtr> peers_;
  MemoryPool<SharedSegmentPtr> pool_;
  uint32_t last_number_ = 0;
  uint64_t last_token_ = 0;
  std::unordered_map<uint64_t, AttachmentPtr> exported_;  // by token
  std::vector<uint64_t> to_give_back_;                    // tokens
  SharedSegmentPtr to_announce_;
  std::vector<uint64_t> to_retire_;
};

}  // namespace torch_remote::remote

#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "remote/transport/frame_parser.h"
#include "remote/transport/lending.h"
#include "remote/transport/memory_pool.h"
#include "remote/transport/transport.h"

// Tensor bytes in memory that both processes map: memfd segments. The descriptor of one travels once; from then on both
// ends name it by its number.
//
// Messages between the two ends (wire::Type::kTransport), control: 8-byte SegmentMessage, then
//   kAnnounce  number, size (8 bytes each); a descriptor comes with it
//   kGiveBack  `count` tokens: the receiver of these attachments let them go
//   kRetire    number: its maker will not use it again
namespace torch_remote::remote {

enum class SegmentOp : uint32_t { kAnnounce = 1, kGiveBack, kRetire };

struct SegmentMessage {
  uint32_t op = 0;
  uint32_t count = 0;
};

inline constexpr size_t kMaxTokens = 512;  // in one message

// A mapped memfd. Unmapped by the destructor.
class SharedSegment {
 public:
  // A new one, sealed so that no one can shrink it under the other's feet, and, if so wanted, so that this mapping is
  // the only one that can write to it. Null if there is no memory or descriptor, or the kernel cannot seal so.
  static std::shared_ptr<SharedSegment> create(size_t size, Lending lending);
  // The peer's; read-only if it is sealed against writing. Takes the descriptor. Refuses one that is not sealed against
  // shrinking, or smaller than `size`: touching it could kill this process.
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
  // The caller closes it. -1 the second time.
  int take_descriptor() { return std::exchange(descriptor_, -1); }
  bool announced() const { return descriptor_ < 0; }

  uint32_t number = 0;
  bool own = false;

 private:
  SharedSegment(std::byte* data, size_t size, int descriptor) : data_(data), size_(size), descriptor_(descriptor) {}

  std::byte* data_;
  size_t size_;
  int descriptor_;  // until it is announced
};
using SharedSegmentPtr = std::shared_ptr<SharedSegment>;

// The segments of one connection. Thread safe. Attachments hold a reference to it.
class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  explicit SharedMemory(Lending lending) : lending_(lending) {}

  // An attachment in a segment of ours, for kSmallAttachment bytes and more.
  AttachmentPtr allocate(size_t size);
  // Null if the memory lies in no segment.
  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> keep);

  // Lends an attachment that lies in a segment to the peer: false if it does not, or after close. If the peer does not
  // know the segment yet, `outgoing` announces it.
  bool lend(const AttachmentPtr& attachment, AttachmentHeader* header);
  // The peer lends us one: a part of a segment of its own, or of what we have lent it.
  Status borrow(const AttachmentHeader& header, AttachmentPtr* attachment);

  // Messages that the peer must have before what was lent last; appends whole frames, with `max_tokens` (rounded up to
  // kMaxTokens) given back at most. Call it after each `lend`: the descriptor to send along, which the caller closes,
  // or -1.
  void outgoing(size_t max_tokens, std::vector<uint8_t>& frames, int* descriptor);
  bool has_outgoing();
  // What the peer let go is added to `released`, to be destroyed without any lock. Takes the first of `descriptors` for
  // an announcement.
  Status incoming(std::span<const uint8_t> control, std::deque<int>& descriptors,
                  std::vector<std::shared_ptr<void>>& released);

  // The connection is gone: nobody will give anything back.
  void close();

 private:
  class OwnAttachment;
  class SharedAttachment;
  class BorrowedAttachment;

  void put_back(SharedSegmentPtr segment);
  void give_back(uint64_t token);
  // With mutex_ held.
  SharedSegmentPtr find(const void* memory, size_t size);
  AttachmentPtr find_lent(const std::byte* memory, size_t size) const;
  Status announced(std::span<const uint8_t> body, std::deque<int>& descriptors);

  const Lending lending_;
  std::mutex mutex_;
  bool closed_ = false;
  std::map<const std::byte*, SharedSegmentPtr> by_address_;  // both ends'
  std::unordered_map<uint32_t, SharedSegmentPtr> own_;
  std::unordered_map<uint32_t, SharedSegmentPtr> peers_;
  MemoryPool<SharedSegmentPtr> pool_;
  uint32_t last_number_ = 0;
  uint64_t last_token_ = 0;
  std::unordered_map<uint64_t, AttachmentPtr> lent_;  // by token
  std::vector<uint64_t> to_give_back_;                // tokens
  SharedSegmentPtr to_announce_;
  std::vector<uint64_t> to_retire_;
};

}  // namespace torch_remote::remote

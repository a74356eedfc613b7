#include "remote/transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "remote/transport/mapped_regions.h"

namespace torch_remote::remote {
namespace {

constexpr size_t kHugePage = 2 << 20;
// Only an attacker has more: a segment has at least 32 KiB.
constexpr size_t kMaxSegments = 1 << 16;

std::byte* map_shared(int descriptor, size_t size, bool writable) {
  void* data =
      mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (data == MAP_FAILED) return nullptr;
  // Both calls are hints, so errors do not matter. A forked child does not use the connection and must not keep its
  // memory alive.
  if (size >= kHugePage) (void)madvise(data, size, MADV_HUGEPAGE);
  (void)madvise(data, size, MADV_DONTFORK);
  return static_cast<std::byte*>(data);
}

template <class T>
void append(std::vector<uint8_t>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

template <class T>
T load(std::span<const uint8_t> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

void append_frame(std::vector<uint8_t>& frames, SegmentOp op, std::span<const uint64_t> words) {
  std::vector<uint8_t> control;
  append(control, SegmentMessage{static_cast<uint32_t>(op), static_cast<uint32_t>(words.size())});
  for (uint64_t word : words) append(control, word);
  wire::Header header;
  header.type = static_cast<uint8_t>(wire::Type::kTransport);
  header.length = static_cast<uint32_t>(control.size());
  header.checksum = wire::crc32c(control.data(), control.size());
  append(frames, header);
  frames.insert(frames.end(), control.begin(), control.end());
}

Status bad_segment(std::string what) {
  return Status::invalid("remote: shared memory from the other end: " + std::move(what));
}

}  // namespace

// --- segments --------------------------------------------------------------------------------------------------------

std::shared_ptr<SharedSegment> SharedSegment::create(size_t size, MemoryAccess access) {
  if (size > physical_memory()) return nullptr;
  const int descriptor = memfd_create("torch-remote", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return nullptr;
  std::byte* data = nullptr;
  if (ftruncate(descriptor, static_cast<off_t>(size)) == 0) data = map_shared(descriptor, size, /*writable=*/true);
  // F_SEAL_FUTURE_WRITE leaves the existing mapping writable.
  const int against_writing = access == MemoryAccess::kReadOnly ? F_SEAL_FUTURE_WRITE : 0;
  if (data && fcntl(descriptor, F_ADD_SEALS, against_writing | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    munmap(std::exchange(data, nullptr), size);
  }
  if (!data) {
    ::close(descriptor);
    return nullptr;
  }
  auto segment = std::shared_ptr<SharedSegment>(new SharedSegment(data, size, descriptor, /*is_writable=*/true));
  segment->own = true;
  return segment;
}

Status SharedSegment::map(int descriptor, uint64_t size, std::shared_ptr<SharedSegment>* segment) {
  Status status;
  struct stat info;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
    status = bad_segment("a descriptor is not memory sealed against shrinking");
  } else if (fstat(descriptor, &info) != 0 || size == 0 || static_cast<uint64_t>(info.st_size) < size) {
    status = bad_segment("a segment has " + std::to_string(info.st_size) + " bytes, but was announced with " +
                         std::to_string(size));
  } else if (const bool is_writable = !(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE));
             std::byte* data = map_shared(descriptor, size, is_writable)) {
    *segment = std::shared_ptr<SharedSegment>(new SharedSegment(data, size, -1, is_writable));
  } else {
    status = system_error("cannot map " + std::to_string(size) + " bytes of shared memory", ErrorCode::kOutOfMemory);
  }
  ::close(descriptor);
  return status;
}

SharedSegment::SharedSegment(std::byte* data, size_t size, int descriptor, bool is_writable)
    : data_(data), size_(size), descriptor_(descriptor) {
  add_mapped_region({data, size}, is_writable);
}

SharedSegment::~SharedSegment() {
  remove_mapped_region(data_);
  munmap(data_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

// --- attachments -----------------------------------------------------------------------------------------------------

// A whole segment of this end. The destructor puts the segment back into the pool.
class SharedMemory::SegmentAttachment : public Attachment {
 public:
  SegmentAttachment(std::shared_ptr<SharedMemory> memory, SharedSegmentPtr segment, size_t size)
      : memory_(std::move(memory)), segment_(std::move(segment)), size_(size) {}
  ~SegmentAttachment() override { memory_->put_back(std::move(segment_)); }
  std::span<std::byte> bytes() override { return {segment_->data(), size_}; }

 private:
  std::shared_ptr<SharedMemory> memory_;
  SharedSegmentPtr segment_;
  size_t size_;
};

// A part of a segment of either end.
class SharedMemory::SharedAttachment : public Attachment {
 public:
  SharedAttachment(SharedSegmentPtr segment, std::span<std::byte> bytes, std::shared_ptr<void> keep)
      : segment_(std::move(segment)), bytes_(bytes), keep_(std::move(keep)) {}
  std::span<std::byte> bytes() override { return bytes_; }

 private:
  SharedSegmentPtr segment_;  // keeps the segment mapped
  std::span<std::byte> bytes_;
  std::shared_ptr<void> keep_;
};

// Memory that the peer lent us. The destructor gives it back. If it is a part of memory that we lent, `owner` is that
// attachment.
class SharedMemory::PeerAttachment : public Attachment {
 public:
  PeerAttachment(std::shared_ptr<SharedMemory> memory, SharedSegmentPtr segment, AttachmentPtr keep,
                 std::span<std::byte> bytes, uint64_t token)
      : memory_(std::move(memory)),
        segment_(std::move(segment)),
        keep_(std::move(keep)),
        bytes_(bytes),
        token_(token) {}
  ~PeerAttachment() override { memory_->give_back(token_); }
  std::span<std::byte> bytes() override { return bytes_; }

 private:
  std::shared_ptr<SharedMemory> memory_;
  SharedSegmentPtr segment_;
  AttachmentPtr keep_;
  std::span<std::byte> bytes_;
  uint64_t token_;
};

// --- the set of segments ---------------------------------------------------------------------------------------------

AttachmentPtr SharedMemory::allocate(size_t size) {
  if (size > physical_memory()) return nullptr;  // also rules out an overflow in size_class
  const size_t rounded = size_class(size);
  SharedSegmentPtr segment;
  {
    std::lock_guard lock(mutex_);
    segment = pool_.take(rounded);
  }
  if (!segment) {
    segment = SharedSegment::create(rounded, access_);
    if (!segment) return nullptr;
    std::lock_guard lock(mutex_);
    segment->number = ++last_number_;
    own_.emplace(segment->number, segment);
    by_address_.emplace(segment->data(), segment);
  }
  return std::make_shared<SegmentAttachment>(shared_from_this(), std::move(segment), size);
}

void SharedMemory::put_back(SharedSegmentPtr segment) {
  std::vector<SharedSegmentPtr> evicted;
  std::lock_guard lock(mutex_);
  const size_t size = segment->size();
  pool_.put(size, std::move(segment), &evicted);
  for (const SharedSegmentPtr& old : evicted) {
    by_address_.erase(old->data());
    own_.erase(old->number);
    if (old->announced()) to_retire_.push_back(old->number);
  }
}

SharedSegmentPtr SharedMemory::find(const void* memory, size_t size) {
  auto after = by_address_.upper_bound(static_cast<const std::byte*>(memory));
  if (after == by_address_.begin()) return nullptr;
  const SharedSegmentPtr& segment = std::prev(after)->second;
  return segment->contains(memory, size) ? segment : nullptr;
}

AttachmentPtr SharedMemory::find_exported(const std::byte* memory, size_t size) const {
  for (const auto& [token, attachment] : exported_) {
    const std::span<std::byte> bytes = attachment->bytes();
    const size_t offset = static_cast<size_t>(memory - bytes.data());
    if (memory >= bytes.data() && offset <= bytes.size() && size <= bytes.size() - offset) return attachment;
  }
  return nullptr;
}

AttachmentPtr SharedMemory::share(const void* memory, size_t size, std::shared_ptr<void> owner) {
  SharedSegmentPtr segment;
  {
    std::lock_guard lock(mutex_);
    segment = find(memory, size);
  }
  if (!segment) return nullptr;
  auto* bytes = static_cast<std::byte*>(const_cast<void*>(memory));
  return std::make_shared<SharedAttachment>(std::move(segment), std::span(bytes, size), std::move(owner));
}

bool SharedMemory::export_attachment(const AttachmentPtr& attachment, AttachmentHeader* header) {
  const std::span<std::byte> bytes = attachment->bytes();
  std::lock_guard lock(mutex_);
  const SharedSegmentPtr segment = find(bytes.data(), bytes.size());
  if (!segment || closed_) return false;
  if (!segment->announced()) to_announce_ = segment;
  header->size = bytes.size();
  header->offset = static_cast<uint64_t>(bytes.data() - segment->data());
  header->token = ++last_token_;
  header->segment = segment->number;
  header->flags = segment->own ? 0u : uint32_t{kSegmentOfReceiver};
  exported_.emplace(last_token_, attachment);
  return true;
}

Status SharedMemory::import_attachment(const AttachmentHeader& header, AttachmentPtr* attachment) {
  const bool ours = (header.flags & kSegmentOfReceiver) != 0;
  SharedSegmentPtr segment;
  AttachmentPtr lent;
  std::span<std::byte> bytes;
  {
    std::lock_guard lock(mutex_);
    const auto& segments = ours ? own_ : peers_;
    auto found = segments.find(header.segment);
    if (found == segments.end())
      return bad_segment("an attachment is in segment " + std::to_string(header.segment) + ", which does not exist");
    segment = found->second;
    const auto what = [&] {
      return "an attachment of " + std::to_string(header.size) + " bytes at " + std::to_string(header.offset) +
             " of a segment of " + std::to_string(segment->size());
    };
    if (header.offset > segment->size() || header.size > segment->size() - header.offset)
      return bad_segment(what() + " is out of range");
    bytes = {segment->data() + header.offset, header.size};
    // The peer may name only what we lent it, not the rest of our segment.
    if (ours && !(lent = find_exported(bytes.data(), bytes.size()))) return bad_segment(what() + " was not lent");
  }
  *attachment =
      std::make_shared<PeerAttachment>(shared_from_this(), std::move(segment), std::move(lent), bytes, header.token);
  return {};
}

void SharedMemory::give_back(uint64_t token) {
  std::lock_guard lock(mutex_);
  if (!closed_) to_give_back_.push_back(token);
}

bool SharedMemory::has_outgoing() {
  std::lock_guard lock(mutex_);
  return !to_give_back_.empty() || !to_retire_.empty();
}

void SharedMemory::outgoing(size_t max_tokens, std::vector<uint8_t>& frames, int* descriptor) {
  std::lock_guard lock(mutex_);
  size_t done = 0;
  while (done < to_give_back_.size() && done < max_tokens) {
    const size_t count = std::min(kMaxTokens, to_give_back_.size() - done);
    append_frame(frames, SegmentOp::kGiveBack, {to_give_back_.data() + done, count});
    done += count;
  }
  to_give_back_.erase(to_give_back_.begin(), to_give_back_.begin() + static_cast<ptrdiff_t>(done));
  const size_t retired = std::min(kMaxTokens, to_retire_.size());
  if (retired > 0) append_frame(frames, SegmentOp::kRetire, {to_retire_.data(), retired});
  to_retire_.erase(to_retire_.begin(), to_retire_.begin() + static_cast<ptrdiff_t>(retired));
  if (const SharedSegmentPtr segment = std::exchange(to_announce_, nullptr)) {
    const uint64_t words[] = {segment->number, segment->size()};
    append_frame(frames, SegmentOp::kAnnounce, words);
    *descriptor = segment->take_descriptor();
  }
}

Status SharedMemory::incoming(std::span<const uint8_t> control, std::deque<int>& descriptors,
                              std::vector<std::shared_ptr<void>>& released) {
  if (control.size() < sizeof(SegmentMessage)) return bad_segment("a message is truncated");
  const auto message = load<SegmentMessage>(control);
  const std::span<const uint8_t> body = control.subspan(sizeof(SegmentMessage));
  if (body.size() != message.count * sizeof(uint64_t)) return bad_segment("a message has the wrong length");
  const auto word = [&](size_t i) { return load<uint64_t>(body.subspan(8 * i)); };
  std::lock_guard lock(mutex_);
  switch (static_cast<SegmentOp>(message.op)) {
    case SegmentOp::kAnnounce:
      return announced(body, descriptors);
    case SegmentOp::kGiveBack:
      for (size_t i = 0; i < message.count; ++i) {
        auto found = exported_.find(word(i));
        if (found == exported_.end())
          return bad_segment("attachment " + std::to_string(word(i)) + " was returned, but it was not lent");
        released.push_back(std::move(found->second));
        exported_.erase(found);
      }
      return {};
    case SegmentOp::kRetire:
      for (size_t i = 0; i < message.count; ++i) {
        auto found = peers_.find(static_cast<uint32_t>(word(i)));
        if (found == peers_.end())
          return bad_segment("segment " + std::to_string(word(i)) + " was retired, but it does not exist");
        by_address_.erase(found->second->data());
        released.push_back(std::move(found->second));
        peers_.erase(found);
      }
      return {};
  }
  return bad_segment("a message has the unknown kind " + std::to_string(message.op));
}

Status SharedMemory::announced(std::span<const uint8_t> body, std::deque<int>& descriptors) {
  if (body.size() != 2 * sizeof(uint64_t)) return bad_segment("a message has the wrong length");
  const auto number = load<uint64_t>(body);
  const auto size = load<uint64_t>(body.subspan(8));
  if (descriptors.empty()) return bad_segment("a segment has no descriptor");
  const int descriptor = descriptors.front();
  descriptors.pop_front();
  if (number > UINT32_MAX || peers_.contains(static_cast<uint32_t>(number)) || peers_.size() >= kMaxSegments) {
    ::close(descriptor);
    return bad_segment("segment number " + std::to_string(number) + " is in use, or exceeds the limit");
  }
  SharedSegmentPtr segment;
  if (Status status = SharedSegment::map(descriptor, size, &segment); !status) return status;
  segment->number = static_cast<uint32_t>(number);
  by_address_.emplace(segment->data(), segment);
  peers_.emplace(segment->number, std::move(segment));
  return {};
}

void SharedMemory::close() {
  std::unordered_map<uint64_t, AttachmentPtr> lent;
  std::lock_guard lock(mutex_);
  closed_ = true;
  lent.swap(exported_);
  to_give_back_.clear();
}

}  // namespace torch_remote::remote

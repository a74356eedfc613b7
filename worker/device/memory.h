#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "worker/device/buffer.h"

// Where tensor bytes live: a caching allocator over large segments.
//
// Up to 32 KiB a block comes from a free list of its size class (multiples of 64 bytes, then four classes per
// doubling), which is carved from slabs. Larger blocks are whole pages, taken best fit, split and joined again with
// free neighbours. Every block is aligned to 64 bytes, large ones to 4096.
namespace torch_remote::worker {

// Of one kind of thing. Unsigned numbers that are never below 0.
struct MemoryStat {
  uint64_t current = 0;
  uint64_t peak = 0;       // the most `current` was
  uint64_t allocated = 0;  // all that came
  uint64_t freed = 0;      // all that went

  void increase(uint64_t by) {
    current += by;
    allocated += by;
    peak = peak < current ? current : peak;
  }
  void decrease(uint64_t by) {
    current -= by;
    freed += by;
  }
};

struct MemoryStats {
  MemoryStat allocated;    // bytes of blocks that are in use, and external ones
  MemoryStat reserved;     // bytes of segments, and external ones
  MemoryStat allocations;  // blocks in use, and external ones
  MemoryStat segments;
  uint64_t retries = 0;   // allocations that succeeded after segments were given back
  uint64_t failures = 0;  // allocations that did not succeed
};

// A large piece of memory; `keep` gives it back when it goes.
struct Segment {
  std::byte* data = nullptr;  // null: there is none
  size_t size = 0;
  std::shared_ptr<void> keep;
};

class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // At least `size` bytes (a multiple of 4096), aligned to 4096. Called with the allocator locked.
  virtual Segment allocate(size_t size) = 0;
};

// Anonymous memory, in huge pages where the kernel has them.
std::unique_ptr<SegmentSource> make_anonymous_source();

// Who will see a block's bytes: the client too, through the transport's memory, or this process alone.
enum class Reach : uint8_t { kShared, kOwn };

// Thread safe. Lives until `close` was called and the last block came back, so that a library may keep a block longer
// than the session that it came from.
class CachingAllocator {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kPage = 4096;
  static constexpr size_t kSmallest = 64;
  static constexpr size_t kSmallMax = 32 << 10;
  static constexpr size_t kSegment = 32 << 20;

  struct Closer {
    void operator()(CachingAllocator* allocator) const { allocator->close(); }
  };
  using Pointer = std::unique_ptr<CachingAllocator, Closer>;

  // `limit`: bytes that may be reserved in all, external ones included. `own`: where large blocks of Reach::kOwn come
  // from, if not from `source`.
  static Pointer create(std::unique_ptr<SegmentSource> source, uint64_t limit,
                        std::unique_ptr<SegmentSource> own = nullptr);

  // False if there is no memory. `buffer->nbytes` is the size asked for; a block of 0 bytes has an address too.
  bool allocate(uint64_t nbytes, tr_buffer* buffer, Reach reach = Reach::kShared);
  // Called, without the lock, by an allocation that is about to fail: it may give blocks back, and returns whether it
  // did; then the allocation tries once more. Set it while no other thread allocates.
  void set_reclaim(std::function<bool()> reclaim) { reclaim_ = std::move(reclaim); }

  // Counts memory that is not from here (tensors adopted from messages) in the statistics and against the limit.
  void add_external(uint64_t nbytes);
  void remove_external(uint64_t nbytes);

  // Counts what this process itself keeps for the client (programs) against the limit, but not in the statistics, which
  // are about tensors. False if there is not so much left.
  bool charge(uint64_t nbytes);
  // Likewise what is there already; tensors find less room then.
  void charge_anyway(uint64_t nbytes);
  void discharge(uint64_t nbytes);
  // What is charged alone is more than the limit.
  bool overcharged() const;
  // External memory came that there was no room for, also after unused segments were given back.
  bool over_limit();

  // Gives segments without a block in use back to their source.
  void trim();

  MemoryStats stats() const;
  void reset_peak();
  // What came and went counts from 0 again.
  void reset_totals();
  uint64_t limit() const;
  void set_limit(uint64_t limit);

 private:
  struct Slab;
  struct OwnedSegment;
  struct Block {
    CachingAllocator* allocator = nullptr;
    std::byte* data = nullptr;
    size_t size = 0;
    Block* next_free = nullptr;  // small ones
    Slab* slab = nullptr;        // small ones
    Block* previous = nullptr;   // large ones: neighbours in the segment
    Block* next = nullptr;
    OwnedSegment* segment = nullptr;
    bool in_use = false;
  };
  struct Slab {
    Block* memory = nullptr;  // the large block it is carved from
    uint32_t size_class = 0;
    uint32_t in_use = 0;
    std::vector<Block> blocks;
  };
  struct OwnedSegment {
    Segment memory;
    Reach reach = Reach::kShared;
    Block* first = nullptr;
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->data < b->data;
    }
  };
  static constexpr uint32_t kClasses = 32;

  CachingAllocator(std::unique_ptr<SegmentSource> source, uint64_t limit, std::unique_ptr<SegmentSource> own);
  ~CachingAllocator();

  static uint32_t class_of(size_t size);
  static size_t class_size(uint32_t size_class);
  static void release(void* owner);

  bool take(uint64_t nbytes, tr_buffer* buffer, Reach reach);
  Block* take_small(uint32_t size_class);
  Block* take_large(size_t size, Reach reach);
  bool fits(uint64_t nbytes) const;
  bool add_slab(uint32_t size_class);
  bool add_segment(size_t size, Reach reach);
  void give_small(Block* block);
  void give_large(Block* block);
  std::set<Block*, BySize>& free_large(Reach reach) { return free_large_[static_cast<size_t>(reach)]; }
  void free_slabs();
  void free_segments();
  Block* new_block();
  void close();

  mutable std::mutex mutex_;
  std::array<std::unique_ptr<SegmentSource>, 2> sources_;  // by reach; there may be no own one
  uint64_t limit_;
  uint64_t charged_ = 0;
  MemoryStats stats_;
  uint64_t blocks_in_use_ = 0;  // without external ones
  bool closed_ = false;
  std::function<bool()> reclaim_;
  std::array<Block*, kClasses> free_small_{};
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::array<std::set<Block*, BySize>, 2> free_large_;  // by reach
  std::vector<std::unique_ptr<OwnedSegment>> segments_;
  std::vector<Block*> spare_blocks_;  // records of large blocks, for reuse
};

}  // namespace torch_remote::worker

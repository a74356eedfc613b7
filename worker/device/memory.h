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

// A caching allocator over large segments.
//
// A block of up to 32 KiB comes from a free list of its size class (multiples of 64 bytes, then four classes per
// doubling). Slabs supply these blocks. Larger blocks are whole pages, allocated best fit, split, and joined again with
// free neighbors. Every block is aligned to 64 bytes, large ones to 4096.
namespace torch_remote::worker {

// Counters of one kind of resource. Each decrease undoes an earlier increase, so `current` never wraps around.
struct MemoryStat {
  uint64_t current = 0;
  uint64_t peak = 0;       // Maximum of `current`.
  uint64_t allocated = 0;  // Sum of all increases.
  uint64_t freed = 0;      // Sum of all decreases.

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
  MemoryStat allocated;    // Bytes of blocks in use, and of external memory.
  MemoryStat reserved;     // Bytes of segments, and of external memory.
  MemoryStat allocations;  // Blocks in use, and external ones.
  MemoryStat segments;
  uint64_t num_alloc_retries = 0;  // Allocations that succeeded after segments were released.
  uint64_t num_ooms = 0;           // Allocations that failed.
};

// A large piece of memory; destroying `keep` releases it.
struct Segment {
  std::byte* data = nullptr;  // Null: the allocation failed.
  size_t size = 0;
  std::shared_ptr<void> keep;
};

class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Returns a segment of at least `size` bytes, whose address is a multiple of 4096. `size` is a multiple of 4096, too.
  // The allocator calls this with its mutex locked, so it must not call the allocator.
  virtual Segment allocate(size_t size) = 0;
};

// Anonymous memory, in huge pages where the kernel has them.
std::unique_ptr<SegmentSource> make_anonymous_source();

// Which processes may access a block's bytes. kShared: the client, too, through the transport's shared memory.
// kPrivate: only this process. Blocks from slabs are always kShared.
enum class Visibility : uint8_t { kShared, kPrivate };

// Thread safe. A `Pointer` does not delete the allocator but closes it. A closed allocator deletes itself when its last
// block is released. So a library may hold a block longer than the session that allocated it.
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

  // `limit`: bytes that may be reserved in all, external memory included. `private_source`: the source of large blocks
  // of Visibility::kPrivate; null: `source`.
  static Pointer create(std::unique_ptr<SegmentSource> source, uint64_t limit,
                        std::unique_ptr<SegmentSource> private_source = nullptr);

  // Returns false if there is no memory, even after unused segments are released and `reclaim` is called.
  // `buffer->nbytes` is the size asked for. A block of 0 bytes has an address, too.
  bool allocate(uint64_t nbytes, tr_buffer* buffer, Visibility visibility = Visibility::kShared);
  // `reclaim` is called, without the lock, by an allocation that is about to fail. It may release blocks, and returns
  // whether it did; then the allocation tries once more. Set it while no other thread allocates.
  void set_reclaim(std::function<bool()> reclaim) { reclaim_ = std::move(reclaim); }

  // Counts memory from elsewhere (tensors adopted from messages) in the statistics and against the limit. The limit
  // does not prevent this.
  void add_external(uint64_t nbytes);
  void remove_external(uint64_t nbytes);

  // Counts other data that this process holds for the client (programs) against the limit. Statistics of allocated and
  // reserved bytes do not contain it, because they are about tensors. Returns false if the limit leaves less, even
  // after unused segments are released; num_ooms then increases.
  bool charge(uint64_t nbytes);
  // Counts data that exists already, even beyond the limit; less memory is left for tensors then.
  void charge_unchecked(uint64_t nbytes);
  void discharge(uint64_t nbytes);
  // Whether the charged bytes alone exceed the limit.
  bool overcharged() const;
  // Whether reserved and charged bytes together exceed the limit, even after unused segments are released. External
  // memory, charge_unchecked() and set_limit() can cause this.
  bool over_limit();

  // Releases segments without a block in use.
  void empty_cache();

  MemoryStats stats() const;
  // Sets each peak to the current value.
  void reset_peak();
  // Sets the sums of increases and decreases, num_alloc_retries and num_ooms to 0.
  void reset_totals();
  uint64_t limit() const;
  // Later allocations and charges obey the new limit. Memory in use is not released, even if it exceeds the limit.
  void set_limit(uint64_t limit);

 private:
  struct Slab;
  struct OwnedSegment;
  struct Block {
    CachingAllocator* allocator = nullptr;
    std::byte* data = nullptr;
    size_t size = 0;
    Block* next_free = nullptr;  // Small blocks only.
    Slab* slab = nullptr;        // Small blocks only.
    Block* previous = nullptr;   // Large blocks only: neighbors in the segment.
    Block* next = nullptr;
    OwnedSegment* segment = nullptr;
    bool in_use = false;
  };
  struct Slab {
    Block* memory = nullptr;  // The large block that the slab divides.
    uint32_t size_class = 0;
    uint32_t in_use = 0;
    std::vector<Block> blocks;
  };
  struct OwnedSegment {
    Segment memory;
    Visibility visibility = Visibility::kShared;
    Block* first = nullptr;
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->data < b->data;
    }
  };
  static constexpr uint32_t kClasses = 32;

  CachingAllocator(std::unique_ptr<SegmentSource> source, uint64_t limit,
                   std::unique_ptr<SegmentSource> private_source);
  ~CachingAllocator();

  static uint32_t class_of(size_t size);
  static size_t class_size(uint32_t size_class);
  static void release(void* owner);

  bool take(uint64_t nbytes, tr_buffer* buffer, Visibility visibility);
  Block* take_small(uint32_t size_class);
  Block* take_large(size_t size, Visibility visibility);
  bool fits(uint64_t nbytes) const;
  bool add_slab(uint32_t size_class);
  bool add_segment(size_t size, Visibility visibility);
  void give_small(Block* block);
  void give_large(Block* block);
  std::set<Block*, BySize>& free_large(Visibility visibility) { return free_large_[static_cast<size_t>(visibility)]; }
  void free_slabs();
  void free_segments();
  Block* new_block();
  void close();

  mutable std::mutex mutex_;
  std::array<std::unique_ptr<SegmentSource>, 2> sources_;  // By visibility; the second one may be null.
  uint64_t limit_;
  uint64_t charged_ = 0;
  MemoryStats stats_;
  uint64_t blocks_in_use_ = 0;  // Without external memory.
  bool closed_ = false;
  std::function<bool()> reclaim_;
  std::array<Block*, kClasses> free_small_{};
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::array<std::set<Block*, BySize>, 2> free_large_;  // By visibility.
  std::vector<std::unique_ptr<OwnedSegment>> segments_;
  std::vector<Block*> spare_blocks_;  // Records of large blocks, for reuse.
};

}  // namespace torch_remote::worker

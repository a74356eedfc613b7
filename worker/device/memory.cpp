#include "worker/device/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

namespace torch_remote::worker {
namespace {

constexpr size_t kHugePage = 2 << 20;

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

class AnonymousSource : public SegmentSource {
 public:
  Segment allocate(size_t size) override {
    const size_t rounded = round_up(size, kHugePage);
    const size_t mapped = rounded + kHugePage;  // Space for alignment.
    if (mapped < size) return {};
    void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return {};
    auto* base = static_cast<std::byte*>(raw);
    std::byte* data = base + -reinterpret_cast<uintptr_t>(base) % kHugePage;
    if (data > base) munmap(base, data - base);
    std::byte* end = data + rounded;
    if (end < base + mapped) munmap(end, base + mapped - end);
    madvise(data, rounded, MADV_HUGEPAGE);  // Only a hint.
    return {data, rounded, std::shared_ptr<void>(data, [rounded](void* p) { munmap(p, rounded); })};
  }
};

}  // namespace

std::unique_ptr<SegmentSource> make_anonymous_source() { return std::make_unique<AnonymousSource>(); }

CachingAllocator::Pointer CachingAllocator::create(std::unique_ptr<SegmentSource> source, uint64_t limit,
                                                   std::unique_ptr<SegmentSource> private_source) {
  return Pointer(new CachingAllocator(std::move(source), limit, std::move(private_source)));
}

CachingAllocator::CachingAllocator(std::unique_ptr<SegmentSource> source, uint64_t limit,
                                   std::unique_ptr<SegmentSource> private_source)
    : sources_{std::move(source), std::move(private_source)}, limit_(limit) {}

CachingAllocator::~CachingAllocator() {
  free_slabs();
  for (auto& segment : segments_) {
    for (Block* block = segment->first; block;) {
      Block* next = block->next;
      delete block;
      block = next;
    }
  }
  for (Block* block : spare_blocks_) delete block;
}

// Classes 0..7: 64, 128, ... 512 bytes. Then four per doubling: 640, 768, 896, 1024, 1280, ...
uint32_t CachingAllocator::class_of(size_t size) {
  const uint32_t units = size <= kSmallest ? 0 : static_cast<uint32_t>((size - 1) / kSmallest);  // Minus one.
  if (units < 8) return units;
  const uint32_t shift = std::bit_width(units) - 3;
  return 8 + (shift - 1) * 4 + (units >> shift) - 4;
}

size_t CachingAllocator::class_size(uint32_t size_class) {
  if (size_class < 8) return (size_class + 1) * kSmallest;
  const uint32_t shift = (size_class - 8) / 4 + 1;
  return (((size_class - 8) % 4 + 5) << shift) * kSmallest;
}

bool CachingAllocator::allocate(uint64_t nbytes, tr_buffer* buffer, Visibility visibility) {
  if (take(nbytes, buffer, visibility)) return true;
  if (reclaim_ && reclaim_() && take(nbytes, buffer, visibility)) return true;
  std::lock_guard lock(mutex_);
  ++stats_.num_ooms;
  return false;
}

bool CachingAllocator::take(uint64_t nbytes, tr_buffer* buffer, Visibility visibility) {
  std::lock_guard lock(mutex_);
  if (!sources_[1]) visibility = Visibility::kShared;
  Block* block = nullptr;
  if (nbytes <= kSmallMax) {
    block = take_small(class_of(nbytes));
  } else if (nbytes <= limit_) {  // The check also keeps the rounding from overflowing.
    block = take_large(round_up(nbytes, kPage), visibility);
  }
  if (!block) return false;
  block->in_use = true;
  ++blocks_in_use_;
  stats_.allocations.increase(1);
  stats_.allocated.increase(block->size);
  *buffer = {block->data, nbytes, block, &CachingAllocator::release};
  return true;
}

void CachingAllocator::release(void* owner) {
  auto* block = static_cast<Block*>(owner);
  CachingAllocator* allocator = block->allocator;
  bool last;
  {
    std::lock_guard lock(allocator->mutex_);
    block->in_use = false;
    allocator->stats_.allocations.decrease(1);
    allocator->stats_.allocated.decrease(block->size);
    if (block->slab) {
      allocator->give_small(block);
    } else {
      allocator->give_large(block);
    }
    last = --allocator->blocks_in_use_ == 0 && allocator->closed_;
  }
  if (last) delete allocator;
}

CachingAllocator::Block* CachingAllocator::take_small(uint32_t size_class) {
  if (!free_small_[size_class] && !add_slab(size_class)) return nullptr;
  Block* block = free_small_[size_class];
  free_small_[size_class] = block->next_free;
  ++block->slab->in_use;
  return block;
}

void CachingAllocator::give_small(Block* block) {
  Slab* slab = block->slab;
  --slab->in_use;
  block->next_free = free_small_[slab->size_class];
  free_small_[slab->size_class] = block;
}

bool CachingAllocator::add_slab(uint32_t size_class) {
  const size_t size = class_size(size_class);
  Block* memory = take_large(round_up(std::clamp<size_t>(size * 64, 64 << 10, 512 << 10), kPage), Visibility::kShared);
  if (!memory) return false;
  memory->in_use = true;
  auto slab = std::make_unique<Slab>();
  slab->memory = memory;
  slab->size_class = size_class;
  slab->blocks.resize(memory->size / size);
  for (size_t i = slab->blocks.size(); i-- > 0;) {
    Block& block = slab->blocks[i];
    block.allocator = this;
    block.data = memory->data + i * size;
    block.size = size;
    block.slab = slab.get();
    block.next_free = free_small_[size_class];
    free_small_[size_class] = &block;
  }
  slabs_.push_back(std::move(slab));
  return true;
}

CachingAllocator::Block* CachingAllocator::new_block() {
  if (spare_blocks_.empty()) {
    auto* block = new Block;
    block->allocator = this;
    return block;
  }
  Block* block = spare_blocks_.back();
  spare_blocks_.pop_back();
  *block = Block{};
  block->allocator = this;
  return block;
}

CachingAllocator::Block* CachingAllocator::take_large(size_t size, Visibility visibility) {
  std::set<Block*, BySize>& free = free_large(visibility);
  Block probe;
  probe.size = size;
  auto found = free.lower_bound(&probe);
  if (found == free.end()) {
    if (!add_segment(size, visibility)) {
      free_slabs();
      free_segments();
      found = free.lower_bound(&probe);
      if (found == free.end() && !add_segment(size, visibility)) return nullptr;
      ++stats_.num_alloc_retries;
    }
    found = free.lower_bound(&probe);
  }
  Block* block = *found;
  free.erase(found);
  if (block->size > size) {
    Block* rest = new_block();
    rest->data = block->data + size;
    rest->size = block->size - size;
    rest->segment = block->segment;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next) rest->next->previous = rest;
    block->next = rest;
    block->size = size;
    free.insert(rest);
  }
  return block;
}

void CachingAllocator::give_large(Block* block) {
  std::set<Block*, BySize>& free = free_large(block->segment->visibility);
  if (Block* next = block->next; next && !next->in_use) {
    free.erase(next);
    block->size += next->size;
    block->next = next->next;
    if (block->next) block->next->previous = block;
    spare_blocks_.push_back(next);
  }
  if (Block* previous = block->previous; previous && !previous->in_use) {
    free.erase(previous);
    previous->size += block->size;
    previous->next = block->next;
    if (previous->next) previous->next->previous = previous;
    spare_blocks_.push_back(block);
    block = previous;
  }
  free.insert(block);
}

bool CachingAllocator::fits(uint64_t nbytes) const {
  const uint64_t taken = stats_.reserved.current + charged_;
  return taken <= limit_ && nbytes <= limit_ - taken;
}

bool CachingAllocator::add_segment(size_t size, Visibility visibility) {
  SegmentSource& source = *sources_[static_cast<size_t>(visibility)];
  // A segment has space for more than this block, unless that wastes much of it or exceeds the limit.
  Segment memory;
  if (size < kSegment / 2 && fits(kSegment)) memory = source.allocate(kSegment);
  if (!memory.data && fits(size)) memory = source.allocate(size);
  if (!memory.data) return false;
  auto segment = std::make_unique<OwnedSegment>();
  segment->visibility = visibility;
  Block* block = new_block();
  block->data = memory.data;
  block->size = memory.size / kPage * kPage;
  block->segment = segment.get();
  segment->first = block;
  stats_.segments.increase(1);
  stats_.reserved.increase(memory.size);
  segment->memory = std::move(memory);
  segments_.push_back(std::move(segment));
  free_large(visibility).insert(block);
  return true;
}

void CachingAllocator::free_slabs() {
  // Removes all free blocks from their lists, then returns those of slabs that stay.
  const auto unused = [](const std::unique_ptr<Slab>& slab) { return slab->in_use == 0; };
  if (std::none_of(slabs_.begin(), slabs_.end(), unused)) return;
  for (Block*& list : free_small_) {
    Block* kept = nullptr;
    for (Block* block = list; block;) {
      Block* next = block->next_free;
      if (block->slab->in_use) {
        block->next_free = kept;
        kept = block;
      }
      block = next;
    }
    list = kept;
  }
  std::erase_if(slabs_, [&](std::unique_ptr<Slab>& slab) {
    if (slab->in_use) return false;
    slab->memory->in_use = false;
    give_large(slab->memory);
    return true;
  });
}

void CachingAllocator::free_segments() {
  std::erase_if(segments_, [&](std::unique_ptr<OwnedSegment>& segment) {
    Block* first = segment->first;
    if (first->in_use || first->next) return false;
    free_large(segment->visibility).erase(first);
    spare_blocks_.push_back(first);
    stats_.segments.decrease(1);
    stats_.reserved.decrease(segment->memory.size);
    return true;
  });
}

void CachingAllocator::empty_cache() {
  std::lock_guard lock(mutex_);
  free_slabs();
  free_segments();
}

bool CachingAllocator::charge(uint64_t nbytes) {
  std::lock_guard lock(mutex_);
  if (!fits(nbytes)) {
    free_slabs();
    free_segments();
  }
  if (!fits(nbytes)) {
    ++stats_.num_ooms;
    return false;
  }
  charged_ += nbytes;
  return true;
}

void CachingAllocator::charge_unchecked(uint64_t nbytes) {
  std::lock_guard lock(mutex_);
  charged_ += nbytes;
}

void CachingAllocator::discharge(uint64_t nbytes) {
  std::lock_guard lock(mutex_);
  charged_ -= nbytes;
}

bool CachingAllocator::overcharged() const {
  std::lock_guard lock(mutex_);
  return charged_ > limit_;
}

bool CachingAllocator::over_limit() {
  std::lock_guard lock(mutex_);
  if (fits(0)) return false;
  free_slabs();
  free_segments();
  return !fits(0);
}

void CachingAllocator::add_external(uint64_t nbytes) {
  std::lock_guard lock(mutex_);
  stats_.allocations.increase(1);
  stats_.allocated.increase(nbytes);
  stats_.reserved.increase(nbytes);
}

void CachingAllocator::remove_external(uint64_t nbytes) {
  std::lock_guard lock(mutex_);
  stats_.allocations.decrease(1);
  stats_.allocated.decrease(nbytes);
  stats_.reserved.decrease(nbytes);
}

MemoryStats CachingAllocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  for (MemoryStat* stat : {&stats_.allocated, &stats_.reserved, &stats_.allocations, &stats_.segments}) {
    stat->peak = stat->current;
  }
}

void CachingAllocator::reset_totals() {
  std::lock_guard lock(mutex_);
  for (MemoryStat* stat : {&stats_.allocated, &stats_.reserved, &stats_.allocations, &stats_.segments}) {
    stat->allocated = stat->freed = 0;
  }
  stats_.num_alloc_retries = stats_.num_ooms = 0;
}

uint64_t CachingAllocator::limit() const {
  std::lock_guard lock(mutex_);
  return limit_;
}

void CachingAllocator::set_limit(uint64_t limit) {
  std::lock_guard lock(mutex_);
  limit_ = limit;
}

void CachingAllocator::close() {
  bool last;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    last = blocks_in_use_ == 0;
  }
  if (last) delete this;
}

}  // namespace torch_remote::worker

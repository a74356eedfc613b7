#include "worker/device/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "worker/device/machine.h"

namespace torch_remote::worker {
namespace {

// Ordinary memory that counts what is allocated.
struct Counted {
  size_t segments = 0;
  size_t bytes = 0;
};

class CountingSource : public SegmentSource {
 public:
  explicit CountingSource(std::shared_ptr<Counted> counted) : counted_(std::move(counted)) {}
  Segment allocate(size_t size) override {
    void* data = std::aligned_alloc(4096, size);
    if (!data) return {};
    ++counted_->segments;
    counted_->bytes += size;
    return {static_cast<std::byte*>(data), size, std::shared_ptr<void>(data, [size, counted = counted_](void* p) {
              --counted->segments;
              counted->bytes -= size;
              std::free(p);
            })};
  }

 private:
  std::shared_ptr<Counted> counted_;
};

struct Fixture {
  explicit Fixture(uint64_t limit = uint64_t{1} << 40)
      : allocator(CachingAllocator::create(std::make_unique<CountingSource>(counted), limit)) {}
  tr_buffer get(uint64_t size) {
    tr_buffer buffer{};
    EXPECT_TRUE(allocator->allocate(size, &buffer)) << size;
    return buffer;
  }
  std::shared_ptr<Counted> counted = std::make_shared<Counted>();
  CachingAllocator::Pointer allocator;
};

void release(const tr_buffer& buffer) { buffer.release(buffer.owner); }

TEST(Memory, AlignsAndRoundsUp) {
  Fixture f;
  for (uint64_t size : {0, 1, 63, 64, 65, 511, 513, 640, 641, 4095, 32768, 32769, 100000, 40 << 20}) {
    const tr_buffer buffer = f.get(size);
    EXPECT_EQ(buffer.nbytes, size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data) % (size > CachingAllocator::kSmallMax ? 4096 : 64), 0u);
    const uint64_t allocated = f.allocator->stats().allocated.current;
    EXPECT_GE(allocated, size);
    EXPECT_LE(allocated, size + size / 4 + 4096) << size;
    release(buffer);
    EXPECT_EQ(f.allocator->stats().allocated.current, 0u);
  }
}

TEST(Memory, OwnBlocksComeFromTheirOwnSource) {
  const auto shared = std::make_shared<Counted>(), own = std::make_shared<Counted>();
  auto allocator = CachingAllocator::create(std::make_unique<CountingSource>(shared), uint64_t{200} << 20,
                                            std::make_unique<CountingSource>(own));
  const auto get = [&](Visibility visibility, uint64_t size) {
    tr_buffer buffer{};
    EXPECT_TRUE(allocator->allocate(size, &buffer, visibility));
    return buffer;
  };
  const tr_buffer a = get(Visibility::kPrivate, 1 << 20);
  EXPECT_EQ(own->segments, 1u);
  EXPECT_EQ(shared->segments, 0u);
  const tr_buffer b = get(Visibility::kShared, 1 << 20);
  EXPECT_EQ(shared->segments, 1u);
  release(a);
  release(b);
  // Each block is found again in its own source.
  const tr_buffer c = get(Visibility::kShared, 1 << 20), d = get(Visibility::kPrivate, 1 << 20);
  EXPECT_EQ(c.data, b.data);
  EXPECT_EQ(d.data, a.data);
  release(c);
  release(d);
  // The limit counts both sources, and either may use what the other does not need.
  const tr_buffer large = get(Visibility::kPrivate, 150 << 20);
  tr_buffer none{};
  EXPECT_FALSE(allocator->allocate(100 << 20, &none, Visibility::kShared));
  release(large);
  release(get(Visibility::kShared, 180 << 20));
  allocator->empty_cache();
  EXPECT_EQ(own->bytes + shared->bytes, 0u);
  EXPECT_EQ(allocator->stats().reserved.current, 0u);
}

TEST(Memory, ReusesWhatWasFreed) {
  Fixture f;
  const tr_buffer small = f.get(100);
  release(small);
  const tr_buffer again = f.get(90);
  EXPECT_EQ(again.data, small.data);
  release(again);
  const tr_buffer large = f.get(1 << 20);
  release(large);
  const tr_buffer large_again = f.get(1 << 20);
  EXPECT_EQ(large_again.data, large.data);
  release(large_again);
  EXPECT_EQ(f.counted->segments, 1u);
}

TEST(Memory, JoinsFreeNeighbours) {
  Fixture f;
  const tr_buffer a = f.get(8 << 20), b = f.get(8 << 20), c = f.get(8 << 20);
  release(a);
  release(c);
  release(b);
  const tr_buffer all = f.get(24 << 20);
  EXPECT_EQ(f.counted->segments, 1u);
  release(all);
}

TEST(Memory, TakesTheSmallestThatFits) {
  Fixture f;
  const tr_buffer big = f.get(4 << 20), fence = f.get(4096 * 10), small = f.get(1 << 20), fence2 = f.get(4096 * 10);
  release(big);
  release(small);
  const tr_buffer again = f.get(1 << 20);
  EXPECT_EQ(again.data, small.data);
  release(again);
  release(fence);
  release(fence2);
}

TEST(Memory, TheLimitHoldsAndFailureLeavesAllIntact) {
  Fixture f(64 << 20);
  const tr_buffer a = f.get(40 << 20);
  tr_buffer buffer{};
  EXPECT_FALSE(f.allocator->allocate(40 << 20, &buffer));
  EXPECT_FALSE(f.allocator->allocate(UINT64_MAX, &buffer));
  EXPECT_FALSE(f.allocator->allocate(UINT64_MAX - 4000, &buffer));
  EXPECT_LE(f.counted->bytes, 64u << 20);
  release(a);
  release(f.get(60 << 20));  // The cached 40 MiB are released to make space.
  EXPECT_LE(f.counted->bytes, 64u << 20);
}

TEST(Memory, ExternalMemoryCounts) {
  Fixture f(64 << 20);
  f.allocator->add_external(50 << 20);
  EXPECT_EQ(f.allocator->stats().allocated.current, 50u << 20);
  tr_buffer buffer{};
  EXPECT_FALSE(f.allocator->allocate(20 << 20, &buffer));
  f.allocator->remove_external(50 << 20);
  EXPECT_EQ(f.allocator->stats().allocated.current, 0u);
  EXPECT_EQ(f.allocator->stats().allocated.peak, 50u << 20);
  f.allocator->reset_peak();
  EXPECT_EQ(f.allocator->stats().allocated.peak, 0u);
  EXPECT_TRUE(f.allocator->allocate(20 << 20, &buffer));
  release(buffer);
}

TEST(Memory, TrimGivesBackWhatIsUnused) {
  Fixture f;
  const tr_buffer a = f.get(100), b = f.get(1 << 20), c = f.get(100 << 20);
  release(c);
  f.allocator->empty_cache();
  EXPECT_EQ(f.counted->segments, 1u);
  release(a);
  release(b);
  f.allocator->empty_cache();
  EXPECT_EQ(f.counted->segments, 0u);
  EXPECT_EQ(f.allocator->stats().reserved.current, 0u);
  release(f.get(100));
}

TEST(Memory, OutlivesItsOwnerUntilTheLastBlockReturns) {
  Fixture f;
  const tr_buffer buffer = f.get(1000);
  f.allocator.reset();
  EXPECT_EQ(f.counted->segments, 1u);
  std::memset(buffer.data, 1, 1000);
  release(buffer);
  EXPECT_EQ(f.counted->segments, 0u);
}

// Compares with a model: blocks never overlap, contents stay, statistics add up.
TEST(Memory, RandomUseAgreesWithAModel) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Fixture f(96 << 20);
    std::map<std::byte*, std::pair<tr_buffer, uint8_t>> live;
    for (int step = 0; step < 3000; ++step) {
      if (random() % 100 < 52) {
        const uint64_t size = (random() % 4 == 0) ? random() % (8 << 20) : random() % (1u << (random() % 17));
        tr_buffer buffer{};
        if (!f.allocator->allocate(size, &buffer)) continue;
        auto* data = static_cast<std::byte*>(buffer.data);
        auto next = live.lower_bound(data);
        if (next != live.end()) {
          ASSERT_LE(data + std::max<uint64_t>(size, 1), next->first);
        }
        if (next != live.begin()) {
          auto& previous = std::prev(next)->second.first;
          ASSERT_GE(data, static_cast<std::byte*>(previous.data) + std::max<uint64_t>(previous.nbytes, 1));
        }
        const auto mark = static_cast<uint8_t>(random());
        std::memset(data, mark, std::min<uint64_t>(size, 64));
        if (size) data[size - 1] = std::byte{mark};
        live[data] = {buffer, mark};
      } else if (!live.empty()) {
        auto it = live.begin();
        std::advance(it, random() % live.size());
        auto& [buffer, mark] = it->second;
        for (uint64_t i = 0; i < std::min<uint64_t>(buffer.nbytes, 64); ++i) {
          ASSERT_EQ(static_cast<uint8_t*>(buffer.data)[i], mark);
        }
        if (buffer.nbytes) {
          ASSERT_EQ(static_cast<uint8_t*>(buffer.data)[buffer.nbytes - 1], mark);
        }
        release(buffer);
        live.erase(it);
      }
      if (random() % 500 == 0) f.allocator->empty_cache();
      uint64_t asked = 0;
      for (auto& [data, entry] : live) asked += entry.first.nbytes;
      const MemoryStats stats = f.allocator->stats();
      ASSERT_GE(stats.allocated.current, asked);
      ASSERT_GE(stats.reserved.current, stats.allocated.current);
      ASSERT_EQ(stats.reserved.current, f.counted->bytes);
      ASSERT_LE(stats.reserved.peak, 96u << 20);
      ASSERT_EQ(stats.allocations.current, live.size());
      ASSERT_EQ(stats.segments.current, f.counted->segments);
      for (const MemoryStat& stat : {stats.allocated, stats.reserved, stats.allocations, stats.segments}) {
        ASSERT_EQ(stat.allocated - stat.freed, stat.current);
        ASSERT_GE(stat.peak, stat.current);
      }
    }
    for (auto& [data, entry] : live) release(entry.first);
    EXPECT_EQ(f.allocator->stats().allocated.current, 0u);
    f.allocator->empty_cache();
    EXPECT_EQ(f.counted->segments, 0u);
  }
}

TEST(Memory, ALowerLimitFailsWhatComesNext) {
  Fixture f;
  const tr_buffer kept = f.get(20 << 20);
  f.allocator->set_limit(40 << 20);
  tr_buffer buffer{};
  EXPECT_FALSE(f.allocator->allocate(30 << 20, &buffer));
  EXPECT_EQ(f.allocator->stats().num_ooms, 1u);
  ASSERT_TRUE(f.allocator->allocate(16 << 20, &buffer));
  release(buffer);
  // Memory that was released counts again.
  release(kept);
  ASSERT_TRUE(f.allocator->allocate(39 << 20, &buffer));
  EXPECT_EQ(f.allocator->stats().num_alloc_retries, 1u);
  release(buffer);
  f.allocator->reset_totals();
  EXPECT_EQ(f.allocator->stats().allocations.allocated, 0u);
  EXPECT_EQ(f.allocator->stats().num_ooms + f.allocator->stats().num_alloc_retries, 0u);
}

TEST(Machine, SaysWhatItHas) {
  EXPECT_GT(machine_memory(), uint64_t{64} << 20);
  EXPECT_GT(available_memory(), 0u);
  EXPECT_LE(available_memory(), machine_memory());
  EXPECT_FALSE(processor_name().empty());
  EXPECT_GE(processor_cores(), 1u);
}

TEST(Memory, FreeFromOtherThreads) {
  Fixture f;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<tr_buffer> mine;
      for (int i = 0; i < 5000; ++i) {
        tr_buffer buffer{};
        ASSERT_TRUE(f.allocator->allocate(random() % 100000, &buffer));
        mine.push_back(buffer);
        if (mine.size() > 10) {
          std::swap(mine[random() % mine.size()], mine.back());
          release(mine.back());
          mine.pop_back();
        }
      }
      for (auto& buffer : mine) release(buffer);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(f.allocator->stats().allocated.current, 0u);
}

TEST(Memory, AnonymousSegmentsAreZeroAndWritable) {
  auto allocator = CachingAllocator::create(make_anonymous_source(), machine_memory());
  tr_buffer buffer{};
  ASSERT_TRUE(allocator->allocate(5 << 20, &buffer));
  EXPECT_EQ(static_cast<char*>(buffer.data)[(5 << 20) - 1], 0);
  std::memset(buffer.data, 7, 5 << 20);
  release(buffer);
  EXPECT_FALSE(allocator->allocate(uint64_t{1} << 60, &buffer));
}

TEST(CachingAllocator, WhatIsChargedIsNotThereForTensors) {
  const auto allocator = CachingAllocator::create(make_anonymous_source(), 8 << 20);
  tr_buffer buffer{};
  ASSERT_TRUE(allocator->allocate(4 << 20, &buffer));
  const MemoryStats before = allocator->stats();
  EXPECT_FALSE(allocator->charge(5 << 20));
  EXPECT_FALSE(allocator->charge(UINT64_MAX));
  EXPECT_TRUE(allocator->charge(3 << 20));
  EXPECT_EQ(allocator->stats().reserved.current, before.reserved.current);
  tr_buffer second{};
  EXPECT_FALSE(allocator->allocate(4 << 20, &second));
  allocator->discharge(3 << 20);
  EXPECT_TRUE(allocator->allocate(4 << 20, &second));
  buffer.release(buffer.owner);
  second.release(second.owner);
  EXPECT_TRUE(allocator->charge(8 << 20));  // Unused memory is released for it.
  EXPECT_FALSE(allocator->over_limit());
  allocator->add_external(1);
  EXPECT_TRUE(allocator->over_limit());
  allocator->remove_external(1);
  allocator->discharge(8 << 20);
}

}  // namespace
}  // namespace torch_remote::worker

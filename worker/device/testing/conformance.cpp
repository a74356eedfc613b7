#include "worker/device/testing/conformance.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace torch_remote::worker::testing {
namespace {

using Bytes = std::vector<std::byte>;

// A block of the device's memory.
class Block {
 public:
  Block(Device& device, uint64_t nbytes) { EXPECT_TRUE(device.memory().allocate(nbytes, &buffer_)); }
  ~Block() {
    if (buffer_.release) buffer_.release(buffer_.owner);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data(size_t offset = 0) const { return static_cast<std::byte*>(buffer_.data) + offset; }

 private:
  tr_buffer buffer_{};
};

Bytes random_bytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Queues a read; the bytes are there when the next ticket is done.
std::shared_ptr<Bytes> read_later(Device& device, const void* data, size_t count) {
  auto bytes = std::make_shared<Bytes>(count);
  const auto size = static_cast<int64_t>(count);
  const int64_t one = 1;
  device.copy_out({data, 1, {&size, 1}, {&one, 1}}, bytes->data(), bytes);
  return bytes;
}

Bytes read(Device& device, const void* data, size_t count) {
  const std::shared_ptr<Bytes> bytes = read_later(device, data, count);
  EXPECT_TRUE(device.wait(device.record()).ok());
  return *bytes;
}

TEST_P(DeviceConformance, GivesBackTheBytesThatItWasGiven) {
  for (const size_t count : {0, 1, 63, 4096, 4097, 3 << 20}) {
    const auto bytes = std::make_shared<Bytes>(random_bytes(count, 1));
    const Block block(*device, count);
    device->copy_in(block.data(), *bytes, bytes);
    EXPECT_EQ(read(*device, block.data(), count), *bytes) << count;
  }
}

TEST_P(DeviceConformance, DoesWorkInTheOrderOfTheCalls) {
  constexpr size_t kCount = 5000;
  const Block a(*device, kCount), b(*device, kCount);
  Bytes expected;
  std::vector<std::pair<std::shared_ptr<Bytes>, Bytes>> reads;
  for (int round = 0; round < 50; ++round) {
    const auto bytes = std::make_shared<Bytes>(random_bytes(kCount, round));
    device->copy_in(a.data(), *bytes, bytes);
    expected = *bytes;
    device->copy(b.data(), a.data(), kCount);
    device->fill(a.data(), std::byte{7}, kCount);
    device->copy(b.data(100), a.data(), 10);
    std::fill_n(expected.begin() + 100, 10, std::byte{7});
    reads.emplace_back(read_later(*device, b.data(), kCount), expected);
    device->fill(b.data(), std::byte{0}, kCount);
  }
  ASSERT_TRUE(device->wait(device->record()).ok());
  for (const auto& [got, wanted] : reads) ASSERT_EQ(*got, wanted);
}

TEST_P(DeviceConformance, PacksStridedViews) {
  struct View {
    std::vector<int64_t> sizes, strides;
    int64_t offset;
  };
  const std::vector<View> views = {{{}, {}, 5},
                                   {{30, 40}, {1, 30}, 0},
                                   {{3, 5, 7}, {100, 3, 17}, 2},
                                   {{4, 0, 2}, {1, 1, 1}, 0},
                                   {{1000}, {0}, 9},
                                   {{2, 3, 4, 5}, {60, 1, 15, 3}, 7},
                                   {{200, 300}, {1, 201}, 3}};
  for (const uint32_t item : {1, 2, 4, 8, 16}) {
    const auto bytes = std::make_shared<Bytes>(random_bytes(65536 * item, item));
    const Block block(*device, bytes->size());
    device->copy_in(block.data(), *bytes, bytes);
    for (const View& view : views) {
      const int64_t count = std::accumulate(view.sizes.begin(), view.sizes.end(), int64_t{1}, std::multiplies<>());
      const auto packed = std::make_shared<Bytes>(count * item);
      device->copy_out({block.data(view.offset * item), item, view.sizes, view.strides}, packed->data(), packed);
      ASSERT_TRUE(device->wait(device->record()).ok());
      std::vector<int64_t> at(view.sizes.size());
      for (int64_t n = 0; n < count; ++n) {
        int64_t from = view.offset;
        for (size_t i = 0; i < at.size(); ++i) from += at[i] * view.strides[i];
        ASSERT_EQ(std::memcmp(packed->data() + n * item, bytes->data() + from * item, item), 0)
            << item << ::testing::PrintToString(view.sizes) << n;
        for (size_t i = at.size(); i-- > 0;) {
          if (++at[i] < view.sizes[i]) break;
          at[i] = 0;
        }
      }
    }
  }
}

TEST_P(DeviceConformance, HoldsHostMemoryUntilItIsDoneWithIt) {
  constexpr size_t kCount = 1 << 20;
  const Block block(*device, kCount);
  for (int round = 0; round < 10; ++round) {
    auto bytes = std::make_shared<Bytes>(random_bytes(kCount, round));
    const Bytes copy = *bytes;
    const std::weak_ptr<Bytes> held = bytes;
    const std::span<const std::byte> source = *bytes;
    device->copy_in(block.data(), source, std::move(bytes));
    EXPECT_EQ(read(*device, block.data(), kCount), copy);
    EXPECT_TRUE(held.expired());  // The ticket is done.
  }
}

TEST_P(DeviceConformance, TicketsTellHowFarItIs) {
  const Block block(*device, 1 << 20);
  ASSERT_TRUE(device->wait(device->record()).ok());
  EXPECT_EQ(device->record(), 0u);
  EXPECT_TRUE(device->done(0));
  Ticket last = 0;
  std::vector<Ticket> tickets;
  for (int i = 0; i < 100; ++i) {
    device->fill(block.data(), std::byte{1}, 1 << 20);
    const Ticket ticket = device->record();
    if (ticket == 0) continue;  // The work was done by then.
    EXPECT_GE(ticket, last);
    last = ticket;
    tickets.push_back(ticket);
  }
  EXPECT_EQ(device->asynchronous(), !tickets.empty());
  for (size_t i = tickets.size(); i-- > 0;) {
    ASSERT_TRUE(device->wait(tickets[i]).ok());
    for (size_t j = 0; j <= i; ++j) EXPECT_TRUE(device->done(tickets[j]));
  }
}

TEST_P(DeviceConformance, TellsOnceWhenATicketIsDone) {
  const Block block(*device, 1 << 20);
  std::vector<std::atomic<int>> told(20);
  for (std::atomic<int>& count : told) {
    device->fill(block.data(), std::byte{1}, 1 << 20);
    const Ticket ticket = device->record();
    device->notify(ticket, [&count, ticket, this] {
      EXPECT_TRUE(device->done(ticket));
      ++count;
    });
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto all = [&] { return std::ranges::all_of(told, [](const std::atomic<int>& count) { return count > 0; }); };
  while (!all() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(device->wait(device->record()).ok());
  for (const std::atomic<int>& count : told) EXPECT_EQ(count, 1);
}

// Work that was queued before memory was freed does not see what the next owner writes to it.
TEST_P(DeviceConformance, MemoryIsUsedAgainOnlyByLaterWork) {
  constexpr size_t kCount = 100'000;
  std::vector<std::shared_ptr<Bytes>> reads;
  for (int round = 0; round < 40; ++round) {
    const Block block(*device, kCount);
    device->fill(block.data(), static_cast<std::byte>(round), kCount);
    reads.push_back(read_later(*device, block.data(), kCount));
  }
  ASSERT_TRUE(device->wait(device->record()).ok());
  for (int round = 0; round < 40; ++round) EXPECT_EQ(*reads[round], Bytes(kCount, static_cast<std::byte>(round)));
}

TEST_P(DeviceConformance, CountsItsMemoryAndKeepsItsLimit) {
  device = GetParam().make(uint64_t{64} << 20);
  const uint64_t before = device->memory().stats().allocated.current;
  {
    const Block block(*device, 10 << 20);
    EXPECT_GE(device->memory().stats().allocated.current, before + (10 << 20));
    tr_buffer none{};
    EXPECT_FALSE(device->memory().allocate(uint64_t{100} << 20, &none));
    device->fill(block.data(), std::byte{3}, 10 << 20);
  }
  EXPECT_EQ(device->memory().stats().allocated.current, before);
  ASSERT_TRUE(device->wait(device->record()).ok());
  device->memory().empty_cache();
  const Block again(*device, 40 << 20);
  device->fill(again.data(), std::byte{4}, 40 << 20);
  EXPECT_EQ(read(*device, again.data(), 40 << 20), Bytes(40 << 20, std::byte{4}));
}

TEST_P(DeviceConformance, EndsWithWorkStillQueued) {
  constexpr size_t kCount = 1 << 20;
  std::weak_ptr<Bytes> held;
  {
    const Block block(*device, kCount);
    for (int i = 0; i < 20; ++i) {
      const auto bytes = std::make_shared<Bytes>(kCount);
      held = bytes;
      device->copy_in(block.data(), *bytes, bytes);
    }
  }
  device = nullptr;
  EXPECT_TRUE(held.expired());
}

TEST_P(DeviceConformance, NobodyElseCanGetAtItsMemory) {
  if (!GetParam().has_private_memory) GTEST_SKIP() << "its memory is this machine's";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Block block(*device, 4096);
  EXPECT_DEATH(*static_cast<volatile char*>(block.data()) = 1, "");
  EXPECT_DEATH((void)*static_cast<volatile char*>(block.data()), "");
}

}  // namespace
}  // namespace torch_remote::worker::testing

#include "worker/device/strided_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace torch_remote::worker {
namespace {

// Copies element by element, following the definition.
void reference(const std::byte* source, std::byte* destination, uint32_t item_size, const std::vector<int64_t>& sizes,
               const std::vector<int64_t>& strides) {
  std::vector<int64_t> at(sizes.size());
  const int64_t count = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  for (int64_t n = 0; n < count; ++n) {
    int64_t offset = 0;
    for (size_t i = 0; i < at.size(); ++i) offset += at[i] * strides[i];
    std::memcpy(destination + n * item_size, source + offset * item_size, item_size);
    for (size_t i = at.size(); i-- > 0;) {
      if (++at[i] < sizes[i]) break;
      at[i] = 0;
    }
  }
}

// Splits the work as threads would, and counts the parts.
struct Splitter {
  int parts = 0;
  ParallelFor parallel() {
    return [this](int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
      for (int64_t begin = 0; begin < count; begin += grain, ++parts) body(begin, std::min(begin + grain, count));
    };
  }
};

void check(uint32_t item_size, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
           std::mt19937& random) {
  int64_t extent = 1, count = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    extent += std::max<int64_t>(sizes[i] - 1, 0) * strides[i];
    count *= sizes[i];
  }
  constexpr size_t kOffset = 3;  // Elements need not be aligned.
  std::vector<std::byte> source(extent * item_size + kOffset);
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  constexpr auto kGuard = std::byte{0xA5};
  std::vector<std::byte> wanted(count * item_size + 1, kGuard), got = wanted, split = wanted;
  reference(source.data() + kOffset, wanted.data(), item_size, sizes, strides);
  copy_strided(source.data() + kOffset, got.data(), item_size, sizes, strides);
  EXPECT_EQ(got, wanted) << ::testing::PrintToString(sizes) << ::testing::PrintToString(strides) << item_size;
  Splitter splitter;
  copy_strided(source.data() + kOffset, split.data(), item_size, sizes, strides, splitter.parallel());
  EXPECT_EQ(split, wanted) << ::testing::PrintToString(sizes) << ::testing::PrintToString(strides) << item_size;
}

TEST(StridedCopyTest, CopiesRandomViews) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const size_t rank = random() % 6;
    std::vector<int64_t> sizes(rank), strides(rank), order(rank);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    int64_t stride = 1 + (random() % 4 == 0);
    for (const int64_t dim : order) {
      sizes[dim] = rank > 3 ? random() % 6 : random() % 24;
      strides[dim] = random() % 8 == 0 ? 0 : stride;
      stride = std::max<int64_t>(stride * std::max<int64_t>(sizes[dim], 1) + random() % 3, 1);
    }
    check(1u << random() % 5, sizes, strides, random);
  }
}

TEST(StridedCopyTest, CopiesLargeViewsInParts) {
  std::mt19937 random(2);
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> views = {
      {{700, 500}, {1, 700}},        // A transpose.
      {{700, 500}, {503, 1}},        // Rows with gaps.
      {{3, 200, 300}, {1, 900, 3}},  // Channels last.
      {{5, 7, 70, 90}, {441000, 1, 630, 7}},
      {{400000}, {2}},
      {{300, 400}, {0, 1}},
  };
  for (const auto& [sizes, strides] : views) {
    for (const uint32_t item_size : {1, 2, 4, 8, 16}) check(item_size, sizes, strides, random);
  }
  Splitter splitter;
  const std::vector<int64_t> sizes = {700, 500}, strides = {1, 700};
  std::vector<float> source(350000), packed(350000);
  copy_strided(source.data(), reinterpret_cast<std::byte*>(packed.data()), 4, sizes, strides, splitter.parallel());
  EXPECT_GT(splitter.parts, 1);
}

}  // namespace
}  // namespace torch_remote::worker

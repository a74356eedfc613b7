#include "tools/dump/sequence_diff.h"

#include <random>

#include "gtest/gtest.h"

namespace torch_remote::tools {
namespace {

// The length of the longest common subsequence, with the quadratic table.
size_t longest(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  std::vector<std::vector<size_t>> best(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      best[i + 1][j + 1] = a[i] == b[j] ? best[i][j] + 1 : std::max(best[i][j + 1], best[i + 1][j]);
    }
  }
  return best[a.size()][b.size()];
}

TEST(SequenceDiff, FindsTheLongestCommonPart) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<uint64_t> a(rng() % 20), b(rng() % 20);
    for (uint64_t& x : a) x = rng() % 4;
    for (uint64_t& x : b) x = rng() % 4;
    const Pairs pairs = common_elements(a, b);
    EXPECT_EQ(pairs.size(), longest(a, b)) << round;
    for (size_t i = 0; i < pairs.size(); ++i) {
      ASSERT_EQ(a[pairs[i].first], b[pairs[i].second]);
      ASSERT_TRUE(i == 0 || (pairs[i - 1].first < pairs[i].first && pairs[i - 1].second < pairs[i].second));
    }
  }
}

TEST(SequenceDiff, SequencesWithNothingInCommonAreNoProblem) {
  std::vector<uint64_t> a(50000), b(50000);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = i;
    b[i] = i + 1'000'000;
  }
  EXPECT_TRUE(common_elements(a, b).empty());
  a[0] = b[0];
  EXPECT_EQ(common_elements(a, b).size(), 1u);
}

TEST(SequenceDiff, UnifiedDiff) {
  EXPECT_EQ(unified_diff("1\n2\n", "1\n2\n", "a", "b"), "");
  EXPECT_EQ(unified_diff("1\n2\n3\n4\n5\n6\n7\n8\n", "1\n2\n3\n4\nfive\n6\n7\n8\n", "a", "b"),
            "--- a\n+++ b\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
  EXPECT_EQ(unified_diff("", "1\n", "a", "b"), "--- a\n+++ b\n@@ -1,0 +1,1 @@\n+1\n");
}

}  // namespace
}  // namespace torch_remote::tools

#include "gtest/gtest.h"
#include "tests/fuzz/graph_properties.h"

namespace torch_remote::fuzz {
namespace {

constexpr uint64_t kInputs = 3000;

TEST(GraphFuzz, TextThatIsNearlyRight) {
  Tally tally;
  for (uint64_t seed = 0; seed < kInputs; ++seed) ASSERT_EQ(check_text(seed, &tally), "");
  EXPECT_GT(tally.read, kInputs / 8);  // else the damage is too much to get behind the parser
  EXPECT_GT(tally.inputs - tally.read, kInputs / 8);
  EXPECT_GT(tally.valid, kInputs / 16);
}

TEST(GraphFuzz, ProgramsThatAreNearlyRight) {
  Tally tally;
  for (uint64_t seed = 0; seed < kInputs; ++seed) ASSERT_EQ(check_program(seed, &tally), "");
  EXPECT_GT(tally.valid, kInputs / 16);
  EXPECT_GT(tally.inputs - tally.read, kInputs / 8);
}

}  // namespace
}  // namespace torch_remote::fuzz

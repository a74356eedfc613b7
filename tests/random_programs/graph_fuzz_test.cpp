#include <chrono>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "ir/testing/fuzz.h"
#include "tests/random_programs/graph_properties.h"

// Checks a number of inputs, or inputs for FUZZ_SECONDS, from a random seed or TORCH_REMOTE_TEST_SEED on.
namespace torch_remote::fuzz {
namespace {

constexpr uint64_t kInputs = 3000;

Tally run(std::string (*check)(uint64_t seed, Tally* tally)) {
  using Clock = std::chrono::steady_clock;
  auto [seed, time] = ir::testing::fuzz_options();
  // Each of the two tests gets half of the time.
  const auto end = Clock::now() + std::chrono::milliseconds(time.value_or(std::chrono::seconds(0))) / 2;
  Tally tally;
  std::string wrong;
  do {
    wrong = check(seed++, &tally);
  } while (wrong.empty() && (tally.inputs < kInputs || Clock::now() < end));
  EXPECT_EQ(wrong, "");
  std::printf("%llu inputs, %llu read, %llu valid\n", static_cast<unsigned long long>(tally.inputs),
              static_cast<unsigned long long>(tally.read), static_cast<unsigned long long>(tally.valid));
  return tally;
}

TEST(GraphFuzz, TextThatIsNearlyRight) {
  const Tally tally = run(check_text);
  EXPECT_GT(tally.read, tally.inputs / 8);  // otherwise the damage is too heavy to pass the parser
  EXPECT_GT(tally.inputs - tally.read, tally.inputs / 8);
  EXPECT_GT(tally.valid, tally.inputs / 16);
}

TEST(GraphFuzz, ProgramsThatAreNearlyRight) {
  const Tally tally = run(check_program);
  EXPECT_GT(tally.valid, tally.inputs / 16);
  EXPECT_GT(tally.inputs - tally.read, tally.inputs / 8);
}

}  // namespace
}  // namespace torch_remote::fuzz

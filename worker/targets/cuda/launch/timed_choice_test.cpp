#include "worker/targets/cuda/launch/timed_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace torch_remote::worker::cuda {
namespace {

TEST(TimedChoice, IsTheFastestAlgorithm) {
  EXPECT_EQ(fastest(std::vector<float>{1, 0.5F, 0.7F}), 1u);
  EXPECT_EQ(fastest(std::vector<float>{1, 2, 3}), 0u);
  EXPECT_EQ(fastest(std::vector<float>{1}), 0u);
}

TEST(TimedChoice, IsTheFirstChoiceForShortCalls) { EXPECT_EQ(fastest(std::vector<float>{0.019F, 0.001F}), 0u); }

TEST(TimedChoice, IsTheFirstChoiceWithoutAClearGain) {
  EXPECT_EQ(fastest(std::vector<float>{1, 0.98F}), 0u);
  EXPECT_EQ(fastest(std::vector<float>{1, 0.98F, 0.96F}), 2u);
}

}  // namespace
}  // namespace torch_remote::worker::cuda

// Tests how long an end spins before it sleeps: as long as that pays, and no longer.
#include "remote/transport/wait_predictor.h"

#include <gtest/gtest.h>

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;

WaitPredictor after(int count, std::chrono::nanoseconds gap) {
  WaitPredictor predictor;
  for (int i = 0; i < count; ++i) predictor.record_wait(gap);
  return predictor;
}

TEST(Pace, AtFirstItSleepsAtOnce) {
  const WaitPredictor::Plan plan = WaitPredictor().plan();
  EXPECT_EQ(plan.first, 0ns);
  EXPECT_EQ(plan.from, 0ns);
  EXPECT_EQ(plan.until, 0ns);
}

TEST(Pace, LooksForWhatComesSoon) {
  for (const auto gap : {3us, 20us, 100us, 250us}) {
    const WaitPredictor::Plan plan = after(20, gap).plan();
    EXPECT_GE(plan.first, gap);
    EXPECT_LE(plan.first, std::max<std::chrono::nanoseconds>(2 * gap, 8us));
  }
}

TEST(Pace, ForWhatComesAtItsTimeItSleepsUntilShortlyBefore) {
  for (const auto gap : {1000us, 5000us, 30000us}) {
    const WaitPredictor::Plan plan = after(60, gap).plan();
    EXPECT_EQ(plan.first, 0ns) << gap.count();
    EXPECT_GT(plan.from, gap - WaitPredictor::kMaxSpinAroundMean);
    EXPECT_LT(plan.from, gap);
    EXPECT_GT(plan.until, gap);
    EXPECT_LE(plan.until - plan.from, std::min<std::chrono::nanoseconds>(WaitPredictor::kMaxSpinAroundMean, gap / 2));
  }
}

TEST(Pace, DoesNotLookForWhatComesAtAnyTime) {
  WaitPredictor predictor;
  uint64_t random = 1;
  for (int i = 0; i < 500; ++i) {
    random = random * 6364136223846793005 + 1442695040888963407;
    predictor.record_wait(std::chrono::microseconds(600 + (random >> 40) % 40000));
    const WaitPredictor::Plan plan = predictor.plan();
    EXPECT_LE(plan.first, WaitPredictor::kMaxInitialSpin);
    EXPECT_LE(plan.until - plan.from, WaitPredictor::kMaxSpinAroundMean);
  }
  EXPECT_EQ(predictor.plan().first, 0ns);
  EXPECT_EQ(predictor.plan().until, 0ns);
}

TEST(Pace, MostlySoonAndSometimesLateIsLookedForAsLongAsItIsSoon) {
  WaitPredictor predictor;
  for (int i = 0; i < 300; ++i) predictor.record_wait(i % 4 == 3 ? 20ms : 30us);
  const WaitPredictor::Plan plan = predictor.plan();
  EXPECT_GE(plan.first, 30us);
  EXPECT_LE(plan.first, 64us);
}

TEST(Pace, LearnsAnewWhenTheRhythmChanges) {
  WaitPredictor predictor = after(100, 5ms);
  for (int i = 0; i < 40; ++i) predictor.record_wait(1ms);
  EXPECT_LT(predictor.plan().from, 1ms);
  EXPECT_GT(predictor.plan().until, 1ms);
  for (int i = 0; i < 40; ++i) predictor.record_wait(20us);
  EXPECT_GE(predictor.plan().first, 20us);
}

TEST(Pace, WhoeverComesAfterALongTimeIsNotLookedFor) {
  const WaitPredictor::Plan plan = after(100, 2s).plan();
  EXPECT_EQ(plan.first, 0ns);
  EXPECT_EQ(plan.until, 0ns);
}

TEST(Pace, WhereSomebodyNeedsTheCoreItStopsLookingForAWhile) {
  WaitPredictor predictor = after(20, 20us);
  predictor.suspend_spinning();
  EXPECT_EQ(predictor.plan().first, 0ns);
  int waits = 0;
  for (; predictor.plan().first == 0ns && waits < 1000; ++waits) predictor.record_wait(20us);
  EXPECT_GE(waits, 16);
  EXPECT_LT(waits, 100);
  // Repeated contention suspends spinning for longer each time.
  predictor.suspend_spinning();
  int longer = 0;
  for (; predictor.plan().first == 0ns && longer < 1000; ++longer) predictor.record_wait(20us);
  EXPECT_GT(longer, waits);
}

}  // namespace
}  // namespace torch_remote::remote

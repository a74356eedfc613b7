// Tests how long an end spins before it sleeps: as long as that pays, and no longer.
#include "remote/transport/pace.h"

#include <gtest/gtest.h>

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;

Pace after(int count, std::chrono::nanoseconds gap) {
  Pace pace;
  for (int i = 0; i < count; ++i) pace.came(gap);
  return pace;
}

TEST(Pace, AtFirstItSleepsAtOnce) {
  const Pace::Plan plan = Pace().plan();
  EXPECT_EQ(plan.first, 0ns);
  EXPECT_EQ(plan.from, 0ns);
  EXPECT_EQ(plan.until, 0ns);
}

TEST(Pace, LooksForWhatComesSoon) {
  for (const auto gap : {3us, 20us, 100us, 250us}) {
    const Pace::Plan plan = after(20, gap).plan();
    EXPECT_GE(plan.first, gap);
    EXPECT_LE(plan.first, std::max<std::chrono::nanoseconds>(2 * gap, 8us));
  }
}

TEST(Pace, ForWhatComesAtItsTimeItSleepsUntilShortlyBefore) {
  for (const auto gap : {1000us, 5000us, 30000us}) {
    const Pace::Plan plan = after(60, gap).plan();
    EXPECT_EQ(plan.first, 0ns) << gap.count();
    EXPECT_GT(plan.from, gap - Pace::kMostAround);
    EXPECT_LT(plan.from, gap);
    EXPECT_GT(plan.until, gap);
    EXPECT_LE(plan.until - plan.from, std::min<std::chrono::nanoseconds>(Pace::kMostAround, gap / 2));
  }
}

TEST(Pace, DoesNotLookForWhatComesAtAnyTime) {
  Pace pace;
  uint64_t random = 1;
  for (int i = 0; i < 500; ++i) {
    random = random * 6364136223846793005 + 1442695040888963407;
    pace.came(std::chrono::microseconds(600 + (random >> 40) % 40000));
    const Pace::Plan plan = pace.plan();
    EXPECT_LE(plan.first, Pace::kMostAtFirst);
    EXPECT_LE(plan.until - plan.from, Pace::kMostAround);
  }
  EXPECT_EQ(pace.plan().first, 0ns);
  EXPECT_EQ(pace.plan().until, 0ns);
}

TEST(Pace, MostlySoonAndSometimesLateIsLookedForAsLongAsItIsSoon) {
  Pace pace;
  for (int i = 0; i < 300; ++i) pace.came(i % 4 == 3 ? 20ms : 30us);
  const Pace::Plan plan = pace.plan();
  EXPECT_GE(plan.first, 30us);
  EXPECT_LE(plan.first, 64us);
}

TEST(Pace, LearnsAnewWhenTheRhythmChanges) {
  Pace pace = after(100, 5ms);
  for (int i = 0; i < 40; ++i) pace.came(1ms);
  EXPECT_LT(pace.plan().from, 1ms);
  EXPECT_GT(pace.plan().until, 1ms);
  for (int i = 0; i < 40; ++i) pace.came(20us);
  EXPECT_GE(pace.plan().first, 20us);
}

TEST(Pace, WhoeverComesAfterALongTimeIsNotLookedFor) {
  const Pace::Plan plan = after(100, 2s).plan();
  EXPECT_EQ(plan.first, 0ns);
  EXPECT_EQ(plan.until, 0ns);
}

TEST(Pace, WhereSomebodyNeedsTheCoreItStopsLookingForAWhile) {
  Pace pace = after(20, 20us);
  pace.contended();
  EXPECT_EQ(pace.plan().first, 0ns);
  int waits = 0;
  for (; pace.plan().first == 0ns && waits < 1000; ++waits) pace.came(20us);
  EXPECT_GE(waits, 16);
  EXPECT_LT(waits, 100);
  // Repeated contention suspends spinning for longer each time.
  pace.contended();
  int longer = 0;
  for (; pace.plan().first == 0ns && longer < 1000; ++longer) pace.came(20us);
  EXPECT_GT(longer, waits);
}

}  // namespace
}  // namespace torch_remote::remote

#include <set>
#include <string>

#include "codegen/loop/facts.h"
#include "codegen/loop/loop_ir.h"
#include "codegen/loop/testing/random_kernel.h"
#include "gtest/gtest.h"

namespace torch_remote::codegen {
namespace {

using Values = std::vector<uint32_t>;

Schedule of(const std::string& text) {
  Kernel kernel;
  const Status parsed = parse_kernel(text, &kernel);
  EXPECT_TRUE(parsed.ok()) << parsed.message();
  const Status valid = verify(kernel);
  EXPECT_TRUE(valid.ok()) << valid.message();
  return schedule(kernel);
}

Values phases(const Schedule& schedule) {
  Values result;
  for (const ValueSchedule& place : schedule.values) result.push_back(place.phase);
  return result;
}

TEST(Schedule, SoftmaxHasThreeLoopsAndKeepsItsExponentials) {
  const Schedule result = of(R"(kernel(i0 | j0) {
    a0: bf16[i0, j0]
    %0: f32 = load a0
    %1: f32 = columns max %0
    %2: f32 = sub %0, %1
    %3: f32 = exp %2
    %4: f32 = columns sum %3
    %5: f32 = div %3, %4
    store a0, %5
  })");
  EXPECT_EQ(phases(result), Values({0, 1, 1, 1, 2, 2}));
  EXPECT_EQ(result.phases, 3u);
  EXPECT_EQ(result.spilled, Values({3}));
  EXPECT_EQ(result.totals, Values());
  EXPECT_EQ(result.values[0].dims, 0b11u);
  EXPECT_EQ(result.values[1].dims, 0b01u);
}

TEST(Schedule, CheapValuesAreComputedAgain) {
  const Schedule result = of(R"(kernel(i0 | j0) {
    a0: f32[i0, j0]
    a1: f32[i0, j0]
    %0: f32 = load a0
    %1: f32 = load a1
    %2: f32 = add %0, %1
    %3: f32 = mul %2, %2
    %4: f32 = columns sum %3
    %5: f32 = mul %3, %4
    store a1, %5
  })");
  EXPECT_EQ(result.phases, 2u);
  EXPECT_EQ(result.spilled, Values());
}

TEST(Schedule, WhatIsMadeOfKeptValuesIsCheap) {
  const Schedule result = of(R"(kernel(i0 | j0) {
    a0: f32[i0, j0]
    a1: f32[i0, j0]
    %0: f32 = load a0
    %1: f32 = exp %0
    %2: f32 = exp %1
    %3: f32 = add %2, %2
    %4: f32 = columns sum %3
    %5: f32 = mul %3, %4
    %6: f32 = mul %5, %2
    store a0, %6
    store a1, %2
  })");
  EXPECT_EQ(result.spilled, Values({2})) << "%3 is an addition away from %2, and %1 is wanted by nobody else";
}

TEST(Schedule, ManyCheapValuesAreKeptAsOne) {
  std::string text = "kernel(i0 | j0) {\n a0: f32[i0, j0]\n %0: f32 = load a0\n";
  for (int i = 1; i <= 8; ++i) text += " %" + std::to_string(i) + ": f32 = neg %" + std::to_string(i - 1) + "\n";
  const Schedule seven = of(text + " %9: f32 = columns sum %7\n %10: f32 = mul %7, %9\n store a0, %10\n}");
  EXPECT_EQ(seven.spilled, Values()) << "a load and seven operations cost 8";
  const Schedule eight = of(text + " %9: f32 = columns sum %8\n %10: f32 = mul %8, %9\n store a0, %10\n}");
  EXPECT_EQ(eight.spilled, Values({8}));
}

TEST(Schedule, RowsWithoutColumnsHaveNoLoop) {
  const Schedule result = of("kernel(i0 | j0) {\n a0: f32[i0]\n %0: f32 = load a0\n store a0, %0\n}");
  EXPECT_EQ(result.phases, 0u);
}

TEST(Schedule, ARowsValueThatGoesToAllColumnsIsALoop) {
  const Schedule result = of(R"(kernel(i0 | j0) {
    a0: f32[i0, j0]
    %0: f32 = load a0
    %1: f32 = columns sum %0
    store a0, %1
  })");
  EXPECT_EQ(result.phases, 2u);
}

TEST(Schedule, TotalsAndWhatFollowsFromThem) {
  const Schedule result = of(R"(kernel(i0 | j0) {
    a0: f32[i0, j0]
    a1: f32[j0]
    a2: f32[]
    a3: f32[j0]
    %0: f32 = load a0
    %1: f32 = columns sum %0
    %2: f32 = mul %0, %1
    %3: f32 = rows sum %2
    %4: f32 = load a1
    %5: f32 = mul %3, %4
    %6: f32 = rows max %1
    %7: f32 = rows min %0
    store a3, %5
    store a2, %6
  })");
  EXPECT_EQ(phases(result), Values({0, 1, 1, 1, 0, 0, 1, 0}));
  EXPECT_EQ(result.phases, 2u);
  EXPECT_EQ(result.totals, Values({3, 6})) << "nobody wants %7";
  EXPECT_TRUE(result.values[3].finish);
  EXPECT_EQ(result.values[3].dims, 0b10u);
  EXPECT_TRUE(result.values[5].finish);
  EXPECT_FALSE(result.values[4].finish);
  EXPECT_EQ(result.values[6].dims, 0u);
}

TEST(Schedule, UnusedValuesMakeNoLoops) {
  const Schedule result = of(R"(kernel(i0 | j0) {
    a0: f32[i0, j0]
    %0: f32 = load a0
    %1: f32 = exp %0
    %2: f32 = columns sum %1
    %3: f32 = mul %1, %2
    %4: f32 = columns sum %3
    store a0, %1
  })");
  EXPECT_EQ(result.phases, 1u);
  EXPECT_EQ(result.spilled, Values());
}

// Checks what lowerings assume about every loop that they generate.
TEST(Schedule, EachLoopCanComputeWhatItWants) {
  uint32_t kept = 0, loops = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    testing::Rng rng(seed);
    const Kernel kernel = testing::random_kernel(rng, {.functions = seed % 2 == 0, .lines = true});
    const Schedule result = schedule(kernel);
    const std::vector<Facts> known = facts(kernel);
    const UsedValues used = uses(kernel, known);
    const std::set<uint32_t> keeps(result.spilled.begin(), result.spilled.end());
    const auto over_columns = [&](uint32_t value) { return (known[value].dims & kernel.column_dims()) != 0; };
    for (uint32_t i = 0; i < kernel.values.size(); ++i) {
      const ValueSchedule& place = result.values[i];
      ASSERT_EQ(place.dims, known[i].dims);
      if (place.finish) {
        ASSERT_EQ(place.dims & kernel.row_dims(), 0u) << seed;
      }
      if (!used.rows[i]) {
        ASSERT_FALSE(keeps.contains(i)) << seed;
        continue;
      }
      for (const uint32_t input : inputs(kernel.values[i])) {
        ASSERT_LE(result.values[input].phase, place.phase) << seed << "\n" << print(kernel);
      }
      ASSERT_LE(place.phase + (over_columns(i) ? 1 : 0), result.phases) << seed << "\n" << print(kernel);
    }
    for (const uint32_t i : result.spilled) {
      ASSERT_TRUE(over_columns(i) && !known[i].finish && result.values[i].phase + 1 < result.phases) << seed;
    }
    kept += static_cast<uint32_t>(result.spilled.size());
    loops += result.phases;
  }
  EXPECT_GT(kept, 150u);
  EXPECT_GT(loops, 3000u);
}

}  // namespace
}  // namespace torch_remote::codegen

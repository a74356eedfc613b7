#include "worker/shadow/shadow.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "worker/device/host_device.h"
#include "worker/runner/testing/faulty_runner.h"
#include "worker/session/testing/session_fixture.h"
#include "worker/targets/reference/reference_target.h"

namespace torch_remote::worker {
namespace {

class ShadowTest : public SessionTest {
 protected:
  ShadowTest() {
    OpenDevice opened;
    EXPECT_TRUE(reference_target().open_reference(&opened).ok());
    opened_ = std::move(opened);
    runners.clear();
    for (auto& runner : opened_.runners) runners.push_back(testing::make_faulty_runner(std::move(runner), fault));
    session = std::make_unique<Session>(&device, &runners);
    shadow = std::make_unique<Shadow>(device, runners, reference_target().open_reference);
    session->set_watcher(shadow.get());
    shadow->set({1, 0});
  }

  testing::Fault fault;
  OpenDevice opened_;  // The runners' device.
  std::unique_ptr<Shadow> shadow;
};

// (x + y) * x, then the square of y in place.
constexpr const char* kSteps = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1)
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%2, %0)
  aten::mul_.Tensor(%1!, %1)
})";

TEST_F(ShadowTest, RightStepsAgree) {
  load(1, kSteps);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}), nullptr);
  EXPECT_EQ(read(100, 3), (Floats{11, 44, 99}));
  EXPECT_EQ(read(2, 3), (Floats{100, 400, 900}));
  shadow->wait();
  const ShadowCounts counts = shadow->counts();
  EXPECT_EQ(counts.runs, 1u);
  EXPECT_EQ(counts.steps, 3u);
  EXPECT_EQ(counts.left_out, 0u);
  EXPECT_EQ(counts.differences, 0u);
  EXPECT_EQ(counts.bytes, 12u * (3 + 3 + 2));
  EXPECT_EQ(shadow->take(), nullptr);
}

TEST_F(ShadowTest, AWrongStepIsNamedWithItsOperands) {
  fault = testing::add_to_results_of("aten::mul", 0.5f);
  load(1, kSteps);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}), nullptr);
  shadow->wait();
  EXPECT_EQ(shadow->counts().differences, 1u);
  EXPECT_EQ(session->watcher()->findings(), 1u);
  const auto found = shadow->take();
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->program, 1u);
  EXPECT_EQ(found->records[found->record], 1u);
  EXPECT_EQ(found->runner, "interpreted loops");
  EXPECT_EQ(found->op, "aten::mul.Tensor(f32[3], f32[3])");
  EXPECT_EQ(found->what,
            "result 0 (f32): 1 of 3 elements differ, at most by 0.5 (relative 0.0455); element 0: 11.5 and 11");
  EXPECT_TRUE(ir::verify(found->graph).ok());
  EXPECT_EQ(found->graph.nodes.size(), 1u);
  ASSERT_EQ(found->inputs.size(), 2u);
  float operand[3];
  std::memcpy(operand, found->inputs[1].data(), sizeof(operand));
  EXPECT_EQ(operand[0], 11);
}

TEST_F(ShadowTest, AWrongUpdateInPlaceIsFound) {
  fault = testing::add_to_results_of("aten::mul_", 1);
  load(1, kSteps);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  run(1, {3, 12}, {1, 2});
  shadow->wait();
  const auto found = shadow->take();
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->op, "aten::mul_.Tensor(f32[3], f32[3])");
}

constexpr const char* kSum = R"(graph(s0) {
  s1 = 4
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[]{} @b1 = aten::sum(%0, dtype=none)
})";

// Another order of the sum's terms may give anything between -8 and 8.
TEST_F(ShadowTest, TermsThatCancelMakeNoDifference) {
  load(1, kSum);
  upload(1, {1e8f, 1, -1e8f, 2});
  fault = testing::add_to_results_of("aten::sum", -1);
  run(1, {4}, {1});
  shadow->wait();
  EXPECT_EQ(shadow->counts().steps, 1u);
  EXPECT_EQ(shadow->counts().differences, 0u);
  upload(1, {3, 1, 4, 2});
  run(1, {4}, {1});
  shadow->wait();
  EXPECT_EQ(shadow->counts().differences, 1u);
}

TEST_F(ShadowTest, FirstRunsAreThoseOfNewPrograms) {
  shadow->set({0, 2});
  load(1, kSteps);
  load(2, kSteps);
  load(3, kSteps);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  for (const uint32_t program : {1u, 1u, 2u, 3u, 1u}) run(program, {3, 12}, {1, 2});
  shadow->wait();
  EXPECT_EQ(shadow->counts().runs, 2u);
  EXPECT_EQ(shadow->counts().steps, 6u);
}

TEST_F(ShadowTest, TheRateIsTheShareOfRuns) {
  shadow->set({0.25, 0});
  load(1, kSum);
  upload(1, {1, 2});
  for (int i = 0; i < 2000; ++i) run(1, {2}, {1});
  const double checked = static_cast<double>(shadow->counts().runs);
  EXPECT_GT(checked, 350);  // 500, with a standard deviation of 19
  EXPECT_LT(checked, 650);
  shadow->set({0, 0});
  const uint64_t before = shadow->counts().runs;
  for (int i = 0; i < 100; ++i) run(1, {2}, {1});
  EXPECT_EQ(shadow->counts().runs, before);
}

TEST_F(ShadowTest, ItEndsWhileStepsWait) {
  load(1, kSteps);
  upload(1, std::vector<float>(1 << 16));
  upload(2, std::vector<float>(1 << 16));
  for (int i = 0; i < 20; ++i) run(1, {1 << 16, 1 << 18}, {1, 2});
  session->set_watcher(nullptr);
  shadow = nullptr;
}

}  // namespace
}  // namespace torch_remote::worker

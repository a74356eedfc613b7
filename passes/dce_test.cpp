#include "gtest/gtest.h"
#include "passes/testing/text_pass.h"

namespace torch_remote::passes {
namespace {

TEST(Dce, WhatNobodySeesGoesAndInputsStay) {
  EXPECT_EQ(testing::run_on_text(R"(graph(s0..s2) {
  s3 = 1
  s4 = s0 * s1
  s5 = 0
  s6 = s0 + 1
  b0: input
  b1: fresh(s4)
  b2: fresh(s0) survives
  b3: input survives
  b4: fresh(s6)
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b2 = aten::neg(%0)
  aten::relu_(%1!)
  %3: f32[s0]{1} @b4
  aten::copy_(%3!, %1)
}
)",
                                 dce),
            R"(
graph(s0..s2) {
  s3 = 1
  s4 = 0
  b0: input
  b1: fresh(s0) survives
  b2: input survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::neg(%0) loc(1)
}
)");
}

void stays(const std::string& text) { EXPECT_EQ(testing::run_on_text(text, dce), "\n" + text); }

TEST(Dce, AWriteThatIsReadLaterStays) {
  stays(R"(graph(s0) {
  s1 = 1
  s2 = 0
  b0: input
  b1: fresh(s0)
  b2: fresh(s0) survives
  %0: f32[s0]{1} @b0
  aten::relu_(%0!)
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b1 + s0
  aten::zero_(%2!)
  %3: f32[s0]{1} @b2 = aten::relu(%1)
}
)");
}

TEST(Dce, AnOpThatNobodyKnowsStays) {
  stays(R"(graph() {
  op test::effect(Tensor self) -> (Tensor)
  s0 = 0
  b0: input
  %0: f32[] @b0
  none = test::effect(%0)
}
)");
}

TEST(Dce, WhatTheClientWaitsForStays) {
  stays(R"(graph(s0..s1) {
  s2 = 1
  s3 = 0
  b0: input
  b1: fresh
  %0: f32[s0]{1} @b0
  %1: f32[?] @b1 = aten::nonzero(%0)
}
)");
}

TEST(Dce, ANumberForTheClientStays) {
  stays(R"(graph(s0) {
  s1 = 1
  s2 = 0
  b0: input
  %0: f32[s0]{1} @b0
  aten::equal(%0, %0)
}
)");
}

TEST(Dce, NeighboursStayNeighbours) {
  const std::string out = testing::run_on_text(R"(graph(s0) {
  s1 = 7
  s2 = 1.5
  s3 = 2.5
  s4 = 0
  b0: input survives
  %0: c64[] @b0
  aten::fill_.Scalar(%0!, complex(s2, s3))
}
)",
                                               dce);
  EXPECT_NE(out.find("complex(s1, s2)"), std::string::npos) << out;
}

}  // namespace
}  // namespace torch_remote::passes

#include "gtest/gtest.h"
#include "passes/testing/text_pass.h"

namespace torch_remote::passes {
namespace {

std::string canonical(const std::string& text) { return testing::run_on_text(text, canonicalize); }

TEST(Canonicalize, SizesFollowFromTheOperands) {
  EXPECT_EQ(canonical(R"(graph(s0..s22) {
  s23 = 1
  b0: input
  b1: input
  b2: input
  b3: fresh(s12) written_once
  b4: fresh(s17) written_once
  %0: f32[s0, s1]{s2, s3} @b0 + s4
  %1: f32[s5, s6]{s7, s8} @b1 + s9
  %2: f32[s10]{s11} @b2 + s9
  %3: f32[s13, s14]{s15, s16} @b3 + s9 = aten::mm(%0, %1)
  %4: f32[s18, s19]{s20, s21} @b4 + s9 = aten::add.Tensor(%3, %2, alpha=float(s22))
}
)"),
            R"(
graph(s0..s22) {
  s23 = 1
  b0: input
  b1: input
  b2: input
  b3: fresh(s12) written_once
  b4: fresh(s17) written_once
  %0: f32[s0, s1]{s2, s3} @b0 + s4
  %1: f32[s1, s6]{s7, s8} @b1 + s9
  %3: f32[s0, s6]{s6, 1} @b3 + s9 = aten::mm(%0, %1)
  %2: f32[s6]{s11} @b2 + s9
  %4: f32[s0, s6]{s6, 1} @b4 + s9 = aten::add.Tensor(%3, %2, alpha=float(s22))
}
)");
}

TEST(Canonicalize, AContiguousOperandMakesAContiguousResult) {
  const std::string out = canonical(R"(graph(s0..s10) {
  b0: input
  b1: fresh(s9) written_once
  b2: fresh(s9) written_once
  %0: f32[s0, s1] @b0
  %1: f32[s2, s3]{s4, s5} @b1 + s6 = aten::relu(%0)
  %2: f32[s7, s8]{s9, s10} @b2 = aten::sum.dim_IntList(%1, [1], true)
}
)");
  EXPECT_NE(out.find("%1: f32[s0, s1]{s1, 1} @b1 + s6 = aten::relu(%0)"), std::string::npos) << out;
  EXPECT_NE(out.find("%2: f32[s0, s8]"), std::string::npos) << out;  // s8 is 1, but only the key may make it a constant
}

TEST(Canonicalize, ABroadcastDimSaysNothingAboutTheOther) {
  const std::string out = canonical(R"(graph(s0..s9) {
  b0: input
  b1: input
  b2: fresh(s9) written_once
  %0: f32[1, s0]{s1, s2} @b0
  %1: f32[s3, 1]{s4, s5} @b1
  %2: f32[s6, s7]{s8, s9} @b2 = aten::mul.Tensor(%0, %1)
}
)");
  EXPECT_NE(out.find("%2: f32[s3, s0]{s8, s9} @b2"), std::string::npos) << out;
}

TEST(Canonicalize, EqualOpsOnEqualLayoutsHaveEqualLayouts) {
  const std::string out = canonical(R"(graph(s0..s11) {
  b0: input
  b1: fresh(s3) written_once
  b2: fresh(s3) written_once
  %0: f32[s0]{s1} @b0 + s2
  %1: f32[s4]{s5} @b1 + s6 = aten::relu(%0)
  %2: f32[s7]{s8} @b2 + s9 = aten::relu(%0)
}
)");
  EXPECT_NE(out.find("%2: f32[s0]{s5} @b2 + s6"), std::string::npos) << out;
}

TEST(Canonicalize, WhatWasInPlaceKeepsItsOwnLayout) {
  // lift made %2 of an in-place op: its layout is that of %1, and not the one that relu would choose.
  const std::string out = canonical(R"(graph(s0..s9) {
  b0: input
  b1: fresh(s3) written_once
  b2: fresh(s3) written_once
  b3: fresh(s3) written_once
  %0: f32[s0]{s1} @b0 + s2
  %1: f32[s0]{s5} @b1 + s6 = aten::neg(%0)
  %2: f32[s0]{s5} @b2 + s6 = aten::relu(%1)
  %3: f32[s7]{s8} @b3 + s9 = aten::relu(%1)
}
)");
  EXPECT_NE(out.find("%3: f32[s0]{s8} @b3 + s9"), std::string::npos) << out;
}

TEST(Canonicalize, CopiesOfTheSameBytesGo) {
  EXPECT_EQ(canonical(R"(graph(s0) {
  s1 = 1
  s2 = 0
  b0: input
  b1: fresh(s0) written_once
  b2: fresh(s0) survives written_once
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  aten::copy_(%1!, %0)
  %2: f32[s0]{1} @b2 = aten::relu(%1)
}
)"),
            R"(
graph(s0) {
  s1 = 1
  s2 = 0
  b0: input
  b1: fresh(s0)
  b2: fresh(s0) survives written_once
  %0: f32[s0]{1} @b0
  %2: f32[s0]{1} @b2 = aten::relu(%0) loc(1)
  %1: f32[s0]{1} @b0
}
)");
}

TEST(Canonicalize, ACopyOfWhatIsWrittenLaterStays) {
  const std::string text = R"(graph(s0) {
  s1 = 1
  s2 = 0
  b0: input survives
  b1: fresh(s0) written_once
  b2: fresh(s0) survives written_once
  %1: f32[s0]{1} @b1
  %0: f32[s0]{1} @b0
  aten::copy_(%1!, %0)
  aten::relu_(%0!)
  %2: f32[s0]{1} @b2 = aten::relu(%1)
}
)";
  EXPECT_EQ(canonical(text), "\n" + text);
}

// The second half of b1 is never written. Reading it is valid, but b0 has no second half.
TEST(Canonicalize, ACopyToAPartOfALargerTemporaryStays) {
  const std::string text = R"(graph(s0..s1) {
  s2 = 1
  s3 = 0
  b0: input
  b1: fresh(s1) written_once
  b2: fresh(s1) survives written_once
  %1: f32[s0]{1} @b1
  %0: f32[s0]{1} @b0
  aten::copy_(%1!, %0)
  %2: f32[s1]{1} @b1
  %3: f32[s1]{1} @b2 = aten::relu(%2)
}
)";
  EXPECT_EQ(canonical(text), "\n" + text);
}

TEST(Canonicalize, EqualExpressionsAreOne) {
  const std::string out = canonical(R"(graph(s0, s1) {
  s2 = s0 * s1
  s3 = s0 * s1
  s4 = s3 + s0
  s5 = s2 + s0
  b0: input
  %0: f32[s4]{s5} @b0 + s3
  aten::relu_(%0!)
}
)");
  EXPECT_NE(out.find("%0: f32[s4]{s4} @b0 + s2"), std::string::npos) << out;
}

}  // namespace
}  // namespace torch_remote::passes

#include "gtest/gtest.h"
#include "passes/testing/text_pass.h"

namespace torch_remote::passes {
namespace {

std::string lifted(const std::string& text) { return testing::run_on_text(text, lift); }

TEST(Lift, AnInPlaceOpBecomesAValueAndTheLastValueKeepsTheBuffer) {
  EXPECT_EQ(lifted(R"(graph(s0..s4) {
  s5 = 1
  s6 = 0
  b0: input
  b1: fresh(s4) survives
  %0: f32[s0]{s1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s2]{1} @b1 + s3
  aten::mul_.Tensor(%1!, number(s4: f64))
  aten::add_.Tensor(%1!, %2, alpha=1)
  aten::relu_(%2!)
}
)"),
            R"(
graph(s0..s4) {
  s5 = 1
  s6 = 0
  b0: input
  b1: fresh(s4) survives
  b2: fresh(s4) written_once
  b3: fresh(s4) written_once
  %0: f32[s0]{s1} @b0
  %3: f32[s0]{1} @b2 = aten::relu(%0)
  %4: f32[s0]{1} @b3 = aten::mul.Tensor(%3, number(s4: f64)) in_place
  %5: f32[s2]{1} @b3 + s3
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%4, %5, alpha=1) in_place
  %2: f32[s2]{1} @b1 + s3
  aten::relu_(%2!)
}
)");
}

// x = empty(); x.zero_(); x.add_(y)
TEST(Lift, AFilledEmptyTensorIsAValue) {
  EXPECT_EQ(lifted(R"(graph(s0..s1) {
  s2 = 1
  s3 = 0
  b0: input
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  aten::zero_(%1!)
  aten::add_.Tensor(%1!, %0, alpha=1)
}
)"),
            R"(
graph(s0..s1) {
  s2 = 1
  s3 = 0
  b0: input
  b1: fresh(s1) survives written_once
  b2: fresh(s1) written_once
  %2: f32[s0]{1} @b2
  aten::zero_(%2!)
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%2, %0, alpha=1) in_place
}
)");
}

// Checks that the pass leaves the body unchanged.
void stays(const std::string& body) {
  const std::string text = R"(graph(s0..s2) {
  s3 = 1
  s4 = 0
  b0: input survives
  b1: fresh(s1)
  %0: f32[s0]{1} @b0
)" + body + "}\n";
  EXPECT_EQ(lifted(text), testing::normalized(text));
}

TEST(Lift, AnInputStaysMemory) { stays("  aten::relu_(%0!)\n  %1: f32[s0]{1} @b1\n"); }

TEST(Lift, AnotherDtypeWouldBePromoted) {
  stays("  %1: f32[s0]{1} @b1 = aten::relu(%0)\n  %2: f64[s0]{1} @b0\n  aten::mul_.Tensor(%1!, %2)\n");
  stays("  %1: i64[s0]{1} @b1 = aten::relu(%0)\n  aten::mul_.Tensor(%1!, number(s2: f64))\n");
  stays("  %1: f32[s0]{1} @b1 = aten::relu(%0)\n  aten::eq_.Tensor(%1!, %0)\n");
}

TEST(Lift, APartOfABufferStaysMemory) {
  stays("  %1: f32[s0]{1} @b1 = aten::relu(%0)\n  %2: f32[s2]{1} @b1\n  aten::relu_(%2!)\n");
}

TEST(Lift, AValueThatWasWrittenInPartsStaysMemory) {
  // The result of the functional op would lack what relu_ wrote outside of %1.
  stays("  %1: f32[s0]{1} @b1\n  aten::copy_(%1!, %0)\n  %2: f32[s2]{1} @b1\n  aten::relu_(%2!)\n  aten::relu_(%1!)\n");
}

TEST(Lift, UninitialisedMemoryIsNoValue) {
  stays("  %1: f32[s0]{1} @b1\n  %2: f32[s0]{1} @b0 + s2\n  aten::copy_(%2!, %1)\n");
}

}  // namespace
}  // namespace torch_remote::passes

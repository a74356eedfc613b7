#include "gtest/gtest.h"
#include "passes/testing/text_pass.h"

namespace torch_remote::passes {
namespace {

// The buffer lines after planning.
std::string planned(const std::string& body) {
  const std::string out = testing::run_on_text("graph(s0, s1) {\n" + body + "}\n", plan);
  std::string buffers;
  for (size_t at = out.find("\n  b"); at != std::string::npos; at = out.find("\n  b", at + 1)) {
    buffers += out.substr(at + 3, out.find('\n', at + 1) - at - 2);
  }
  return buffers;
}

TEST(Plan, APointwiseOpTakesOverADeadOperand) {
  EXPECT_EQ(planned(R"(  b0: input survives
  b1: fresh(s1) written_once
  b2: fresh(s1) written_once
  b3: fresh(s1) survives written_once
  b4: input
  %0: f32[s0] @b0
  %1: f32[s0] @b1 = aten::relu(%0)
  %2: f32[s0] @b2 = aten::mul.Tensor(%0, %1)
  %3: f32[s0] @b3 = aten::mul.Tensor(%2, %1)
)"),
            "b0: input survives\n"
            "b1: fresh(s1) written_once\n"
            "b2: fresh(s1) written_once\n"
            "b3: fresh(s1) survives written_once may_reuse b2\n"
            "b4: input\n");
}

TEST(Plan, AnInputThatDiesIsTakenOver) {
  EXPECT_EQ(planned(R"(  b0: input
  b1: fresh(s1) written_once
  %0: f32[s0] @b0
  aten::relu_(%0)
  %1: f32[s0] @b1
  aten::copy_(%1, %0)
)"),
            "b0: input\n"
            "b1: fresh(s1) written_once may_reuse b0\n");
}

// Checks that b1 may not take over b0.
void keeps_apart(const std::string& nodes) {
  const std::string out = planned("  b0: input\n  b1: fresh(s1)\n  %0: f32[s0, s0] @b0\n  aten::relu_(%0!)\n" + nodes);
  EXPECT_EQ(out.find("may_reuse"), std::string::npos) << out;
}

TEST(Plan, OtherPlacesAreNotTakenOver) {
  keeps_apart("  %1: f32[s0, s0]{1, s0} @b1 = aten::relu(%0)\n");
  keeps_apart("  %1: f16[s0, s0] @b1 = aten::relu(%0)\n");
  keeps_apart("  %1: f32[s0, s0] @b1 + 4 = aten::relu(%0)\n");
  keeps_apart("  %1: f32[s0, s0] @b1 = aten::mm(%0, %0)\n");
}

TEST(Plan, AnOperandThatIsAlsoReadTransposedIsNotTakenOver) {
  keeps_apart("  %2: f32[s0, s0]{1, s0} @b0\n  %1: f32[s0, s0] @b1 = aten::mul.Tensor(%0, %2)\n");
}

TEST(Plan, AnOperandThatIsReadLaterIsNotTakenOver) {
  keeps_apart("  %1: f32[s0, s0] @b1 = aten::relu(%0)\n  aten::relu_(%0!)\n");
}

}  // namespace
}  // namespace torch_remote::passes

#include "gtest/gtest.h"
#include "passes/testing/text_pass.h"

namespace torch_remote::passes {
namespace {

const std::string kHead = R"(graph(s0) {
  s1 = 1
  s2 = 0
)";

std::string merged(const std::string& text) { return testing::run_on_text(kHead + text + "}\n", cse); }

// One of two equal nodes is removed.
TEST(Cse, EqualOpsOnEqualValuesAreOne) {
  EXPECT_EQ(merged(R"(  b0: input
  b1: fresh(s0) written_once
  b2: fresh(s0) written_once
  b3: fresh(s0) survives written_once
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b2 = aten::relu(%0)
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%1, %2)
)"),
            "\n" + kHead + R"(  b0: input
  b1: fresh(s0) written_once
  b2: fresh(s0)
  b3: fresh(s0) survives written_once
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b1
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%1, %2) loc(2)
}
)");
}

TEST(Cse, TheSurvivorsPlaceStays) {
  const std::string out = merged(R"(  b0: input
  b1: fresh(s0) written_once
  b2: fresh(s0) survives written_once
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b2 = aten::relu(%0)
)");
  EXPECT_NE(out.find("b2: fresh(s0) survives written_once"), std::string::npos) << out;
  EXPECT_NE(out.find("%1: f32[s0]{1} @b2 = aten::relu(%0)"), std::string::npos) << out;
  EXPECT_EQ(out.find("= aten::relu(%0)"), out.rfind("= aten::relu(%0)")) << out;
}

void stays(const std::string& body) {
  const std::string text = kHead + body + "}\n";
  EXPECT_EQ(merged(body), "\n" + text);
}

TEST(Cse, TwoSurvivorsAreTwoBuffers) {
  stays(R"(  b0: input
  b1: fresh(s0) survives written_once
  b2: fresh(s0) survives written_once
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b2 = aten::relu(%0)
)");
}

TEST(Cse, MemoryThatWasWrittenInBetweenIsAnotherValue) {
  stays(R"(  b0: input survives
  b1: fresh(s0) written_once
  b2: fresh(s0) written_once
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  aten::add_.Tensor(%0!, %1, alpha=1)
  %2: f32[s0]{1} @b2 = aten::relu(%0)
)");
}

TEST(Cse, AResultThatIsWrittenLaterIsNotShared) {
  stays(R"(  b0: input
  b1: fresh(s0) written_once
  b2: fresh(s0)
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b2 = aten::relu(%0)
  aten::relu_(%2!)
)");
}

TEST(Cse, RandomNumbersAreDrawnTwice) {
  stays(R"(  b0: input
  b1: fresh(s0) written_once
  b2: fresh(s0) written_once
  b3: fresh(s0) written_once
  b4: fresh(s0) written_once
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1, %2: bool[s0]{1} @b2 = aten::native_dropout(%0, float(s0), true, generator=philox(s1, s2))
  %3: f32[s0]{1} @b3, %4: bool[s0]{1} @b4 = aten::native_dropout(%0, float(s0), true, generator=philox(s1, s2))
)");
}

}  // namespace
}  // namespace torch_remote::passes

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "passes/testing/text_pass.h"

namespace torch_remote::passes {
namespace {

std::string run(const std::string& text, const char* target = "x86-64-v4", std::vector<int64_t> sample = {}) {
  PassContext context;
  context.sample = sample;
  context.worker.targets = {target};
  return testing::run_on_text(text, accumulate, context);
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// Builds the text of a graph, line by line. %0 is a gradient f32[s0] in memory that is only read; %1 is one that is
// written at the end. Sums are f32[s1, s0] of s2 bytes, and s3 is an index.
class Text {
 public:
  // Adds a node. `call` contains its operands as numbers of views. Returns the number of the result's view.
  int node(const std::string& call, bool survives = false) {
    const int number = ++views_;
    buffers_ +=
        "  b" + std::to_string(number) + ": fresh(s2) " + (survives ? "survives written_once\n" : "written_once\n");
    nodes_ += "  %" + std::to_string(number) + ": f32[s1, s0]{s0, 1} @b" + std::to_string(number) + " = " + call + "\n";
    return number;
  }
  int slice(const std::string& sizes = "s1, s0", const char* gradient = "%0") {
    return node(std::string("aten::select_backward(") + gradient + ", [" + sizes + "], 0, s3)");
  }
  int range() { return node("aten::slice_backward(%0, [s1, s0], 1, s3, s4, 1)"); }
  int add(int a, int b, bool survives = false) { return node(call(a, b), survives); }
  int relu(int a) { return node("aten::relu(%" + std::to_string(a) + ")", true); }
  // Adds `count` slices to the view `sum`. Returns the number of the last sum.
  int add_slices(int sum, int count) {
    for (int i = 0; i < count; ++i) sum = add(sum, slice());
    return sum;
  }
  std::string str() const {
    return "graph(s0..s4) {\n  s5 = 1\n  s6 = 0\n  b0: input\n  b1: input\n" + buffers_ +
           "  %0: f32[s0]{1} @b0\n  %1: f32[s0]{1} @b1\n" + nodes_ + "  aten::relu_(%1!)\n}\n";
  }

 private:
  static std::string call(int a, int b) {
    return "aten::add.Tensor(%" + std::to_string(a) + ", %" + std::to_string(b) + ", alpha=1)";
  }

  std::string buffers_, nodes_;
  int views_ = 1;
};

TEST(Accumulate, EachSliceIsAddedWhereItIs) {
  Text text;
  text.relu(text.add_slices(text.slice(), 6));
  const std::string made = run(text.str());
  EXPECT_EQ(count(made, "aten::add.Tensor"), 0u) << made;
  EXPECT_EQ(count(made, "remote::add_select_backward(%"), 6u) << made;
  EXPECT_NE(made.find(" = remote::add_select_backward(%2, %0, 0, s3, 1)"), made.npos) << made;
}

TEST(Accumulate, RangesToo) {
  Text text;
  int sum = text.range();
  for (int i = 0; i < 6; ++i) sum = text.add(sum, text.range());
  text.relu(sum);
  const std::string made = run(text.str());
  EXPECT_EQ(count(made, "remote::add_slice_backward(%"), 6u) << made;
  EXPECT_NE(made.find(" = remote::add_slice_backward(%2, %0, 1, s3, s4, 1, 1)"), made.npos) << made;
}

TEST(Accumulate, WhatIsNoSliceIsAddedAsBefore) {
  Text text;
  const int sum = text.add_slices(text.slice(), 3);
  const int other = text.relu(text.range());
  text.relu(text.add_slices(text.add(sum, other), 3));
  const std::string made = run(text.str());
  EXPECT_EQ(count(made, "aten::add.Tensor"), 1u) << made;
  EXPECT_EQ(count(made, "remote::add_select_backward(%"), 6u) << made;
}

// An add turns a negative zero of its first operand into a positive one.
TEST(Accumulate, WhatNothingWasAddedToIsAddedToAsBefore) {
  Text text;
  const int other = text.relu(text.range());
  text.relu(text.add_slices(other, 7));
  const std::string made = run(text.str());
  EXPECT_EQ(count(made, "aten::add.Tensor"), 1u) << made;
  EXPECT_EQ(count(made, "remote::add_select_backward(%"), 6u) << made;
}

TEST(Accumulate, FewSlicesAreOneKernels) {
  Text text;
  text.relu(text.add_slices(text.slice(), 4));
  EXPECT_EQ(count(run(text.str()), "remote::"), 0u);
}

TEST(Accumulate, SmallSumsAreOneKernels) {
  Text text;
  text.relu(text.add_slices(text.slice(), 6));
  EXPECT_EQ(count(run(text.str(), "x86-64-v4", {256, 127, int64_t{256} * 127 * 4, 0, 0}), "remote::"), 0u);
  EXPECT_EQ(count(run(text.str(), "x86-64-v4", {256, 128, int64_t{256} * 128 * 4, 0, 0}), "remote::"), 6u);
}

TEST(Accumulate, GpusMakeThemInKernels) {
  Text text;
  text.relu(text.add_slices(text.slice(), 6));
  EXPECT_EQ(count(run(text.str(), "sm_90"), "remote::"), 0u);
}

TEST(Accumulate, SumsThatOthersReadBeginAnew) {
  Text text;
  const int sum = text.add_slices(text.slice(), 6);
  text.relu(sum);
  text.relu(text.add_slices(sum, 3));
  const std::string made = run(text.str());
  EXPECT_EQ(count(made, "remote::add_select_backward(%"), 6u) << made;
  EXPECT_EQ(count(made, "aten::add.Tensor"), 3u) << made;
}

TEST(Accumulate, SlicesThatOthersReadStay) {
  Text text;
  const int slice = text.slice();
  const int sum = text.add(text.add_slices(text.slice(), 5), slice);
  text.relu(sum);
  text.relu(slice);
  const std::string made = run(text.str());
  EXPECT_EQ(count(made, "aten::add.Tensor"), 1u) << made;
}

TEST(Accumulate, GradientsThatAreWrittenToMeanwhileStay) {
  Text text;
  const int slice = text.slice("s1, s0", "%1");
  text.relu(text.add(text.add_slices(text.slice(), 6), slice));
  const std::string made = run(text.str());
  EXPECT_EQ(count(made, "aten::add.Tensor"), 1u) << made;
  EXPECT_EQ(count(made, "remote::add_select_backward(%"), 6u) << made;
}

TEST(Accumulate, SlicesOfOtherSizesStay) {
  std::string text = [] {
    Text made;
    made.relu(made.add_slices(made.slice(), 7));
    return made.str();
  }();
  const size_t at = text.find("%9: f32[s1, s0]{s0, 1}");  // a slice
  ASSERT_NE(at, text.npos);
  text.replace(at, 22, "%9: f32[s4, s0]{s0, 1}");
  const std::string made = run(text);
  EXPECT_EQ(count(made, "aten::add.Tensor"), 1u) << made;
  EXPECT_EQ(count(made, "remote::add_select_backward(%"), 6u) << made;
}

}  // namespace
}  // namespace torch_remote::passes

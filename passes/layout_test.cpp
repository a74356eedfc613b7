#include <algorithm>
#include <string>

#include "gtest/gtest.h"
#include "passes/testing/text_pass.h"

namespace torch_remote::passes {
namespace {

// Runs the pass and returns the ops whose results are channels last.
std::string turned(const std::string& nodes, const std::string& target = "x86-64-v4", bool fusion = true,
                   const std::string& dtype = "f32") {
  // Images of 2 x 64 x 32 x 32, and weights. b8 and b9 survive.
  std::string head = "graph() {\n  b0: input survives\n  b1: input survives\n  b2: input survives\n";
  for (int b = 3; b <= 9; ++b) {
    const std::string name = "b" + std::to_string(b);
    const bool made = nodes.find("@" + name + " =") != nodes.npos || nodes.find("@" + name + ",") != nodes.npos;
    head += "  " + name + ": fresh(524288)" + (b >= 8 ? " survives" : "") + (made ? " written_once\n" : "\n");
  }
  head += "  %0: " + dtype + "[2, 64, 32, 32]{65536, 1024, 32, 1} @b0\n  %1: " + dtype +
          "[64, 64, 3, 3]{576, 9, 3, 1} @b1\n  %2: " + dtype + "[64]{1} @b2\n";
  PassContext context;
  context.fusion = fusion;
  if (!target.empty()) context.worker.targets = {target};
  ir::Graph graph;
  const Status status = ir::parse_graph(testing::run_on_text(head + nodes + "}\n", layout, context), &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  std::string names;
  for (const ir::Node& node : graph.nodes) {
    for (const ir::Arg& result : node.results) {
      if (result.tag != ir::ArgTag::kView) continue;
      const ir::View& view = graph.views[result.a];
      int64_t channels = 0;
      if (view.sizes.size() != 4 || !graph.is_constant(view.strides[1], &channels) || channels != 1) continue;
      EXPECT_TRUE(graph.is_constant(view.strides[3], &channels) && graph.is_constant(view.sizes[1]));
      const std::string_view name = ir::op_desc(node.opcode).name;
      names += (names.empty() ? "" : " ") + std::string(name.substr(name.find("::") + 2));
    }
  }
  return names;
}

// The left side of an op whose result is an image in this buffer.
std::string image(const std::string& name, const std::string& buffer) {
  return "  " + name + ": f32[2, 64, 32, 32]{65536, 1024, 32, 1} @" + buffer + " = ";
}
std::string convolution(const std::string& of, const std::string& weights = "%1",
                        const std::string& transposed = "false", const std::string& groups = "1") {
  return "aten::convolution(" + of + ", " + weights + ", none, [1, 1], [1, 1], [1, 1], " + transposed + ", [0, 0], " +
         groups + ")\n";
}

const std::string kChain = image("%3", "b3") + convolution("%0") + image("%4", "b4") + "aten::relu(%3)\n" +
                           image("%5", "b5") + convolution("%4") + image("%6", "b8") + "aten::relu(%5)\n";

TEST(Layout, WhatIsBetweenConvolutionsLiesChannelsLast) {
  EXPECT_EQ(turned(kChain), "convolution relu convolution");
  EXPECT_EQ(turned(kChain, "x86-64-v3"), "convolution relu convolution");
}

TEST(Layout, NothingIsDoneWhereBitsAreCpusOrNoCpuIs) {
  EXPECT_EQ(turned(kChain, "x86-64-v4", false), "");
  EXPECT_EQ(turned(kChain, "sm_90"), "");
  EXPECT_EQ(turned(kChain, ""), "");
}

TEST(Layout, WhatIsVisibleStaysAsItIs) {
  EXPECT_EQ(turned(image("%3", "b8") + convolution("%0")), "");
  EXPECT_EQ(turned(image("%3", "b8") + convolution("%0") + image("%4", "b9") + convolution("%3")), "");
}

TEST(Layout, ImagesThatAreSeenAsSomethingElseStay) {
  EXPECT_EQ(turned(image("%3", "b3") + convolution("%0") + R"(  %4: f32[2, 65536]{65536, 1} @b3
  %5: f32[2, 65536]{65536, 1} @b8 = aten::relu(%4)
)"),
            "");
  // A view of a part of the image.
  EXPECT_EQ(turned(image("%3", "b3") + convolution("%0") + R"(  %4: f32[2, 64, 32, 16]{65536, 1024, 32, 1} @b3
  %5: f32[2, 64, 32, 16]{32768, 512, 16, 1} @b8 = aten::relu(%4)
)" + image("%6", "b9") +
                   convolution("%3")),
            "");
}

// A convolution with contiguous (NCHW) images on both sides would cost more than it gains.
TEST(Layout, OpsThatDoNotGoAlongCutChains) {
  const auto between = [](const std::string& op) {
    return turned(image("%3", "b3") + convolution("%0") + image("%4", "b4") + op + "(%3" +
                  (op == "aten::relu" ? ")\n" : ", 1, dtype=none)\n") + image("%5", "b5") + convolution("%4") +
                  image("%6", "b8") + "aten::relu(%5)\n");
  };
  EXPECT_EQ(between("aten::relu"), "convolution relu convolution");
  EXPECT_EQ(between("aten::cumsum"), "");
}

TEST(Layout, MeansReadAnyLayout) {
  EXPECT_EQ(turned(image("%3", "b3") + convolution("%0") + image("%4", "b4") + convolution("%3") +
                   "  %5: f32[2, 64]{64, 1} @b8 = aten::mean.dim(%4, [2, 3], false, dtype=none)\n"),
            "convolution convolution");
}

TEST(Layout, ResidualsAndNormsGoAlong) {
  EXPECT_EQ(turned(image("%3", "b3") + convolution("%0") +
                   "  %4: f32[2, 64, 32, 32]{65536, 1024, 32, 1} @b4, none, none = "
                   "aten::_native_batch_norm_legit_no_training(%3, %2, %2, %2, %2, 0.1, 0.00001)\n" +
                   image("%5", "b5") + convolution("%4") + image("%6", "b6") + "aten::add.Tensor(%5, %4, alpha=1)\n" +
                   image("%7", "b7") + convolution("%6") + image("%8", "b8") + "aten::relu(%7)\n"),
            "convolution _native_batch_norm_legit_no_training convolution add.Tensor convolution");
}

TEST(Layout, AllKindsOfConvolutions) {
  const auto two = [](const std::string& transposed, const std::string& groups) {
    return turned(image("%3", "b3") + convolution("%0", "%1", transposed, groups) + image("%4", "b4") +
                  convolution("%3", "%1", transposed, groups) + image("%5", "b8") + "aten::relu(%4)\n");
  };
  EXPECT_EQ(two("false", "1"), "convolution convolution");
  EXPECT_EQ(two("true", "1"), "convolution convolution");
  EXPECT_EQ(two("false", "2"), "convolution convolution");
}

// As in recorded graphs: strides and offsets are parameters, whose values in one run are known.
TEST(Layout, ImagesWhoseStridesAreParameters) {
  const auto turned_in = [](std::vector<int64_t> strides, int64_t offset) {
    const std::string image = ": f32[2, 64, 32, 32]{s0, s1, s2, s3} @";
    const std::string text =
        "graph(s0, s1, s2, s3, s4) {\n  b0: input survives\n  b1: input survives\n  b2: fresh(524288) written_once\n"
        "  b3: fresh(524288) written_once\n  b4: fresh(524288) survives\n  %0" +
        image + "b0\n  %1: f32[64, 64, 3, 3]{576, 9, 3, 1} @b1\n  %2" + image + "b2 + s4 = " + convolution("%0") +
        "  %3" + image + "b3 + s4 = " + convolution("%2") + "  %4" + image + "b4 + s4 = aten::relu(%3)\n}\n";
    PassContext context;
    context.worker.targets = {"x86-64-v4"};
    strides.push_back(offset);
    context.sample = strides;
    ir::Graph graph;
    EXPECT_TRUE(ir::parse_graph(testing::run_on_text(text, layout, context), &graph).ok());
    std::string names;
    for (const ir::View& view : graph.views) {
      int64_t value = -1;
      const bool turned = view.sizes.size() == 4 && graph.is_constant(view.strides[1], &value) && value == 1;
      EXPECT_TRUE(!turned || (graph.is_constant(view.offset, &value) && value == 0));
      names += turned ? 'T' : '.';
    }
    return names;
  };
  EXPECT_EQ(turned_in({65536, 1024, 32, 1}, 0), "..TT.");
  EXPECT_EQ(turned_in({65536, 1, 2048, 64}, 0), ".....");  // they are channels last already
  EXPECT_EQ(turned_in({65536, 1024, 32, 1}, 4), ".....");
}

// If an in-place op fails, its result has its operand's bytes: if one of the two is visible, both keep their layout.
TEST(Layout, WhatIsDoneInPlaceLiesAsItsOperand) {
  const auto with = [](const std::string& mark) {
    return turned(image("%3", "b3") + convolution("%0") + image("%4", "b4") + convolution("%3") + image("%5", "b8") +
                  "aten::relu(%4)" + mark + "\n");
  };
  EXPECT_EQ(with(""), "convolution convolution");
  EXPECT_EQ(with(" in_place"), "convolution");
  const auto two = [](const std::string& first, const std::string& second, const std::string& last) {
    return turned(image("%3", "b3") + convolution("%0") + image("%4", "b4") + "aten::relu(%3)" + first + "\n" +
                  image("%5", "b5") + "aten::tanh(%4)" + second + "\n" + image("%6", "b6") + convolution("%5") +
                  image("%7", last) + "aten::relu(%6)" + first + "\n");
  };
  EXPECT_EQ(two(" in_place", " in_place", "b7"), "convolution relu tanh convolution relu");
  EXPECT_EQ(two(" in_place", " in_place", "b8"), "convolution relu tanh");
  // The visible result determines the layout of everything that was computed in place before.
  EXPECT_EQ(turned(image("%3", "b3") + convolution("%0") + image("%4", "b4") + "aten::relu(%3) in_place\n" +
                   image("%5", "b8") + "aten::tanh(%4) in_place\n" + image("%6", "b9") + convolution("%0")),
            "");
}

// The strides follow from the sizes of each run, whatever run the graph was recorded in.
TEST(Layout, TurnedStridesFollowSizes) {
  const std::string image = ": f32[s0, 64, s1, s2]{s3, s4, s5, s6} @";
  const std::string text =
      "graph(s0, s1, s2, s3, s4, s5, s6) {\n  b0: input survives\n  b1: input survives\n  b2: fresh(524288) "
      "written_once\n"
      "  b3: fresh(524288) written_once\n  b4: fresh(524288) survives\n  %0" +
      image + "b0\n  %1: f32[64, 64, 3, 3]{576, 9, 3, 1} @b1\n  %2" + image + "b2 = " + convolution("%0") + "  %3" +
      image + "b3 = " + convolution("%2") + "  %4" + image + "b4 = aten::relu(%3)\n}\n";
  PassContext context;
  context.worker.targets = {"x86-64-v4"};
  const std::vector<int64_t> recorded = {2, 32, 32, 65536, 1024, 32, 1};
  context.sample = recorded;
  ir::Graph graph;
  ASSERT_TRUE(ir::parse_graph(testing::run_on_text(text, layout, context), &graph).ok());
  const std::vector<int64_t> other = {3, 20, 7, 8960, 140, 7, 1};
  std::vector<int64_t> values;
  ASSERT_TRUE(ir::evaluate(graph, other.data(), &values).ok());
  int last = 0;
  for (const ir::View& view : graph.views) {
    if (view.sizes.size() != 4 || graph.views[1].buffer == view.buffer) continue;
    std::vector<int64_t> strides(4);
    std::ranges::transform(view.strides, strides.begin(), [&](ir::Sym stride) { return values[stride]; });
    const bool turned = strides == std::vector<int64_t>{8960, 1, 448, 64};
    EXPECT_TRUE(turned || strides == (std::vector<int64_t>{8960, 140, 7, 1}));
    last += turned ? 1 : 0;
  }
  EXPECT_EQ(last, 2);
}

TEST(Layout, HalfTypesWhereTheProcessorHasThem) {
  const auto of = [](const std::string& dtype, const std::string& target) {
    std::string text = kChain;
    for (size_t at = 0; (at = text.find("f32", at)) != text.npos;) text.replace(at, 3, dtype);
    return turned(text, target, true, dtype);
  };
  EXPECT_EQ(of("bf16", "x86-64-v4"), "convolution relu convolution");
  EXPECT_EQ(of("bf16", "x86-64-v3"), "");
  EXPECT_EQ(of("f16", "x86-64-v4"), "");
  EXPECT_EQ(of("f64", "x86-64-v4"), "");
}

}  // namespace
}  // namespace torch_remote::passes

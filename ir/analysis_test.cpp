#include "ir/analysis.h"

#include <gtest/gtest.h>

#include <string>

namespace torch_remote::ir {
namespace {

Graph parsed(const std::string& body) {
  Graph graph;
  const Status status = parse_graph("graph(s0, s1) {\n" + body + "}\n", &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return graph;
}

constexpr const char* kThree = R"(  b0: input survives
  b1: fresh(s1)
  b2: fresh(s1) survives
  b3: input
  %0: f32[s0] @b0
  %1: f32[s0] @b1 = aten::relu(%0)
  aten::add_.Tensor(%0!, %1, alpha=1)
  %2: f32[s0] @b2 = aten::neg(%0)
)";

TEST(Analysis, ArgumentsAreFoundByName) {
  const Graph graph = parsed(kThree);
  const Node& add = graph.nodes[1];
  EXPECT_EQ(find_argument(op_desc(add.opcode), "other"), 1u);
  EXPECT_EQ(find_argument(add, "other"), &add.args[1]);
  EXPECT_EQ(find_argument(add, "alpha"), &add.args[2]);
  EXPECT_EQ(find_argument(add, "beta"), nullptr);
  EXPECT_EQ(find_argument(op_desc(add.opcode), "beta"), std::nullopt);
}

TEST(Analysis, AResultIsItsOwnViewOrThatOfTheArgumentThatItAliases) {
  const Graph graph = parsed(kThree);
  EXPECT_EQ(find_result(graph, graph.nodes[0], 0), &graph.nodes[0].results[0]);
  EXPECT_EQ(find_result(graph, graph.nodes[1], 0), &graph.nodes[1].args[0]);
  EXPECT_EQ(find_result(graph, graph.nodes[1], 1), nullptr);
}

TEST(Analysis, LifetimesAreTheFirstAndTheLastNodeThatTouchABuffer) {
  const std::vector<Lifetime> lifetimes = find_lifetimes(parsed(kThree));
  const std::vector<std::pair<uint32_t, uint32_t>> expected = {{0, 2}, {0, 1}, {2, 2}, {kNoNode, kNoNode}};
  ASSERT_EQ(lifetimes.size(), expected.size());
  for (size_t b = 0; b < expected.size(); ++b) {
    EXPECT_EQ(lifetimes[b].first, expected[b].first) << b;
    EXPECT_EQ(lifetimes[b].last, expected[b].second) << b;
  }
}

TEST(Analysis, WrittenBuffersAreThoseMadeAndThoseWrittenInPlace) {
  EXPECT_EQ(written_buffers(parsed(kThree)), (std::vector<bool>{true, true, true, false}));
}

TEST(Analysis, WhatFillsItsFirstArgument) {
  for (const char* name : {"aten::copy_", "aten::zero_", "aten::fill_.Scalar"}) {
    EXPECT_TRUE(fills_first_argument(op_desc(find_op(name)))) << name;
  }
  for (const char* name : {"aten::relu_", "aten::add.out", "aten::uniform_", "aten::neg"}) {
    EXPECT_FALSE(fills_first_argument(op_desc(find_op(name)))) << name;
  }
}

// Whether the graph's only node may create b1 in the memory of b0.
bool in_place(const std::string& nodes) {
  const Graph graph = parsed("  b0: input\n  b1: fresh(s1) survives\n  %0: f32[s0, s0] @b0\n" + nodes);
  EXPECT_EQ(graph.nodes.size(), 1u);
  return may_work_in_place(graph, graph.nodes[0], 0, 1);
}

TEST(Analysis, PointwiseOpsAndCopiesMayWorkInPlace) {
  EXPECT_TRUE(in_place("  %1: f32[s0, s0] @b1 = aten::relu(%0)\n"));
  EXPECT_TRUE(in_place("  %1: f32[s0, s0] @b1\n  aten::copy_(%1!, %0)\n"));
  EXPECT_TRUE(in_place("  %1: f32[s0, s0] @b1\n  aten::relu.out(%0, out=%1!)\n"));
  EXPECT_FALSE(in_place("  %1: f32[s0, s0] @b1 = aten::mm(%0, %0)\n"));
}

TEST(Analysis, OpsThatReadAnOperandTwiceMayNotWorkInPlace) {
  EXPECT_TRUE(in_place("  %1: f32[s0, s0] @b1 = aten::threshold_backward(%0, %0, threshold=0)\n"));
  EXPECT_FALSE(in_place("  %1: f32[s0, s0] @b1 = aten::glu_backward(%0, %0, dim=0)\n"));
  const Graph graph = parsed(
      "  b0: input\n  b1: fresh(s1) survives\n  b2: fresh(s1) survives\n  %0: f32[s0, s0] @b0\n"
      "  %1: f32[s0, s0] @b1, %2: i32[s0, s0] @b2 = aten::frexp.Tensor(%0)\n");
  EXPECT_FALSE(may_work_in_place(graph, graph.nodes[0], 0, 1));
}

TEST(Analysis, OnlySameElementsMayBeMadeInPlace) {
  EXPECT_FALSE(in_place("  %1: f32[s0, s0]{1, s0} @b1 = aten::relu(%0)\n"));
  EXPECT_FALSE(in_place("  %1: f16[s0, s0] @b1 = aten::relu(%0)\n"));
  EXPECT_FALSE(in_place("  %1: f32[s0, s0] @b1 + 4 = aten::relu(%0)\n"));
  EXPECT_FALSE(in_place("  %2: f32[s0, s0]{1, s0} @b0\n  %1: f32[s0, s0] @b1 = aten::mul.Tensor(%0, %2)\n"));
}

TEST(Analysis, WhatIsReadOrUpdatedIsNotMadeInPlace) {
  EXPECT_FALSE(in_place("  %1: f32[s0, s0] @b1\n  aten::add_.Tensor(%1!, %0, alpha=1)\n"));
  EXPECT_FALSE(in_place("  %1: f32[s0, s0] @b1\n  aten::copy_(%0!, %1)\n"));
}

}  // namespace
}  // namespace torch_remote::ir

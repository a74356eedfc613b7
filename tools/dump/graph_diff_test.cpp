#include "tools/dump/graph_diff.h"

#include "gtest/gtest.h"
#include "ir/testing/random_graph.h"
#include "passes/pass.h"
#include "passes/testing/random_program.h"

namespace torch_remote::tools {
namespace {

ir::Graph graph_of(const std::string& nodes) {
  ir::Graph graph;
  const Status status = ir::parse_graph(
      "graph(s0..s3) {\n  s4 = 4\n  s5 = s0 * 4\n  b0: input survives\n  b1: fresh(s5)\n  b2: fresh(s5)\n  b3: "
      "fresh(s5) survives\n"
      "  %0: f32[s0]{1} @b0 + s1\n  %1: f32[s0]{1} @b1\n  %2: f32[s0]{1} @b2\n  %3: f32[s0]{1} @b3\n" +
          nodes + "}\n",
      &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return graph;
}

GraphDifference diff(const ir::Graph& a, const ir::Graph& b) { return diff_graphs(a, b, "A", "B"); }

constexpr const char* kNeg = "  %1 = aten::neg(%0)\n";
constexpr const char* kRelu = "  %2 = aten::relu(%1) loc(\"net.py:3 in forward\")\n";
constexpr const char* kAdd = "  %3 = aten::add.Tensor(%1, %2, alpha=1)\n";

TEST(GraphDiff, AGraphIsAlikeItself) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    ir::testing::Rng rng(seed);
    const ir::Graph graph = ir::testing::random_graph(rng);
    const GraphDifference difference = diff(graph, graph);
    ASSERT_TRUE(difference.same) << seed << difference.first << "\n" << difference.diff;
    ASSERT_EQ(difference.diff, "");
  }
}

TEST(GraphDiff, NumbersAreNames) {
  ir::Graph a, b;
  ASSERT_TRUE(ir::parse_graph("graph(s0..s2) {\n  b0: input\n  b1: input survives\n  %0: f32[s0]{1} @b0\n"
                              "  %1: f32[s0]{1} @b1 + s2\n  aten::add_.Tensor(%1!, %0, alpha=1)\n}\n",
                              &a)
                  .ok());
  ASSERT_TRUE(ir::parse_graph("graph(s0..s2) {\n  b0: input\n  b1: input survives\n  %1: f32[s1]{1} @b0\n"
                              "  %0: f32[s1]{1} @b1 + s0\n  aten::add_.Tensor(%0!, %1, alpha=1)\n}\n",
                              &b)
                  .ok());
  const GraphDifference difference = diff(a, b);
  EXPECT_TRUE(difference.same) << difference.first << "\n" << difference.diff;
}

TEST(GraphDiff, AnOpMoreIsOneLineMore) {
  const ir::Trace trace = passes::testing::perceptron_program(400);
  ir::Graph a;
  ASSERT_TRUE(ir::import_trace(trace, trace.survivors(), &a).ok());
  ir::Graph b = a;
  // Adds a view, a buffer and an op in the middle, so all numbers after them change.
  b.buffers.push_back({ir::BufferKind::kFresh, true, false, b.constant(4)});
  b.views.insert(
      b.views.begin(),
      ir::View{static_cast<uint32_t>(b.buffers.size() - 1), ir::DType::kFloat32, {}, {}, b.constant(0), false});
  const auto renumber = [](ir::Arg& arg) {
    if (arg.tag == ir::ArgTag::kView) ++arg.a;
    for (ir::Arg& item : arg.items) item.a += item.tag == ir::ArgTag::kView;
  };
  for (ir::Node& node : b.nodes) {
    for (ir::Arg& arg : node.args) renumber(arg);
    for (ir::Arg& arg : node.results) renumber(arg);
  }
  ir::Node more{ir::find_op("aten::relu_"), std::vector<ir::Arg>(1), std::vector<ir::Arg>(1), 0};
  more.args[0].tag = ir::ArgTag::kView;
  b.nodes.insert(b.nodes.begin() + 200, more);
  const GraphDifference difference = diff(a, b);
  EXPECT_EQ(difference.first, "op 200 (aten::relu_) is only in B");
  size_t changed = 0;
  for (size_t i = 0; i + 1 < difference.diff.size(); ++i) {
    changed += difference.diff[i] == '\n' && (difference.diff[i + 1] == '+' || difference.diff[i + 1] == '-') &&
               difference.diff.substr(i + 1, 3) != "+++";
  }
  EXPECT_LE(changed, 6u) << difference.diff;  // the buffer, the view, the op, constants
}

TEST(GraphDiff, TheFirstOpThatDiffersIsNamed) {
  const ir::Graph a = graph_of(std::string(kNeg) + kRelu + kAdd);
  EXPECT_EQ(diff(a, graph_of(std::string(kNeg) + "  %2 = aten::sigmoid(%1)\n" + kAdd)).first,
            "A has op 1 (aten::relu, net.py:3 in forward), B has op 1 (aten::sigmoid)");
  const GraphDifference turned =
      diff(a, graph_of(std::string(kNeg) + kRelu + "  %3 = aten::add.Tensor(%2, %1, alpha=1)\n"));
  EXPECT_EQ(turned.first, "argument 'self' of op 2 (aten::add.Tensor) in A differs from B");
  EXPECT_NE(turned.diff.find("\n-  %3: f32[s0]{1} @b3 = aten::add.Tensor(%1, %2, alpha=1)\n"
                             "+  %3: f32[s0]{1} @b3 = aten::add.Tensor(%2, %1, alpha=1)\n"),
            std::string::npos)
      << turned.diff;
  EXPECT_EQ(diff(a, graph_of(std::string(kNeg) + kRelu + "  %3 = aten::add.Tensor(%1, %2, alpha=2)\n")).first,
            "argument 'alpha' of op 2 (aten::add.Tensor) in A differs from B");
}

TEST(GraphDiff, WhatTheOpsDoNotSayIsComparedToo) {
  const ir::Graph a = graph_of(std::string(kNeg) + kRelu + kAdd);
  ir::Graph b = a;
  b.buffers[1].survives = true;
  EXPECT_EQ(diff(a, b).first, "the ops are the same, but not their operands");
  ir::Graph planned = a;
  ASSERT_TRUE(passes::plan(planned).ok());
  EXPECT_EQ(diff(a, planned).first, "only the memory plans differ");
  ir::Graph grouped = a;
  grouped.groups.push_back({0, 0, ir::GroupKind::kPointwise});
  EXPECT_EQ(diff(a, grouped).first, "only the groups differ");
  b = a;
  b.source_lines[1] = "net.py:4 in forward";
  EXPECT_TRUE(diff(a, b).same);
}

TEST(GraphDiff, AnyTwoGraphsCanBeCompared) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    ir::testing::Rng rng(seed);
    const ir::Graph a = ir::testing::random_graph(rng);
    const ir::Graph b = ir::testing::random_graph(rng);
    const GraphDifference difference = diff(a, b);
    ASSERT_EQ(difference.same, difference.first.empty());
    ASSERT_EQ(difference.same, difference.diff.empty()) << seed << "\n" << difference.first;
  }
}

}  // namespace
}  // namespace torch_remote::tools

#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "ir/graph.h"
#include "ir/testing/random_graph.h"

namespace torch_remote::ir {
namespace {

using testing::Rng;

TEST(Text, ComesBackAsItWas) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Rng rng(seed);
    const Graph graph = testing::random_graph(rng);
    const Status valid = verify(graph);
    ASSERT_TRUE(valid.ok()) << "seed " << seed << ": " << valid.message() << "\n" << print(graph);
    const std::string text = print(graph);
    Graph back;
    const Status status = parse_graph(text, &back);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message() << "\n" << text;
    ASSERT_EQ(print(back), text) << "seed " << seed;
    ASSERT_EQ(back, graph) << "seed " << seed << "\n" << text;
  }
}

TEST(Text, DamagedTextNeverCrashes) {
  size_t accepted = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Rng rng(seed);
    std::string text = print(testing::random_graph(rng, {.max_nodes = 5}));
    for (uint64_t flips = 1 + rng() % 3; flips > 0 && !text.empty(); --flips) {
      const size_t at = rng() % text.size();
      switch (rng() % 4) {
        case 0:
          text.erase(at, 1 + rng() % 8);
          break;
        case 1:
          text.insert(at, 1, static_cast<char>(rng() % 256));
          break;
        case 2:
          text[at] = "0123456789()[]{}%@,:=+-.\"sbn"[rng() % 28];
          break;
        default:
          text.resize(at + 1);
      }
    }
    Graph back;
    if (!parse_graph(text, &back).ok()) continue;
    ++accepted;
    (void)verify(back).ok();
    ASSERT_FALSE(print(back).empty());
  }
  EXPECT_GT(accepted, 50u);
}

// The parser's error for a graph with these lines.
std::string error_of(const std::string& lines) {
  Graph graph;
  const Status status = parse_graph("graph(s0, s1) {\n" + lines + "\n}\n", &graph);
  return status.ok() ? "parsed" : status.message();
}

TEST(Text, ErrorsSayWhere) {
  EXPECT_EQ(error_of("  b1: input"), "2:3: expected b0: buffers are numbered in order");
  EXPECT_EQ(error_of("  b0: input\n  %0: f33[] @b0"), "3:7: expected a dtype, like f32");
  EXPECT_EQ(error_of("  b0: input\n  %0: f32[s7] @b0"), "3:11: unknown symbol 's7'");
  EXPECT_EQ(error_of("  b0: input\n  %0: f32[] @b1"), "3:14: expected a buffer declared before");
  EXPECT_EQ(error_of("  none = aten::relu(%0)"), "2:21: view %0 is not declared");
  EXPECT_EQ(error_of("  aten::unheard(1)"), "2:3: there is no op 'aten::unheard'; declare it with an 'op' line");
  EXPECT_EQ(error_of("  b0: input\n  %1: f32[] @b0"),
            "5:1: view %0 is missing: views are numbered from 0 without holes");
  EXPECT_EQ(error_of("  s3 = s0 * s1"), "2:3: 's3' would be symbol 2: use that number or another name");
  EXPECT_EQ(error_of("  b0: input\n  %0: f32[] @b0\n  none = aten::relu(%0!)"),
            "4:23: the op does not write this argument");
  EXPECT_EQ(error_of("  none = aten::relu(none, none)"), "2:27: too many positional arguments");
  EXPECT_EQ(error_of("  none = aten::relu(self=none, self=none)"), "2:32: argument 'self' is given twice");
  EXPECT_EQ(error_of("  n = 99999999999999999999"), "2:7: a number that does not fit 64 bits");
  EXPECT_EQ(error_of("  none, none = aten::relu(none)"), "2:16: aten::relu makes 1 new results, not 2");
}

TEST(Text, HugeNumbersMakeNoHugeTables) {
  EXPECT_EQ(error_of("  b0: input\n  %4294967295: f32[] @b0"), "3:3: a view number that large leaves holes");
  EXPECT_EQ(error_of("  loc(4294967295, \"\")"), "2:7: number out of range");
  Graph graph;
  EXPECT_FALSE(parse_graph("graph(s0..s999999999) {\n}\n", &graph).ok());
}

TEST(Text, WrittenByHand) {
  Graph graph;
  const Status status = parse_graph(R"(
// Symbols may have names, constants and strides may be left out.
graph(rows, cols) {
  bytes = rows * 4
  total = bytes * cols
  b0: input
  b1: fresh(total) survives
  %0: f32[rows, cols] @b0
  %1: f32[rows, cols] @b1 = aten::add.Tensor(%0, number(2.5: f64), alpha=1)
  aten::relu_(%1!)
}
)",
                                    &graph);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(verify(graph).ok()) << verify(graph).message();
  EXPECT_EQ(print(graph), R"(graph(s0..s1) {
  s2 = 4
  s3 = s0 * 4
  s4 = s3 * s1
  s5 = 1
  s6 = 0
  s7 = 2.5
  b0: input
  b1: fresh(s4) survives
  %0: f32[s0, s1]{s1, 1} @b0
  %1: f32[s0, s1]{s1, 1} @b1 = aten::add.Tensor(%0, number(2.5: f64), alpha=1)
  aten::relu_(%1!)
}
)");
}

TEST(Text, SourcesCanBeLeftOut) {
  Graph graph;
  ASSERT_TRUE(parse_graph("graph() {\n  none = aten::relu(none) loc(3, \"train.py:12 in forward\")\n}\n", &graph).ok());
  EXPECT_EQ(graph.nodes[0].record, 3u);
  EXPECT_EQ(graph.source_lines[3], "train.py:12 in forward");
  EXPECT_EQ(print(graph, {.source_lines = false}), "graph() {\n  none = aten::relu()\n}\n");
}

// The examples in docs/ir.md are blocks that begin with ```graph.
TEST(Text, TheExamplesOfTheDocumentationAreWhatThePrinterWrites) {
  std::ifstream file("docs/ir.md");
  ASSERT_TRUE(file.good());
  std::stringstream all;
  all << file.rdbuf();
  const std::string text = all.str();
  size_t examples = 0;
  for (size_t at = text.find("```graph\n"); at != std::string::npos; at = text.find("```graph\n", at + 1)) {
    const size_t begin = at + 9;
    const std::string example = text.substr(begin, text.find("```", begin) - begin);
    Graph graph;
    const Status status = parse_graph(example, &graph);
    ASSERT_TRUE(status.ok()) << status.message() << "\n" << example;
    ASSERT_TRUE(verify(graph).ok()) << verify(graph).message();
    EXPECT_EQ(print(graph), example);
    ++examples;
  }
  EXPECT_GE(examples, 2u);
}

}  // namespace
}  // namespace torch_remote::ir

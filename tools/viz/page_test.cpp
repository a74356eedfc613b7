#include "tools/viz/page.h"

#include <cstdint>
#include <iterator>

#include "gtest/gtest.h"
#include "ir/testing/random_graph.h"
#include "passes/pass.h"
#include "tools/viz/dependencies.h"
#include "tools/viz/memory.h"

namespace torch_remote::tools {
namespace {

using Edges = std::vector<std::pair<uint32_t, uint32_t>>;

ir::Graph graph_of(const std::string& text) {
  ir::Graph graph;
  const Status status = ir::parse_graph(text, &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return graph;
}

// neg and relu of an input, their sum, and relu_ of the sum, with s0 elements each.
ir::Graph small() {
  return graph_of(R"(graph(s0..s1) {
  s2 = 4
  s3 = s0 * 4
  b0: input survives
  b1: fresh(s3)
  b2: fresh(s3)
  b3: fresh(s3) survives
  %0: f32[s0]{1} @b0 + s1
  %1: f32[s0]{1} @b1 = aten::neg(%0) loc("net.py:1 in forward")
  %2: f32[s0]{1} @b2 = aten::relu(%0) loc("net.py:2 in <lambda>")
  %3: f32[s0]{1} @b3 = aten::add.Tensor(%1, %2, alpha=1)
  aten::relu_(%3!)
}
)");
}

// The contents of the script element with the data.
Json data_of(const std::string& page) {
  const std::string mark = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(mark) + mark.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin), nullptr, false);
}

TEST(Dependencies, FollowWhatWasWrittenLast) {
  EXPECT_EQ(dependencies(small()), (Edges{{0, 2}, {1, 2}, {2, 3}}));
  // An input is written, so later reads depend on the write.
  EXPECT_EQ(dependencies(graph_of("graph(s0) {\n  b0: input survives\n  %0: f32[s0]{1} @b0\n  aten::relu_(%0!)\n"
                                  "  aten::neg_(%0!)\n  aten::relu_(%0!)\n}\n")),
            (Edges{{0, 1}, {1, 2}}));
}

TEST(Memory, CountsWhatIsAlive) {
  const MemoryChart chart = memory_chart(small(), {10, 0, 4, 40, 1, 0});
  EXPECT_TRUE(chart.sizes_known);
  EXPECT_EQ(chart.live, (std::vector<uint64_t>{40, 80, 120, 40}));
  EXPECT_EQ(chart.peak, 2u);
  ASSERT_EQ(chart.bars.size(), 3u);
  EXPECT_EQ(chart.bars[2].buffer, 3u);
  EXPECT_EQ(chart.bars[2].first, 2u);
  EXPECT_EQ(chart.bars[2].last, 3u);
  EXPECT_EQ(chart.bars[0].bytes, 40u);
  EXPECT_GE(chart.height, 120u);
}

TEST(Memory, WhatIsTakenOverCountsOnce) {
  ir::Graph graph = small();
  graph.buffers[3].survives = false;
  ASSERT_TRUE(passes::lift(graph).ok());
  ASSERT_TRUE(passes::plan(graph).ok());
  const MemoryChart chart = memory_chart(graph, {});
  EXPECT_FALSE(chart.sizes_known);
  EXPECT_EQ(chart.live[2], 2u) << ir::print(graph);  // the sum takes over the memory of one of its operands
}

TEST(Memory, AnyValuesOfTheSymbolsAreSafe) {
  constexpr int64_t kEdges[] = {0, 1, -1, 7, 1 << 20, int64_t{1} << 40, INT64_MAX, INT64_MIN};
  for (uint64_t seed = 0; seed < 500; ++seed) {
    ir::testing::Rng rng(seed);
    const ir::Graph graph = ir::testing::random_graph(rng);
    std::vector<int64_t> values(graph.symbols());
    for (int64_t& value : values) value = kEdges[rng() % std::size(kEdges)];
    const MemoryChart chart = memory_chart(graph, values);
    ASSERT_EQ(chart.live.size(), graph.nodes.size());
    for (const MemoryBar& bar : chart.bars) ASSERT_LE(bar.offset + bar.bytes, chart.height);
    for (uint32_t n = 0; n < graph.nodes.size(); ++n) (void)bytes_of_node(graph, n, values);
  }
}

TEST(Memory, BytesOfANode) { EXPECT_EQ(bytes_of_node(small(), 2, {10, 0, 4, 40, 1, 0}), 120u); }

TEST(Page, HoldsTheGraphAndNothingFromElsewhere) {
  PageInput input{.title = "a <title> & more", .graph = small(), .values = {10, 0, 4, 40, 1, 0}, .times = {}};
  input.times = {NodeTime{1.5, 2}, std::nullopt, NodeTime{3, 4}, std::nullopt};
  const std::string page = make_page(input);
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_NE(page.find("<title>a &lt;title> &amp; more</title>"), std::string::npos);
  for (const char* foreign : {"http:", "https:", "src=", "@import", "url(", "href="}) {
    EXPECT_EQ(page.find(foreign), std::string::npos) << foreign;
  }
  const Json data = data_of(page);
  ASSERT_FALSE(data.is_discarded());
  EXPECT_EQ(data["title"], "a <title> & more");
  EXPECT_EQ(data["graph"]["schema"], kGraphSchema);
  EXPECT_EQ(data["graph"]["nodes"][1]["source"], "net.py:2 in <lambda>");
  EXPECT_EQ(data["edges"].dump(), "[[0,2],[1,2],[2,3]]");
  EXPECT_EQ(data["times"].dump(), "[[1.5,2.0],null,[3.0,4.0],null]");
  EXPECT_EQ(data["bytes"].dump(), "[80,80,120,40]");
  EXPECT_EQ(data["memory"]["live"].dump(), "[40,80,120,40]");
  EXPECT_EQ(data["memory"]["peak"], 2);
}

TEST(Page, ATextInTheGraphCannotEndTheScript) {
  PageInput input{.title = "x", .graph = small(), .values = {}, .times = {}};
  input.graph.source_lines[0] = "</script><script>alert(1)</script><!--";
  const std::string page = make_page(input);
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(data_of(page)["graph"]["nodes"][0]["source"], input.graph.source_lines[0]);
}

TEST(Page, EveryGraphHasOne) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    ir::testing::Rng rng(seed);
    const PageInput input{.title = "x", .graph = ir::testing::random_graph(rng), .values = {}, .times = {}};
    const Json data = data_of(make_page(input));
    ASSERT_FALSE(data.is_discarded()) << seed;
    ASSERT_EQ(data["memory"]["live"].size(), input.graph.nodes.size());
    for (const Json& edge : data["edges"]) ASSERT_LT(edge[0], edge[1]);
  }
}

}  // namespace
}  // namespace torch_remote::tools

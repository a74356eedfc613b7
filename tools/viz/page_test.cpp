#include "tools/viz/page.h"

#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "ir/testing/random_graph.h"
#include "passes/pass.h"
#include "tools/viz/dependencies.h"
#include "tools/viz/memory.h"
#include "tools/viz/shared_json.h"

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

// The contents of the script element with this id.
Json element(const std::string& page, const std::string& id) {
  const std::string mark = "<script type=\"application/json\" id=\"" + id + "\">";
  const size_t begin = page.find(mark) + mark.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin), nullptr, false);
}

// The value of an entry of SharedJson::text(), as the page reads it.
Json unpack(const Json& shared, size_t index) {
  const Json& entry = shared["entries"][index];
  if (entry.is_string()) return entry;
  const auto child = [&](const Json& value) {
    if (!value.is_array()) return value;
    EXPECT_LT(value[0], index);
    return unpack(shared, value[0].get<size_t>());
  };
  const int key = entry[0].get<int>();
  Json out = key < 0 ? Json::array() : Json::object();
  for (size_t i = 1; i < entry.size(); ++i) {
    if (key < 0) {
      out.push_back(child(entry[i]));
    } else {
      out[shared["keys"][static_cast<size_t>(key)][i - 1].get<std::string>()] = child(entry[i]);
    }
  }
  return out;
}

// The data of program `index` of the menu.
Json data_of(const std::string& page, size_t index = 0) {
  const Json entry = element(page, "menu")["programs"][index]["entry"];
  return entry.is_null() ? Json() : unpack(element(page, "shared"), entry.get<size_t>());
}

// The data of a program after a page: bytes that are not UTF-8 are replaced.
Json expected_data(const PageProgram& program) { return Json::parse(dump(program_data(program), -1)); }

std::string page_of(const PageInput& input) {
  std::vector<uint32_t> left_out;
  std::string page = make_page(input, &left_out);
  EXPECT_TRUE(left_out.empty());
  return page;
}

// A page with one program.
PageInput one(ir::Graph graph) {
  PageInput input{.title = "x", .programs = {}};
  input.programs.push_back({.graph = std::move(graph)});
  return input;
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

TEST(SharedJson, StoresEqualValuesOnce) {
  SharedJson shared;
  const Json first = {{"name", "a long string"}, {"list", {1, -2, {3.5, nullptr}}}, {"empty", Json::array()}};
  const Json second = {{"name", "a long string"}, {"list", {1, -2, {3.5, nullptr}}}, {"empty", Json::object()}};
  const uint32_t a = shared.add(first);
  const uint32_t entries = shared.size();
  EXPECT_EQ(shared.add(first), a);
  EXPECT_EQ(shared.size(), entries);
  const uint32_t b = shared.add(second);
  EXPECT_EQ(shared.size(), entries + 2);  // the empty object, and the object that has it
  const Json text = Json::parse(shared.text());
  EXPECT_EQ(unpack(text, a), first);
  EXPECT_EQ(unpack(text, b), second);
}

TEST(SharedJson, ForgetsWhatIsTruncated) {
  SharedJson shared;
  const Json value = {{"name", "a long string"}, {"list", {1, 2, 3}}};
  shared.add(value);
  const uint32_t size = shared.size();
  const std::string before = shared.text();
  const size_t bytes = shared.bytes();
  shared.add({{"name", "another string"}, {"list", {1, 2, 3}}});
  EXPECT_GT(shared.bytes(), bytes);
  shared.truncate(size);
  EXPECT_EQ(shared.text(), before);
  EXPECT_EQ(shared.bytes(), bytes);
  const uint32_t again = shared.add({{"name", "another string"}, {"list", {1, 2, 3}}});
  EXPECT_EQ(unpack(Json::parse(shared.text()), again)["name"], "another string");
}

TEST(SharedJson, BytesAreTheLengthOfTheText) {
  SharedJson shared;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ir::testing::Rng rng(seed);
    shared.add(program_data({.graph = ir::testing::random_graph(rng)}));
  }
  EXPECT_NEAR(static_cast<double>(shared.bytes()), static_cast<double>(shared.text().size()), 64);
}

TEST(Page, HoldsTheGraphAndNothingFromElsewhere) {
  PageInput input = one(small());
  input.title = "a <title> & more";
  input.programs[0].values = {10, 0, 4, 40, 1, 0};
  input.programs[0].times = {NodeTime{1.5, 2, "kernels"}, std::nullopt, NodeTime{3, 4}, std::nullopt};
  const std::string page = page_of(input);
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_NE(page.find("<title>a &lt;title> &amp; more</title>"), std::string::npos);
  for (const char* foreign : {"http:", "https:", "src=", "@import", "url(", "href="}) {
    EXPECT_EQ(page.find(foreign), std::string::npos) << foreign;
  }
  const Json menu = element(page, "menu");
  EXPECT_EQ(menu["title"], "a <title> & more");
  EXPECT_EQ(menu["shown"], 0);
  EXPECT_EQ(menu["programs"].size(), 1u);
  EXPECT_EQ(menu["programs"][0]["us"], 4.5);
  EXPECT_EQ(menu["programs"][0]["runner_counts"].dump(), "[[\"kernels\",1]]");
  const Json data = data_of(page);
  ASSERT_FALSE(data.is_discarded());
  EXPECT_EQ(data, expected_data(input.programs[0]));
  EXPECT_EQ(data["graph"]["schema"], kGraphSchema);
  EXPECT_EQ(data["graph"]["nodes"][1]["source"], "net.py:2 in <lambda>");
  EXPECT_EQ(data["edges"].dump(), "[[0,2],[1,2],[2,3]]");
  EXPECT_EQ(data["times"].dump(), "[[1.5,2.0],null,[3.0,4.0],null]");
  EXPECT_EQ(data["runners"].dump(), "[\"kernels\",\"\",\"\",\"\"]");
  EXPECT_EQ(data["bytes"].dump(), "[80,80,120,40]");
  EXPECT_EQ(data["memory"]["live"].dump(), "[40,80,120,40]");
  EXPECT_EQ(data["memory"]["peak"], 2);
}

TEST(Page, ATextInTheGraphCannotEndTheScript) {
  PageInput input = one(small());
  input.programs[0].graph.source_lines[0] = "</script><script>alert(1)</script><!--";
  const std::string page = page_of(input);
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(data_of(page)["graph"]["nodes"][0]["source"], input.programs[0].graph.source_lines[0]);
}

TEST(Page, AMarkInATextIsNotReplaced) {
  PageInput input = one(small());
  input.title = "@MENU@ @SHARED@ @SCRIPT@ @STYLE@";
  input.programs[0].graph.source_lines[0] = "@MENU@ @SHARED@";
  const std::string page = page_of(input);
  EXPECT_EQ(element(page, "menu")["title"], input.title);
  EXPECT_EQ(data_of(page)["graph"]["nodes"][0]["source"], "@MENU@ @SHARED@");
}

TEST(Page, EveryGraphHasOne) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    ir::testing::Rng rng(seed);
    const PageInput input = one(ir::testing::random_graph(rng));
    const Json data = data_of(page_of(input));
    ASSERT_FALSE(data.is_discarded()) << seed;
    ASSERT_EQ(data, expected_data(input.programs[0])) << seed;
    ASSERT_EQ(data["memory"]["live"].size(), input.programs[0].graph.nodes.size());
    for (const Json& edge : data["edges"]) ASSERT_LT(edge[0], edge[1]);
  }
}

// Random programs, which share little. Program i + 1 has `runs[i]` runs.
PageInput several(const std::vector<uint64_t>& runs) {
  PageInput input{.title = "x", .programs = {}};
  for (uint32_t i = 0; i < runs.size(); ++i) {
    ir::testing::Rng rng(i);
    input.programs.push_back({.number = i + 1, .graph = ir::testing::random_graph(rng), .runs = runs[i]});
  }
  return input;
}

TEST(Page, HasAllProgramsAndShowsTheMostExpensiveOneFirst) {
  PageInput input = several({1, 1000, 10});
  std::string page = page_of(input);
  EXPECT_EQ(element(page, "menu")["shown"], 1);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(data_of(page, i), expected_data(input.programs[i]));
    EXPECT_EQ(element(page, "menu")["programs"][i]["number"], i + 1);
  }
  input.programs[0].p50_us = 7;  // times count, not ops, as soon as one is known
  EXPECT_EQ(element(page_of(input), "menu")["shown"], 0);
  input.programs[2].p50_us = 1;
  EXPECT_EQ(by_cost(input.programs), (std::vector<size_t>{2, 0, 1}));
}

TEST(Page, EqualProgramsTakeLittleSpace) {
  PageInput input = one(several({1}).programs[0].graph);
  const size_t alone = page_of(input).size();
  for (int i = 0; i < 100; ++i) input.programs.push_back(input.programs[0]);
  EXPECT_LT(page_of(input).size(), alone + size_t{200} * 100);
}

TEST(Page, LeavesOutTheCheapestProgramsAndSaysSo) {
  PageInput input = several({1, 1000, 10, 5});
  input.programs[3].missing = "not there";
  const auto only = [&](std::vector<size_t> programs) {
    PageInput some{.title = "x", .programs = {}};
    for (const size_t i : programs) some.programs.push_back(input.programs[i]);
    return element(page_of(some), "shared").dump().size();
  };
  std::vector<uint32_t> left_out;
  input.limit = only({1, 2}) + 64;
  std::string page = make_page(input, &left_out);
  EXPECT_EQ(left_out, std::vector<uint32_t>{1});
  EXPECT_TRUE(data_of(page, 0).is_null());
  EXPECT_EQ(data_of(page, 1), expected_data(input.programs[1]));
  EXPECT_EQ(data_of(page, 2), expected_data(input.programs[2]));
  Json programs = element(page, "menu")["programs"];
  EXPECT_EQ(programs.size(), 4u);
  EXPECT_EQ(programs[0]["missing"], "it does not fit into the page");
  EXPECT_EQ(programs[3]["missing"], "not there");
  EXPECT_TRUE(programs[3]["entry"].is_null());
  input.limit = 1;
  page = make_page(input, &left_out);
  EXPECT_EQ(left_out, (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(data_of(page, 1), expected_data(input.programs[1]));  // one is always there
}

}  // namespace
}  // namespace torch_remote::tools

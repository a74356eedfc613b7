#include "tools/common/graph_json.h"

#include "gtest/gtest.h"
#include "ir/testing/random_graph.h"

namespace torch_remote::tools {
namespace {

Json json_of(const char* text) {
  ir::Graph graph;
  const Status status = ir::parse_graph(text, &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return graph_json(graph);
}

TEST(GraphJson, SaysWhatTheTextSays) {
  const Json json = json_of(R"(graph(s0..s3) {
  s4 = 1
  s5 = 4
  s6 = s0 * 4
  b0: input survives
  b1: fresh(s6) written_once
  b2: fresh(s6) survives written_once may_reuse b1
  %0: f32[s0]{1} @b0 + s1
  %1: f32[s0]{1} @b1 + s2 = aten::add.Tensor(%0, number(2.5: f64), alpha=1) loc("train.py:12 in forward")
  %2: f32[s0]{1} @b2 + s2 = aten::relu(%1)
}
)");
  EXPECT_EQ(json["schema"], kGraphSchema);
  EXPECT_EQ(json["params"], 4);
  EXPECT_EQ(json["symbols"][2].dump(), R"({"name":"s6","op":"mul","a":"s0","b":4})");
  EXPECT_EQ(
      json["buffers"][2].dump(),
      R"({"name":"b2","kind":"fresh","survives":true,"written_once":true,"group_local":false,"nbytes":"s6","live":[1,1],"may_reuse":"b1"})");
  const Json& add = json["nodes"][0];
  EXPECT_EQ(add["op"], "aten::add.Tensor");
  EXPECT_EQ(add["family"], "pointwise");
  EXPECT_EQ(add["source"], "train.py:12 in forward");
  EXPECT_EQ(add["args"][0].dump(),
            R"({"name":"self","kind":"tensor","view":0,"buffer":"b0","writes":false,"dtype":"f32",)"
            R"("shape":["s0"],"strides":[1],"offset":"s1"})");
  EXPECT_EQ(add["args"][1].dump(), R"({"name":"other","kind":"number","dtype":"f64","value":2.5})");
  EXPECT_EQ(add["results"][0]["buffer"], "b1");
  EXPECT_EQ(json["nodes"][1]["source"], nullptr);
  EXPECT_EQ(json["groups"][1].dump(), R"({"index":1,"nodes":[1]})");
}

TEST(GraphJson, EveryGraphGivesValidJson) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    ir::testing::Rng rng(seed);
    const ir::Graph graph = ir::testing::random_graph(rng);
    const Json back = Json::parse(dump(graph_json(graph), 2), nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(back.is_discarded()) << seed;
    ASSERT_EQ(back["nodes"].size(), graph.nodes.size());
  }
}

TEST(GraphJson, BytesThatAreNoTextAreReplaced) {
  ir::Graph graph;
  graph.nodes.push_back({ir::find_op("aten::relu"), std::vector<ir::Arg>(1), std::vector<ir::Arg>(1), 0});
  graph.source_lines = {"caf\xe9.py:1"};
  EXPECT_NE(dump(graph_json(graph), -1).find("caf\xEF\xBF\xBD.py:1"), std::string::npos);
}

}  // namespace
}  // namespace torch_remote::tools

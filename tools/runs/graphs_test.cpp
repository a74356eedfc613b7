// Tests the tools' transformations of graphs, and comparisons of runs.
#include <gtest/gtest.h>

#include <numeric>

#include "ir/checking/compact.h"
#include "passes/pass.h"
#include "passes/testing/random_program.h"
#include "tools/runs/culprit.h"
#include "tools/runs/execute.h"
#include "tools/runs/snapshots.h"

namespace torch_remote::tools {
namespace {

ir::Graph parsed(const std::string& text) {
  ir::Graph graph;
  const Status status = ir::parse_graph(text, &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return graph;
}

struct RandomGraph {
  ir::Graph graph;
  std::vector<int64_t> params;
};

RandomGraph random_graph(uint64_t seed) {
  passes::testing::Rng rng(seed);
  const ir::Trace trace = passes::testing::random_program(rng, 30);
  RandomGraph random;
  const Status status = ir::import_trace(trace, trace.survivors(), &random.graph);
  EXPECT_TRUE(status.ok()) << status.message();
  random.params = trace.params;
  return random;
}

const std::string kInPlace = R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::neg(%0) loc("net.py:1 in f")
  aten::mul_.Tensor(%1!, %0) loc("net.py:2 in f")
})";

TEST(Snapshots, ACopyOfWhatEachNodeWritesComesAfterIt) {
  const ir::Graph graph = parsed(kInPlace);
  std::vector<Snapshot> snapshots;
  const ir::Graph with = with_snapshots(graph, std::vector<uint32_t>{0, 1}, &snapshots);
  ASSERT_TRUE(ir::verify(with).ok()) << ir::verify(with).message();
  ASSERT_EQ(snapshots.size(), 2u);
  EXPECT_EQ(snapshots[1].node, 1u);
  EXPECT_EQ(snapshots[1].view, 1u);
  ASSERT_EQ(with.nodes.size(), 4u);
  EXPECT_EQ(ir::op_desc(with.nodes[1].opcode).name, "aten::copy_");
  EXPECT_EQ(with.nodes[2], graph.nodes[1]);
  EXPECT_TRUE(with.buffers.back().survives);
}

TEST(Snapshots, GraphsBeforeAndAfterThePassesStayValid) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    RandomGraph random = random_graph(seed);
    for (const bool optimized : {false, true}) {
      if (optimized) {
        ASSERT_TRUE(passes::run_pipeline(random.graph).ok());
      }
      std::vector<uint32_t> all(random.graph.nodes.size());
      std::iota(all.begin(), all.end(), 0);
      std::vector<Snapshot> snapshots;
      const ir::Graph with = with_snapshots(random.graph, all, &snapshots);
      ASSERT_TRUE(ir::verify(with).ok()) << ir::verify(with).message();
      ASSERT_EQ(with.nodes.size(), random.graph.nodes.size() + snapshots.size());
    }
  }
}

TEST(Compact, LeavesOutWhatNoNodeUses) {
  ir::Graph graph = parsed(R"(graph(s0..s4) {
  b0: input survives
  b1: input survives
  b2: fresh(s3) survives
  %0: f32[s1]{1} @b0 + s0
  %1: f32[s2]{1} @b1
  %2: f32[s2]{1} @b2 = aten::neg(%1) loc("net.py:2 in f")
  aten::relu_(%0!) loc("net.py:3 in f")
})");
  graph.nodes.pop_back();
  ir::Remaining remaining;
  const ir::Graph small = ir::compact(graph, &remaining);
  ASSERT_TRUE(ir::verify(small).ok()) << ir::verify(small).message();
  EXPECT_EQ(remaining.params, (std::vector<uint32_t>{2, 3}));
  EXPECT_EQ(remaining.inputs, (std::vector<uint32_t>{1}));
  EXPECT_EQ(remaining.buffers, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(small, parsed(R"(graph(s0, s1) {
  s2 = 1
  s3 = 0
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::neg(%0) loc("net.py:2 in f")
})"));
}

TEST(Compact, AllOfAGraphMeansTheSame) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const RandomGraph random = random_graph(seed);
    ir::Remaining remaining;
    const ir::Graph small = ir::compact(random.graph, &remaining);
    ASSERT_TRUE(ir::verify(small).ok()) << ir::verify(small).message();
    std::vector<int64_t> params, before, after;
    for (const uint32_t param : remaining.params) params.push_back(random.params[param]);
    ASSERT_TRUE(ir::evaluate(random.graph, random.params.data(), &before).ok());
    ASSERT_TRUE(ir::evaluate(small, params.data(), &after).ok());
    ASSERT_EQ(small.nodes.size(), random.graph.nodes.size());
    for (size_t n = 0; n < small.nodes.size(); ++n) {
      ASSERT_EQ(describe(small, small.nodes[n], after), describe(random.graph, random.graph.nodes[n], before));
    }
  }
}

TEST(Localise, NodesOfOneRecordAreAPair) {
  ir::Graph before = parsed(kInPlace);
  ir::Graph after = before;
  after.nodes.erase(after.nodes.begin());
  const auto pairs = pair_by_record(before, after);
  ASSERT_EQ(pairs.size(), 1u);
  EXPECT_EQ(pairs[0].a, 1u);
  EXPECT_EQ(pairs[0].b, 0u);
}

TEST(Describe, ShapesStridesAndNumbers) {
  const ir::Graph graph = parsed(R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0, 1]{1, 1} @b0 + s1
  %1: f32[s0, 1]{1, 1} @b1 = aten::add.Tensor(%0, number(0.5: f64), alpha=2)
})");
  std::vector<int64_t> values;
  ASSERT_TRUE(ir::evaluate(graph, std::vector<int64_t>{4, 16}.data(), &values).ok());
  EXPECT_EQ(describe(graph, graph.nodes[0], values), "aten::add.Tensor(f32[4, 1]{1, 1} + 16, 0.5: f64, alpha=2)");
}

// Bytes of 1 and 1.001 differ by up to 197, those of 1 and 4 by at most 1.
TEST(Runs, DynamicResultsAreComparedInTheirDtype) {
  const auto outcome = [](float value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    return Outcome{{}, {}, {Bytes(bytes.begin(), bytes.end())}, {ir::DType::kFloat32}};
  };
  EXPECT_FALSE(compare({}, outcome(1), outcome(1.001f), {0.01, 0}));
  EXPECT_TRUE(compare({}, outcome(1), outcome(4), {0, 1}));
}

}  // namespace
}  // namespace torch_remote::tools

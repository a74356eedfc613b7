#include <string>

#include "gtest/gtest.h"
#include "ir/graph.h"
#include "ir/testing/random_graph.h"

namespace torch_remote::ir {
namespace {

// The verifier's message without its fixed beginning, or "valid".
std::string verifier_message(const Graph& graph) {
  const Status status = verify(graph);
  if (status.ok()) return "valid";
  const std::string begin = "remote: the program is not valid: ";
  EXPECT_EQ(status.message().substr(0, begin.size()), begin);
  return status.message().substr(begin.size());
}

std::string verifier_message(const std::string& lines) {
  Graph graph;
  const Status status = parse_graph("graph(s0..s5) {\n" + lines + "}\n", &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  return verifier_message(graph);
}

constexpr char kTwoInputs[] = R"(
  b0: input
  b1: input
  b2: fresh(s0)
  %0: f32[s1] @b0
  %1: f32[s1] @b1
)";

TEST(Verify, RandomGraphsAreValid) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    testing::Rng rng(seed);
    const Graph graph = testing::random_graph(rng);
    ASSERT_EQ(verifier_message(graph), "valid") << "seed " << seed << "\n" << print(graph);
  }
}

TEST(Verify, ArgumentsAreWhatTheSchemaSays) {
  const std::string begin = kTwoInputs;
  EXPECT_EQ(verifier_message(begin + "%2: f32[s1] @b2 = aten::add.Tensor(%0, %1, alpha=1)\n"), "valid");
  EXPECT_EQ(verifier_message(begin + "%2: f32[s1] @b2 = aten::add.Tensor(%0, 3, alpha=1)\n"),
            "node 0 (aten::add.Tensor): argument 'other' is not a tensor");
  EXPECT_EQ(verifier_message(begin + "%2: f32[s1] @b2 = aten::add.Tensor(%0, %1)\n"),
            "node 0 (aten::add.Tensor): argument 'alpha' is a number of another kind");
  EXPECT_EQ(verifier_message(begin + "%2: f32[] @b2 = aten::sum.dim_IntList(%0, [0], 1)\n"),
            "node 0 (aten::sum.dim_IntList): argument 'keepdim' is a number of another kind");
  EXPECT_EQ(verifier_message(begin + "%2: f32[] @b2 = aten::sum.dim_IntList(%0, [s2], true)\n"),
            "node 0 (aten::sum.dim_IntList): argument 'dim' is structural, so it must be a constant");
  EXPECT_EQ(verifier_message(begin + "aten::copy_(number(1: f32), %1)\n"),
            "node 0 (aten::copy_): argument 'self' is written, but it is a number");
}

TEST(Verify, ResultsAreNewBuffers) {
  const std::string begin = kTwoInputs;
  EXPECT_EQ(verifier_message(begin + "%1 = aten::relu(%0)\n"),
            "node 0 (aten::relu): result 0 is a view of an input buffer");
  EXPECT_EQ(verifier_message(begin + "%2: f32[s1] @b2 = aten::relu(%0)\n%3: f32[s1] @b2 = aten::relu(%1)\n"),
            "node 1 (aten::relu): result 0 is a view of a buffer that was there before");
  EXPECT_EQ(verifier_message(begin + "%2: f32[s1] @b2\naten::relu_(%2)\n%2 = aten::relu(%1)\n"),
            "node 1 (aten::relu): result 0 is a view of a buffer that was there before");
}

TEST(Verify, SsaBuffersAreWrittenOnceByTheirFirstNode) {
  const std::string begin = R"(
  b0: input
  b1: fresh(s0) written_once
  %0: f32[s1] @b0
  %1: f32[s1] @b1
)";
  EXPECT_EQ(verifier_message(begin + "%1 = aten::relu(%0)\naten::add_.Tensor(%0, %1, alpha=1)\n"), "valid");
  EXPECT_EQ(verifier_message(begin + "aten::copy_(%1, %0)\naten::add_.Tensor(%0, %1, alpha=1)\n"), "valid");
  EXPECT_EQ(verifier_message(begin + "%1 = aten::relu(%0)\naten::relu_(%1)\n"),
            "buffer b1 is marked written_once, but is written more than once");
  EXPECT_EQ(verifier_message(begin + "aten::copy_(%1, %1)\n"),
            "buffer b1 is marked written_once, but is written more than once");
  EXPECT_EQ(verifier_message(begin + "aten::copy_(%0, %1)\n"),
            "buffer b1 is marked written_once, but is not written by the first node that touches it");
  EXPECT_EQ(verifier_message(begin),
            "buffer b1 is marked written_once, but is not written by the first node that touches it");
  EXPECT_EQ(verifier_message("b0: input written_once\n"),
            "input buffer b0 is marked written_once, but it existed before");
}

TEST(Verify, DynamicResultsComeLast) {
  const std::string begin = R"(
  b0: input
  b1: fresh
  %0: f32[s1] @b0
  %1: f32[?] @b1 = aten::nonzero(%0)
)";
  EXPECT_EQ(verifier_message(begin), "valid");
  EXPECT_EQ(verifier_message(begin + "aten::relu_(%0)\n"),
            "node 0 (aten::nonzero): result 0 is dynamic, but the node is not the last one");
}

TEST(Verify, MemoryIsTakenOverOnlyWhereNobodyNeedsIt) {
  const std::string nodes = R"(
  %0: f32[s1] @b0
  %1: f32[s1] @b1 = aten::relu(%0)
  %2: f32[s1] @b2 = aten::relu(%1)
)";
  const auto plan = [&](const std::string& b0, const std::string& b1, const std::string& b2) {
    return verifier_message("b0: input " + b0 + "\nb1: fresh(s0) " + b1 + "\nb2: fresh(s0) survives " + b2 + nodes);
  };
  EXPECT_EQ(plan("", "", ""), "valid");
  EXPECT_EQ(plan("", "may_reuse b0", "may_reuse b1"), "valid");
  EXPECT_EQ(plan("", "", "may_reuse b2"), "the plan of buffer b2 may reuse no other buffer");
  EXPECT_EQ(plan("", "", "may_reuse b7"), "the plan of buffer b2 may reuse no other buffer");
  EXPECT_EQ(plan("", "", "may_reuse b0"),
            "the plan of buffer b2 may reuse b0, whose last use is not the first use of this one");
  EXPECT_EQ(plan("survives", "may_reuse b0", ""), "the plan of buffer b1 may reuse b0, which survives");
  EXPECT_EQ(verifier_message("b0: input\nb1: fresh(s0) survives may_reuse b0\n%0: f32[s1, s1] @b0\n"
                             "%1: f32[s1, s1] @b1 = aten::mm(%0, %0)\n"),
            "the plan of buffer b1 may reuse b0, but node 0 may not work in place");
}

TEST(Verify, GroupsAreInOrderAndKeepTheirOwn) {
  const auto grouped = [&](std::vector<Group> groups, std::vector<uint32_t> group_local = {}) {
    Graph graph;
    EXPECT_TRUE(parse_graph(R"(graph(s0) {
  b0: input survives
  b1: fresh(s0)
  b2: fresh(s0) survives
  %0: f32[s0] @b0
  %1: f32[s0] @b1 = aten::relu(%0)
  %2: f32[s0] @b2 = aten::neg(%1)
})",
                            &graph)
                    .ok());
    graph.groups = std::move(groups);
    for (const uint32_t buffer : group_local) graph.buffers[buffer].group_local = true;
    return verifier_message(graph);
  };
  const auto kind = GroupKind::kPointwise;
  EXPECT_EQ(grouped({{0, 0, kind}, {1, 1, kind}}), "valid");
  EXPECT_EQ(grouped({{0, 1, kind}}, {1}), "valid");
  EXPECT_EQ(grouped({{1, 2, kind}}), "group 0 has no nodes, or too many");
  EXPECT_EQ(grouped({{1, 0, kind}}), "group 0 has no nodes, or too many");
  EXPECT_EQ(grouped({{0, 1, kind}, {1, 1, kind}}), "group 1 begins before the one before it ends");
  EXPECT_EQ(grouped({{1, 1, kind}, {0, 0, kind}}), "group 1 begins before the one before it ends");
  EXPECT_EQ(grouped({{0, 0, static_cast<GroupKind>(kGroupKinds)}}), "group 0 is of no kind");
  EXPECT_EQ(grouped({{0, 0, kind, kGroupProperties + 1}}), "group 0 has unknown properties");
  const std::string marked = "buffer b1 is marked group_local, but is not used by one group only";
  EXPECT_EQ(grouped({}, {1}), marked);
  EXPECT_EQ(grouped({{0, 0, kind}, {1, 1, kind}}, {1}), marked);
  EXPECT_EQ(grouped({{0, 0, kind}}, {1}), marked);
  EXPECT_EQ(grouped({{0, 1, kind}}, {2}), "buffer b2 is marked group_local, but others see it");
  EXPECT_EQ(grouped({{0, 1, kind}}, {0}), "buffer b0 is marked group_local, but others see it");
}

TEST(Verify, IndicesAreInRange) {
  Graph graph;
  graph.params = 1;
  graph.exprs.push_back({ExprKind::kAdd, 0, 1, 0});
  EXPECT_EQ(verifier_message(graph), "symbol s1 is not an expression over earlier symbols");
  graph.exprs.clear();
  graph.views.push_back({});
  EXPECT_EQ(verifier_message(graph), "view %0 is of no buffer");
  graph.buffers.push_back({BufferKind::kFresh, false, false, 7});
  EXPECT_EQ(verifier_message(graph), "the size of buffer b0 is not a symbol");
  graph.buffers[0].nbytes = 0;
  graph.views[0].sizes = {9};
  EXPECT_EQ(verifier_message(graph), "view %0 does not have as many strides as sizes");
  graph.views[0].strides = {0};
  graph.views[0].offset = 0;
  EXPECT_EQ(verifier_message(graph), "view %0 has a size, stride or offset that is not a symbol");
  graph.views[0].sizes = {0};
  EXPECT_EQ(verifier_message(graph), "valid");
  graph.nodes.resize(1);
  EXPECT_EQ(verifier_message(graph), "node 0 (opcode 4294967295): the op table lacks this op");
  graph.nodes[0].opcode = find_op("aten::relu");
  EXPECT_EQ(verifier_message(graph), "node 0 (aten::relu): 0 arguments, but the op has 1");
  graph.nodes[0].args.resize(1);
  graph.nodes[0].results.resize(1);
  graph.nodes[0].args[0].tag = ArgTag::kView;
  graph.nodes[0].args[0].a = 1;
  EXPECT_EQ(verifier_message(graph), "node 0 (aten::relu): argument 'self' is not a view");
}

}  // namespace
}  // namespace torch_remote::ir

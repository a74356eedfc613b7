#include "ir/fusion/domain.h"

#include <algorithm>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "ir/fusion/fusion.h"
#include "ir/text.h"
#include "passes/testing/random_program.h"

namespace torch_remote::passes {
namespace {

bool same(const ir::IterationDomain& a, const ir::IterationDomain& b) {
  const auto same_access = [](const ir::IterationDomain::Access& x, const ir::IterationDomain::Access& y) {
    return x.part.view == y.part.view && x.offset == y.offset && x.strides == y.strides && x.dims == y.dims &&
           x.available_after_all_rows == y.available_after_all_rows;
  };
  const auto same_member = [&](const ir::IterationDomain::Member& x, const ir::IterationDomain::Member& y) {
    return x.node == y.node && x.space == y.space && x.axes == y.axes && x.reduces == y.reduces &&
           std::ranges::equal(x.accesses, y.accesses, same_access);
  };
  return a.sizes() == b.sizes() && a.columns() == b.columns() && a.unreduced_rows() == b.unreduced_rows() &&
         std::ranges::equal(a.members(), b.members(), same_member);
}

// The domain splits dims before it refuses these operands. In the first case, the split for the first operand does not
// fit the second. In the second case, the split for the first operand is undone, and the split by sizes does not fit
// either.
TEST(Domain, IsAsItWasAfterANodeForWhichItSplitDims) {
  for (const std::string operands : {"[4, 6]{1, 4} [4, 6]{6, 1}", "[4, 6]{7, 1} [4, 6]{7, 1}"}) {
    const size_t space = operands.find(" [");
    ir::Graph graph;
    ASSERT_TRUE(ir::parse_graph(R"(graph() {
  b0: input survives
  b1: fresh(160) survives
  b2: fresh(96) survives
  b3: fresh(96) survives
  %0: f32[24]{1} @b0
  %1: f32[24]{1} @b1 = aten::relu(%0)
  %2: f32)" + operands.substr(0, space) +
                                    " @b1\n  %3: f32" + operands.substr(space + 1) + R"( @b1
  %4: f32[4, 6]{6, 1} @b2 = aten::mul.Tensor(%2, %3)
  %5: f32[4, 6]{6, 1} @b1
  %6: f32[4, 6]{6, 1} @b3 = aten::relu(%5)
}
)",
                                &graph)
                    .ok());
    std::vector<int64_t> values;
    ASSERT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
    ir::IterationDomain domain(graph, values);
    ASSERT_TRUE(domain.add(0));
    const ir::IterationDomain before = domain;
    EXPECT_FALSE(domain.add(1)) << operands;
    EXPECT_TRUE(same(domain, before)) << operands;
    EXPECT_TRUE(domain.add(2));
    EXPECT_EQ(domain.sizes(), (std::vector<int64_t>{4, 6}));
  }
}

// The reduced axes of an op's form; nothing if it has no form. %0 and the first `results` results are views of `rank`
// dims; with no such results, the only result is a number.
std::optional<uint64_t> reduced_axes(size_t rank, int results, const std::string& op) {
  std::string view = "f32[1";
  for (size_t d = 1; d < rank; ++d) view += ", 1";
  view += "]";
  std::string text = "graph() {\n  b0: input survives\n  b1: fresh(4)\n  b2: fresh(4)\n  b3: fresh(4)\n  %0: " + view +
                     " @b0\n  " + (results == 0 ? "%1: f32[] @b1" : "%1: " + view + " @b1");
  for (int i = 2; i <= results; ++i) text += ", %" + std::to_string(i) + ": " + view + " @b" + std::to_string(i);
  ir::Graph graph;
  const Status status = ir::parse_graph(text + " = " + op + "\n}\n", &graph);
  EXPECT_TRUE(status.ok()) << status.message();
  ir::KernelForm form;
  if (!status.ok() || !ir::find_form(graph, graph.nodes[0], 0, &form)) return std::nullopt;
  return form.reduced;
}

// A view has up to 64 dims. A group norm splits one of them into two axes.
TEST(Form, ReducesAxesOfViewsOfAllRanks) {
  for (const size_t rank : {2, 3, 62, 63, 64}) {
    const uint64_t all = ~uint64_t{0} >> (64 - rank), last = uint64_t{1} << (rank - 1);
    EXPECT_EQ(reduced_axes(rank, 0, "aten::sum.dim_IntList(%0, none, false)"), all) << rank;
    EXPECT_EQ(reduced_axes(rank, 3, "aten::native_layer_norm(%0, [1], none, none, 1e-5)"), last) << rank;
    EXPECT_EQ(reduced_axes(rank, 3, "aten::native_batch_norm(%0, none, none, none, none, true, 0.1, 1e-5)"),
              all & ~2ull)
        << rank;
    const auto groups = reduced_axes(rank, 3, "aten::native_group_norm(%0, none, none, 1, 1, 1, 1, 1e-5)");
    EXPECT_EQ(groups, rank < 64 ? std::optional<uint64_t>((all << 1 | 1) & ~3ull) : std::nullopt) << rank;
  }
}

// Programs come from clients, so the result of an embedding's gradient may have any rank. Only a matrix has rows that
// indices choose.
TEST(Form, TheGradientOfAnEmbeddingIsAMatrix) {
  const auto has_form = [](const std::string& result) {
    ir::Graph graph;
    const Status status = ir::parse_graph(
        "graph() {\n  b0: input survives\n  b1: input survives\n  b2: fresh(48) survives\n  %0: f32[2, 3] @b0\n"
        "  %1: i64[2] @b1\n  %2: " +
            result + " @b2 = aten::embedding_dense_backward(%0, %1, 4, 7, false)\n}\n",
        &graph);
    EXPECT_TRUE(status.ok()) << status.message();
    ir::KernelForm form;
    return status.ok() && ir::find_form(graph, graph.nodes[0], 0, &form);
  };
  EXPECT_TRUE(has_form("f32[4, 3]"));
  for (const char* result : {"f32[]", "f32[12]", "f32[4, 3, 1]", "f32[1, 2, 2, 3]"}) {
    EXPECT_FALSE(has_form(result)) << result;
  }
}

// Adds nodes of random programs in any order. Many of them do not fit together.
TEST(Domain, IsAsItWasAfterANodeThatItCannotDo) {
  testing::Rng rng(7);
  int added = 0, refused = 0;
  for (int i = 0; i < 400; ++i) {
    const ir::Trace trace = testing::random_program(rng, 30);
    ir::Graph graph;
    ASSERT_TRUE(ir::import_trace(trace, trace.survivors(), &graph).ok());
    std::vector<int64_t> values;
    ASSERT_TRUE(ir::evaluate(graph, trace.params.data(), &values).ok());
    for (int start = 0; start < 8; ++start) {
      ir::IterationDomain domain(graph, values);
      for (int tries = 0; tries < 12; ++tries) {
        const auto node = static_cast<uint32_t>(rng() % graph.nodes.size());
        const ir::IterationDomain before = domain;
        if (domain.add(node)) {
          ++added;
          continue;
        }
        ++refused;
        ASSERT_TRUE(same(domain, before)) << "program " << i << ", node " << node;
      }
    }
  }
  EXPECT_GT(added, 3000);
  EXPECT_GT(refused, 3000);
}

}  // namespace
}  // namespace torch_remote::passes

#include "ir/fusion/domain.h"

#include <algorithm>

#include "gtest/gtest.h"
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

#include "ir/graph.h"

#include <limits>

#include "gtest/gtest.h"

namespace torch_remote::ir {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(Symbols, EqualConstantsAndExpressionsAreOneSymbol) {
  Graph graph;
  graph.params = 2;
  const Sym seven = graph.constant(7);
  EXPECT_EQ(graph.constant(7), seven);
  const Sym sum = graph.expr(ExprKind::kAdd, 0, 1);
  EXPECT_EQ(graph.expr(ExprKind::kAdd, 1, 0), sum);
  EXPECT_NE(graph.expr(ExprKind::kSub, 0, 1), graph.expr(ExprKind::kSub, 1, 0));
  for (int64_t i = 0; i < 1000; ++i) graph.constant(i);
  EXPECT_EQ(graph.constant(7), seven);
  EXPECT_EQ(graph.expr(ExprKind::kAdd, 0, 1), sum);
}

TEST(Symbols, FoldsConstantsAndNeutralElements) {
  Graph graph;
  graph.params = 1;
  const Sym zero = graph.constant(0);
  const Sym one = graph.constant(1);
  const auto value = [&](ExprKind kind, int64_t a, int64_t b) {
    int64_t result = -1;
    EXPECT_TRUE(graph.is_constant(graph.expr(kind, graph.constant(a), graph.constant(b)), &result));
    return result;
  };
  EXPECT_EQ(value(ExprKind::kFloorDiv, -7, 2), -4);
  EXPECT_EQ(value(ExprKind::kMod, -7, 2), 1);
  EXPECT_EQ(value(ExprKind::kMax, -7, 2), 2);
  EXPECT_EQ(graph.expr(ExprKind::kAdd, 0, zero), 0u);
  EXPECT_EQ(graph.expr(ExprKind::kMul, one, 0), 0u);
  EXPECT_EQ(graph.expr(ExprKind::kMul, 0, zero), zero);
  EXPECT_EQ(graph.expr(ExprKind::kSub, 0, 0), zero);
  EXPECT_EQ(graph.expr(ExprKind::kFloorDiv, 0, one), 0u);
}

TEST(Symbols, WhatOverflowsOrDividesByZeroIsNotFolded) {
  Graph graph;
  const Sym two = graph.constant(2);
  const Sym product = graph.expr(ExprKind::kMul, graph.constant(kMax), two);
  EXPECT_FALSE(graph.is_constant(product));
  std::vector<int64_t> values;
  const Status status = evaluate(graph, nullptr, &values);
  EXPECT_EQ(status.message(),
            "remote: symbol s2 of the program has no value in this run: 2 * 9223372036854775807 does not fit 64 bits");
  Graph division;
  division.params = 1;
  division.expr(ExprKind::kFloorDiv, division.constant(1), 0);
  const int64_t none = 0;
  EXPECT_NE(evaluate(division, &none, &values).message().find("divides by zero"), std::string::npos);
  Graph minimum;
  minimum.expr(ExprKind::kFloorDiv, minimum.constant(kMin), minimum.constant(-1));
  EXPECT_FALSE(evaluate(minimum, nullptr, &values).ok());
}

TEST(Symbols, AStaleIndexFindsNothingWrong) {
  Graph graph;
  graph.params = 1;
  for (int64_t i = 0; i < 50; ++i) graph.constant(i);
  graph.exprs.erase(graph.exprs.begin(), graph.exprs.begin() + 20);  // without the index
  const Sym found = graph.constant(30);
  int64_t value = 0;
  EXPECT_TRUE(graph.is_constant(found, &value));
  EXPECT_EQ(value, 30);
}

TEST(Symbols, AreEvaluatedInOrder) {
  Graph graph;
  graph.params = 2;
  const Sym product = graph.expr(ExprKind::kMul, 0, 1);
  const Sym both = graph.expr(ExprKind::kAdd, product, graph.constant(5));
  const int64_t params[] = {6, 7};
  std::vector<int64_t> values;
  ASSERT_TRUE(evaluate(graph, params, &values).ok());
  EXPECT_EQ(values[both], 47);
}

// Checks a graph with one view, f32[s0, s1]{s2, s3} + s4, of one input buffer.
Status extents(std::vector<int64_t> params, uint64_t nbytes, bool constant_size = false) {
  Graph graph;
  graph.params = 5;
  graph.buffers.push_back({BufferKind::kInput});
  View view;
  view.sizes = {0, 1};
  if (constant_size) view.sizes[0] = graph.constant(params[0]);
  view.strides = {2, 3};
  view.offset = 4;
  graph.views.push_back(view);
  std::vector<int64_t> values;
  EXPECT_TRUE(evaluate(graph, params.data(), &values).ok());
  const uint64_t sizes[] = {nbytes};
  return check_extents(graph, values, sizes);
}

TEST(Extents, AViewThatFitsExactly) {
  EXPECT_TRUE(extents({2, 3, 3, 1, 0}, 24).ok());
  EXPECT_TRUE(extents({2, 3, 1, 2, 1}, 28).ok());
}

TEST(Extents, AViewThatLeavesItsBuffer) {
  EXPECT_EQ(extents({2, 3, 3, 1, 0}, 23).message(),
            "remote: view %0 of the program ends at byte 24, but its buffer b0 has 23");
  EXPECT_FALSE(extents({2, 3, 3, 1, 1}, 24).ok());
  EXPECT_FALSE(extents({2, 3, 3, 1, -1}, 24).ok());
  EXPECT_FALSE(extents({2, 3, -3, 1, 2}, 24).ok());
  EXPECT_FALSE(extents({2, 3, -3, 1, 3}, 24).ok());  // inside the buffer, but torch has no negative strides
}

TEST(Extents, Overflow) {
  EXPECT_FALSE(extents({2, 3, kMax, 1, 1}, 24).ok());
  EXPECT_FALSE(extents({kMax, kMax, kMax, kMax, 0}, kMax).ok());
  EXPECT_FALSE(extents({2, 2, kMax / 4, 0, 0}, ~uint64_t{0}).ok());
  EXPECT_FALSE(extents({2, 2, 1, 1, kMin}, 24).ok());
  EXPECT_FALSE(extents({2, 2, kMin, 1, kMin}, 24).ok());
  EXPECT_FALSE(extents({2, 2, 1, 1, kMax}, 24).ok());
  // Elements that share memory reach no further than one of them.
  const Status shared = extents({int64_t{1} << 32, int64_t{1} << 31, 0, 0, 0}, 4);
  EXPECT_EQ(shared.message(), "remote: view %0 of the program has more elements than 64 bits can count");
  EXPECT_TRUE(extents({int64_t{1} << 31, int64_t{1} << 31, 0, 0, 0}, 4).ok());
}

TEST(Extents, ASizeThatTheKeyExcludes) {
  EXPECT_NE(extents({1, 3, 3, 1, 0}, 24).message().find("neither 0 nor 1"), std::string::npos);
  EXPECT_FALSE(extents({-1, 3, 3, 1, 0}, 24).ok());
  EXPECT_FALSE(extents({-1, 3, 3, 1, 0}, 24, true).ok());
  EXPECT_TRUE(extents({1, 3, 1000, 1, 0}, 12, true).ok());
  EXPECT_TRUE(extents({0, 3, 3, 1, 1000}, 0, true).ok());
}

}  // namespace
}  // namespace torch_remote::ir

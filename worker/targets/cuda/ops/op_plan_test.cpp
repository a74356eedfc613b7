#include "worker/targets/cuda/ops/op_plan.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>

#include "ir/fusion/fusion.h"
#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/kernels/arguments.h"

namespace torch_remote::worker::cuda {
namespace {

using Call = OpPlanner::Call<TriangleArguments>;

template <typename C>
concept UsableLater = requires(C& call, Location location) { call.at(&TriangleArguments::in, location); };
// A named launch could be given operands after steps that it must precede.
static_assert(!UsableLater<Call> && !std::is_copy_constructible_v<Call> && !std::is_move_constructible_v<Call>);

// Reads a transposed matrix, and makes a triangle of it.
class OpPlans : public testing::Test {
 protected:
  void SetUp() override {
    const Status parsed = ir::parse_graph(R"(graph() {
  b0: input
  b1: fresh(48) survives
  %0: f32[3, 4]{1, 3} @b0
  %1: f32[3, 4] @b1 = aten::triu(%0, 0)
})",
                                          &graph_);
    ASSERT_TRUE(parsed.ok()) << parsed.message();
    ASSERT_TRUE(ir::evaluate(graph_, nullptr, &values_).ok());
  }
  OpPlanner planner() { return {graph_, 0, values_, &plan_, &symbols_}; }

  // "move" and "launch", in the order of the plan.
  std::string steps() const {
    std::string all;
    for (const OpStep& step : plan_.steps) {
      all += all.empty() ? "" : " ";
      all += std::holds_alternative<StridedMove>(step) ? "move"
             : std::holds_alternative<OpLaunch>(step)  ? "launch"
                                                       : "other";
    }
    return all;
  }

  ir::Graph graph_;
  std::vector<int64_t> values_;
  std::vector<ir::Sym> symbols_;
  OpPlan plan_;
};

TEST_F(OpPlans, OperandsThatALaunchAsksForArePackedBeforeIt) {
  OpPlanner planner = this->planner();
  const OpTensor self = *planner.tensor("self"), to = *planner.result(0);
  planner.launch(KernelFile::kFill, "triangle", TriangleArguments{.count = 12}, 1)
      .at(&TriangleArguments::in, planner.packed(self))
      .at(&TriangleArguments::out, planner.output(to));
  planner.finish();
  ASSERT_EQ(steps(), "move launch");
  const Location packed = std::get<StridedMove>(plan_.steps[0]).to;
  const auto& launch = std::get<OpLaunch>(plan_.steps[1]);
  ASSERT_EQ(launch.addresses.size(), 2u);
  EXPECT_EQ(launch.addresses[0].location.buffer, packed.buffer);
  EXPECT_EQ(launch.addresses[0].word, offsetof(TriangleArguments, in) / 8);
  EXPECT_EQ(launch.addresses[1].location.buffer, 1u);
}

// More of each than a vector holds without reallocation.
TEST_F(OpPlans, LaunchesKeepTheirOrderAndTheirWords) {
  OpPlanner planner = this->planner();
  const OpTensor self = *planner.tensor("self");
  for (int64_t i = 1; i <= 9; ++i) {
    planner.launch(KernelFile::kFill, "triangle", TriangleArguments{.count = i}, i)
        .at(&TriangleArguments::in, planner.packed(self))
        .at(&TriangleArguments::out, planner.packed(self));
  }
  ASSERT_EQ(plan_.steps.size(), 27u);
  for (size_t i = 0; i < 9; ++i) {
    const auto& launch = std::get<OpLaunch>(plan_.steps[3 * i + 2]);
    EXPECT_EQ(launch.grid, i + 1);
    EXPECT_EQ(launch.words[offsetof(TriangleArguments, count) / 8], i + 1);
    EXPECT_EQ(launch.addresses[0].location.buffer, std::get<StridedMove>(plan_.steps[3 * i]).to.buffer);
    EXPECT_EQ(launch.addresses[1].location.buffer, std::get<StridedMove>(plan_.steps[3 * i + 1]).to.buffer);
  }
}

TEST_F(OpPlans, OfNoBlocksALaunchIsNoStep) {
  OpPlanner planner = this->planner();
  planner.launch(KernelFile::kFill, "triangle", TriangleArguments{}, 0).at(&TriangleArguments::in, Location{0, 0});
  EXPECT_EQ(steps(), "");
}

// The name without namespace, overload and the underscore of in-place ops.
std::string base_name(std::string_view name) {
  name.remove_prefix(name.find("::") + 2);
  name = name.substr(0, name.find('.'));
  if (name.ends_with('_')) name.remove_suffix(1);
  return std::string(name);
}

ir::Opcode opaque(std::string_view name) { return ir::register_opaque(name, {}, {}, 0); }

TEST(FindOpPlan, ReadsTheColumnOfTheTable) {
  const NamedPlan* const topk = find_op_plan(ir::ops::aten_topk);
  ASSERT_NE(topk, nullptr);
  EXPECT_EQ(topk->name, "sort.topk");
  EXPECT_FALSE(topk->takes_complex);
  EXPECT_EQ(find_op_plan(ir::ops::aten_topk, true), topk);
  EXPECT_EQ(find_op_plan(ir::ops::aten_topk_values), topk);
  const NamedPlan* const copy = find_op_plan(ir::ops::aten_view_copy, true);
  ASSERT_NE(copy, nullptr);
  EXPECT_TRUE(copy->takes_complex);
  EXPECT_EQ(find_op_plan(ir::ops::aten_poisson), nullptr);
}

TEST(FindOpPlan, ComplexNumbersHaveTheirOwnPlan) {
  const NamedPlan* const exp = find_op_plan(ir::ops::aten_exp, true);
  ASSERT_NE(exp, nullptr);
  EXPECT_EQ(exp->name, "complex.exp");
  EXPECT_TRUE(exp->takes_complex);
  EXPECT_EQ(find_op_plan(ir::ops::aten_exp_out, true), exp);
  EXPECT_NE(find_op_plan(ir::ops::aten_exp), exp);
}

TEST(FindOpPlan, FindsOpsOutsideTheTableByName) {
  const NamedPlan* const sort = find_op_plan(opaque("aten::sort"));
  ASSERT_NE(sort, nullptr);
  EXPECT_EQ(sort, find_op_plan(ir::ops::aten_sort_stable));
  EXPECT_EQ(find_op_plan(opaque("aten::msort")), nullptr);
}

// Names of ops whose formula the compiler has (OpDesc::tree, or an expansion in codegen/lower) and which have a plan of
// their own here, too. The lists may only become shorter.
TEST(WrittenTwice, OnlyTheseOps) {
  const std::set<std::string> allowed = {
      // Copies, whose kernels the compiler makes, and memset.
      "_stack", "cat", "copy", "select_backward", "slice_backward", "stack", "zero",
      // Elements at indices: index_reduce and scatter_reduce, which the compiler does not have, need the same kernels.
      "_index_put_impl", "_unsafe_index", "embedding_dense_backward", "gather", "index", "index_add", "index_copy",
      "index_put", "index_select", "scatter", "scatter_add", "take",
      // Matmuls: bmm and integer matmuls need the same kernel, where cuBLASLt does not take them.
      "addmm", "mm",
      // Other algorithms: a scan by many blocks; a loss that reads one element of each row.
      "cumsum", "nll_loss_forward"};
  std::set<std::string> expressions, expansions, complex;
  for (const ir::OpDesc& desc : ir::op_table()) {
    const ir::Expansion expansion = ir::expansion_of(desc.opcode);
    if (expansion == ir::Expansion::kNone) continue;
    const NamedPlan* const plan = find_op_plan(desc.opcode);
    const bool has_tree = expansion == ir::Expansion::kExpression;
    if (plan != nullptr && !plan->is_lowered) (has_tree ? expressions : expansions).emplace(base_name(desc.name));
    const NamedPlan* const of_complex = find_op_plan(desc.opcode, true);
    if (of_complex != plan) complex.emplace(base_name(desc.name));
  }
  for (const auto& [what, names] :
       {std::pair{"expressions", &expressions}, {"expansions", &expansions}, {"complex numbers", &complex}}) {
    std::printf("%s: %zu:", what, names->size());
    for (const std::string& name : *names) std::printf(" %s", name.c_str());
    std::printf("\n");
  }
  EXPECT_EQ(expressions, std::set<std::string>{"fill"});
  EXPECT_EQ(expansions, allowed);
  EXPECT_EQ(complex.size(), 58u);  // The compiler has no complex numbers: these formulas are the only ones.
}

}  // namespace
}  // namespace torch_remote::worker::cuda

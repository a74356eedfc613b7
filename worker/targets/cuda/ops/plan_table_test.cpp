#include "worker/targets/cuda/ops/plan_table.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>

#include "ir/fusion/fusion.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::worker::cuda {
namespace {

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
  EXPECT_EQ(exp->name, "complex.unary(ComplexOp::kExp)");
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

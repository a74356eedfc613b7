#include "ir/ops/op_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ir/ops/composed_ops.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::ir {
namespace {

const ArgDesc& arg(Opcode opcode, std::string_view name) {
  for (const ArgDesc& arg : op_desc(opcode).args) {
    if (arg.name == name) return arg;
  }
  ADD_FAILURE() << op_desc(opcode).name << " has no argument " << name;
  return op_desc(opcode).args[0];
}

TEST(OpTable, OpcodesIndexTheTableAndNamesFindThem) {
  std::set<std::string_view> names;
  ASSERT_GT(op_table().size(), 1000u);
  for (const OpDesc& desc : op_table()) {
    EXPECT_EQ(&op_desc(desc.opcode), &desc);
    EXPECT_EQ(find_op(desc.name), desc.opcode);
    EXPECT_TRUE(names.insert(desc.name).second) << desc.name;
    EXPECT_FALSE(desc.doc.empty()) << desc.name;
  }
  EXPECT_EQ(op_desc(ops::aten_add_Tensor).name, "aten::add.Tensor");
  EXPECT_EQ(op_desc(ops::aten_relu_).name, "aten::relu_");
  EXPECT_EQ(find_op("aten::view"), kInvalidOpcode);  // metadata only
  EXPECT_EQ(find_op(""), kInvalidOpcode);
}

TEST(OpTable, EveryRowIsConsistent) {
  for (const OpDesc& desc : op_table()) {
    bool writes = false, random = false;
    for (const ArgDesc& a : desc.args) {
      const bool tensor = a.kind <= ArgKind::kOptionalTensorList;
      EXPECT_EQ(a.role == ArgRole::kOperand, tensor) << desc.name << " " << a.name;
      EXPECT_EQ(a.role == ArgRole::kRandom, a.kind == ArgKind::kGenerator) << desc.name << " " << a.name;
      EXPECT_NE(a.kind, ArgKind::kUnsupported) << desc.name << " " << a.name;
      EXPECT_TRUE(tensor || !a.writes) << desc.name << " " << a.name;
      writes |= a.writes;
      random |= a.role == ArgRole::kRandom;
    }
    for (const ResultDesc& result : desc.results) {
      if (result.alias < 0) continue;
      ASSERT_LT(static_cast<size_t>(result.alias), desc.args.size()) << desc.name;
      EXPECT_TRUE(desc.args[result.alias].writes) << desc.name;
    }
    EXPECT_EQ((desc.flags & kOpPure) != 0, !writes && !random) << desc.name;
    EXPECT_EQ((desc.flags & kOpRandom) != 0, random) << desc.name;
    EXPECT_EQ((desc.flags & kOpInPlace) != 0 && !desc.args[0].writes, false) << desc.name;
    const OpDesc& functional = op_desc(desc.functional);
    EXPECT_EQ(functional.functional, functional.opcode) << desc.name;
    if (desc.functional != desc.opcode) {
      EXPECT_EQ(functional.flags & (kOpInPlace | kOpOut), 0u) << desc.name;
      EXPECT_EQ(desc.family, functional.family) << desc.name;
      EXPECT_EQ(desc.expression, functional.expression) << desc.name;
    }
  }
}

TEST(OpTable, SiblingsAndAliases) {
  const OpDesc& in_place = op_desc(ops::aten_add__Tensor);
  EXPECT_EQ(in_place.functional, ops::aten_add_Tensor);
  EXPECT_EQ(in_place.flags, kOpInPlace);
  EXPECT_EQ(in_place.results[0].alias, 0);
  EXPECT_EQ(in_place.shape_rule, ShapeRule::kInPlace);
  const OpDesc& out = op_desc(ops::aten_add_out);
  EXPECT_EQ(out.functional, ops::aten_add_Tensor);
  EXPECT_EQ(out.flags, kOpOut);
  EXPECT_EQ(out.results[0].alias, 3);
  EXPECT_TRUE(out.args[3].writes);
  EXPECT_EQ(op_desc(ops::aten_add_Tensor).shape_rule, ShapeRule::kPointwise);
  EXPECT_EQ(op_desc(ops::aten__foreach_add__List).results.size(), 0u);
  EXPECT_TRUE(arg(ops::aten__foreach_add__List, "self").writes);
}

TEST(OpTable, WhatIsInTheKey) {
  EXPECT_EQ(arg(ops::aten_sum_dim_IntList, "dim").role, ArgRole::kStructural);
  EXPECT_EQ(arg(ops::aten_sum_dim_IntList, "keepdim").role, ArgRole::kStructural);
  EXPECT_EQ(arg(ops::aten_sum_dim_IntList, "dtype").role, ArgRole::kStructural);
  EXPECT_EQ(arg(ops::aten_convolution, "stride").role, ArgRole::kStructural);
  EXPECT_EQ(arg(ops::aten_nll_loss_forward, "reduction").role, ArgRole::kStructural);
  EXPECT_EQ(arg(ops::aten_native_batch_norm, "training").role, ArgRole::kStructural);
  // Values that change from step to step must not be in the key: each new value would need a new program.
  EXPECT_EQ(arg(ops::aten_add_Tensor, "alpha").role, ArgRole::kValue);
  EXPECT_EQ(arg(ops::aten__foreach_addcdiv__ScalarList, "scalars").role, ArgRole::kValue);
  EXPECT_EQ(arg(ops::aten__fused_adamw_, "lr").role, ArgRole::kValue);
  EXPECT_EQ(arg(ops::aten_native_batch_norm, "momentum").role, ArgRole::kValue);
  EXPECT_EQ(arg(ops::aten_slice_backward, "start").role, ArgRole::kValue);
  EXPECT_EQ(arg(ops::aten_topk, "k").role, ArgRole::kValue);
  EXPECT_EQ(arg(ops::aten_native_layer_norm, "normalized_shape").role, ArgRole::kValue);
  EXPECT_EQ(arg(ops::aten_copy_, "non_blocking").role, ArgRole::kClientOnly);
}

TEST(OpTable, WhatTheRecorderMustKnow) {
  const auto has = [](Opcode opcode, OpFacts fact) { return (op_desc(opcode).facts & fact) != 0; };
  EXPECT_TRUE(has(ops::aten_mul_Tensor, kFactAcceptsCpuScalars));
  EXPECT_FALSE(has(ops::aten_mm, kFactAcceptsCpuScalars));
  EXPECT_TRUE(has(ops::aten_index_put_, kFactAcceptsCpuIndices));
  EXPECT_FALSE(has(ops::aten_index_select, kFactAcceptsCpuIndices));
  EXPECT_TRUE(has(ops::aten_add_Scalar, kFactWrapsNumber));
  EXPECT_FALSE(has(ops::aten_lerp_Scalar, kFactWrapsNumber));
  EXPECT_TRUE(has(ops::aten_fill__Scalar, kFactSkipsOverlapCheck));
  EXPECT_FALSE(has(ops::aten_fill__Tensor, kFactSkipsOverlapCheck));
  EXPECT_TRUE(has(ops::aten_addbmm_, kFactResizesSelf));
  EXPECT_FALSE(has(ops::aten_addbmm, kFactResizesSelf));
  EXPECT_TRUE(has(ops::aten_nan_to_num_, kFactNoopForIntegers));
  EXPECT_TRUE(has(ops::aten_conj_physical_, kFactNoopForReals));
  EXPECT_TRUE(has(ops::aten_index_add_, kFactMetaWrongIfEmpty));
  EXPECT_TRUE(has(ops::aten_ldexp_, kFactCpuOnly));
  EXPECT_FALSE(has(ops::aten_hypot_, kFactCpuOnly));
  EXPECT_EQ(op_desc(ops::aten_replication_pad2d_backward).memory_format_from, 1);
  EXPECT_EQ(op_desc(ops::aten_replication_pad1d).memory_format_from, -1);
}

TEST(OpTable, WhatCpuCallsForEachTensor) {
  EXPECT_EQ(op_desc(ops::aten__foreach_add__List).per_tensor_op, ops::aten_add__Tensor);
  EXPECT_EQ(op_desc(ops::aten__foreach_maximum_Scalar).per_tensor_op, ops::aten_clamp_min);
  EXPECT_EQ(op_desc(ops::aten__foreach_clone).per_tensor_op, kInvalidOpcode);
  EXPECT_EQ(op_desc(ops::aten__fused_adam_).facts & kFactPerTensor, 0u);
}

TEST(OpTable, ShapeFunctionsAreOfFunctionalOverloads) {
  EXPECT_EQ(op_desc(ops::aten_add_Tensor).shape_function, ShapeFunction::kPromoted);
  EXPECT_EQ(op_desc(ops::aten_add__Tensor).shape_function, ShapeFunction::kNone);
  EXPECT_EQ(op_desc(ops::aten__native_batch_norm_legit_no_stats).shape_function, ShapeFunction::kBatchNormNoStats);
  EXPECT_EQ(op_desc(ops::aten__native_batch_norm_legit_functional).shape_function, ShapeFunction::kBatchNormFunctional);
  EXPECT_EQ(op_desc(ops::aten_baddbmm).shape_function, ShapeFunction::kNone);
  EXPECT_EQ(op_desc(ops::aten_baddbmm).shape_rule, ShapeRule::kAddmm);
}

TEST(OpTable, TreesAreTheExpressions) {
  // self + alpha * other
  const std::span<const ScalarNode> tree = op_desc(ops::aten_add__Tensor).tree;
  const std::vector<ScalarOp> expected = {ScalarOp::kArgument,  ScalarOp::kToCompute, ScalarOp::kArgument,
                                          ScalarOp::kToCompute, ScalarOp::kArgument,  ScalarOp::kToCompute,
                                          ScalarOp::kMul,       ScalarOp::kAdd,       ScalarOp::kToResult};
  ASSERT_EQ(tree.size(), expected.size());
  for (size_t i = 0; i < tree.size(); ++i) EXPECT_EQ(tree[i].op, expected[i]) << i;
  const double operands[] = {1.5, 10, 3};  // self, other, alpha
  EXPECT_EQ(evaluate<double>(tree, operands), 31.5);
  size_t trees = 0;
  for (const OpDesc& desc : op_table()) {
    EXPECT_EQ(desc.tree.empty(), desc.expression.empty()) << desc.name;
    trees += !desc.tree.empty();
    for (size_t i = 0; i < desc.tree.size(); ++i) {
      const ScalarNode& node = desc.tree[i];
      const bool argument = node.op == ScalarOp::kArgument;
      if (argument) {
        EXPECT_LT(node.a, desc.args.size()) << desc.name;
      } else if (node.op != ScalarOp::kNumber) {
        EXPECT_LT(std::max({node.a, node.b, node.c}), i) << desc.name;
      }
      EXPECT_EQ(node.op == ScalarOp::kToResult, i + 1 == desc.tree.size()) << desc.name;
    }
  }
  EXPECT_GT(trees, 500u);
}

TEST(OpTable, HiddenMutation) {
  for (const char* name : {"running_mean", "running_var"}) EXPECT_TRUE(arg(ops::aten_native_batch_norm, name).writes);
  EXPECT_FALSE(arg(ops::aten_native_batch_norm, "weight").writes);
  EXPECT_TRUE(op_desc(ops::aten_native_batch_norm).flags & kOpHiddenMutation);
  EXPECT_FALSE(op_desc(ops::aten_native_batch_norm).flags & kOpPure);
}

TEST(OpTable, RandomOpsHaveAGeneratorEvenIfTheSchemaHasNone) {
  EXPECT_EQ(op_desc(ops::aten_native_dropout).args.back().role, ArgRole::kRandom);
  EXPECT_EQ(op_desc(ops::aten_uniform_).args.back().role, ArgRole::kRandom);
  // Attention is recorded without dropout only.
  EXPECT_FALSE(op_desc(ops::remote_attention).flags & kOpRandom);
}

TEST(OpTable, DataDependentSizes) {
  EXPECT_TRUE(op_desc(ops::aten_nonzero).flags & kOpDynamicShape);
  EXPECT_TRUE(op_desc(ops::aten__unique2_out).flags & kOpDynamicShape);
  EXPECT_FALSE(op_desc(ops::aten_index_Tensor).flags & kOpDynamicShape);
  EXPECT_TRUE(op_desc(ops::aten_equal).flags & kOpHostResult);
}

TEST(OpTable, SignaturesDiffer) {
  std::set<uint64_t> hashes;
  for (const OpDesc& desc : op_table()) {
    EXPECT_NE(desc.signature_hash, 0u) << desc.name;
    EXPECT_TRUE(hashes.insert(desc.signature_hash).second) << desc.name;
  }
}

TEST(ComposedOps, AreFoundByName) {
  EXPECT_EQ(find_composed("aten::add.Tensor"), nullptr);
  EXPECT_EQ(find_composed(""), nullptr);
  for (const ComposedOp& op : composed_ops()) EXPECT_EQ(find_composed(op.name), &op);
  EXPECT_TRUE(find_composed("aten::view")->implemented_by_client);
  EXPECT_EQ(find_composed("aten::view")->kind, ComposedKind::kNothing);
  EXPECT_EQ(find_composed("aten::copy_")->kind, ComposedKind::kRecord);
  const ComposedOp* rand = find_composed("aten::rand");
  EXPECT_FALSE(rand->implemented_by_client);
  EXPECT_EQ(rand->op, ops::aten_uniform_);
  ASSERT_EQ(rand->arguments.size(), 2u);
  EXPECT_EQ(rand->arguments[1].kind, ArgKind::kFloat);
  EXPECT_EQ(rand->arguments[1].constant, 1.0);
  EXPECT_EQ(find_composed("aten::full")->arguments[0].name, "fill_value");
}

TEST(OpaqueOps, KeepTheirSchema) {
  const OpaqueArg args[] = {{"self", ArgKind::kTensor, true, false}, {"k", ArgKind::kInt, false, true}};
  const ResultDesc results[] = {{ResultKind::kTensor, 0}};
  const Opcode opcode = register_opaque("test::keep", args, results, kOpInPlace);
  EXPECT_GE(opcode, kFirstOpaque);
  EXPECT_EQ(register_opaque("test::keep", {}, {}, 0), opcode);
  EXPECT_EQ(find_op("test::keep"), opcode);
  const OpDesc& desc = op_desc(opcode);
  EXPECT_EQ(desc.name, "test::keep");
  EXPECT_EQ(desc.family, Family::kOpaque);
  EXPECT_EQ(desc.opcode, opcode);
  EXPECT_EQ(desc.functional, opcode);
  EXPECT_EQ(desc.flags, kOpInPlace);
  ASSERT_EQ(desc.args.size(), 2u);
  EXPECT_EQ(desc.args[0].role, ArgRole::kOperand);
  EXPECT_TRUE(desc.args[0].writes);
  EXPECT_EQ(desc.args[1].name, "k");
  EXPECT_EQ(desc.args[1].role, ArgRole::kValue);
  EXPECT_TRUE(desc.args[1].keyword_only);
  EXPECT_EQ(desc.results[0].alias, 0);
}

TEST(OpaqueOps, CollectivesAreExecutedInTheOrderOfTheCalls) {
  EXPECT_EQ(op_desc(register_opaque("remote_c10d::test", {}, {}, 0)).facts, kFactInCallOrder);
  EXPECT_EQ(op_desc(register_opaque("remote_c10d_test::test", {}, {}, 0)).facts, 0u);
}

TEST(OpaqueOps, ATableOpKeepsItsOpcode) { EXPECT_EQ(register_opaque("aten::mm", {}, {}, 0), ops::aten_mm); }

TEST(OpaqueOps, RolesByKind) {
  EXPECT_EQ(default_role(ArgKind::kOptionalTensorList), ArgRole::kOperand);
  EXPECT_EQ(default_role(ArgKind::kBool), ArgRole::kStructural);
  EXPECT_EQ(default_role(ArgKind::kDType), ArgRole::kStructural);
  EXPECT_EQ(default_role(ArgKind::kOptionalString), ArgRole::kStructural);
  EXPECT_EQ(default_role(ArgKind::kGenerator), ArgRole::kRandom);
  EXPECT_EQ(default_role(ArgKind::kDevice), ArgRole::kClientOnly);
  EXPECT_EQ(default_role(ArgKind::kIntList), ArgRole::kValue);
  EXPECT_EQ(default_role(ArgKind::kScalarList), ArgRole::kValue);
}

// Readers take no lock, so descriptions must not move while others are added. This test matters under the thread
// sanitizer.
TEST(OpaqueOps, DescriptionsStayWhileOtherThreadsRegister) {
  constexpr int kThreads = 4, kOps = 600;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  std::vector<std::vector<const OpDesc*>> seen(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &seen] {
      for (int i = 0; i < kOps; ++i) {
        const std::string name = "test::race" + std::to_string(i);
        const OpaqueArg arg{"x" + std::to_string(i), ArgKind::kTensor, false, false};
        seen[t].push_back(&op_desc(register_opaque(name, {&arg, 1}, {}, 0)));
        EXPECT_EQ(seen[t].back()->name, name);
        EXPECT_EQ(seen[t][i / 2]->args[0].name, "x" + std::to_string(i / 2));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 1; t < kThreads; ++t) EXPECT_EQ(seen[t], seen[0]);
}

}  // namespace
}  // namespace torch_remote::ir

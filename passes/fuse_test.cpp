#include <algorithm>

#include "gtest/gtest.h"
#include "passes/testing/text_pass.h"

namespace torch_remote::passes {
namespace {

constexpr uint32_t bit(ir::GroupKind kind) { return 1u << static_cast<uint32_t>(kind); }
constexpr uint32_t kEvery = (1u << ir::kGroupKinds) - 1;

PassContext context(std::span<const int64_t> sample, uint32_t kinds = kEvery, uint64_t dtypes = ~uint64_t{0}) {
  PassContext made;
  made.worker.group_kind_mask = kinds;
  made.worker.dtype_mask = dtypes;
  made.sample = sample;
  return made;
}

// The ops of the graph after the pass, in order; the ops of a group are in braces.
std::string fused(const std::string& text, const PassContext& with) {
  ir::Graph graph;
  EXPECT_TRUE(ir::parse_graph(testing::run_on_text(text, fuse, with), &graph).ok());
  std::string ops;
  auto group = graph.groups.begin();
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const bool grouped = group != graph.groups.end() && group->first <= n;
    if (!ops.empty()) ops += ' ';
    if (grouped && group->first == n) {
      constexpr const char* kKinds[] = {"pointwise", "rowwise", "reduce", "multi_tensor", "matmul", "attention"};
      ops += std::string(kKinds[static_cast<int>(group->kind)]) + "{";
    }
    const std::string_view name = ir::op_desc(graph.nodes[n].opcode).name;
    ops += name.substr(name.find("::") + 2);
    if (grouped && group->last == n) {
      ops += "}";
      ++group;
    }
  }
  return ops;
}

// A view of [s0, s1], and buffers for results.
constexpr const char* kHead = R"(graph(s0, s1, s2) {
  b0: input survives
  b1: fresh(s2)
  b2: fresh(s2)
  b3: fresh(s2)
  b4: fresh(s2) survives
  b5: fresh(s2) survives
  %0: f32[s0, s1]{s1, 1} @b0
)";
constexpr int64_t kSizes[] = {8, 100, 3200};

std::string fused_after_head(const std::string& nodes, uint32_t kinds = kEvery) {
  return fused(kHead + nodes + "}\n", context(kSizes, kinds));
}

TEST(Fuse, AttentionIsAGroupOfItsOwn) {
  const char* const nodes = R"(  b6: input survives
  b7: fresh(s2) survives
  %1: f32[1, 2, s0, s1]{s2, s2, s1, 1} @b6
  %2: f32[1, 2, s0, s1]{s2, s2, s1, 1} @b7, none = remote::attention(%1, %1, %1, none, false, none)
)";
  EXPECT_EQ(fused_after_head(nodes), "attention{attention}");
  EXPECT_EQ(fused_after_head(nodes, 1), "attention");
}

TEST(Fuse, AFewRowsTimesWeightsAreAGroupOfTheirOwn) {
  const auto product = [](const std::string& left, const std::string& right, const std::string& target) {
    PassContext with = context({});
    if (!target.empty()) with.worker.targets = {target};
    return fused("graph() {\n  b0: input survives\n  b1: input survives\n  b2: fresh(4096) survives\n  %0: " + left +
                     " @b0\n  %1: " + right + " @b1\n  %2: f32[4, 8]{8, 1} @b2 = aten::mm(%0, %1)\n}\n",
                 with);
  };
  const std::string rows = "f32[4, 16]{16, 1}", weights = "f32[16, 8]{1, 16}";
  EXPECT_EQ(product(rows, weights, "x86-64-v3"), "matmul{mm}");
  EXPECT_EQ(product(rows, weights, "x86-64-v4"), "matmul{mm}");
  EXPECT_EQ(product(rows, weights, "sm_90"), "mm");
  EXPECT_EQ(product(rows, weights, ""), "mm");
  EXPECT_EQ(product(rows, "f32[16, 8]{8, 1}", "x86-64-v4"), "mm");
  EXPECT_EQ(product("f32[4, 16]{1, 4}", weights, "x86-64-v4"), "mm");
}

TEST(Fuse, AProductThatALibraryMayDoIsAGroupOfItsOwn) {
  const auto product = [](const std::string& dtype, int64_t size, const std::string& op, const char* target) {
    const std::string n = std::to_string(size), batch = op.ends_with("bmm") ? "2, " : "";
    const std::string stride = batch.empty() ? "" : std::to_string(size * size) + ", ";
    const std::string view = ": " + dtype + "[" + batch + n + ", " + n + "]{" + stride;
    PassContext with = context({});
    with.worker.targets = {target};
    return fused("graph() {\n  b0: input survives\n  b1: fresh(65536) survives\n  %0" + view + n + ", 1} @b0\n  %1" +
                     view + "1, " + n + "} @b0\n  %2" + view + n + ", 1} @b1 = aten::" + op +
                     (op.ends_with("ddbmm") || op == "addmm" ? "(%0, %1, %0, beta=1, alpha=1)" : "(%1, %0)") + "\n}\n",
                 with);
  };
  for (const char* op : {"mm", "addmm", "bmm", "baddbmm"}) {
    EXPECT_EQ(product("f32", 64, op, "x86-64-v4"), "matmul{" + std::string(op) + "}");
    EXPECT_EQ(product("f32", 64, op, "x86-64-v3"), "matmul{" + std::string(op) + "}");
    EXPECT_EQ(product("f32", 64, op, "sm_90"), op);
    EXPECT_EQ(product("f64", 64, op, "x86-64-v4"), op);
    EXPECT_EQ(product("f32", 16, op, "x86-64-v4"), op);  // too little work
  }
}

TEST(Fuse, AChainIsOneGroup) {
  const char* const chain = R"(  %1: f32[s0, s1]{s1, 1} @b1 = aten::sigmoid(%0)
  %2: f32[s0, s1]{s1, 1} @b2 = aten::tanh(%0)
  %3: f32[s0, s1]{s1, 1} @b4 = aten::mul.Tensor(%1, %2)
)";
  EXPECT_EQ(fused_after_head(chain), "pointwise{sigmoid tanh mul.Tensor}");
  EXPECT_EQ(fused_after_head(chain, bit(ir::GroupKind::kRowwise)), "sigmoid tanh mul.Tensor");
  EXPECT_EQ(fused_after_head(chain, 0), "sigmoid tanh mul.Tensor");
}

TEST(Fuse, RowsAreReducedAndGoOn) {
  EXPECT_EQ(fused_after_head(R"(  %1: f32[s0, s1]{s1, 1} @b1 = aten::relu(%0)
  %2: f32[s0, s1]{s1, 1} @b2 = aten::_softmax(%1, 1, false)
  %3: f32[s0, s1]{s1, 1} @b4 = aten::neg(%2)
  %4: f32[s0] @b5 = aten::amax(%3, [1], false)
)"),
            "rowwise{relu _softmax neg amax}");
}

// A kernel has one dim of rows whose totals it adds up: several dims must be contiguous, so that they become one.
TEST(Fuse, SumsOverRowsOfSeveralDimsAreLeftAlone) {
  const auto sum_of_product = [](const std::string& strides) {
    return fused("graph() {\n  b0: input survives\n  b1: fresh(8000)\n  b2: fresh(40) survives\n  %0: f32[5, 40, 10]{" +
                     strides + R"(} @b0
  %1: f32[5, 40, 10]{400, 10, 1} @b1 = aten::mul.Tensor(%0, %0)
  %2: f32[10]{1} @b2 = aten::sum.dim_IntList(%1, [0, 1], false)
}
)",
                 context({}));
  };
  EXPECT_EQ(sum_of_product("400, 10, 1"), "reduce{mul.Tensor sum.dim_IntList}");
  EXPECT_EQ(sum_of_product("800, 10, 1"), "mul.Tensor sum.dim_IntList");
}

TEST(Fuse, WhatIsKnownWhenAllRowsAreDoneDoesNotGoBack) {
  EXPECT_EQ(fused_after_head(R"(  %1: f32[s0, s1]{s1, 1} @b1 = aten::relu(%0)
  %2: f32[1, s1]{s1, 1} @b2 = aten::sum.dim_IntList(%1, [0], true)
  %3: f32[1, s1]{s1, 1} @b3 = aten::neg(%2)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::mul.Tensor(%1, %3)
)"),
            "reduce{relu sum.dim_IntList neg} mul.Tensor");
}

// Images of 4 channels. The neighbors of a norm join its kernel, also if a row is a group of channels. A batch norm in
// eval mode is pointwise.
TEST(Fuse, NormsOfChannelsTakeTheirNeighbours) {
  const std::string head = R"(graph(s0, s1, s2, s3, s4) {
  s5 = 1
  b0: input survives
  b1: input survives
  b2: input survives
  b3: fresh(s2) written_once
  b4: fresh(s2) written_once
  b5: fresh(s2) written_once
  b6: fresh(s2) written_once
  b7: fresh(s2) survives written_once
  %0: f32[s0, 4, s1, s1]{s4, s3, s1, s5} @b0
  %1: f32[4]{s5} @b1
  %2: f32[4]{s5} @b2
  %3: f32[s0, 4, s1, s1]{s4, s3, s1, s5} @b3 = aten::neg(%0)
)";
  const auto after = [&](const std::string& nodes) {
    return fused(head + nodes + "}\n", context(std::array<int64_t, 5>{3, 6, 4096, 36, 144}));
  };
  const std::string images = "f32[s0, 4, s1, s1]{s4, s3, s1, s5}";
  EXPECT_EQ(
      after("  %4: " + images + " @b4, %5: f32[s0, 2]{2, s5} @b5, %6: f32[s0, 2]{2, s5} @b6 = " +
            "aten::native_group_norm(%3, %1, %2, s0, 4, s1, 2, 1e-5)\n  %7: " + images + " @b7 = aten::silu(%4)\n"),
      "rowwise{neg native_group_norm silu}");
  const auto batch_norm = [&](const std::string& training, const std::string& statistics) {
    return after("  %4: " + images + " @b4, %5: f32[" + statistics + "]{s5} @b5, %6: f32[" + statistics +
                 "]{s5} @b6 = aten::native_batch_norm(%3, %1, %2, %1!, %2!, " + training +
                 ", 0.1, 1e-5)\n  %7: " + images + " @b7 = aten::relu(%4)\n");
  };
  EXPECT_EQ(batch_norm("true", "4"), "rowwise{neg native_batch_norm relu}");
  EXPECT_EQ(batch_norm("false", "0"), "pointwise{neg native_batch_norm relu}");
}

TEST(Fuse, AViewInBetweenIsTheSamePlaces) {
  EXPECT_EQ(fused(R"(graph(s0, s1, s2, s3) {
  b0: input survives
  b1: fresh(s3) written_once
  b2: fresh(s3) survives written_once
  %0: f32[s0, s1]{s1, 1} @b0
  %1: f32[s0, s1]{s1, 1} @b1 = aten::cos(%0)
  %2: f32[s2]{1} @b1
  %3: f32[s2]{1} @b2 = aten::neg(%2)
}
)",
                  context(std::array<int64_t, 4>{8, 100, 800, 3200})),
            "pointwise{cos neg}");
}

TEST(Fuse, ANodeAloneStaysWhereItsKernelIsBetter) {
  EXPECT_EQ(fused_after_head("  %1: f32[s0, s1]{s1, 1} @b4 = aten::relu(%0)\n"), "relu");
  EXPECT_EQ(fused_after_head("  %1: f32[s0, s1]{s1, 1} @b4 = aten::gelu(%0, approximate=\"none\")\n"),
            "pointwise{gelu}");
  EXPECT_EQ(fused_after_head("  %1: f32[s0, s1]{s1, 1} @b4 = aten::_log_softmax(%0, 1, false)\n"),
            "rowwise{_log_softmax}");
  EXPECT_EQ(fused_after_head("  %1: f32[s0, s1]{s1, 1} @b4 = aten::_logcumsumexp(%0, 1)\n"), "rowwise{_logcumsumexp}");
  EXPECT_EQ(fused_after_head("  %1: i64[s0, s1]{s1, 1} @b1\n  %2: f32[s0, s1]{s1, 1} @b4 = aten::take(%0, %1)\n"),
            "pointwise{take}");
  // A transposed operand, if it is large.
  const std::string across = std::string(kHead) + R"(  %1: f32[s1, s0]{1, s1} @b0
  %2: f32[s1, s0]{s0, 1} @b4 = aten::relu(%1)
}
)";
  const int64_t large[] = {128, 64, 8192};
  EXPECT_EQ(fused(across, context(large)), "pointwise{relu}");
  EXPECT_EQ(fused(across, context(kSizes)), "relu");
}

// The threads of a GPU process a row's elements concurrently. So an op that goes along a row in order is in no group.
TEST(Fuse, WhatGoesAlongRowsIsLeftAloneForGpus) {
  const auto fused_for = [](const char* target) {
    PassContext with = context(kSizes);
    with.worker.targets = {target};
    return fused(std::string(kHead) + R"(  %1: f32[s0, s1]{s1, 1} @b1 = aten::sin(%0)
  %2: f32[s0, s1]{s1, 1} @b2 = aten::cos(%1)
  %3: f32[s0, s1]{s1, 1} @b3 = aten::_logcumsumexp(%2, 1)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::neg(%3)
  %5: f32[s0, s1]{s1, 1} @b5 = aten::exp(%4)
}
)",
                 with);
  };
  EXPECT_EQ(fused_for("sm_90"), "pointwise{sin cos} _logcumsumexp pointwise{neg exp}");
  EXPECT_EQ(fused_for("x86-64-v4"), "rowwise{sin cos _logcumsumexp neg exp}");
}

// The matmul needs the sine, and the addition needs the matmul: so the addition cannot join the sine.
TEST(Fuse, NothingComesBetween) {
  EXPECT_EQ(fused(R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives written_once
  b2: fresh(s1) written_once
  b3: fresh(s1) survives written_once
  b4: fresh(s1) survives written_once
  %0: f32[s0, s0]{s0, 1} @b0
  %1: f32[s0, s0]{s0, 1} @b1 = aten::sin(%0)
  %2: f32[s0, s0]{s0, 1} @b2 = aten::mm(%1, %0)
  %3: f32[s0, s0]{s0, 1} @b3 = aten::cos(%1)
  %4: f32[s0, s0]{s0, 1} @b4 = aten::add.Tensor(%1, %2, alpha=1)
}
)",
                  context(std::array<int64_t, 2>{10, 400})),
            "pointwise{sin cos} mm add.Tensor");
}

// The copy changes what the cosine has read, at other positions, so it comes later. The multiplication reads what the
// copy wrote.
TEST(Fuse, OrderOfMemoryIsKept) {
  EXPECT_EQ(fused(R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) written_once
  b2: fresh(s1) survives written_once
  %0: f32[s0, s0]{s0, 1} @b0
  %1: f32[s0, s0]{s0, 1} @b1 = aten::cos(%0)
  %2: f32[s0, s0]{1, s0} @b0
  aten::copy_(%2!, %1)
  %3: f32[s0, s0]{s0, 1} @b2 = aten::mul.Tensor(%1, %0)
}
)",
                  context(std::array<int64_t, 2>{10, 400})),
            "cos pointwise{copy_ mul.Tensor}");
}

TEST(Fuse, ListsAreDoneTensorByTensor) {
  EXPECT_EQ(fused(R"(graph(s0, s1, s2, s3) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) written_once
  b3: fresh(s1) written_once
  %0: f32[s0]{1} @b0
  %1: f32[s2]{1} @b1
  [%2: f32[s0]{1} @b2, %3: f32[s2]{1} @b3] = aten::_foreach_sqrt([%0, %1])
  aten::_foreach_add_.List([%0!, %1!], [%2, %3], alpha=float(s3))
}
)",
                  context(std::array<int64_t, 4>{8, 400, 100, 0})),
            "multi_tensor{_foreach_sqrt _foreach_add_.List}");
}

TEST(Fuse, OnlyDTypesThatTheWorkerComputesIn) {
  const std::string chain = std::string(kHead) + R"(  %1: f32[s0, s1]{s1, 1} @b1 = aten::cos(%0)
  %2: f32[s0, s1]{s1, 1} @b4 = aten::neg(%1)
}
)";
  const uint64_t f64 = uint64_t{1} << static_cast<uint32_t>(ir::DType::kFloat64);
  EXPECT_EQ(fused(chain, context(kSizes, kEvery, f64)), "cos neg");
  EXPECT_EQ(fused(chain, context({})), "cos neg");  // sizes are unknown
  PassContext off = context(kSizes);
  off.fusion = false;
  EXPECT_EQ(fused(chain, off), "cos neg");
  ASSERT_TRUE(parse_options("fuse.limit=0", &(off = context(kSizes))).ok());
  EXPECT_EQ(fused(chain, off), "cos neg");
}

TEST(Fuse, ABufferOfOneGroupOnlyIsMarked) {
  const std::string text = testing::run_on_text(std::string(kHead) + R"(  %1: f32[s0, s1]{s1, 1} @b1 = aten::cos(%0)
  %2: f32[s0, s1]{s1, 1} @b2 = aten::neg(%1)
  %3: f32[s0, s1]{s1, 1} @b4 = aten::exp(%2)
  %4: f32[s0, s0]{s0, 1} @b5 = aten::mm(%2, %2)
}
)",
                                                fuse, context(kSizes));
  EXPECT_NE(text.find("b1: fresh(s2) group_local\n"), std::string::npos) << text;
  EXPECT_NE(text.find("b2: fresh(s2)\n"), std::string::npos) << text;
}

TEST(Fuse, HintsAreWhatHoldsForEveryRun) {
  const auto properties = [](const std::string& view) {
    const std::string text =
        testing::run_on_text("graph(s0, s1, s2) {\n  b0: input survives\n  b1: fresh(s1) survives written_once\n  " +
                                 view + "\n  %1: f32[s0, 4] @b1 = aten::gelu(%0, approximate=\"none\")\n}\n",
                             fuse, context(std::array<int64_t, 3>{6, 96, 4}));
    const size_t at = text.find("group pointwise") + 15;
    return text.substr(at, text.find('{', at) - at);
  };
  EXPECT_EQ(properties("%0: f32[s0, 4]{4, 1} @b0"), " contiguous aligned ");
  EXPECT_EQ(properties("%0: f32[s0, 4]{4, 1} @b0 + 4"), " contiguous aligned ");
  EXPECT_EQ(properties("%0: f32[s0, 4]{4, 1} @b0 + 2"), " contiguous ");
  EXPECT_EQ(properties("%0: f32[s0, 4]{4, 1} @b0 + s2"), " contiguous ");
  EXPECT_EQ(properties("%0: f32[s0, 4]{s2, 1} @b0"), " aligned ");
}

// Sums the results of eight ops for which there is no kernel.
std::string sum_of_eight(int64_t rows) {
  std::string text = "graph(s0, s1, s2) {\n  b0: input survives\n";
  for (int b = 1; b <= 16; ++b) text += "  b" + std::to_string(b) + ": fresh(s2)" + (b == 16 ? " survives\n" : "\n");
  const std::string type = ": f32[s0, s1]{s1, 1} @b";
  text += "  %0" + type + "0\n";
  const auto add = [&](int made, const std::string& op) {
    const std::string name = std::to_string(made);
    text.append("  %").append(name).append(type).append(name).append(" = aten::").append(op).append("\n");
  };
  add(1, "flip(%0, [0])");
  for (int k = 0; k < 7; ++k) {
    add(2 + 2 * k, "flip(%0, [0])");
    add(3 + 2 * k, "add.Tensor(%" + std::to_string(1 + 2 * k) + ", %" + std::to_string(2 + 2 * k) + ", alpha=1)");
  }
  add(16, "neg(%15)");
  const int64_t sizes[] = {rows, 1000, rows * 4000};
  return fused(text + "}\n", context(sizes));
}

TEST(Fuse, AGroupDoesNotKeepMoreThanItsNodesAlone) {
  EXPECT_NE(sum_of_eight(10).find("pointwise{add.Tensor add.Tensor add.Tensor add.Tensor add.Tensor add.Tensor "
                                  "add.Tensor neg}"),
            std::string::npos);
  EXPECT_EQ(sum_of_eight(1000),
            "flip flip add.Tensor flip add.Tensor flip add.Tensor flip add.Tensor flip add.Tensor flip add.Tensor "
            "flip pointwise{add.Tensor neg}");
}

// The second half of b0's columns, negated, and then the first half.
constexpr const char* kRotated = R"(  %1: f32[s0, 50]{s1, 1} @b0 + 50
  %2: f32[s0, 50]{50, 1} @b1 = aten::neg(%1)
  %3: f32[s0, 50]{s1, 1} @b0
  %4: f32[s0, s1]{s1, 1} @b2 = aten::cat([%2, %3], 1)
)";

TEST(Fuse, WhatIsJoinedIsDoneInSections) {
  EXPECT_EQ(fused_after_head(kRotated), "pointwise{neg cat}");
  EXPECT_EQ(fused_after_head(std::string(kRotated) + R"(  %5: f32[s0, s1]{s1, 1} @b3 = aten::cos(%0)
  %6: f32[s0, s1]{s1, 1} @b4 = aten::mul.Tensor(%4, %5)
)"),
            "pointwise{neg cat cos mul.Tensor}");
  // A row is in both sections.
  EXPECT_EQ(fused_after_head(std::string(kRotated) + R"(  %5: f32[s0, s1]{s1, 1} @b4 = aten::_softmax(%4, 1, false)
)"),
            "pointwise{neg cat} rowwise{_softmax}");
  EXPECT_EQ(fused_after_head(R"(  %1: f32[s0, s1]{s1, 1} @b1 = aten::neg(%0)
  b6: fresh(s2)
  b7: fresh(s2) survives
  %2: f32[16, s1]{s1, 1} @b6 = aten::cat([%1, %0], 0)
  %3: f32[16, s1]{s1, 1} @b7 = aten::_softmax(%2, 1, false)
)"),
            "rowwise{neg cat _softmax}");
}

TEST(Fuse, WhatIsOnlyJoinedIsLeftToAten) {
  EXPECT_EQ(fused_after_head("  b6: fresh(s2) survives\n  %1: f32[16, s1]{s1, 1} @b6 = aten::cat([%0, %0], 0)\n"),
            "cat");
  // A cache that grows by one row.
  EXPECT_EQ(fused_after_head(R"(  %1: f32[1, s1]{s1, 1} @b0
  %2: f32[1, s1]{s1, 1} @b1 = aten::neg(%1)
  b6: fresh(s2) survives
  %3: f32[9, s1]{s1, 1} @b6 = aten::cat([%0, %2], 0)
)"),
            "neg cat");
}

TEST(Fuse, GradientsOfSlicesLieAmongZeros) {
  EXPECT_EQ(fused_after_head(R"(  %1: f32[s0, 50]{s1, 1} @b0
  %2: f32[s0, 50]{50, 1} @b1 = aten::neg(%1)
  %3: f32[s0, s1]{s1, 1} @b2 = aten::slice_backward(%2, [s0, s1], 1, 50, 100, 1)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::add.Tensor(%3, %0, alpha=1)
)"),
            "pointwise{neg slice_backward add.Tensor}");
}

// x[:, 200:] of 100 columns has none: its gradient is zero everywhere.
TEST(Fuse, AGradientOfASliceThatStartsBehindTheEndIsLeftToAten) {
  EXPECT_EQ(fused_after_head(R"(  %1: f32[s0, 0]{1, 1} @b0
  %2: f32[s0, s1]{s1, 1} @b2 = aten::slice_backward(%1, [s0, s1], 1, 200, 1000, 1)
  %3: f32[s0, s1]{s1, 1} @b4 = aten::add.Tensor(%2, %0, alpha=1)
)"),
            "slice_backward add.Tensor");
}

// %0 is f32[s0, s1], %1 is i64[s0]. b1 is a temporary; b4 and b5 survive.
std::string fused_at_indices(const std::string& nodes) {
  return fused_after_head(
      "  b6: input survives\n  b7: input survives\n  %1: i64[s0]{1} @b6\n  %2: f32[s0, s1]{s1, 1} @b7\n" + nodes);
}

TEST(Fuse, ReadsAtIndicesJoinWhatReadsThem) {
  EXPECT_EQ(fused_at_indices(R"(  %3: f32[s0, s1]{s1, 1} @b1 = aten::index_select(%0, 0, %1)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%3)
)"),
            "pointwise{index_select tanh}");
  EXPECT_EQ(fused_at_indices(R"(  %3: f32[s0, s1]{s1, 1} @b1 = aten::index.Tensor(%0, [%1])
  %4: f32[s0, s1]{s1, 1} @b4 = aten::_softmax(%3, 1, false)
)"),
            "rowwise{index.Tensor _softmax}");
  // All elements of the indexed tensor must be computed before.
  EXPECT_EQ(fused_at_indices(R"(  %3: f32[s0, s1]{s1, 1} @b1 = aten::tanh(%0)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::index.Tensor(%3, [%1])
)"),
            "tanh pointwise{index.Tensor}");
  // uint8 and bool indices are masks.
  EXPECT_EQ(fused_at_indices(R"(  %3: u8[s0]{1} @b6
  %4: f32[s0, s1]{s1, 1} @b1 = aten::index.Tensor(%0, [%3])
  %5: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%4)
)"),
            "index.Tensor tanh");
}

TEST(Fuse, WhereAnIndexIsOutOfBoundsNothingIsDone) {
  // All indices exist before the group, so they are checked first.
  EXPECT_EQ(fused_at_indices(R"(  %3: f32[s0, s1]{s1, 1} @b1 = aten::index_select(%0, 0, %1)
  aten::add_.Tensor(%2!, %3, alpha=1)
)"),
            "pointwise{index_select add_.Tensor}");
  // The group computes an index, so it may write only what it creates.
  const std::string chosen = R"(  b8: input survives
  b9: fresh(s2)
  %3: i64[s0, s1]{s1, 1} @b8
  %4: i64[s0, s1]{s1, 1} @b9 = aten::abs(%3)
  %5: f32[s0, s1]{s1, 1} @b1 = aten::gather(%0, 0, %4, sparse_grad=false)
)";
  EXPECT_EQ(fused_at_indices(chosen + "  %6: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%5)\n"), "pointwise{abs gather tanh}");
  EXPECT_EQ(fused_at_indices(chosen + "  aten::add_.Tensor(%2!, %5, alpha=1)\n"), "pointwise{abs gather} add_.Tensor");
}

// The updates that are undone after a failure depend on which side of the failing op they are.
TEST(Fuse, UpdatesStayOnTheirSideOfWhatMayFail) {
  EXPECT_EQ(fused_at_indices(R"(  %3: f32[s0, s1]{s1, 1} @b1 = aten::index_select(%0, 0, %1)
  aten::mul_.Scalar(%2!, 2)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%3)
)"),
            "pointwise{index_select tanh} mul_.Scalar");
  EXPECT_EQ(fused_at_indices(R"(  aten::mul_.Scalar(%2!, 2)
  %3: f32[s0, s1]{s1, 1} @b1 = aten::index_select(%0, 0, %1)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%3)
)"),
            "mul_.Scalar pointwise{index_select tanh}");
  // This also holds for a tensor that the program creates and that survives.
  EXPECT_EQ(fused_at_indices(R"(  b8: fresh(s2) survives
  %3: f32[s0, s1]{s1, 1} @b8 = aten::tanh(%2)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::index_select(%0, 0, %1)
  aten::mul_.Scalar(%3!, 2)
)"),
            "tanh index_select mul_.Scalar");
  // A divisor of 0 is an error for integers only.
  EXPECT_EQ(fused_at_indices(R"(  b8: fresh(s2) survives
  aten::mul_.Scalar(%2!, 2)
  %3: i64[s0]{1} @b8 = aten::remainder.Tensor(%1, %1)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%2)
)"),
            "pointwise{mul_.Scalar tanh} remainder.Tensor");
  EXPECT_EQ(fused_at_indices(R"(  b8: fresh(s2) survives
  %5: f32[s0]{s1} @b0
  aten::mul_.Scalar(%2!, 2)
  %3: f32[s0]{1} @b8 = aten::remainder.Tensor(%5, %5)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%2)
)"),
            "remainder.Tensor pointwise{mul_.Scalar tanh}");
  // Probabilities must be between 0 and 1, and the edges of bins finite.
  EXPECT_EQ(fused_at_indices(R"(  b8: fresh(s2) survives
  %5: f32[s0]{s1} @b0
  %3: f32[s0]{1} @b8
  aten::mul_.Scalar(%2!, 2)
  aten::bernoulli_.Tensor(%3!, %5, generator=philox(s0, s1))
  %4: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%2)
)"),
            "pointwise{mul_.Scalar tanh} bernoulli_.Tensor");
  EXPECT_EQ(fused_at_indices(R"(  b8: fresh(s2) survives
  %5: f32[s0]{s1} @b0
  aten::mul_.Scalar(%2!, 2)
  %3: f32[10]{1} @b8 = aten::histc(%5, 10, 0, 0)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%2)
)"),
            "pointwise{mul_.Scalar tanh} histc");
  // A uniform distribution between two numbers does not depend on data.
  EXPECT_EQ(fused_at_indices(R"(  b8: fresh(s2) survives
  %3: f32[s0]{1} @b8
  aten::mul_.Scalar(%2!, 2)
  aten::uniform_(%3!, 0.0, 1.0, generator=philox(s0, s1))
  %4: f32[s0, s1]{s1, 1} @b4 = aten::tanh(%2)
)"),
            "uniform_ pointwise{mul_.Scalar tanh}");
}

TEST(Fuse, WhatIsWrittenAtIndicesIsTouchedByNobodyElse) {
  EXPECT_EQ(fused_at_indices(R"(  %3: f32[s0, s1]{s1, 1} @b1 = aten::tanh(%0)
  aten::index_add_(%2!, 0, %1, %3, alpha=1)
)"),
            "pointwise{tanh index_add_}");
  EXPECT_EQ(fused_at_indices(R"(  aten::mul_.Scalar(%2!, 2)
  aten::index_add_(%2!, 0, %1, %0, alpha=1)
)"),
            "mul_.Scalar pointwise{index_add_}");
  EXPECT_EQ(fused_at_indices(R"(  %3: f32[s0, s1]{s1, 1} @b1 = aten::tanh(%2)
  aten::index_add_(%2!, 0, %1, %3, alpha=1)
)"),
            "tanh pointwise{index_add_}");
  // Each element has its own index.
  EXPECT_EQ(fused_at_indices(R"(  b8: input survives
  %3: i64[s0, s1]{s1, 1} @b8
  %4: f32[s0, s1]{s1, 1} @b1 = aten::tanh(%0)
  aten::scatter_add_(%2!, 0, %3, %4)
)"),
            "tanh scatter_add_");
  // A kernel partitions either rows or columns among threads.
  EXPECT_EQ(fused_at_indices(R"(  %3: f32[s0, s1]{s1, 1} @b1 = aten::_softmax(%0, 1, false)
  aten::index_add_(%2!, 0, %1, %3, alpha=1)
)"),
            "rowwise{_softmax} pointwise{index_add_}");
}

TEST(PassOptions, OtherPassesForgetGroups) {
  for (const Pass& pass : pipeline()) {
    if (pass.name == "fuse" || pass.name == "plan") continue;
    ir::Graph graph;
    ASSERT_TRUE(ir::parse_graph(std::string(kHead) + R"(  %1: f32[s0, s1]{s1, 1} @b1 = aten::cos(%0)
  %2: f32[s0, s1]{s1, 1} @b4 = aten::neg(%1)
}
)",
                                &graph)
                    .ok());
    ASSERT_TRUE(fuse(graph, context(kSizes)).ok());
    ASSERT_FALSE(graph.groups.empty());
    ASSERT_TRUE(pass.run(graph, {}).ok());
    EXPECT_TRUE(graph.groups.empty()) << pass.name;
  }
}

TEST(PassOptions, AreRead) {
  PassContext context;
  ASSERT_TRUE(parse_options("", &context).ok());
  ASSERT_TRUE(parse_options("cse=0,fuse.limit=12", &context).ok());
  EXPECT_FALSE(context.wants("cse"));
  EXPECT_TRUE(context.wants("dce"));
  EXPECT_EQ(context.option("fuse.limit"), 12);
  EXPECT_EQ(context.option("fuse.nodes"), 64);
}

TEST(PassOptions, WrongOnesNameWhatThereIs) {
  PassContext context;
  for (const char* wrong :
       {"cse", "cse=2", "nothing=0", "fuse.limits=3", "fuse.limit=", "fuse.limit=3x", "cse=0 dce=0"}) {
    const Status status = parse_options(wrong, &context);
    EXPECT_NE(status.message().find("is not an option of a pass; there are: lift=0 "), std::string::npos) << wrong;
    EXPECT_NE(status.message().find(" fuse=0 fuse.limit=number"), std::string::npos) << wrong;
  }
}

}  // namespace
}  // namespace torch_remote::passes

#include "gtest/gtest.h"
#include "passes/testing/text_pass.h"

namespace torch_remote::passes {
namespace {

constexpr const char* kGraph = R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) ssa
  b2: fresh(s1) survives ssa
  b3: fresh survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f64[s0]{1} @b2 = aten::cumsum(%1, 0, dtype=f64)
  %3: i64[?] @b3 = aten::nonzero(%2)
}
)";

PassContext context(uint32_t kinds, uint64_t dtypes = ~uint64_t{0}) {
  PassContext made;
  made.worker.group_kinds = kinds;
  made.worker.dtypes = dtypes;
  return made;
}
constexpr uint32_t bit(ir::GroupKind kind) { return 1u << static_cast<uint32_t>(kind); }
constexpr uint32_t kEvery = (1u << ir::kGroupKinds) - 1;

std::string grouped(const PassContext& with) {
  const std::string text = testing::run_on_text(kGraph, group, with);
  std::string groups;
  for (size_t at = text.find("\n  group "); at != std::string::npos; at = text.find("\n  group ", at + 1)) {
    groups += text.substr(at + 3, text.find('\n', at + 1) - at - 2);
    const size_t op = text.find("aten::", at);
    groups += text.substr(op, text.find('(', op) - op) + "\n";
  }
  return groups;
}

TEST(Group, WhatTheWorkerDoes) {
  EXPECT_EQ(grouped(context(0)), "");
  EXPECT_EQ(grouped(context(bit(ir::GroupKind::kPointwise))), "group pointwise contiguous aligned {\naten::relu\n");
  EXPECT_EQ(grouped(context(bit(ir::GroupKind::kMatmulEpilogue))), "");
}

TEST(Group, NothingThatTheClientWaitsFor) { EXPECT_EQ(grouped(context(kEvery)).find("nonzero"), std::string::npos); }

TEST(Group, OnlyInDTypesThatTheWorkerComputesIn) {
  const uint64_t f64 = uint64_t{1} << static_cast<uint32_t>(ir::DType::kFloat64);
  EXPECT_EQ(grouped(context(kEvery, f64)), "");
}

TEST(Group, SwitchedOff) {
  PassContext off = context(kEvery);
  off.fusion = false;
  EXPECT_EQ(grouped(off), "");
  PassContext limited = context(kEvery);
  ASSERT_TRUE(parse_options("group.limit=0", &limited).ok());
  EXPECT_EQ(grouped(limited), "");
  const auto after = [](const char* switches) {
    ir::Graph graph;
    EXPECT_TRUE(ir::parse_graph(R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1)
  b2: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b2 = aten::cos(%1)
})",
                                &graph)
                    .ok());
    PipelineOptions options{.verify = true, .context = context(kEvery)};
    EXPECT_TRUE(parse_options(switches, &options.context).ok());
    EXPECT_TRUE(run_pipeline(graph, options).ok());
    return std::pair(graph.groups.size(), ir::print(graph).find("reuses") != std::string::npos);
  };
  EXPECT_EQ(after(""), std::pair(size_t{2}, true));
  EXPECT_EQ(after("group=0,plan=0"), std::pair(size_t{0}, false));
}

TEST(Group, HintsAreWhatHoldsForEveryRun) {
  const auto hints = [](const std::string& view) {
    const std::string text =
        testing::run_on_text("graph(s0, s1, s2) {\n  b0: input survives\n  b1: fresh(s1) survives\n  " + view +
                                 "\n  %1: f32[s0, 4] @b1 = aten::neg(%0)\n}\n",
                             group, context(kEvery));
    const size_t at = text.find("group pointwise") + 15;
    return text.substr(at, text.find('{', at) - at);
  };
  EXPECT_EQ(hints("%0: f32[s0, 4]{4, 1} @b0"), " contiguous aligned ");
  EXPECT_EQ(hints("%0: f32[s0, 4]{4, 1} @b0 + 4"), " contiguous aligned ");
  EXPECT_EQ(hints("%0: f32[s0, 4]{4, 1} @b0 + 2"), " contiguous ");
  EXPECT_EQ(hints("%0: f32[s0, 4]{4, 1} @b0 + s2"), " contiguous ");
  EXPECT_EQ(hints("%0: f32[s0, 4]{s2, 1} @b0"), " aligned ");
}

TEST(Group, ABufferOfOneGroupOnlyIsMarked) {
  // Nobody reads it: dce, which comes before, would remove the op.
  const std::string text = testing::run_on_text(R"(graph(s0) {
  b0: input survives
  b1: fresh(s0)
  b2: fresh(s0)
  b3: fresh(s0) survives
  %0: f32[s0] @b0
  %1: f32[s0] @b1 = aten::relu(%0)
  %2: f32[s0] @b2 = aten::neg(%0)
  %3: f32[s0] @b3 = aten::neg(%2)
}
)",
                                                group, context(kEvery));
  EXPECT_NE(text.find("b1: fresh(s0) in_group\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("b2: fresh(s0) in_group"), std::string::npos) << text;
  EXPECT_EQ(text.find("b3: fresh(s0) survives in_group"), std::string::npos) << text;
}

TEST(PassOptions, OtherPassesForgetGroups) {
  for (const Pass& pass : pipeline()) {
    if (pass.name == "group" || pass.name == "plan") continue;
    ir::Graph graph;
    ASSERT_TRUE(ir::parse_graph(kGraph, &graph).ok());
    ASSERT_TRUE(group(graph, context(kEvery)).ok());
    ASSERT_FALSE(graph.groups.empty());
    ASSERT_TRUE(pass.run(graph, {}).ok());
    EXPECT_TRUE(graph.groups.empty()) << pass.name;
  }
}

TEST(PassOptions, AreRead) {
  PassContext context;
  ASSERT_TRUE(parse_options("", &context).ok());
  ASSERT_TRUE(parse_options("cse=0,group.limit=12", &context).ok());
  EXPECT_FALSE(context.wants("cse"));
  EXPECT_TRUE(context.wants("dce"));
  EXPECT_EQ(context.option("group.limit", 7), 12);
  EXPECT_EQ(context.option("group.other", 7), 7);
}

TEST(PassOptions, WrongOnesNameWhatThereIs) {
  PassContext context;
  for (const char* wrong :
       {"cse", "cse=2", "nothing=0", "group.limits=3", "group.limit=", "group.limit=3x", "cse=0 dce=0"}) {
    const Status status = parse_options(wrong, &context);
    EXPECT_NE(status.message().find("is no option of a pass; there are: lift=0 "), std::string::npos) << wrong;
    EXPECT_NE(status.message().find(" group=0 group.limit=number"), std::string::npos) << wrong;
  }
}

}  // namespace
}  // namespace torch_remote::passes

#include "worker/targets/cuda/ops/plan/plan_builder.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "worker/targets/cuda/kernels/arguments.h"

namespace torch_remote::worker::cuda {
namespace {

using Launch = LaunchBuilder<TriangleArguments>;

template <typename L>
concept UsableLater = requires(L& launch, Location location) { launch.at(&TriangleArguments::in, location); };
// A named launch could be given operands after steps that it must precede.
static_assert(!UsableLater<Launch> && !std::is_copy_constructible_v<Launch> && !std::is_move_constructible_v<Launch>);

// Reads a transposed matrix, and makes a triangle of it.
class PlanBuilderTest : public testing::Test {
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
    node_.emplace(graph_, 0, values_, &symbols_);
    builder_.emplace(*node_, &plan_);
  }

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
  std::optional<OpNode> node_;
  OpPlan plan_;
  std::optional<PlanBuilder> builder_;
};

TEST_F(PlanBuilderTest, OperandsThatALaunchAsksForArePackedBeforeIt) {
  const OpTensor self = *node_->tensor("self"), to = *node_->result(0);
  builder_->launch(KernelFile::kFill, "triangle", TriangleArguments{.count = 12}, 1)
      .at(&TriangleArguments::in, builder_->packed(self))
      .at(&TriangleArguments::out, builder_->output(to));
  ASSERT_TRUE(builder_->finish().ok());
  ASSERT_EQ(steps(), "move launch");
  const Location packed = std::get<StridedMove>(plan_.steps[0]).to;
  const auto& launch = std::get<OpLaunch>(plan_.steps[1]);
  ASSERT_EQ(launch.addresses.size(), 2u);
  EXPECT_EQ(launch.addresses[0].location.buffer, packed.buffer);
  EXPECT_EQ(launch.addresses[0].word, offsetof(TriangleArguments, in) / 8);
  EXPECT_EQ(launch.addresses[1].location.buffer, 1u);
}

// More of each than a vector holds without reallocation.
TEST_F(PlanBuilderTest, LaunchesKeepTheirOrderAndTheirWords) {
  const OpTensor self = *node_->tensor("self");
  for (int64_t i = 1; i <= 9; ++i) {
    builder_->launch(KernelFile::kFill, "triangle", TriangleArguments{.count = i}, i)
        .at(&TriangleArguments::in, builder_->packed(self))
        .at(&TriangleArguments::out, builder_->packed(self));
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

TEST_F(PlanBuilderTest, OfNoBlocksALaunchIsNoStep) {
  builder_->launch(KernelFile::kFill, "triangle", TriangleArguments{}, 0).at(&TriangleArguments::in, Location{0, 0});
  EXPECT_EQ(steps(), "");
}

}  // namespace
}  // namespace torch_remote::worker::cuda

// NVIDIA's cuDNN builds plans for our attention graphs, for GPUs that are absent. It compiles kernels and loads them. A
// stand-in driver reports that the loads succeeded (tests/emulated_gpu/planning_driver.cpp). See docs/build.md.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/emulated_gpu/real_cudnn.h"
#include "worker/targets/cuda/dnn/attention/attention_graph.h"
#include "worker/targets/cuda/dnn/cudnn_descriptors.h"
#include "worker/targets/cuda/dnn/cudnn_plans.h"

namespace torch_remote::worker::cuda {
namespace {

class AttentionPlansTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    // Every later dlopen of libcuda.so.1 finds this library.
    ASSERT_NE(dlopen("tests/emulated_gpu/libplanning_driver.so", RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    testing::open_real_cudnn(GetParam());
  }
  void TearDown() override { testing::close_real_cudnn(); }

  // How many of the first three heuristic results have plans, or why none has.
  static std::string plan(const AttentionProblem& problem, size_t* plans) {
    const dnn::Table table = testing::without_gpu();
    dnn::Temporary temporary(table);
    dnn::Descriptor graph = nullptr;
    const auto handle = reinterpret_cast<dnn::Handle>(&testing::real);
    Status status = describe_attention(table, handle, problem, &temporary.made, &graph);
    // The graph is valid, or it is unsupported.
    EXPECT_TRUE(status.ok() || status.code() == ErrorCode::kUnsupported) << status.message();
    std::vector<dnn::Plan> made;
    const auto any = [](const std::vector<dnn::NumericalNote>&) { return true; };
    if (status.ok()) {
      status = dnn::add_plans(table, handle, graph, dnn::HeuristicsMode::kA, uint64_t{1} << 32, 3, any, nullptr,
                              &temporary.made, &made);
    }
    *plans = made.size();
    std::string text = std::to_string(made.size()) + " plans";
    for (const dnn::Plan& each : made) text += " " + each.choice + ":" + std::to_string(each.workspace);
    return made.empty() ? "refused: " + status.message() : text;
  }
};

struct Shape {
  int64_t batch, heads, key_heads, queries, keys, size;
  bool causal, biased;
  bool refused = false;  // By all GPUs.
};
constexpr Shape kShapes[] = {
    {4, 16, 16, 2048, 2048, 128, true, false}, {4, 16, 16, 2048, 2048, 128, false, false},
    {2, 32, 8, 4096, 4096, 128, true, false},  {8, 12, 12, 1024, 1024, 64, true, false},
    {8, 12, 12, 512, 512, 64, false, true},    {2, 8, 8, 100, 77, 64, false, false},
    {2, 8, 8, 100, 77, 64, true, true},        {1, 2, 2, 16, 16, 8, false, false},
    {2, 8, 2, 333, 333, 96, true, false},      {1, 4, 4, 64, 64, 20, false, false, true},
};

TEST_P(AttentionPlansTest, PlansWhatModelsHave) {
  for (const Shape& shape : kShapes) {
    for (const dnn::Type type : {dnn::Type::kFloat16, dnn::Type::kBFloat16}) {
      for (const auto pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
        for (const bool deterministic : {false, true}) {
          if (deterministic && pass == AttentionPass::kForward) continue;  // The graph would be the same.
          AttentionProblem problem;
          problem.pass = pass;
          problem.type = type;
          problem.causal = shape.causal;
          problem.deterministic = deterministic;
          problem.batch = shape.batch;
          problem.heads = shape.heads;
          problem.key_heads = shape.key_heads;
          problem.queries = shape.queries;
          problem.keys = shape.keys;
          problem.size = problem.value_size = shape.size;
          // The layout that models use: [batch, row, head, element] in memory.
          const auto strides = [&](int64_t heads, int64_t rows) {
            return AttentionProblem::Strides{rows * heads * shape.size, shape.size, heads * shape.size, 1};
          };
          problem.query = problem.out = problem.grad = problem.grad_query = strides(shape.heads, shape.queries);
          problem.key = problem.value = problem.grad_key = problem.grad_value = strides(shape.key_heads, shape.keys);
          if (shape.biased) {
            problem.bias_batch = problem.bias_heads = 1;
            problem.bias_row = (shape.keys + 7) / 8 * 8;
          }
          size_t plans = 0;
          const std::string said = plan(problem, &plans);
          std::printf("sm_%d %s%s %ldx%ld heads %ld/%ld of %ld%s%s type %d: %s\n", GetParam(),
                      pass == AttentionPass::kForward ? "forward" : "backward", deterministic ? " deterministic" : "",
                      shape.queries, shape.keys, shape.heads, shape.key_heads, shape.size,
                      shape.causal ? " causal" : "", shape.biased ? " biased" : "", static_cast<int>(type),
                      said.c_str());
          EXPECT_EQ(plans == 0, shape.refused) << said;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, AttentionPlansTest, ::testing::Values(80, 90, 100));

}  // namespace
}  // namespace torch_remote::worker::cuda

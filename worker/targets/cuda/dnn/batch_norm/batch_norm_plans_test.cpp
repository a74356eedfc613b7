// NVIDIA's cuDNN builds plans for our batch norm graphs, for GPUs that are absent. It compiles kernels and loads them.
// A stand-in driver reports that the loads succeeded (tests/emulated_gpu/planning_driver.cpp). See docs/build.md.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/emulated_gpu/real_cudnn.h"
#include "worker/targets/cuda/dnn/batch_norm/batch_norm_graph.h"
#include "worker/targets/cuda/dnn/cudnn_descriptors.h"
#include "worker/targets/cuda/dnn/cudnn_plans.h"

namespace torch_remote::worker::cuda {
namespace {

class BatchNormPlansTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    // Every later dlopen of libcuda.so.1 finds this library.
    ASSERT_NE(dlopen("tests/emulated_gpu/libplanning_driver.so", RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    testing::open_real_cudnn(GetParam());
  }
  void TearDown() override { testing::close_real_cudnn(); }

  // How many of the first heuristic results have plans, or why none has.
  static std::string plan(const BatchNormProblem& problem, size_t* plans) {
    const dnn::Table table = testing::without_gpu();
    dnn::Temporary temporary(table);
    dnn::Descriptor graph = nullptr;
    const auto handle = reinterpret_cast<dnn::Handle>(&testing::real);
    Status status = describe_batch_norm(table, handle, problem, &temporary.made, &graph);
    // The graph is valid, or it is unsupported.
    EXPECT_TRUE(status.ok() || status.code() == ErrorCode::kUnsupported) << status.message();
    std::vector<dnn::Plan> made;
    const auto any = [](const std::vector<dnn::NumericalNote>&) { return true; };
    if (status.ok()) {
      status = dnn::add_plans(table, handle, graph, dnn::HeuristicsMode::kA, uint64_t{1} << 30, 1, any, nullptr,
                              &temporary.made, &made);
    }
    *plans = made.size();
    std::string text = std::to_string(made.size()) + " plans";
    for (const dnn::Plan& each : made) text += " " + each.choice + ":" + std::to_string(each.workspace);
    return made.empty() ? "refused: " + status.message() : text;
  }
};

TEST_P(BatchNormPlansTest, PlansWhatModelsHave) {
  const std::vector<int64_t> shapes[] = {
      {32, 64, 112, 112}, {32, 2048, 7, 7}, {4, 12, 7, 5}, {2, 16, 6, 7, 5}, {8, 3, 10, 10}};
  for (const std::vector<int64_t>& sizes : shapes) {
    for (const dnn::Type type : {dnn::Type::kFloat32, dnn::Type::kFloat16, dnn::Type::kBFloat16}) {
      for (const auto& [backward, runs] : {std::pair{false, true}, {false, false}, {true, false}}) {
        BatchNormProblem problem;
        problem.type = type;
        problem.backward = backward;
        problem.has_running_stats = runs;
        problem.sizes = sizes;
        size_t plans = 0;
        const std::string said = plan(problem, &plans);
        // The emulated cuDNN supports exactly what the real one supports.
        EXPECT_EQ(plans != 0, sizes[1] * dnn::item_size(type) % 16 == 0) << problem.key_of() << " " << said;
        std::printf("sm_%d %s: %s\n", GetParam(), problem.key_of().c_str(), said.c_str());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, BatchNormPlansTest, ::testing::Values(80, 90, 100));

}  // namespace
}  // namespace torch_remote::worker::cuda

#include "worker/targets/cpu/compiled/kernel_runner.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

// Groups that kernels could execute, but that other runners execute faster.
namespace torch_remote::worker::kernels {
namespace {

// Whether a kernel executes a group norm and the op after it, for two images of 32 channels and 16 x 16 pixels.
bool takes_group_norm(const std::string& dtype, const std::string& strides) {
  const std::string image = dtype + "[2, 32, 16, 16]{" + strides + "}", channels = dtype + "[32]{1}",
                    statistics = dtype + "[2, 8]{8, 1}";
  ir::Graph graph;
  const Status parsed = ir::parse_graph(
      "graph() {\n  b0: input\n  b1: input\n  b2: input\n  b3: fresh(65536) written_once group_local\n  b4: fresh(64) "
      "survives "
      "written_once\n"
      "  b5: fresh(64) survives written_once\n  b6: fresh(65536) survives written_once\n  group rowwise {\n    %0: " +
          image + " @b0\n    %1: " + channels + " @b1\n    %2: " + channels + " @b2\n    %3: " + image +
          " @b3, %4: " + statistics + " @b4, %5: " + statistics +
          " @b5 = aten::native_group_norm(%0, %1, %2, 2, 32, 256, 8, 1e-05)\n    %6: " + image +
          " @b6 = aten::silu(%3)\n  }\n}",
      &graph);
  EXPECT_TRUE(parsed.ok()) << parsed.message();
  std::vector<int64_t> values;
  EXPECT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
  CacheOptions cache;
  cache.target = "none";
  cache.compile = [](std::string_view, const codegen::cpu::Variant&, std::vector<uint8_t>* bytes, uint32_t* first,
                     uint32_t* last) {
    *bytes = {0xC3};
    *first = *last = 0;
    return Status();
  };
  KernelRunnerOptions options;
  options.cache = std::make_shared<KernelCache>(std::move(cache));
  options.waits = true;
  const std::unique_ptr<Runner> runner = make_kernel_runner(std::move(options));
  std::unique_ptr<RunnerProgram> program;
  EXPECT_TRUE(runner->load({{}, graph, {1, 1}, false}, &program).ok());
  const bool takes = program->takes(0, 2, values);
  EXPECT_EQ(runner->groups_without_kernel(), takes ? 0U : 1U);
  return takes;
}

constexpr const char* kPlain = "8192, 256, 16, 1";
constexpr const char* kLast = "8192, 1, 512, 32";

TEST(KernelRunner, GroupNormsOfImagesThatLieChannelsLastAreLeftToATen) {
  EXPECT_TRUE(takes_group_norm("f32", kPlain));
  EXPECT_FALSE(takes_group_norm("f32", kLast));
}

TEST(KernelRunner, OnlyThoseThatItHasLoopsFor) { EXPECT_TRUE(takes_group_norm("bf16", kLast)); }

}  // namespace
}  // namespace torch_remote::worker::kernels

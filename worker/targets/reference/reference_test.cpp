#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "worker/device/host_device.h"
#include "worker/device/testing/conformance.h"
#include "worker/runner/testing/conformance.h"
#include "worker/targets/reference/loop_runner.h"
#include "worker/targets/reference/matmul_runner.h"

namespace torch_remote::worker::testing {
namespace {

std::unique_ptr<Device> make_device(uint64_t limit) {
  return std::make_unique<HostDevice>(HostDevice::Options{.limit = limit});
}

void make_runner(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  *device = make_device(limit);
  *runner = reference::make_loop_runner(**device);
}

constexpr const char* kFailingNode = R"(%5: f32[s0, 1]{1, 1} @b0
  %3: f32[s0, 1]{1, 1} @b3 = aten::embedding(%5, %1, padding_idx=-1, scale_grad_by_freq=false, sparse=false))";

// A kernel of the interpreter has at most six row dims. Here, the indices of an embedding's gradient have seven dims
// that cannot be merged, so the kernel runs twice. The second run must add to the sums of the first one.
TEST(Loops, SumsOverManyDimsAreClearedOnce) {
  ir::Graph graph;
  const Status parsed = ir::parse_graph(R"(graph() {
  b0: input survives
  b1: input survives
  b2: fresh(8) survives
  %0: f32[2, 2, 2, 2, 2, 2, 2, 2]{2, 4, 8, 16, 32, 64, 128, 1} @b0
  %1: i64[2, 2, 2, 2, 2, 2, 2] @b1
  %2: f32[1, 2] @b2 = aten::embedding_dense_backward(%0, %1, 1, -1, false)
}
)",
                                        &graph);
  ASSERT_TRUE(parsed.ok()) << parsed.message();
  std::vector<int64_t> values;
  ASSERT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
  const std::unique_ptr<Device> device = make_device(1 << 20);
  const std::unique_ptr<Runner> runner = reference::make_loop_runner(*device);
  ASSERT_TRUE(runner->accepts(graph, 0));
  std::unique_ptr<RunnerProgram> program;
  ASSERT_TRUE(runner->load({{}, graph, {1}, false}, &program).ok());
  ASSERT_TRUE(program->takes_node(0, values, /*wait=*/true)) << program->why_not(0);
  std::vector<float> gradient(256, 1), sums(2, 7);
  std::vector<int64_t> indices(128);
  std::array<tr_buffer, 3> buffers{};
  buffers[0].data = gradient.data();
  buffers[1].data = indices.data();
  buffers[2].data = sums.data();
  tr_run run{};
  run.struct_size = sizeof(run);
  run.symbols = values.data();
  run.symbols_changed = true;
  run.last = 1;
  run.buffers = buffers.data();
  run.buffer_count = static_cast<uint32_t>(buffers.size());
  tr_error error{};
  error.struct_size = sizeof(error);
  ASSERT_TRUE(program->run(run, &error)) << error.message;
  EXPECT_EQ(sums, (std::vector<float>{128, 128}));
}

// Whether the runner of matmuls executes this node.
bool takes_matmul(const std::string& views, const std::string& node) {
  ir::Graph graph;
  const Status parsed = ir::parse_graph(
      "graph() {\n  b0: input\n  b1: input\n  b2: input\n  b3: fresh(96) survives\n" + views + "  " + node + "\n}\n",
      &graph);
  EXPECT_TRUE(parsed.ok()) << parsed.message();
  std::vector<int64_t> values;
  EXPECT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
  const std::unique_ptr<Device> device = make_device(1 << 20);
  const std::unique_ptr<Runner> runner = reference::make_matmul_runner(*device);
  std::unique_ptr<RunnerProgram> program;
  EXPECT_TRUE(runner->accepts(graph, 0));
  EXPECT_TRUE(runner->load({{}, graph, {1}, false}, &program).ok());
  return program->takes_node(0, values, /*wait=*/true);
}

// Programs come from clients, so their views may have any ranks and sizes. The runner must not read or write past them.
TEST(Matmul, OtherRanksAndSizesAreDeclined) {
  const auto mm = [](const std::string& left) {
    return takes_matmul("  %0: f32" + left + " @b0\n  %1: f32[3, 4] @b1\n", "%2: f32[2, 4] @b3 = aten::mm(%0, %1)");
  };
  EXPECT_TRUE(mm("[2, 3]"));
  EXPECT_FALSE(mm("[1, 1, 2, 3]"));
  const auto mv = [](const std::string& result) {
    return takes_matmul("  %0: f32[2, 3] @b0\n  %1: f32[3] @b1\n", "%2: f32" + result + " @b3 = aten::mv(%0, %1)");
  };
  EXPECT_TRUE(mv("[2]"));
  EXPECT_FALSE(mv("[2, 1, 1]"));
  const auto addmm = [](const std::string& added) {
    return takes_matmul("  %0: f32[2, 3] @b0\n  %1: f32[3, 4] @b1\n  %2: f32" + added + " @b2\n",
                        "%3: f32[2, 4] @b3 = aten::addmm(%2, %0, %1, beta=1, alpha=1)");
  };
  for (const char* added : {"[]", "[4]", "[2, 1]", "[2, 4]"}) EXPECT_TRUE(addmm(added)) << added;
  for (const char* added : {"[3]", "[3, 4]", "[1, 1, 2, 4]"}) EXPECT_FALSE(addmm(added)) << added;
}

INSTANTIATE_TEST_SUITE_P(Reference, DeviceConformance, ::testing::Values(DeviceUnderTest{make_device}));
INSTANTIATE_TEST_SUITE_P(Reference, RunnerConformance,
                         ::testing::Values(RunnerUnderTest{make_runner, kFailingNode, "IndexError",
                                                           /*has_host_results=*/false}));

}  // namespace
}  // namespace torch_remote::worker::testing

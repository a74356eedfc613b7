#include <thread>

#include "tests/emulated_gpu/fixture.h"

// Tests of captures and graphs.
namespace torch_remote::worker::cuda::emulated {
namespace {

class EmulatedGraphsTest : public EmulatedDriverTest {
 protected:
  void SetUp() override {
    EmulatedDriverTest::SetUp();
    step = load();
    ASSERT_OK(d.event_create(&event, kEventDisableTiming));
    ASSERT_OK(d.event_create(&other_event, kEventDisableTiming));
  }

  GraphExec instantiate(Graph graph) {
    GraphExec exec = nullptr;
    EXPECT_OK(d.graph_instantiate(&exec, graph, 0));
    return exec;
  }
  std::vector<GraphNode> nodes_of(Graph graph) {
    size_t count = 0;
    EXPECT_OK(d.graph_get_nodes(graph, nullptr, &count));
    std::vector<GraphNode> nodes(count);
    EXPECT_OK(d.graph_get_nodes(graph, nodes.data(), &count));
    return nodes;
  }

  Function step = nullptr;
  Event event = nullptr, other_event = nullptr;
};

TEST_F(EmulatedGraphsTest, WhatIsCapturedIsDoneWhenItIsLaunched) {
  const DevicePointer a = upload({1, 2}, first);
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kGlobal));
  CaptureStatus status = CaptureStatus::kNone;
  EXPECT_OK(d.stream_is_capturing(first, &status));
  EXPECT_EQ(status, CaptureStatus::kActive);
  EXPECT_OK(launch(step, a, 2, 2, first));
  EXPECT_OK(launch(step, a, 3, 2, first));
  Graph graph = nullptr;
  ASSERT_OK(d.stream_end_capture(first, &graph));
  EXPECT_EQ(download(a, 2, first), (Ints{1, 2}));
  const GraphExec exec = instantiate(graph);
  EXPECT_OK(d.graph_destroy(graph));
  EXPECT_EQ(d.graph_destroy(graph), Result::kInvalidValue);
  EXPECT_OK(d.graph_launch(exec, first));
  EXPECT_EQ(download(a, 2, first), (Ints{10, 16}));
  EXPECT_OK(d.graph_launch(exec, second));  // runs after the previous launch of this graph
  EXPECT_EQ(download(a, 2, second), (Ints{64, 100}));
  EXPECT_OK(d.graph_exec_destroy(exec));
  EXPECT_EQ(d.graph_launch(exec, first), Result::kInvalidValue);
}

// In the real driver, the work of the other thread becomes part of the graph.
TEST_F(EmulatedGraphsTest, WorkOfAnotherThreadIsAFinding) {
  const DevicePointer a = upload({1, 2}, first);
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kThreadLocal));
  EXPECT_OK(launch(step, a, 2, 2, first));
  EXPECT_EQ(emulated->findings(), std::vector<std::string>());
  std::thread([&] {
    ASSERT_OK(d.ctx_set_current(context));
    EXPECT_OK(d.memset_d8_async(a, 0, 4, first));
    EXPECT_OK(d.memset_d8_async(a, 0, 4, second));
  }).join();
  EXPECT_EQ(emulated->findings().size(), 1u);
  Graph graph = nullptr;
  ASSERT_OK(d.stream_end_capture(first, &graph));
  EXPECT_OK(d.graph_destroy(graph));
}

// Streams that wait for an event of the capture join it.
TEST_F(EmulatedGraphsTest, CapturesBranches) {
  const DevicePointer a = upload({1}, first), b = upload({2}, first);
  EXPECT_OK(d.stream_synchronize(first));
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kThreadLocal));
  EXPECT_OK(launch(step, a, 2, 1, first));
  EXPECT_OK(d.event_record(event, first));
  EXPECT_OK(d.stream_wait_event(second, event, 0));
  EXPECT_OK(launch(step, b, 5, 1, second));
  EXPECT_OK(d.memcpy_dtod_async(b, a, 4, second));
  EXPECT_OK(d.event_record(other_event, second));
  EXPECT_OK(d.memset_d8_async(a, 0, 0, first));
  EXPECT_OK(d.stream_wait_event(first, other_event, 0));
  EXPECT_OK(launch(step, b, 10, 1, first));
  Graph graph = nullptr;
  ASSERT_OK(d.stream_end_capture(first, &graph));
  EXPECT_EQ(d.event_query(event), Result::kCapturedEvent);
  const std::vector<GraphNode> nodes = nodes_of(graph);
  ASSERT_EQ(nodes.size(), 4u);
  std::vector<NodeType> types;
  for (const GraphNode node : nodes) {
    types.emplace_back();
    EXPECT_OK(d.graph_node_get_type(node, &types.back()));
  }
  EXPECT_EQ(types, (std::vector<NodeType>{NodeType::kKernel, NodeType::kKernel, NodeType::kMemcpy, NodeType::kKernel}));
  const GraphExec exec = instantiate(graph);
  EXPECT_OK(d.graph_launch(exec, first));
  EXPECT_EQ(download(b, 1, first), Ints{31});  // a is 3
  EXPECT_OK(d.stream_query(second));           // the stream is no longer captured
  EXPECT_OK(d.graph_destroy(graph));
  EXPECT_OK(d.graph_exec_destroy(exec));
}

// Nodes without edges between them execute in any order.
TEST_F(EmulatedGraphsTest, AnEdgeThatIsLeftOutIsSeen) {
  const DevicePointer a = upload({1}, first);
  EXPECT_OK(d.stream_synchronize(first));
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kGlobal));
  EXPECT_OK(d.event_record(event, first));
  EXPECT_OK(d.stream_wait_event(second, event, 0));
  EXPECT_OK(d.memset_d32_async(a, 7, 1, first));
  EXPECT_OK(launch(step, a, 2, 1, second));
  EXPECT_OK(d.event_record(other_event, second));
  EXPECT_OK(d.stream_wait_event(first, other_event, 0));
  Graph graph = nullptr;
  ASSERT_OK(d.stream_end_capture(first, &graph));
  const GraphExec exec = instantiate(graph);
  bool set_first = false, set_last = false;
  for (int i = 0; i < 30; ++i) {
    EXPECT_OK(d.graph_launch(exec, first));
    const Ints now = download(a, 1, first);
    set_first |= now[0] == 15;
    set_last |= now[0] == 7;
  }
  EXPECT_TRUE(set_first);
  EXPECT_TRUE(set_last);
  EXPECT_OK(d.graph_destroy(graph));
  EXPECT_OK(d.graph_exec_destroy(exec));
}

TEST_F(EmulatedGraphsTest, ParametersOfAnInstanceCanBeSet) {
  const DevicePointer a = upload({1}, first), b = upload({100}, first);
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kGlobal));
  EXPECT_OK(launch(step, a, 2, 1, first));
  EXPECT_OK(d.memset_d8_async(a, 0, 1, first));
  Graph graph = nullptr;
  ASSERT_OK(d.stream_end_capture(first, &graph));
  const GraphExec exec = instantiate(graph);
  const std::vector<GraphNode> nodes = nodes_of(graph);
  KernelNodeParameters parameters;
  ASSERT_OK(d.graph_kernel_node_get_params(nodes[0], &parameters));
  EXPECT_EQ(parameters.function, step);
  EXPECT_EQ(parameters.block_x, 64u);
  EXPECT_EQ(*static_cast<DevicePointer*>(parameters.parameters[0]), a);
  EXPECT_EQ(d.graph_kernel_node_get_params(nodes[1], &parameters), Result::kInvalidValue);
  DevicePointer x = b;
  int32_t factor = 3;
  int64_t n = 1;
  void* arguments[] = {&x, &factor, &n};
  parameters.parameters = arguments;
  EXPECT_OK(d.graph_exec_kernel_node_set_params(exec, nodes[0], &parameters));
  EXPECT_EQ(d.graph_exec_kernel_node_set_params(exec, nodes[1], &parameters), Result::kInvalidValue);
  parameters.block_x = 0;
  EXPECT_EQ(d.graph_exec_kernel_node_set_params(exec, nodes[0], &parameters), Result::kInvalidValue);
  EXPECT_OK(d.graph_launch(exec, first));
  factor = 1000;  // the parameter was copied when it was set
  EXPECT_EQ(download(b, 1, first), Ints{301});
  EXPECT_OK(d.graph_destroy(graph));
  EXPECT_OK(d.graph_exec_destroy(exec));
}

TEST_F(EmulatedGraphsTest, AnInstanceTakesAnotherGraphOfTheSameKind) {
  const DevicePointer a = upload({1}, first);
  std::vector<Graph> graphs;
  for (const int32_t factor : {2, 3, 4}) {
    ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kGlobal));
    EXPECT_OK(launch(step, a, factor, 1, first));
    if (factor == 4) {
      EXPECT_OK(launch(step, a, factor, 1, first));
    }
    ASSERT_OK(d.stream_end_capture(first, &graphs.emplace_back()));
  }
  const GraphExec exec = instantiate(graphs[0]);
  GraphUpdateInfo info;
  EXPECT_OK(d.graph_exec_update(exec, graphs[1], &info));
  EXPECT_OK(d.graph_launch(exec, first));
  EXPECT_EQ(download(a, 1, first), Ints{4});
  EXPECT_EQ(d.graph_exec_update(exec, graphs[2], &info), Result::kGraphExecUpdateFailure);
  EXPECT_NE(info.result, 0);
  for (const Graph graph : graphs) EXPECT_OK(d.graph_destroy(graph));
  EXPECT_OK(d.graph_exec_destroy(exec));
}

TEST_F(EmulatedGraphsTest, WhatMayNotBeCapturedEndsTheCapture) {
  const DevicePointer a = upload({1}, first);
  EXPECT_OK(d.stream_synchronize(first));
  const std::vector<std::function<Result()>> calls = {[&] { return d.stream_synchronize(first); },
                                                      [&] { return d.stream_query(first); },
                                                      [&] { return d.ctx_synchronize(); },
                                                      [&] { return d.mem_free_async(a, first); },
                                                      [&] {
                                                        DevicePointer made = 0;
                                                        return d.mem_alloc(&made, 4);
                                                      },
                                                      [&] {
                                                        DevicePointer made = 0;
                                                        return d.mem_alloc_from_pool_async(&made, 4, pool, first);
                                                      },
                                                      [&] {
                                                        int pageable = 0;
                                                        return d.memcpy_dtoh_async(&pageable, a, 4, first);
                                                      }};
  for (const auto& call : calls) {
    ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kGlobal));
    EXPECT_EQ(d.stream_begin_capture(first, CaptureMode::kGlobal), Result::kCaptureUnsupported);
    EXPECT_EQ(call(), Result::kCaptureUnsupported);
    EXPECT_EQ(launch(step, a, 1, 1, first), Result::kCaptureInvalidated);
    Graph graph = nullptr;
    EXPECT_EQ(d.stream_end_capture(first, &graph), Result::kCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_OK(d.stream_synchronize(first));
  }
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kRelaxed));
  DevicePointer made = 0;
  EXPECT_OK(d.mem_alloc(&made, 4));
  Graph graph = nullptr;
  EXPECT_OK(d.stream_end_capture(first, &graph));
  EXPECT_OK(d.graph_destroy(graph));
}

TEST_F(EmulatedGraphsTest, CapturesThatDoNotFitAreTold) {
  const DevicePointer a = upload({1}, first);
  Graph graph = nullptr;
  EXPECT_EQ(d.stream_end_capture(first, &graph), Result::kInvalidValue);
  // Work of a branch that was never joined.
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kGlobal));
  EXPECT_OK(d.event_record(event, first));
  EXPECT_OK(d.stream_wait_event(second, event, 0));
  EXPECT_OK(launch(step, a, 1, 1, second));
  EXPECT_EQ(d.stream_end_capture(first, &graph), Result::kCaptureUnjoined);
  // The wrong stream or the wrong thread ends the capture.
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kGlobal));
  EXPECT_OK(d.event_record(event, first));
  EXPECT_OK(d.stream_wait_event(second, event, 0));
  EXPECT_EQ(d.stream_end_capture(second, &graph), Result::kCaptureUnmatched);
  std::thread([&] {
    EXPECT_OK(d.ctx_push_current(context));
    EXPECT_EQ(d.stream_end_capture(first, &graph), Result::kCaptureWrongThread);
  }).join();
  EXPECT_EQ(d.stream_end_capture(first, &graph), Result::kCaptureInvalidated);
  // An event that was recorded outside of the capture.
  EXPECT_OK(d.event_record(other_event, second));
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kGlobal));
  EXPECT_EQ(d.stream_wait_event(first, other_event, 0), Result::kCaptureIsolation);
  EXPECT_EQ(d.stream_end_capture(first, &graph), Result::kCaptureInvalidated);
  // An event of another capture.
  ASSERT_OK(d.stream_begin_capture(first, CaptureMode::kRelaxed));
  ASSERT_OK(d.stream_begin_capture(second, CaptureMode::kRelaxed));
  EXPECT_OK(d.event_record(event, first));
  EXPECT_EQ(d.stream_wait_event(second, event, 0), Result::kCaptureMerge);
  EXPECT_EQ(d.stream_end_capture(second, &graph), Result::kCaptureInvalidated);
  EXPECT_OK(d.stream_end_capture(first, &graph));
  EXPECT_OK(d.graph_destroy(graph));
}

}  // namespace
}  // namespace torch_remote::worker::cuda::emulated

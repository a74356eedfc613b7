// A server whose device is the GPU emulator.
#include <cmath>

#include "tests/emulated_gpu/open.h"
#include "worker/server/testing/server_fixture.h"

namespace torch_remote::worker {
namespace {

class CudaServerTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.open_device = cuda::emulated::open_device;
    options.memory_limit = 256 << 20;
    start(options);
    ASSERT_EQ(hello(), "");
  }
};

// x + y and x * y; then x is doubled.
constexpr const char* kStep = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%0, %1)
  aten::add_.Tensor(%0, %0, alpha=1)
})";

// The same as a group, except for the op whose result has no memory in a group.
constexpr const char* kGroup = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) group_local
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  group pointwise {
    %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1)
    %3: f32[s0]{1} @b3 = aten::mul.Tensor(%2, %1)
  }
})";

TEST_F(CudaServerTest, AnswersInOrderWithWhatWasThere) {
  load(1, kStep);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  float x = 1;
  for (uint64_t round = 0; round < 20; ++round) {
    const uint64_t first_result_id = 100 + 2 * round;
    run(1, {3, 12}, {1, 2}, first_result_id);
    EXPECT_EQ(read(first_result_id, {3}, {1}), (Floats{x + 10, 2 * x + 20, 3 * x + 30}));
    EXPECT_EQ(read(first_result_id + 1, {3}, {1}), (Floats{10 * x, 40 * x, 90 * x}));
    x *= 2;
    EXPECT_EQ(read(1, {2}, {2}), (Floats{x, 3 * x}));
  }
  EXPECT_EQ(synchronize(), "");
}

TEST_F(CudaServerTest, EventsHaveTheDevicesTime) {
  load(1, kStep);
  std::vector<float> large(1 << 18, 1);
  upload(1, large);
  upload(2, large);
  uint64_t before = record_event().device_time_ns;
  for (uint64_t round = 0; round < 5; ++round) {
    run(1, {1 << 18, 1 << 20}, {1, 2}, 100 + 2 * round);
    const uint64_t reached = record_event().device_time_ns;
    EXPECT_LT(before, reached);
    before = reached;
  }
}

TEST_F(CudaServerTest, DoesGroups) {
  load(1, kGroup);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  for (int i = 0; i < 3; ++i) {
    run(1, {3, 12}, {1, 2}, 100);
    EXPECT_EQ(read(100, {3}, {1}), (Floats{110, 440, 990}));
  }
}

// The server acknowledges only runs that are done, as a client may reuse the memory of these.
TEST_F(CudaServerTest, AcknowledgesWhatIsDone) {
  load(1, kStep);
  const Floats large(1 << 16, 1);
  upload(1, large);
  upload(2, large);
  for (int i = 0; i < 50; ++i) run(1, {1 << 16, 1 << 18}, {1, 2}, 100);
  const uint64_t last = sequence;
  Frame frame;
  while (acknowledged < last) ASSERT_TRUE(receive(Type::kAcknowledge, &frame));
  EXPECT_EQ(read(1, {1}, {1}), Floats{std::ldexp(1.f, 50)});
}

// A node fails late. Its result, results computed from it, and buffers that they were added to are failed. Everything
// else is valid, and so is what was overwritten since.
TEST_F(CudaServerTest, AnIndexThatIsOutOfBoundsSpoilsWhatUsedIt) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives
  %0: f32[s0, 1]{1, 1} @b0
  %1: i32[s0]{1} @b1
  %2: f32[s0, 1]{1, 1} @b2 = aten::embedding(%0, %1, padding_idx=-1, scale_grad_by_freq=false, sparse=false)
})");
  load(2, kStep);
  load(3, R"(graph(s0) {
  b0: input survives
  %0: f32[s0]{1} @b0
  aten::zero_(%0)
})");
  for (uint64_t id = 1; id <= 4; ++id) upload(id, {1, 2, 3});
  upload(5, {std::bit_cast<float>(2), std::bit_cast<float>(0), std::bit_cast<float>(1)});
  upload(6, {std::bit_cast<float>(2), std::bit_cast<float>(3), std::bit_cast<float>(1)});
  run(1, {3, 12}, {1, 5}, 50);
  run(1, {3, 12}, {1, 6}, 100);
  run(2, {3, 12}, {2, 100}, 200);  // 200 and 201 depend on the failed result; 2 is only doubled.
  run(2, {3, 12}, {3, 4}, 300);
  std::string error;
  const auto failed = [&](uint64_t id) {
    error.clear();
    read(id, {3}, {1}, &error);
    return error == "index out of range in self [aten::embedding(f32[3, 1], i32[3])]";
  };
  EXPECT_EQ(read(50, {3}, {1}), (Floats{3, 1, 2}));
  for (const uint64_t id : {100, 200, 201}) EXPECT_TRUE(failed(id)) << id << error;
  EXPECT_EQ(read(2, {3}, {1}), (Floats{2, 4, 6}));
  EXPECT_EQ(read(300, {3}, {1}), (Floats{2, 4, 6}));
  run(3, {3}, {200}, 500);
  EXPECT_EQ(read(200, {3}, {1}), (Floats{0, 0, 0}));
  EXPECT_EQ(synchronize(), "");
}

// An op that no runner takes is named, with a fix; the program's other nodes are executed.
TEST_F(CudaServerTest, NamesTheOpThatNothingDoes) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::special_bessel_j0(%0)
  %2: f32[s0]{1} @b2 = aten::neg(%1)
  %3: f32[s0]{1} @b3 = aten::neg(%0)
})");
  load(2, kStep);
  upload(1, {1, 2, 3});
  run(1, {3, 12}, {1}, 100);
  for (const uint64_t id : {100, 101}) {
    std::string error;
    read(id, {3}, {1}, &error);
    EXPECT_NE(error.find("nothing in this worker does the op 'aten::special_bessel_j0'"), std::string::npos) << error;
    EXPECT_NE(error.find("[aten::special_bessel_j0(f32[3])]"), std::string::npos) << error;
  }
  EXPECT_EQ(read(102, {3}, {1}), (Floats{-1, -2, -3}));
  run(2, {3, 12}, {1, 1}, 200);
  EXPECT_EQ(read(200, {3}, {1}), (Floats{2, 4, 6}));
}

// The sizes of a run need not match. No kernel reads behind the end of a tensor.
TEST_F(CudaServerTest, SizesThatDoNotMatchFailOneRun) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  %0: f32[s0]{1} @b0
  %1: f32[s1]{1} @b1
  aten::copy_(%0, %1)
})");
  upload(1, {1, 2, 3, 4, 5});
  upload(2, {6, 7, 8});
  upload(3, {6, 7, 8, 9, 10});
  run(1, {5, 3}, {1, 2}, 100);
  std::string error;
  read(1, {5}, {1}, &error);
  EXPECT_NE(error.find("nothing in this worker does the op 'aten::copy_'"), std::string::npos) << error;
  run(1, {5, 5}, {1, 3}, 200);
  EXPECT_EQ(read(1, {5}, {1}), (Floats{6, 7, 8, 9, 10}));
}

TEST_F(CudaServerTest, MemoryThatRunsOutFailsOneRun) {
  load(1, kStep);
  upload(1, {1, 2, 3});
  run(1, {30 << 20, 120 << 20}, {1, 1}, 100);
  std::string error;
  read(100, {3}, {1}, &error);
  EXPECT_NE(error, "");
  run(1, {3, 12}, {1, 1}, 200);
  EXPECT_EQ(read(200, {3}, {1}), (Floats{2, 4, 6}));
}

// No result of a lost GPU is reported: the session ends, and another one can begin.
TEST_F(CudaServerTest, ALostGpuEndsTheSession) {
  load(1, kStep);
  upload(1, {1, 2, 3});
  EXPECT_EQ(read(1, {3}, {1}), (Floats{1, 2, 3}));
  cuda::emulated::gpus().lose_device(0, 1);
  run(1, {3, 12}, {1, 1}, 100);
  FlatBufferBuilder builder;
  builder.Finish(wire::CreateSynchronize(builder));
  send(Type::kSynchronize, builder, nullptr, wire::kWantsReply);
  Frame frame;
  EXPECT_FALSE(receive(Type::kSynchronizeReply, &frame));
  client.reset();
  thread.join();
  last_runs.clear();
  SetUp();
  load(1, kStep);
  upload(1, {1, 2, 3});
  run(1, {3, 12}, {1, 1}, 100);
  EXPECT_EQ(read(100, {3}, {1}), (Floats{2, 4, 6}));
}

TEST_F(CudaServerTest, ProfilesWhatRanLate) {
  load(1, kStep);
  upload(1, {1, 2, 3});
  upload(2, {1, 2, 3});
  profile(wire::ProfileCommand::Start, 1000);
  for (int i = 0; i < 5; ++i) run(1, {3, 12}, {1, 2}, 100);
  profile(wire::ProfileCommand::Stop);
  size_t ops = 0;
  uint64_t last = 0;
  for (const ProfileEvent& event : recorded.events) {
    if (event.program == ProfileEvent::kMessage) continue;
    ++ops;
    EXPECT_LE(last, event.begin);
    EXPECT_LE(event.begin, event.end);
    last = event.end;
  }
  EXPECT_EQ(ops, 15u);
}

// Driver calls per run: one per kernel and GEMM at first. After some runs, one graph launch, and updates of the
// addresses of results that moved.
TEST_F(CudaServerTest, AProgramThatRunsAgainIsOneCall) {
  std::string text = R"(graph() {
  b0: input survives
  b1: input survives
)";
  constexpr int kLayers = 10;
  for (int i = 2; i < 2 + 2 * kLayers; ++i) {
    text += "  b" + std::to_string(i) + ": fresh(64)" + (i == 1 + 2 * kLayers ? " survives\n" : "\n");
  }
  text += "  %0: f32[4, 4] @b0\n  %1: f32[4, 4] @b1\n";
  int last = 0;
  for (int i = 2; i < 2 + 2 * kLayers; i += 2) {
    const std::string made = std::to_string(i), next = std::to_string(i + 1);
    // NOLINTBEGIN(performance-inefficient-string-concatenation)
    text += "  %" + made + ": f32[4, 4] @b" + made + " = aten::mm(%" + std::to_string(last) + ", %1)\n";
    text += "  %" + next + ": f32[4, 4] @b" + next + " = aten::relu(%" + made + ")\n";
    // NOLINTEND(performance-inefficient-string-concatenation)
    last = i + 1;
  }
  load(1, (text + "}").c_str());
  upload(1, Floats(16, 0.25));
  upload(2, Floats(16, 0.25));
  std::vector<uint64_t> single, graphs, exchanged;
  for (int round = 0; round < 8; ++round) {
    auto before = cuda::emulated::gpus().calls();
    run(1, {}, {1, 2}, 100);
    EXPECT_EQ(synchronize(), "");
    auto after = cuda::emulated::gpus().calls();
    const auto made = [&](const char* name) { return after[name] - before[name]; };
    single.push_back(made("cuLaunchKernel") + made("cublasLtMatmul"));
    graphs.push_back(made("cuGraphLaunch"));
    exchanged.push_back(made("cuGraphExecKernelNodeSetParams"));
    EXPECT_EQ(read(100, {16}, {1}), Floats(16, 0.25));
  }
  EXPECT_GE(single.front(), 2u * kLayers);
  EXPECT_EQ(graphs.front(), 0u);
  EXPECT_EQ(single.back(), 0u);
  EXPECT_EQ(graphs.back(), 1u);
  EXPECT_LE(exchanged.back(), 1u);
}

TEST_F(CudaServerTest, ClientsMayGoAtAnyTime) {
  load(1, kStep);
  upload(1, {1, 2, 3});
  upload(2, {1, 2, 3});
  for (int i = 0; i < 200; ++i) run(1, {3, 12}, {1, 2}, 100);
  client.reset();
  thread.join();
  EXPECT_TRUE(result.ok()) << result.message();
}

}  // namespace
}  // namespace torch_remote::worker

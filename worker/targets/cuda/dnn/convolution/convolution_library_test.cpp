// Which of cuDNN's plans is chosen, when plans are requested, and that nothing leaks. Runs on the GPU emulator, whose
// cuDNN is strict (emulated_cudnn.h); that strictness is tested here, too.
#include "worker/targets/cuda/dnn/convolution/convolution_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/emulated_gpu/emulated_cudnn.h"
#include "tests/emulated_gpu/library_fixture.h"

namespace torch_remote::worker::cuda {
namespace {

using dnn::Attribute;
using dnn::AttributeType;
using dnn::DescriptorType;
using emulated::Engine;
namespace fs = std::filesystem;

constexpr Engine kAllEngines[] = {Engine::kLowPrecision, Engine::kUnordered, Engine::kBroken, Engine::kWorkspace,
                                  Engine::kFallback};

class ConvolutionLibraryTest : public emulated::LibraryTest<ConvolutionLibrary, PreparedConvolution, dnn::Table> {
 protected:
  ConvolutionLibraryTest() : LibraryTest(emulated::cudnn(), emulated::cudnn_leaks, kBytes) {}

  void TearDown() override {
    for (const Engine engine : kAllEngines) {
      emulated::slow_down(engine, std::chrono::microseconds(0));
      emulated::exclude_engine(engine, false);
    }
    LibraryTest::TearDown();
  }

  static ConvolutionProblem problem(ConvolutionPass pass = ConvolutionPass::kForward, int64_t size = 6) {
    ConvolutionProblem problem;
    problem.tune = true;
    problem.pass = pass;
    problem.image = {2, 3, size, size};
    problem.filter = {4, 3, 3, 3};
    problem.output = {2, 4, size, size};
    problem.padding = problem.padding_after = problem.stride = problem.dilation = {1, 1};
    return problem;
  }
  Status prepare(const ConvolutionProblem& problem) {
    const ContextGuard current(device->gpu());
    return library->prepare(problem, &prepared);
  }
  Status run(int times = 1) {
    const ContextGuard current(device->gpu());
    const auto at = reinterpret_cast<DevicePointer>(memory.data);
    Status status;
    for (int i = 0; i < times && status.ok(); ++i) {
      status = library->run(prepared, {at, at + (64 << 10), at + (128 << 10), at + (192 << 10)});
      device->queued();
      EXPECT_TRUE(device->wait(device->record()).ok());
    }
    return status;
  }
  uint64_t calls(const char* name = "cudnnBackendExecute") { return driver->calls()[name]; }
  static std::vector<uint64_t> runs() {
    std::vector<uint64_t> counts;
    for (const Engine engine : kAllEngines) counts.push_back(emulated::executions_of(engine));
    return counts;
  }

  static constexpr uint64_t kBytes = 256 << 10;
};

TEST_F(ConvolutionLibraryTest, TimesOnceBehindTheFirstUse) {
  ASSERT_TRUE(prepare(problem()).ok());
  EXPECT_EQ(prepared->plans(), 2u);  // The broken and the tf32 engines are left out.
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(calls(), 1 + 1 + 2 * 2u);  // The run itself; the other plan to warm up; both twice between marks.
  ASSERT_TRUE(run(5).ok());
  EXPECT_EQ(calls("cuEventElapsedTime"), 2u);
  ASSERT_TRUE(prepare(problem()).ok());
  EXPECT_EQ(library->heuristic_calls(), 1u);
  ASSERT_TRUE(prepare(problem(ConvolutionPass::kForward, 7)).ok());
  EXPECT_EQ(library->heuristic_calls(), 2u);
}

// Where tf32 is allowed, it is one of the plans, and the heuristic's first choice.
TEST_F(ConvolutionLibraryTest, Tf32IsAskedFor) {
  ConvolutionProblem low = problem();
  low.tf32 = true;
  ASSERT_TRUE(prepare(low).ok());
  EXPECT_EQ(prepared->plans(), 3u);
  emulated::slow_down(Engine::kWorkspace, std::chrono::milliseconds(20));
  emulated::slow_down(Engine::kFallback, std::chrono::milliseconds(20));
  ASSERT_TRUE(run(2).ok());
  const auto before = runs();
  ASSERT_TRUE(run(2).ok());
  EXPECT_EQ(runs()[0] - before[0], 2u);
  // The choice stored for one problem does not apply to the other.
  ASSERT_TRUE(prepare(problem()).ok());
  ASSERT_TRUE(run(2).ok());
  EXPECT_EQ(runs()[0] - before[0], 2u);
  EXPECT_EQ(library->file_hits(), 0u);
}

TEST_F(ConvolutionLibraryTest, OnlyTunedProblemsAreTimed) {
  emulated::slow_down(Engine::kWorkspace, std::chrono::milliseconds(20));
  ASSERT_TRUE(prepare(problem()).ok());
  ASSERT_TRUE(run(3).ok());  // The choice file names the faster plan.
  ConvolutionProblem same = problem();
  same.tune = false;
  for (const bool deterministic : {false, true, false, true}) {
    same.deterministic = deterministic;
    ASSERT_TRUE(prepare(same).ok());
    const uint64_t elapsed = calls("cuEventElapsedTime");
    const auto before = runs();
    ASSERT_TRUE(run(3).ok());
    EXPECT_EQ(runs()[3] - before[3], 3u);
    EXPECT_EQ(calls("cuEventElapsedTime"), elapsed);
    stop();
    start();
  }
}

TEST_F(ConvolutionLibraryTest, SumsThatVaryAreRefusedWhereTheyMayNot) {
  emulated::exclude_engine(Engine::kWorkspace, true);
  emulated::exclude_engine(Engine::kFallback, true);
  ConvolutionProblem gradient = problem(ConvolutionPass::kBackwardFilter);
  gradient.deterministic = true;
  gradient.tune = false;
  const Status status = prepare(gradient);
  EXPECT_EQ(status.exception_type(), "RuntimeError");
  EXPECT_NE(status.message().find("does not have a deterministic implementation, but you set "
                                  "'torch.use_deterministic_algorithms(True)'"),
            std::string::npos)
      << status.message();
  gradient.deterministic = false;
  EXPECT_TRUE(prepare(gradient).ok());
}

TEST_F(ConvolutionLibraryTest, TakesTheFastestPlan) {
  for (const Engine slow : {Engine::kWorkspace, Engine::kFallback}) {
    for (const Engine engine : {Engine::kWorkspace, Engine::kFallback}) {
      emulated::slow_down(engine, std::chrono::milliseconds(engine == slow ? 20 : 0));
    }
    ASSERT_TRUE(prepare(problem(ConvolutionPass::kForward, slow == Engine::kFallback ? 8 : 9)).ok());
    ASSERT_TRUE(run(2).ok());
    const auto before = runs();
    ASSERT_TRUE(run(3).ok());
    const auto after = runs();
    for (size_t i = 0; i < before.size(); ++i) {
      const bool fast = (slow == Engine::kFallback ? Engine::kWorkspace : Engine::kFallback) == kAllEngines[i];
      EXPECT_EQ(after[i] - before[i], fast ? 3u : 0u) << i;
    }
  }
}

// Neither engines with reduced precision for f32 nor nondeterministic ones are used.
TEST_F(ConvolutionLibraryTest, KeepsPrecisionAndOrder) {
  const auto before = runs();
  for (const auto pass :
       {ConvolutionPass::kForward, ConvolutionPass::kBackwardData, ConvolutionPass::kBackwardFilter}) {
    ASSERT_TRUE(prepare(problem(pass)).ok());
    ASSERT_TRUE(run(3).ok());
  }
  const auto after = runs();
  EXPECT_EQ(after[0], before[0]);
  EXPECT_EQ(after[1], before[1]);
  EXPECT_GT(after[4], before[4]);
}

TEST_F(ConvolutionLibraryTest, KeepsTheFastestPlanInAFile) {
  emulated::slow_down(Engine::kWorkspace, std::chrono::milliseconds(20));
  ASSERT_TRUE(prepare(problem()).ok());
  ASSERT_TRUE(run(2).ok());
  const std::string kept = file();
  EXPECT_EQ(std::ranges::count(kept, '\n'), 1) << kept;
  stop();
  start();
  ASSERT_TRUE(prepare(problem()).ok());
  EXPECT_EQ(prepared->plans(), 1u);
  EXPECT_EQ(library->file_hits(), 1u);
  EXPECT_EQ(library->heuristic_calls(), 0u);
  const auto before = runs();
  ASSERT_TRUE(run(3).ok());
  EXPECT_EQ(runs()[4], before[4] + 3);  // The fallback engine runs, and nothing is timed.
  EXPECT_EQ(file(), kept);
  ASSERT_TRUE(prepare(problem(ConvolutionPass::kForward, 7)).ok());
  EXPECT_EQ(library->heuristic_calls(), 1u);
  // A line that was modified is ignored.
  stop();
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string text = kept;
    text[text.find(' ') + 1] = 'F';
    std::ofstream(entry.path()) << text;
  }
  start();
  ASSERT_TRUE(prepare(problem()).ok());
  EXPECT_EQ(library->file_hits(), 0u);
  EXPECT_EQ(library->heuristic_calls(), 1u);
}

TEST_F(ConvolutionLibraryTest, OnlyTheFallbackKnowsDoubles) {
  ConvolutionProblem wide = problem();
  wide.type = dnn::Type::kFloat64;
  ASSERT_TRUE(prepare(wide).ok());
  EXPECT_EQ(prepared->plans(), 1u);
  ASSERT_TRUE(run(2).ok());
  EXPECT_EQ(calls(), 2u);  // There is nothing to time.
  wide.channels_last = true;
  EXPECT_EQ(prepare(wide).code(), ErrorCode::kUnsupported);
}

// The plans of a problem that ran only once were timed, but no later run has looked at the timing.
TEST_F(ConvolutionLibraryTest, ProblemsThatAreNotInUseAreRemoved) {
  ASSERT_TRUE(prepare(problem()).ok());
  ASSERT_TRUE(run().ok());
  prepared = nullptr;
  EXPECT_EQ(file(), "");
  {
    const ContextGuard current(device->gpu());
    for (int64_t size = 100; size < 5000; ++size) (void)library->find(problem(ConvolutionPass::kForward, size));
  }
  EXPECT_EQ(std::ranges::count(file(), '\n'), 1) << file();
  EXPECT_EQ(library->heuristic_calls(), 1u);
  ASSERT_TRUE(prepare(problem()).ok());
  EXPECT_EQ(library->heuristic_calls(), 2u);
}

// An unsupported problem is requested once.
TEST_F(ConvolutionLibraryTest, RemembersWhatIsNotDone) {
  ConvolutionProblem biased = problem();
  biased.adds_bias = true;
  for (int i = 0; i < 3; ++i) {
    const Status status = prepare(biased);
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_NE(status.message().find("a bias behind a convolution of these types"), std::string::npos);
  }
  EXPECT_EQ(library->heuristic_calls(), 1u);
  biased.type = dnn::Type::kFloat16;
  EXPECT_TRUE(prepare(biased).ok());
  EXPECT_TRUE(run(3).ok());
}

TEST_F(ConvolutionLibraryTest, WrongSizesAreErrors) {
  ConvolutionProblem wrong = problem();
  wrong.output[3] = 5;
  EXPECT_EQ(prepare(wrong).code(), ErrorCode::kInternal);
  ASSERT_TRUE(prepare(problem()).ok());
}

TEST_F(ConvolutionLibraryTest, WithoutMemoryTakesThePlanThatWantsLess) {
  stop();
  start(kBytes + (32 << 10));
  ASSERT_TRUE(prepare(problem()).ok());
  ASSERT_TRUE(run(3).ok());
}

// -- The emulated library ---------------------------------------------------------------------------------------------

TEST_F(ConvolutionLibraryTest, DescriptorsAreStrict) {
  const ContextGuard current(device->gpu());
  dnn::Descriptor tensor = nullptr;
  ASSERT_EQ(table.descriptor_create(DescriptorType::kTensor, &tensor), dnn::Result::kSuccess);
  const std::vector<int64_t> sizes = {1, 2, 3, 4}, strides = {24, 12, 4, 1};
  const auto set = [&](Attribute attribute, AttributeType type, int64_t count, const void* values) {
    return table.set_attribute(tensor, attribute, type, count, values);
  };
  const int64_t number = 16;
  const dnn::Type type = dnn::Type::kFloat32;
  EXPECT_EQ(table.descriptor_finalize(tensor), dnn::Result::kBadParam);  // Nothing is set.
  EXPECT_EQ(set(Attribute::kTensorSizes, AttributeType::kInt64, 4, nullptr), dnn::Result::kBadParamNullPointer);
  EXPECT_EQ(set(Attribute::kTensorSizes, AttributeType::kFloat, 4, sizes.data()), dnn::Result::kBadParamAttributeType);
  EXPECT_EQ(set(Attribute::kPackIds, AttributeType::kInt64, 4, sizes.data()), dnn::Result::kBadParam);
  EXPECT_EQ(set(Attribute::kTensorId, AttributeType::kInt64, 2, sizes.data()), dnn::Result::kBadParamOutOfBound);
  EXPECT_EQ(set(Attribute::kTensorSizes, AttributeType::kInt64, 4, sizes.data()), dnn::Result::kSuccess);
  EXPECT_EQ(set(Attribute::kTensorStrides, AttributeType::kInt64, 3, strides.data()), dnn::Result::kSuccess);
  EXPECT_EQ(set(Attribute::kTensorType, AttributeType::kDataType, 1, &type), dnn::Result::kSuccess);
  EXPECT_EQ(set(Attribute::kTensorId, AttributeType::kInt64, 1, &number), dnn::Result::kSuccess);
  EXPECT_EQ(set(Attribute::kTensorAlignment, AttributeType::kInt64, 1, &number), dnn::Result::kSuccess);
  EXPECT_EQ(table.descriptor_finalize(tensor), dnn::Result::kBadParamShapeMismatch);
  EXPECT_EQ(set(Attribute::kTensorStrides, AttributeType::kInt64, 4, strides.data()), dnn::Result::kSuccess);
  EXPECT_EQ(table.descriptor_finalize(tensor), dnn::Result::kSuccess);
  EXPECT_EQ(table.descriptor_finalize(tensor), dnn::Result::kBadParam);  // Already finalized.
  EXPECT_EQ(set(Attribute::kTensorId, AttributeType::kInt64, 1, &number), dnn::Result::kBadParam);  // Too late.
  // A descriptor may only refer to finalized ones.
  dnn::Descriptor graph = nullptr, raw = nullptr;
  ASSERT_EQ(table.descriptor_create(DescriptorType::kGraph, &graph), dnn::Result::kSuccess);
  ASSERT_EQ(table.descriptor_create(DescriptorType::kForward, &raw), dnn::Result::kSuccess);
  EXPECT_EQ(table.set_attribute(graph, Attribute::kGraphOperations, AttributeType::kDescriptor, 1,
                                static_cast<const void*>(&raw)),
            dnn::Result::kBadParamNotFinalized);
  EXPECT_EQ(emulated::cudnn_leaks(), "1 handle, 3 descriptors");
  for (const dnn::Descriptor made : {tensor, graph, raw}) {
    EXPECT_EQ(table.descriptor_destroy(made), dnn::Result::kSuccess);
    EXPECT_EQ(table.descriptor_destroy(made), dnn::Result::kBadParam);
  }
}

TEST_F(ConvolutionLibraryTest, AddressesAreStrict) {
  const ContextGuard current(device->gpu());
  const auto at = reinterpret_cast<DevicePointer>(memory.data);
  const auto fails = [&](const ConvolutionPointers& pointers, const char* why) {
    static int64_t size = 20;  // A new problem each time, as a problem that ran once is only queued.
    ASSERT_TRUE(prepare(problem(ConvolutionPass::kForward, ++size)).ok());
    const Status status = library->run(prepared, pointers);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  fails({at + 4, at + (64 << 10), at + (128 << 10), 0}, "not aligned");
  fails({at, at + (64 << 10), 0, 0}, "no such memory");
  EXPECT_TRUE(driver->findings().empty());
}

}  // namespace
}  // namespace torch_remote::worker::cuda

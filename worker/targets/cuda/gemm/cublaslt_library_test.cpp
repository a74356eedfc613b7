// Which of cuBLASLt's algorithms is chosen, when the heuristic is asked, and what is stored in a file. Runs on the GPU
// emulator.
#include "worker/targets/cuda/gemm/cublaslt_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/emulated_gpu/emulated_cublaslt.h"
#include "tests/emulated_gpu/library_fixture.h"

namespace torch_remote::worker::cuda {
namespace {

namespace fs = std::filesystem;

// The number of calls of cublasLtMatmul before the calls fail.
int calls_that_succeed = std::numeric_limits<int>::max();

lt::Table library_that_may_fail() {
  static const lt::Table working = emulated::cublaslt();
  lt::Table table = working;
  table.matmul = [](auto... arguments) {
    if (calls_that_succeed == 0) return lt::Result::kExecutionFailed;
    --calls_that_succeed;
    return working.matmul(arguments...);
  };
  return table;
}

class ProductLibraryTest : public emulated::LibraryTest<CublasLtLibrary, PreparedGemm, lt::Table> {
 protected:
  ProductLibraryTest() : LibraryTest(library_that_may_fail(), emulated::cublaslt_leaks, kBytes) {}

  void TearDown() override {
    calls_that_succeed = std::numeric_limits<int>::max();
    for (const auto way :
         {emulated::MatmulAlgorithm::kVectors, emulated::MatmulAlgorithm::kSplitK, emulated::MatmulAlgorithm::kBasic}) {
      emulated::slow_down(way, std::chrono::microseconds(0));
    }
    LibraryTest::TearDown();
  }

  // [m, k] [k, 8], all column-major.
  static Problem problem(int64_t m, int64_t k = 64) {
    Problem problem;
    problem.a = {.rows = m, .columns = k, .ld = 64};
    problem.b = {.rows = k, .columns = 8, .ld = 64};
    problem.c = problem.d = {.rows = m, .columns = 8, .ld = 64};
    return problem;
  }
  enum Mode { kDefault, kTuned, kDeterministic };
  void prepare(int64_t m, Mode mode = kTuned, int64_t k = 64) {
    const ContextGuard current(device->gpu());
    Problem given = problem(m, k);
    given.deterministic = mode == kDeterministic;
    given.tune = mode == kTuned;
    const Status status = library->prepare(given, &prepared);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void call(const std::shared_ptr<PreparedGemm>& gemm) {
    const ContextGuard current(device->gpu());
    const auto at = reinterpret_cast<DevicePointer>(memory.data);
    const Status status = library->run(gemm, {at, at + (64 << 10), at + (128 << 10), at + (128 << 10)}, {}, {});
    ASSERT_TRUE(status.ok()) << status.message();
    device->queued();
  }
  void run(int times = 1) {
    const ContextGuard current(device->gpu());
    for (int i = 0; i < times; ++i) {
      call(prepared);
      ASSERT_TRUE(device->wait(device->record()).ok());
    }
  }
  uint64_t calls(const char* name = "cublasLtMatmul") { return driver->calls()[name]; }

  static constexpr uint64_t kBytes = 256 << 10;
};

TEST_F(ProductLibraryTest, TimesOnceBehindTheFirstUse) {
  prepare(48);
  EXPECT_EQ(library->heuristic_calls(), 1u);
  run();
  EXPECT_EQ(calls(), 1 + 3 * 3u);  // The call itself; each of three algorithms, to warm up and twice between marks.
  run(5);
  EXPECT_EQ(calls(), 10 + 5u);
  const uint64_t elapsed = calls("cuEventElapsedTime");
  EXPECT_EQ(elapsed, 3u);
  EXPECT_EQ(std::ranges::count(file(), '\n'), 1);
  // The heuristic is not asked again, and nothing is timed, for this problem or one of a similar size.
  prepare(48);
  prepare(44);
  run(2);
  EXPECT_EQ(library->heuristic_calls(), 1u);
  EXPECT_EQ(calls("cublasLtMatmulAlgoGetHeuristic"), 1u);
  EXPECT_EQ(calls("cuEventElapsedTime"), elapsed);
  prepare(16);
  EXPECT_EQ(library->heuristic_calls(), 2u);
}

TEST_F(ProductLibraryTest, OnlyTunedProblemsAreTimed) {
  emulated::slow_down(emulated::MatmulAlgorithm::kVectors, std::chrono::milliseconds(20));
  prepare(48);
  run(3);  // The file names another algorithm than the heuristic's first choice.
  const std::string kept = file();
  const uint64_t elapsed = calls("cuEventElapsedTime");
  // The heuristic is asked for each exact size; each run is one call of its first choice.
  for (const Mode mode : {kDefault, kDeterministic}) {
    for (const int64_t m : {48, 44}) {
      const uint64_t asked = library->heuristic_calls(), before = calls();
      prepare(m, mode);
      EXPECT_EQ(library->heuristic_calls(), asked + 1);
      run(3);
      EXPECT_EQ(calls(), before + 3);
    }
  }
  EXPECT_EQ(calls("cuEventElapsedTime"), elapsed);
  EXPECT_EQ(file(), kept);
}

// Two sizes share a choice. Split-k is the fastest algorithm for the first one, and does not support the second one.
TEST_F(ProductLibraryTest, ASizeThatTheFastestWayDoesNotSupportGetsAnotherOne) {
  emulated::slow_down(emulated::MatmulAlgorithm::kVectors, std::chrono::milliseconds(20));
  emulated::slow_down(emulated::MatmulAlgorithm::kBasic, std::chrono::milliseconds(20));
  prepare(48, kTuned, /*k=*/32);
  const std::shared_ptr<PreparedGemm> first = prepared;
  prepare(48, kTuned, /*k=*/30);
  EXPECT_EQ(library->heuristic_calls(), 1u);
  call(first);
  call(prepared);  // Before the first one was timed.
  run(4);
  EXPECT_EQ(library->heuristic_calls(), 2u);
  prepared = first;
  run(3);
  EXPECT_EQ(library->heuristic_calls(), 2u);
}

// The second size does not support the first one's algorithm, so its choice is not that of later GEMMs.
TEST_F(ProductLibraryTest, EndsWhileAChoiceOfOneSizeIsTimed) {
  emulated::slow_down(emulated::MatmulAlgorithm::kVectors, std::chrono::milliseconds(20));
  emulated::slow_down(emulated::MatmulAlgorithm::kBasic, std::chrono::milliseconds(20));
  prepare(48, kTuned, /*k=*/32);
  run(2);
  prepare(48, kTuned, /*k=*/30);
  call(prepared);  // TearDown() looks for events that are left.
  EXPECT_EQ(library->heuristic_calls(), 2u);
}

// Otherwise the algorithm of a GEMM, and so its bits, would depend on which strides were used first.
TEST_F(ProductLibraryTest, OnlyTunedProblemsShareAChoice) {
  const ContextGuard current(device->gpu());
  for (const Mode mode : {kDefault, kTuned, kDeterministic}) {
    const uint64_t asked = library->heuristic_calls();
    for (const int64_t ld : {64, 128, 64}) {
      Problem given = problem(48);
      given.a.ld = ld;
      given.deterministic = mode == kDeterministic;
      given.tune = mode == kTuned;
      const Status status = library->prepare(given, &prepared);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(library->heuristic_calls(), asked + (mode == kTuned ? 1 : 2));
  }
}

TEST_F(ProductLibraryTest, KeepsTheFastestWayInAFile) {
  emulated::slow_down(emulated::MatmulAlgorithm::kVectors, std::chrono::milliseconds(20));
  emulated::slow_down(emulated::MatmulAlgorithm::kBasic, std::chrono::milliseconds(20));
  prepare(48);
  run(2);
  const std::string kept = file();
  // The stored algorithm is the second one, split-k.
  EXPECT_NE(kept.find(" 0000314c45435554"
                      "0000000000000001"),
            std::string::npos)
      << kept;
  stop();
  start();
  prepare(48);
  run(3);
  EXPECT_EQ(library->heuristic_calls(), 0u);
  EXPECT_EQ(library->file_hits(), 1u);
  EXPECT_EQ(file(), kept);
}

TEST_F(ProductLibraryTest, ADamagedFileIsAskedAbout) {
  prepare(48);
  run(2);
  std::string text = file();
  stop();
  for (const auto& entry : fs::directory_iterator(folder)) {
    text[text.find(' ') + 20] ^= 1;
    std::ofstream(entry.path()) << text << "nonsense\n";
  }
  start();
  prepare(48);
  EXPECT_EQ(library->heuristic_calls(), 1u);
  run();
}

TEST_F(ProductLibraryTest, AFolderThatOthersCanWriteToIsNotUsed) {
  prepare(48);
  run(2);
  stop();
  fs::permissions(folder, fs::perms::others_write, fs::perm_options::add);
  start();
  prepare(48);
  EXPECT_EQ(library->heuristic_calls(), 1u);
}

TEST_F(ProductLibraryTest, DoesWithoutAWorkspaceWhereThereIsNoMemory) {
  prepare(48);
  driver->fail_allocation(1);
  run(3);  // Only one of the algorithms that are timed needs the workspace.
  EXPECT_EQ(calls("cuEventElapsedTime"), 0u);
  prepare(40, kDefault);
  run(3);
}

TEST_F(ProductLibraryTest, TheFirstChoiceStaysIfNoneCanBeTimed) {
  prepare(48);
  calls_that_succeed = 1;
  run();
  calls_that_succeed = std::numeric_limits<int>::max();
  const uint64_t before = calls();
  run(3);
  EXPECT_EQ(calls(), before + 3);
  EXPECT_EQ(library->heuristic_calls(), 1u);
}

TEST_F(ProductLibraryTest, SaysThatThereIsNoSuchProduct) {
  Problem wrong = problem(48);
  wrong.a.type = lt::Type::kFloat16;
  const ContextGuard current(device->gpu());
  const Status status = library->prepare(wrong, &prepared);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << status.message();
}

}  // namespace
}  // namespace torch_remote::worker::cuda

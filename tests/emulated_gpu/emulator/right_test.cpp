#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/emulated_gpu/emulator/emulator.h"
#include "tests/emulated_gpu/emulator/testing/harness.h"

// Correct kernels compute the right results without findings: in any order of threads, on several host threads, with
// and without checks.
namespace torch_remote::codegen::emulator {
namespace {

using testing::Buffer;
using testing::must;

Device& device() {
  static Device device;
  return device;
}

Module& module() {
  static const auto module = testing::load_file(device(), "tests/emulated_gpu/emulator/testing/right.bc");
  return *module;
}

const std::vector<LaunchOptions> kWays = {
    {}, {.seed = 1}, {.seed = 2, .host_threads = 2}, {.checked = true}, {.seed = 3, .checked = true},
};

std::vector<float> floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> distribution(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

void expect_near(const std::vector<float>& got, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i]))) << "element " << i;
  }
}

class Right : public ::testing::TestWithParam<size_t> {
 protected:
  const LaunchOptions& way() const { return kWays[GetParam()]; }
  void launch(const char* kernel, Dim3 grid, Dim3 block, std::vector<void*> arguments, size_t dynamic_shared = 0) {
    const Status status = module().launch(kernel, grid, block, dynamic_shared, arguments.data(), way());
    ASSERT_TRUE(status) << status.message();
  }
};

TEST_P(Right, PointwiseInVectorsAndWhatRemains) {
  for (const int64_t n : {1, 5, 31, 32, 100, 1000, 4099, 30000}) {
    const auto x = floats(n, 1), w = floats(n, 2);
    Buffer<float> dx(device(), x, "x"), dw(device(), w, "w"), out(device(), n, "out");
    float bias = 0.25F;
    int64_t count = n;
    launch("pointwise", {7}, {96}, {dx.argument(), dw.argument(), out.argument(), &bias, &count});
    std::vector<double> expected(n);
    for (int64_t i = 0; i < n; ++i) expected[i] = std::fmax(double{x[i]} * w[i] + bias, 0) * x[i];
    expect_near(out.read(), expected, 1e-6);
  }
}

TEST_P(Right, SumThroughShufflesSharedMemoryAndAtomics) {
  for (int n : {1, 33, 1000, 30000}) {
    const auto x = floats(n, 3);
    Buffer<float> dx(device(), x, "x"), out(device(), std::vector<float>{0}, "out");
    launch("reduce", {6}, {256}, {dx.argument(), out.argument(), &n});
    expect_near(out.read(), {std::accumulate(x.begin(), x.end(), 0.0)}, 1e-4);
  }
}

TEST_P(Right, Softmax) {
  for (int columns : {1, 31, 257, 1000}) {
    constexpr int kRows = 3;
    const auto x = floats(size_t{kRows} * columns, 4);
    Buffer<float> dx(device(), x, "x"), out(device(), x.size(), "out");
    launch("softmax", {kRows}, {128}, {dx.argument(), out.argument(), &columns});
    std::vector<double> expected(x.size());
    for (int row = 0; row < kRows; ++row) {
      double sum = 0;
      for (int i = 0; i < columns; ++i) sum += std::exp(double{x[row * columns + i]});
      for (int i = 0; i < columns; ++i) expected[row * columns + i] = std::exp(double{x[row * columns + i]}) / sum;
    }
    expect_near(out.read(), expected, 1e-6);
  }
}

TEST_P(Right, LoopsOfAnotherLengthInEachLane) {
  int n = 300;
  std::vector<int> x(320, 1), steps(320), odd(10), expected(n);
  for (int i = 0; i < n; ++i) x[i] = i * 7 % 991 + 1;
  for (size_t i = 0; i < x.size(); ++i) {
    steps[i] = i % 32 != 0 ? steps[i - 1] : 0;
    for (int v = x[i]; v > 1; v = v % 2 != 0 ? 3 * v + 1 : v / 2) ++steps[i];
    odd[i / 32] += steps[i] % 2;
  }
  for (int i = 0; i < n; ++i) expected[i] = steps[i] * 64 + odd[i / 32];
  Buffer<int> dx(device(), x, "x"), out(device(), n, "out");
  launch("collatz", {5}, {64}, {dx.argument(), out.argument(), &n});
  EXPECT_EQ(out.read(), expected);
}

TEST_P(Right, DynamicSharedMemory) {
  std::vector<int> x(960), expected(x.size());
  std::iota(x.begin(), x.end(), 0);
  for (size_t i = 0; i < x.size(); ++i) expected[i] = x[i / 160 * 160 + 159 - i % 160] + 7;
  Buffer<int> dx(device(), x, "x"), out(device(), x.size(), "out");
  launch("reverse", {6}, {160}, {dx.argument(), out.argument()}, 160 * sizeof(int));
  EXPECT_EQ(out.read(), expected);
}

TEST_P(Right, ConstantsLocalArraysAndStructs) {
  struct Scaling {
    float factors[3];
    int64_t count;
    char first;
  } scaling = {{1, 2, 3}, 40, 5};
  int seed = 3;
  Buffer<float> out(device(), 40, "out");
  launch("spaces", {1}, {64}, {out.argument(), &scaling, &seed});
  std::vector<float> expected(40);
  const float table[] = {1, 10, 100, 1000};
  for (int i = 0; i < 40; ++i) {
    expected[i] = static_cast<float>((i + seed) % 8 * seed) * scaling.factors[i % 3] + table[i % 4] + 5;
  }
  EXPECT_EQ(out.read(), expected);
}

TEST_P(Right, BlocksOfTwoDims) {
  int rows = 37, columns = 50;
  const auto x = floats(size_t{37} * 50, 5);
  Buffer<float> dx(device(), x, "x"), out(device(), x.size(), "out");
  launch("transpose", {4, 3}, {16, 16}, {dx.argument(), out.argument(), &rows, &columns});
  std::vector<float> expected(x.size());
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) expected[j * rows + i] = x[i * columns + j];
  }
  EXPECT_EQ(out.read(), expected);
}

// Conversions round to nearest even, and keep denormals.
TEST_P(Right, HalfTypes) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<uint32_t> bits = {0x00000000, 0x80000000, 0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001,
                                      0x00040000, 0x00008000, 0x00018000, 0x7F7FFFFF, 0x477FF000, 0x33000000,
                                      0x33000001, 0x38801000, 0x387FF000, 0xC2F70000, 0x7F800000, 0x7FC00000};
  const std::vector<uint16_t> f16 = {0x0000, 0x8000, 0x3C00, 0x3C04, 0x3C0C, 0x3C04, 0x0000, 0x0000, 0x0000,
                                     0x7C00, 0x7C00, 0x0000, 0x0001, 0x0400, 0x0400, 0xD7B8, 0x7C00, 0x7E00};
  const std::vector<uint16_t> bf16 = {0x0000, 0x8000, 0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x0004, 0x0000, 0x0002,
                                      0x7F80, 0x4780, 0x3300, 0x3300, 0x3880, 0x3880, 0xC2F7, 0x7F80, 0x7FFF};
  std::vector<float> x(bits.size());
  std::memcpy(x.data(), bits.data(), bits.size() * sizeof(float));
  auto n = static_cast<int>(x.size());
  Buffer<float> dx(device(), x, "x"), back(device(), 2 * x.size(), "back");
  Buffer<uint16_t> df16(device(), x.size(), "f16"), dbf16(device(), x.size(), "bf16");
  launch("halves", {1}, {32}, {dx.argument(), df16.argument(), dbf16.argument(), back.argument(), &n});
  std::vector<uint16_t> got16 = df16.read(), gotb = dbf16.read();
  EXPECT_TRUE((got16.back() & 0x7FFF) > 0x7C00 && (gotb.back() & 0x7FFF) > 0x7F80);  // the NaN's payload is unspecified
  got16.back() = f16.back();
  gotb.back() = bf16.back();
  EXPECT_EQ(got16, f16);
  EXPECT_EQ(gotb, bf16);
  const auto values = back.read();
  EXPECT_EQ(values[4], 1.0F);
  EXPECT_EQ(values[32], inf);
  EXPECT_EQ(values[13], std::bit_cast<float>(uint32_t{0x00040000}));
  EXPECT_EQ(values[24], std::ldexp(1.0F, -24));
}

TEST_P(Right, WhatLanesKnowOfEachOther) {
  std::vector<int> x(64), expected;
  for (int i = 0; i < 64; ++i) x[i] = i * 5 % 17 - (i == 50 ? 100 : 0);
  for (int i = 0; i < 64; ++i) {
    const int warp = i / 32 * 32, lane = i % 32;
    expected.push_back(x[warp + lane / 8 * 8 + (lane + 3) % 8]);
    expected.push_back(x[lane + 5 < 32 ? i + 5 : i]);
    uint32_t same = 0;
    for (int other = 0; other < 32; ++other) same |= x[warp + other] % 4 == x[i] % 4 ? 1U << other : 0;
    expected.push_back(static_cast<int>(same));
    expected.push_back(std::accumulate(x.begin() + warp, x.begin() + warp + 32, 0));
    const bool all = std::all_of(x.begin() + warp + 20, x.begin() + warp + 32, [](int v) { return v > 0; });
    const bool any = std::any_of(x.begin() + warp, x.begin() + warp + 20, [&](int v) { return v == x[0]; });
    expected.push_back(lane >= 20 ? static_cast<int>(all) : any ? 2 : 3);
  }
  Buffer<int> dx(device(), x, "x"), out(device(), expected.size(), "out");
  launch("lanes", {1}, {64}, {dx.argument(), out.argument()});
  EXPECT_EQ(out.read(), expected);
}

TEST_P(Right, AtomicsAndDeviceVariables) {
  void* counters = nullptr;
  size_t bytes = 0;
  must(module().global("_ZN12_GLOBAL__N_18countersE", &counters, &bytes));
  ASSERT_EQ(bytes, 6 * sizeof(int));
  const std::vector<int> zeros(6);
  must(device().memory().write(counters, zeros.data(), bytes));
  void* unused = nullptr;
  launch("atomics", {3}, {50}, {static_cast<void*>(&unused)});
  std::vector<int> got(6);
  must(device().memory().read(got.data(), counters, bytes));
  EXPECT_EQ(got, (std::vector<int>{300, 149, 0, -1, 450, 0}));
}

TEST_P(Right, TheLastBlockReadsWhatOthersWrote) {
  constexpr size_t kBlocks = 9, kThreads = 64;
  std::vector<int> x(kBlocks * kThreads), expected(kThreads);
  for (size_t i = 0; i < x.size(); ++i) expected[i % kThreads] += 2 * (x[i] = static_cast<int>(i * i % 101));
  Buffer<int> dx(device(), x, "x"), partial(device(), x.size(), "partial"), out(device(), kThreads, "out");
  launch("last_block", {kBlocks}, {kThreads}, {dx.argument(), partial.argument(), out.argument()});
  EXPECT_EQ(out.read(), expected);
}

TEST_P(Right, OneThreadWaitsForAnother) {
  Buffer<int> flag(device(), std::vector<int>{0}, "flag"), out(device(), 2, "out");
  launch("handshake", {1}, {64}, {flag.argument(), out.argument()});
  EXPECT_EQ(out.read(), (std::vector<int>{42, 41}));
}

TEST_P(Right, BarriersThatCount) {
  std::vector<int> x(70, 1);
  x[3] = x[69] = 2;
  Buffer<int> dx(device(), x, "x"), out(device(), x.size(), "out");
  launch("counting_barrier", {1}, {70}, {dx.argument(), out.argument()});
  EXPECT_EQ(out.read(), std::vector<int>(70, 68 * 4 + 1));
}

INSTANTIATE_TEST_SUITE_P(Ways, Right, ::testing::Range(size_t{0}, size_t{5}));

// An unchecked launch does not report what it writes; a later checked one assumes that it wrote everything.
TEST(Launch, CheckedOnesFollowPlainOnes) {
  int columns = 64;
  Buffer<float> x(device(), floats(64, 6), "x"), y(device(), 64, "y"), z(device(), 64, "z");
  void* first[] = {x.argument(), y.argument(), &columns};
  void* second[] = {y.argument(), z.argument(), &columns};
  must(module().launch("softmax", {1}, {64}, 0, first));
  must(module().launch("softmax", {1}, {64}, 0, second, {.checked = true}));
  Buffer<float> fresh(device(), 64, "fresh");
  void* third[] = {fresh.argument(), z.argument(), &columns};
  const Status status = module().launch("softmax", {1}, {64}, 0, third, {.checked = true});
  EXPECT_NE(status.message().find("reads what was never written: byte 0 of 'fresh' (256 bytes)"), std::string::npos)
      << status.message();
}

TEST(Facts, AreThoseOfTheKernel) {
  KernelAttributes attributes;
  must(module().attributes("softmax", &attributes));
  EXPECT_EQ(attributes.shared_bytes, 128U);
  EXPECT_EQ(attributes.max_threads, 256U);
  EXPECT_TRUE(attributes.synchronizes);
  must(module().attributes("pointwise", &attributes));
  EXPECT_EQ(attributes.shared_bytes, 0U);
  EXPECT_EQ(attributes.max_threads, 1024U);
  EXPECT_FALSE(attributes.synchronizes);
  EXPECT_FALSE(module().attributes("nothing", &attributes));
}

// A worker in a test of hours loads tens of thousands of modules.
TEST(Facts, AModuleKeepsNoCompiler) {
  const auto load = [] { return testing::load_file(device(), "tests/emulated_gpu/emulator/testing/right.bc"); };
  std::vector<decltype(load())> modules(21);
  modules[0] = load();
  const size_t before = mallinfo2().uordblks;
  for (size_t i = 1; i < modules.size(); ++i) modules[i] = load();
  EXPECT_LT((mallinfo2().uordblks - before) / (modules.size() - 1), 256U << 10);
}

TEST(Launch, RefusesWhatAGpuCannotDo) {
  void* arguments[3] = {};
  EXPECT_NE(module().launch("softmax", {1}, {512}, 0, arguments).message().find("it takes 256"), std::string::npos);
  EXPECT_NE(module().launch("softmax", {1, 70000}, {32}, 0, arguments).message().find("(1,70000,1)"),
            std::string::npos);
  EXPECT_NE(module().launch("softmax", {1}, {32}, 232448, arguments).message().find("there are 232448"),
            std::string::npos);
  EXPECT_EQ(module().launch("nothing", {1}, {32}, 0, arguments).code(), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace torch_remote::codegen::emulator

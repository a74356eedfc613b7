#include "codegen/gpu/testing/emulated.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "codegen/cpu/testing/harness.h"
#include "codegen/gpu/testing/kernels.h"
#include "codegen/loop/testing/random_kernel.h"
#include "codegen/loop/testing/test_data.h"

// Compares compiled kernels on the GPU emulator with the interpreter, bit for bit. CODEGEN_KERNELS sets the number of
// random kernels, CODEGEN_SEED the first seed.
namespace torch_remote::codegen::gpu {
namespace {

using codegen::testing::TestData;
using cpu::testing::Case;
using testing::Emulated;

Kernel parsed(std::string_view text) {
  Kernel kernel;
  Status status = parse_kernel(text, &kernel);
  EXPECT_TRUE(status.ok()) << status.message();
  status = verify(kernel);
  EXPECT_TRUE(status.ok()) << status.message();
  return kernel;
}

std::vector<void*> pointers(Case& values) {
  std::vector<void*> result;
  for (auto& bytes : values.data) result.push_back(bytes.data());
  return result;
}

// Compares both with the same arguments; returns "" if they are equal.
std::string difference(const Kernel& kernel, Emulated& code, const Case& before, const emulator::LaunchOptions& options,
                       bool elsewhere = false) {
  Kernel expanded = kernel;
  expand_functions(expanded);
  Case expected = before, got = before;
  const std::vector<void*> here = pointers(expected), there = pointers(got);
  const auto view = [&](const Case& values, const std::vector<void*>& data) {
    return Arguments{values.sizes, data, values.strides, values.bounds, values.scalars};
  };
  IndexFailure failure;
  Status status = interpret(expanded, view(expected, here), order(code.recipe(), before.sizes), &failure);
  if (!status.ok()) return status.message();
  std::vector<std::span<uint8_t>> buffers(got.data.begin(), got.data.end());
  IndexRecord record;
  status = code.run(view(got, there), buffers, options, &record, /*rest=*/0, elsewhere);
  if (!status.ok()) return status.message();
  if ((failure.operand == kNone) != (record.operand == kNone)) return "one of them found a bad index";
  return cpu::testing::difference(kernel, expected, got);
}

class Named : public ::testing::TestWithParam<size_t> {
 protected:
  const testing::NamedKernel& named() { return testing::named_kernels()[GetParam()]; }
};

TEST_P(Named, IsInterpreted) {
  const Kernel kernel = parsed(named().text);
  std::unique_ptr<Emulated> code;
  const Status status = Emulated::make(kernel, {.sm = 90}, &code);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const std::vector<int64_t>& sizes : named().sizes) {
    const Case before = cpu::testing::make_case(kernel, sizes, named().bounds, 7);
    EXPECT_EQ(difference(kernel, *code, before, {.seed = 3}), "") << ::testing::PrintToString(sizes);
    int64_t points = 1;
    for (const int64_t size : sizes) points *= size;
    if (points > 10000) continue;
    EXPECT_EQ(difference(kernel, *code, before, {.checked = true}), "") << ::testing::PrintToString(sizes);
    if (kernel.scalars.empty() && before.bounds.empty()) continue;
    EXPECT_EQ(difference(kernel, *code, before, {.checked = true}, /*elsewhere=*/true), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, Named, ::testing::Range(size_t{0}, testing::named_kernels().size()),
                         [](const auto& info) { return std::string(testing::named_kernels()[info.param].name); });

// The numbers are integers, so their sum does not depend on the order.
TEST(Sum, ARowOfAnotherLengthIsAddedToo) {
  std::unique_ptr<Emulated> code;
  ASSERT_TRUE(Emulated::make(parsed(testing::named_kernel("sum").text), {.sm = 80}, &code).ok());
  std::vector<float> x(3 * 512 + 7), sum(1);
  float expected = 0;
  for (size_t i = 0; i < x.size(); ++i) expected += x[i] = static_cast<float>(i % 11);
  const std::vector<int64_t> sizes = {3, 512}, strides = {512, 1, 0, 0};
  const std::vector<void*> data = {x.data(), sum.data()};
  std::vector<std::span<uint8_t>> buffers;
  buffers.emplace_back(reinterpret_cast<uint8_t*>(x.data()), 4 * x.size());
  buffers.emplace_back(reinterpret_cast<uint8_t*>(sum.data()), 4);
  IndexRecord record;
  const Status status = code->run({sizes, data, strides, {}, {}}, buffers, {.checked = true}, &record, 7);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(sum[0], expected);
}

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Checked {
  int kernels = 0, unsupported = 0, failures = 0, finishes = 0, rows = 0;
};

void check(uint64_t seed, Checked* checked) {
  codegen::testing::Rng rng(seed);
  Kernel kernel = codegen::testing::random_kernel(rng, {.functions = seed % 4 == 0});
  expand_functions(kernel);
  std::unique_ptr<Emulated> code;
  Status status = Emulated::make(kernel, {.sm = 90}, &code);
  if (status.code() == ErrorCode::kUnsupported && code == nullptr) {
    ++checked->unsupported;
    return;
  }
  ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message() << "\n" << print(kernel);
  ++checked->kernels;
  checked->finishes += code->recipe().finish_columns != 0;
  checked->rows += code->recipe().shape == Shape::kRows;
  for (const bool checked_mode : {false, true}) {
    const TestData before(kernel, rng, {.max_points = checked_mode ? 300 : 2000});
    TestData expected = before, got = before;
    IndexFailure failure;
    status = interpret(kernel, expected.arguments(), order(code->recipe(), before.sizes), &failure);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<std::span<uint8_t>> buffers;
    for (TestData::Buffer& buffer : got.buffers) {
      buffers.emplace_back(buffer.begin(), buffer.elements * ir::item_size(buffer.dtype));
    }
    IndexRecord record;
    const bool elsewhere = checked_mode == (seed % 2 == 0);
    status = code->run(got.arguments(), buffers, {.seed = seed, .checked = checked_mode}, &record, 0, elsewhere);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message() << "\n" << print(kernel);
    ASSERT_EQ(record.operand == kNone, failure.operand == kNone) << "seed " << seed << "\n" << print(kernel);
    ASSERT_EQ(expected.difference(got), "") << "seed " << seed << ", " << before.describe() << "\n" << print(kernel);
    checked->failures += failure.operand != kNone;
  }
}

TEST(Random, IsInterpreted) {
  Checked checked;
  const uint64_t first = setting("CODEGEN_SEED", 1), count = setting("CODEGEN_KERNELS", 40);
  for (uint64_t seed = first; seed < first + count && !HasFatalFailure(); ++seed) check(seed, &checked);
  RecordProperty("unsupported", checked.unsupported);
  if (count < 40) return;
  EXPECT_LT(checked.unsupported, checked.kernels / 4);
  EXPECT_GT(checked.failures, checked.kernels / 50);
  EXPECT_GT(checked.finishes, checked.kernels / 20);
  EXPECT_GT(checked.rows, checked.kernels / 10);
}

}  // namespace
}  // namespace torch_remote::codegen::gpu

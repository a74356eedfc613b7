#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "codegen/cpu/testing/harness.h"
#include "codegen/loop/testing/random_kernel.h"
#include "codegen/loop/testing/test_data.h"

// Compares random kernels, compiled for all targets of this machine, with the interpreter bit for bit. CODEGEN_KERNELS
// sets the number of kernels, CODEGEN_SEED the first seed.
namespace torch_remote::codegen::cpu {
namespace {

using codegen::testing::TestData;

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Checked {
  int kernels = 0, failures = 0, finishes = 0;
};

void check(uint64_t seed, bool functions, Checked* checked) {
  codegen::testing::Rng rng(seed);
  const Kernel kernel = codegen::testing::random_kernel(rng, {.max_rows = 1, .functions = functions, .lines = true});
  ++checked->kernels;
  for (const std::string_view target : testing::targets()) {
    testing::Compiled code;
    const Status status = testing::compile_and_place(kernel, {.target = target}, &code);
    ASSERT_TRUE(status.ok()) << status.message() << "\n" << print(kernel);
    checked->finishes += code.code.finish != code.code.rows;
    for (int round = 0; round < 2; ++round) {
      const TestData before(code.kernel, rng);
      TestData expected = before, got = before;
      IndexFailure failure;
      const Status interpreted = interpret(code.kernel, expected.arguments(), {}, &failure);
      ASSERT_TRUE(interpreted.ok()) << interpreted.message() << "\n" << print(kernel);
      IndexRecord record;
      testing::run_compiled(code, got.arguments(), &record);
      // The order of loops determines which of several failing indices is the first one.
      ASSERT_EQ(record.operand == kNoFailure, failure.operand == kNone) << "seed " << seed << "\n"
                                                                        << print(code.kernel);
      ASSERT_EQ(expected.difference(got), "") << "seed " << seed << ", " << target << ", " << before.describe() << "\n"
                                              << print(code.kernel);
      checked->failures += failure.operand != kNone;
    }
  }
}

TEST(Random, CompiledIsInterpreted) {
  Checked checked;
  const uint64_t first = setting("CODEGEN_SEED", 1), count = setting("CODEGEN_KERNELS", 100);
  for (uint64_t seed = first; seed < first + count && !HasFatalFailure(); ++seed) check(seed, seed % 4 == 0, &checked);
  if (count < 100) return;
  EXPECT_GT(checked.failures, checked.kernels / 50);
  EXPECT_GT(checked.finishes, checked.kernels / 20);
}

}  // namespace
}  // namespace torch_remote::codegen::cpu

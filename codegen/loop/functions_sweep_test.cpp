#include <gtest/gtest.h>

#include <cstdio>
#include <future>
#include <string>

#include "codegen/loop/testing/function_errors.h"

// Tries all 2^32 arguments of each f32 function of one argument; each takes minutes.
namespace torch_remote::codegen {
namespace {

using testing::Error;
using testing::Function;

class Sweep : public ::testing::TestWithParam<Function> {};

TEST_P(Sweep, AllArguments) {
  const Function& function = GetParam();
  constexpr uint64_t kHalf = uint64_t{1} << 31;
  auto positive = std::async(std::launch::async, [&] { return testing::sweep32(function, 0, kHalf); });
  Error worst = testing::sweep32(function, kHalf, 2 * kHalf);
  const Error other = positive.get();
  if (other.ulps > worst.ulps) worst = other;
  std::printf("%s: %.4f units at %a: %a, should be %a\n", function.name.data(), worst.ulps, worst.x, worst.got,
              worst.expected);
  EXPECT_LE(worst.ulps, function.bound32);
}

std::vector<Function> unary_functions() {
  std::vector<Function> unary;
  for (const Function& function : testing::functions()) {
    if (function.arity == 1) unary.push_back(function);
  }
  return unary;
}

INSTANTIATE_TEST_SUITE_P(Functions, Sweep, ::testing::ValuesIn(unary_functions()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace torch_remote::codegen

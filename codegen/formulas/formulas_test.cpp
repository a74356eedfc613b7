#define __device__

#include "codegen/formulas/formulas.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "codegen/formulas/formula_table_generated.h"
#include "codegen/formulas/formulas_generated.h"

// Compiles the generated functions for the CPU, and compares them with the interpreter.
namespace torch_remote::codegen::formulas {
namespace {

template <typename T>
std::vector<T> arguments(std::mt19937_64& random) {
  std::vector<T> all;
  if constexpr (std::is_same_v<T, long>) {
    all = {0, 1, -1, 2, 3, -7, 63, 64, 1L << 40, std::numeric_limits<long>::min(), std::numeric_limits<long>::max()};
    for (int i = 0; i < 40; ++i) all.push_back(static_cast<long>(random()) >> (random() % 64));
  } else {
    using Limits = std::numeric_limits<T>;
    all = {0,
           -T(0),
           1,
           -1,
           T(0.5),
           T(-0.5),
           2,
           3,
           -7,
           T(1e-5),
           T(1e5),
           Limits::infinity(),
           -Limits::infinity(),
           Limits::quiet_NaN(),
           Limits::max(),
           Limits::lowest(),
           Limits::min(),
           Limits::denorm_min()};
    std::normal_distribution<double> near(0, 3), far(0, 60);
    for (int i = 0; i < 20; ++i) all.push_back(static_cast<T>(near(random)));
    for (int i = 0; i < 20; ++i) all.push_back(static_cast<T>(far(random)));
  }
  return all;
}

template <typename T>
bool is_same(T a, T b) {
  return (a != a && b != b) || std::memcmp(&a, &b, sizeof(T)) == 0;
}

// The interpreter computes expanded functions with the same operations, so the results have the same bits.
template <typename T>
void compare(const Formula& formula, long number, size_t type) {
  if (!formula.typed[type]) return;
  Kernel kernel = formula.typed[type]->kernel;
  expand_functions(kernel);
  const std::vector<uint32_t>&loads = formula.typed[type]->loads, &scalars = formula.typed[type]->scalars;
  std::mt19937_64 random(static_cast<uint64_t>(number));
  const std::vector<T> given = arguments<T>(random);
  for (int i = 0; i < 150; ++i) {
    T x[kMaxOperands];
    for (T& one : x) one = given[random() % given.size()];
    if (i < static_cast<int>(given.size())) x[0] = given[static_cast<size_t>(i)];
    bool failed = false;
    const T made = codegen::formulas::formula(number, x, &failed);
    if (failed) continue;
    T expected = 0;
    std::vector<void*> data;
    std::vector<int64_t> strides;
    for (size_t k = 0; k < kernel.operands.size(); ++k) {
      const bool is_result = k == kernel.stores[0].operand;
      data.push_back(is_result ? static_cast<void*>(&expected) : &x[loads[k]]);
      for (uint32_t d = 0; d < kernel.dims(); ++d) strides.push_back(kernel.operands[k].dims >> d & 1);
    }
    std::vector<uint64_t> numbers;
    for (const uint32_t operand : scalars) {
      if constexpr (std::is_same_v<T, long>) {
        numbers.push_back(static_cast<uint64_t>(x[operand]));
      } else {
        numbers.push_back(std::bit_cast<uint64_t>(static_cast<double>(x[operand])));
      }
    }
    const std::vector<int64_t> sizes(kernel.dims(), 1);
    const Status status = interpret(kernel, {sizes, data, strides, {}, numbers});
    ASSERT_TRUE(status.ok()) << formula.name << ": " << status.message();
    ASSERT_TRUE(is_same(made, expected)) << formula.name << " of " << x[0] << ", " << x[1] << ", " << x[2] << ", "
                                         << x[3] << " is " << made << ", expected " << expected;
  }
}

TEST(Formulas, TheGeneratedFunctionsComputeWhatTheInterpreterDoes) {
  const std::vector<Formula> all = all_formulas();
  ASSERT_EQ(all.size(), std::size(kFormulaTypes));
  EXPECT_GT(all.size(), 100u);
  for (size_t i = 0; i < all.size(); ++i) {
    compare<float>(all[i], static_cast<long>(i), 0);
    compare<double>(all[i], static_cast<long>(i), 1);
    compare<long>(all[i], static_cast<long>(i), 2);
  }
}

TEST(Formulas, AnIntegerDivisionByZeroFails) {
  bool failed = false;
  const long x[kMaxOperands] = {7, 0, 0, 0};
  formula(kFmod, x, &failed);
  EXPECT_TRUE(failed);
  EXPECT_TRUE(kFormulaTypes[kFmod].divides_integers);
  EXPECT_FALSE(kFormulaTypes[kAdd].divides_integers);
}

}  // namespace
}  // namespace torch_remote::codegen::formulas

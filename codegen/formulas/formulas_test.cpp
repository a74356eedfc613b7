#define __device__  // NOLINT(bugprone-reserved-identifier): the name that CUDA C++ has

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "codegen/formulas/apply_generated.h"
#include "codegen/formulas/print_cuda.h"
#include "codegen/loop/scalar_ops.h"

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
  return (a != a && b != b) || (a == b && std::signbit(a) == std::signbit(b));
}

// The interpreter computes expanded functions with the same operations, so the results have the same bits.
template <typename T>
void compare(ir::ScalarOp op, ir::DType type) {
  const ScalarOpInfo& facts = info(op);
  if (facts.arity == 0 || !accepts(facts.operand_types, type)) return;
  Kernel kernel = kernel_of(op, type);
  for (uint32_t i = 0; i < facts.arity; ++i) {
    kernel.values[i] = {.kind = Kind::kLoad, .type = type, .operand = i};
    kernel.operands.push_back({.dtype = type});
  }
  kernel.operands.push_back({.dtype = kernel.values.back().type});
  kernel.stores[0].operand = facts.arity;
  expand_functions(kernel);
  std::mt19937_64 random(static_cast<uint64_t>(op));
  const std::vector<T> given = arguments<T>(random);
  for (size_t i = 0; i < 150; ++i) {
    T x[] = {given[i < given.size() ? i : random() % given.size()], given[random() % given.size()]}, number = 0;
    bool truth = false;
    std::vector<void*> data = {&x[0], &x[1]};
    data.resize(facts.arity);
    data.push_back(facts.returns_bool ? static_cast<void*>(&truth) : &number);
    const Status status = interpret(kernel, {{}, data, {}, {}, {}});
    ASSERT_TRUE(status.ok()) << facts.name << ": " << status.message();
    const T expected = facts.returns_bool ? static_cast<T>(truth) : number;
    const T computed = apply(static_cast<int>(op), x[0], x[1]);
    ASSERT_TRUE(is_same(computed, expected))
        << facts.name << " of " << x[0] << ", " << x[1] << " is " << computed << ", expected " << expected;
  }
}

TEST(Formulas, TheGeneratedFunctionsComputeWhatTheInterpreterDoes) {
  for (int op = 0; op < kWhere; ++op) {
    compare<float>(static_cast<ir::ScalarOp>(op), ir::DType::kFloat32);
    compare<double>(static_cast<ir::ScalarOp>(op), ir::DType::kFloat64);
    compare<long>(static_cast<ir::ScalarOp>(op), ir::DType::kInt64);
  }
}

}  // namespace
}  // namespace torch_remote::codegen::formulas

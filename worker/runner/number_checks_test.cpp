#include "worker/runner/number_checks.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>

namespace torch_remote::worker {
namespace {

using HalfPolicy = ScalarChecks::HalfPolicy;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the error for one node on elements of `dtype`. `%0` is its operand, `%1` its result, and `s0` has the value
// `number`.
std::string said(const std::string& dtype, const std::string& node, HalfPolicy half_policy = HalfPolicy::kWide,
                 double number = 0) {
  ir::Graph graph;
  const Status parsed = ir::parse_graph("graph(s0) {\n  b0: input\n  b1: fresh(64) survives\n  %0: " + dtype +
                                            "[4] @b0\n  %1: " + dtype + "[4] @b1 = " + node + "\n}",
                                        &graph);
  EXPECT_TRUE(parsed.ok()) << parsed.message();
  std::vector<int64_t> values;
  const auto parameter = std::bit_cast<int64_t>(number);
  EXPECT_TRUE(ir::evaluate(graph, &parameter, &values).ok());
  const ScalarChecks checks(graph, {.first = 0, .last = 0}, half_policy);
  const Status status = checks.check(values);
  EXPECT_EQ(status.exception_type(), status.ok() ? "" : "RuntimeError");
  return status.message();
}

std::string overflows(const std::string& type) {
  return "value cannot be converted to type " + type + " without overflow";
}

TEST(NumberChecks, IntegersThatADTypeDoesNotHold) {
  EXPECT_EQ(said("u8", "aten::add.Tensor(%0, %0, alpha=255)"), "");
  EXPECT_EQ(said("u8", "aten::add.Tensor(%0, %0, alpha=256)"), overflows("uint8_t"));
  EXPECT_EQ(said("u8", "aten::add.Tensor(%0, %0, alpha=-255)"), "");  // As uint8, -255 has the bits of 1.
  EXPECT_EQ(said("u8", "aten::add.Tensor(%0, %0, alpha=-256)"), overflows("uint8_t"));
  EXPECT_EQ(said("i8", "aten::clamp(%0, -129, 5)"), overflows("int8_t"));
  EXPECT_EQ(said("i8", "aten::clamp(%0, none, 127)"), "");
  EXPECT_EQ(said("i16", "aten::threshold(%0, 1, 32768)"), overflows("int16_t"));
  EXPECT_EQ(said("i32", "aten::addcmul(%0, %0, %0, value=2147483648)"), overflows("int"));
  EXPECT_EQ(said("i32", "aten::addcmul(%0, %0, %0, value=2147483647)"), "");
  EXPECT_EQ(said("i64", "aten::add.Tensor(%0, %0, alpha=9223372036854775807)"), "");
  EXPECT_EQ(said("bool", "aten::add.Tensor(%0, %0, alpha=300)"), "");
}

TEST(NumberChecks, FloatsThatADTypeDoesNotHold) {
  EXPECT_EQ(said("f32", "aten::add.Tensor(%0, %0, alpha=1e39)"), overflows("float"));
  EXPECT_EQ(said("f32", "aten::add.Tensor(%0, %0, alpha=-1e38)"), "");
  EXPECT_EQ(said("f32", "aten::add.Tensor(%0, %0, alpha=float(s0))", HalfPolicy::kWide, kInfinity), "");
  EXPECT_EQ(said("f64", "aten::add.Tensor(%0, %0, alpha=1e300)"), "");
  EXPECT_EQ(said("bf16", "aten::constant_pad_nd(%0, [0, 0], 1e39)"), overflows("c10::BFloat16"));
  EXPECT_EQ(said("i64", "aten::constant_pad_nd(%0, [0, 0], 1e30)"), overflows("int64_t"));
  EXPECT_EQ(said("i64", "aten::constant_pad_nd(%0, [0, 0], float(s0))", HalfPolicy::kWide, kInfinity - kInfinity),
            overflows("int64_t"));
}

// torch's CUDA kernels compute most ops on half types in float; kAny refuses more.
TEST(NumberChecks, NumbersOfHalfTypes) {
  EXPECT_EQ(said("f16", "aten::threshold(%0, 1e5, 1.0)"), overflows("c10::Half"));
  EXPECT_EQ(said("f16", "aten::softplus(%0, 1.0, 1e5)"), "");
  EXPECT_EQ(said("f16", "aten::softplus(%0, 1.0, 1e5)", HalfPolicy::kAny), overflows("c10::Half"));
  EXPECT_EQ(said("f16", "aten::leaky_relu(%0, 1e5)"), "");
  EXPECT_EQ(said("f16", "aten::leaky_relu(%0, 1e39)"), overflows("float"));
}

// Arguments that are operands like tensors, of which only bits are left, and arguments that are doubles.
TEST(NumberChecks, OperandsAndOrdersOfNormsAreNotLookedAt) {
  EXPECT_EQ(said("u8", "aten::mul.Scalar(%0, 300)"), "");
  EXPECT_EQ(said("f16", "aten::nan_to_num(%0, 1e10, none, none)"), "");
}

TEST(NumberChecks, InPlaceItIsTheOperandsDType) {
  ir::Graph graph;
  const Status parsed = ir::parse_graph(
      "graph() {\n  b0: input survives\n  %0: u8[4] @b0\n  aten::masked_fill_.Scalar(%0!, %0, 300)\n}", &graph);
  ASSERT_TRUE(parsed.ok()) << parsed.message();
  std::vector<int64_t> values;
  ASSERT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
  EXPECT_EQ(ScalarChecks(graph, {.first = 0, .last = 0}, HalfPolicy::kWide).check(values).message(),
            overflows("uint8_t"));
}

}  // namespace
}  // namespace torch_remote::worker

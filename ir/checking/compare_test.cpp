#include "ir/checking/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace torch_remote::ir {
namespace {

template <class T>
std::optional<Difference> compared(DType dtype, std::vector<T> a, std::vector<T> b, Tolerance tolerance = {}) {
  return compare(dtype, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)), tolerance);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Compare, BitsDecideUnlessToldOtherwise) {
  EXPECT_FALSE(compared<float>(DType::kFloat32, {1, kNan, kInfinity}, {1, kNan, kInfinity}));
  EXPECT_TRUE(compared<float>(DType::kFloat32, {0.0f}, {-0.0f}));
  EXPECT_FALSE(compared<float>(DType::kFloat32, {0.0f}, {-0.0f}, {0, 1e-30}));
}

TEST(Compare, CountsMeasuresAndShowsTheFirst) {
  const auto difference = compared<float>(DType::kFloat32, {1, 2, 3, 4}, {1, 2.5, 3, 8});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->differing, 2u);
  EXPECT_EQ(difference->elements, 4u);
  EXPECT_EQ(difference->first, 1u);
  EXPECT_EQ(difference->max_abs, 4);
  EXPECT_EQ(difference->max_rel, 0.5);
  EXPECT_EQ(to_string(*difference), "2 of 4 elements differ, at most by 4 (relative 0.5); element 1: 2 and 2.5");
}

TEST(Compare, Tolerances) {
  EXPECT_FALSE(compared<float>(DType::kFloat32, {100}, {101}, {0.01, 0}));
  EXPECT_TRUE(compared<float>(DType::kFloat32, {100}, {102}, {0.01, 0}));
  EXPECT_FALSE(compared<float>(DType::kFloat32, {0.5}, {0}, {0, 0.5}));
  EXPECT_FALSE(compared<float>(DType::kFloat32, {-kNan}, {kNan}, {0, 0.5}));
  const auto infinite = compared<float>(DType::kFloat32, {kInfinity}, {1}, {0.5, 0.5});
  ASSERT_TRUE(infinite);
  EXPECT_TRUE(std::isinf(infinite->max_abs));
  EXPECT_TRUE(compared<float>(DType::kFloat32, {kNan}, {1}, {0.5, 0.5}));
  for (const float a : {1.0f, kNan, -kInfinity}) {
    const auto of_infinity = compared<float>(DType::kFloat32, {a}, {kInfinity}, {0.5, 0.5});
    ASSERT_TRUE(of_infinity) << a;
    EXPECT_TRUE(std::isinf(of_infinity->max_rel)) << a;
  }
}

TEST(Compare, HalvesIntegersComplexAndUnknownNumbers) {
  const auto half = compared<uint16_t>(DType::kFloat16, {0x3C00, 0x0001}, {0x4000, 0x0001});  // 1 and 2
  ASSERT_TRUE(half);
  EXPECT_EQ(half->max_abs, 1);
  const auto bfloat = compared<uint16_t>(DType::kBFloat16, {0x3F80}, {0xBF80});  // 1 and -1
  ASSERT_TRUE(bfloat);
  EXPECT_EQ(bfloat->max_abs, 2);
  const auto whole = compared<int64_t>(DType::kInt64, {7}, {-7});
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->a + " " + whole->b, "7 -7");
  const auto complex = compared<float>(DType::kComplex64, {1, 2, 3, 4}, {1, 2, 3, 5});
  ASSERT_TRUE(complex);
  EXPECT_EQ(complex->elements, 2u);
  EXPECT_EQ(complex->a, "(3, 4)");
  const auto unknown = compared<uint8_t>(DType::kFloat8E5M2, {1}, {2}, {1, 1});
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->a, "0x01");
}

TEST(Compare, NonfiniteElementsMayAgree) {
  const Tolerance tolerance{0, 1e-3, /*nonfinite=*/true};
  EXPECT_FALSE(compared<float>(DType::kFloat32, {kNan, kInfinity}, {-kInfinity, kNan}, tolerance));
  EXPECT_TRUE(compared<float>(DType::kFloat32, {kNan}, {1}, tolerance));
  EXPECT_TRUE(compared<float>(DType::kFloat32, {1}, {kInfinity}, tolerance));
}

TEST(Compare, OtherSizesAreDifferent) {
  const auto difference = compared<float>(DType::kFloat32, {1, 2}, {1});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->differing, 2u);
}

TEST(Compare, TheLargestFiniteElement) {
  const auto of = [](DType dtype, auto values) { return largest(dtype, std::as_bytes(std::span(values))); };
  EXPECT_EQ(of(DType::kFloat32, std::vector<float>{1, kNan, -kInfinity, -3}), 3);
  EXPECT_EQ(of(DType::kComplex64, std::vector<float>{1, -4, 2, 3}), 4);
  EXPECT_EQ(of(DType::kInt8, std::vector<int8_t>{-128, 127}), 128);
  EXPECT_EQ(of(DType::kFloat64, std::vector<double>{}), 0);
}

}  // namespace
}  // namespace torch_remote::ir

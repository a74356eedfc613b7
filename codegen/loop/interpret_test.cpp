#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "codegen/loop/half.h"
#include "codegen/loop/loop_ir.h"
#include "codegen/loop/scalar_math.h"
#include "codegen/loop/testing/random_kernel.h"
#include "codegen/loop/testing/test_data.h"
#include "gtest/gtest.h"

namespace torch_remote::codegen {
namespace {

using ir::DType;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A kernel and its arguments. Operands are dense unless strides are given.
class Call {
 public:
  Call(const std::string& text, std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {
    const Status parsed = parse_kernel(text, &kernel_);
    EXPECT_TRUE(parsed.ok()) << parsed.message();
  }

  template <typename T>
  Call& operand(std::vector<T>& data, std::vector<int64_t> bounds = {}) {
    const Operand& operand = kernel_.operands[data_.size()];
    data_.push_back(data.data());
    std::vector<int64_t> strides(kernel_.dims() + bounds.size());
    int64_t next = 1;
    for (uint32_t d = kernel_.dims(); d-- > 0;) {
      if ((operand.dims >> d & 1) == 0) continue;
      strides[d] = next;
      next *= sizes_[d];
    }
    for (size_t i = bounds.size(); i-- > 0; next *= bounds[i]) strides[kernel_.dims() + i] = next;
    strides_.insert(strides_.end(), strides.begin(), strides.end());
    bounds_.insert(bounds_.end(), bounds.begin(), bounds.end());
    return *this;
  }
  Call& scalar(uint64_t bits) {
    scalars_.push_back(bits);
    return *this;
  }

  std::string run(const Order& order = {}) {
    return interpret(kernel_, {sizes_, data_, strides_, bounds_, scalars_}, order, &failure).message();
  }

  IndexFailure failure;
  std::vector<int64_t> strides_;

 private:
  Kernel kernel_;
  std::vector<int64_t> sizes_, bounds_;
  std::vector<void*> data_;
  std::vector<uint64_t> scalars_;
};

TEST(Interpret, Softmax) {
  std::vector<float> x = {1, 2, 3, -1, 0, 100};
  std::vector<float> y(6);
  Call call(R"(kernel(i0 | j0) {
    a0: f32[i0, j0]
    a1: f32[i0, j0]
    %0: f32 = load a0
    %1: f32 = columns max %0
    %2: f32 = sub %0, %1
    %3: f32 = exp %2
    %4: f32 = columns sum %3
    %5: f32 = div %3, %4
    store a1, %5
  })",
            {2, 3});
  ASSERT_EQ(call.operand(x).operand(y).run(), "");
  const double sum = std::exp(-2.0) + std::exp(-1.0) + 1;
  EXPECT_NEAR(y[0], std::exp(-2.0) / sum, 1e-7);
  EXPECT_NEAR(y[2], 1 / sum, 1e-7);
  EXPECT_EQ(y[5], 1.0f);
  EXPECT_EQ(y[4], 3.783506e-44f) << "denormals are there";
}

// The sum of these numbers depends on the order of additions.
TEST(Interpret, ColumnsAreAddedInLanesAndBlocks) {
  std::vector<float> x(23);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i));
  std::vector<float> sum(1);
  Call call("kernel(| j0) {\n a0: f32[j0]\n a1: f32[]\n %0: f32 = load a0\n %1: f32 = columns sum %0\n store a1, %1\n}",
            {23});
  ASSERT_EQ(call.operand(x).operand(sum).run({.lanes = 4, .block = 8}), "");
  // Lane 0 has 0 4 | 8 12 | 16 20, each pair a block; lane 3 has 3 7 | 11 15 | 19.
  const auto lane = [&](size_t l) {
    float all = 0;
    for (size_t block = 0; block < 3; ++block) {
      float part = 0;
      for (size_t k = block * 8 + l; k < std::min<size_t>(23, block * 8 + 8); k += 4) part += x[k];
      all += part;
    }
    return all;
  };
  EXPECT_EQ(sum[0], (lane(0) + lane(2)) + (lane(1) + lane(3)));
  const float in_lanes = sum[0];
  ASSERT_EQ(call.run({.lanes = 1, .block = 4096}), "");
  float plain = 0;
  for (const float element : x) plain += element;
  EXPECT_EQ(sum[0], plain);
  EXPECT_NE(in_lanes, plain);
}

TEST(Interpret, EachLineOfTheLastColumnBeginsABlock) {
  std::vector<float> x = {0x1p24f, 1, 1, -0x1p24f};  // two lines of two elements
  std::vector<float> sum(1);
  Call call(
      "kernel(| j0, j1) {\n a0: f32[j0, j1]\n a1: f32[]\n %0: f32 = load a0\n %1: f32 = columns sum %0\n store a1, "
      "%1\n}",
      {2, 2});
  ASSERT_EQ(call.operand(x).operand(sum).run({.lanes = 2, .block = 4}), "");
  EXPECT_EQ(sum[0], (0x1p24f + 1) + (1 - 0x1p24f)) << "the lanes of both lines are the same";
  ASSERT_EQ(call.run({.lanes = 1, .block = 4}), "");
  EXPECT_EQ(sum[0], (0x1p24f + 1) + (1 - 0x1p24f)) << "a block a line";
}

TEST(Interpret, RowsAreAddedInChunks) {
  std::vector<float> x = {0x1p24f, 0, 0, 1, 1, 0, 0.5f};
  std::vector<float> sum(1);
  Call call("kernel(i0 |) {\n a0: f32[i0]\n a1: f32[]\n %0: f32 = load a0\n %1: f32 = rows sum %0\n store a1, %1\n}",
            {7});
  ASSERT_EQ(call.operand(x).operand(sum).run({.chunk = 3}), "");
  EXPECT_EQ(sum[0], (((x[0] + x[1]) + x[2]) + ((x[3] + x[4]) + x[5])) + x[6]);
  const float in_chunks = sum[0];
  ASSERT_EQ(call.run({.chunk = 64}), "");
  EXPECT_EQ(sum[0], (((((x[0] + x[1]) + x[2]) + x[3]) + x[4]) + x[5]) + x[6]);
  EXPECT_NE(in_chunks, sum[0]);
}

TEST(Interpret, RowsKeepTheColumns) {
  std::vector<int64_t> x = {1, 2, 3, 4, 5, 6}, sum(3), most(3);
  std::vector<double> mean(3);
  Call call(R"(kernel(i0 | j0) {
    s0: f64
    a0: i64[i0, j0]
    a1: i64[j0]
    a2: f64[j0]
    a3: i64[j0]
    %0: i64 = load a0
    %1: i64 = rows sum %0
    %2: f64 = convert %1
    %3: f64 = scalar s0
    %4: f64 = div %2, %3
    %5: i64 = rows max %0
    %6: i64 = index j0
    %7: i64 = sub %5, %6
    store a1, %1
    store a2, %4
    store a3, %7
  })",
            {2, 3});
  ASSERT_EQ(call.operand(x).operand(sum).operand(mean).operand(most).scalar(std::bit_cast<uint64_t>(2.0)).run(), "");
  EXPECT_EQ(sum, (std::vector<int64_t>{5, 7, 9}));
  EXPECT_EQ(mean, (std::vector<double>{2.5, 3.5, 4.5}));
  EXPECT_EQ(most, (std::vector<int64_t>{4, 4, 4}));
}

// Computes one sum for each position of the outer column dim: along its lines, then over all rows.
TEST(Interpret, LinesKeepTheOuterColumn) {
  std::vector<float> x = {1, 2, 3, 4, 5, 6, 1e8f, 1, 1, 1, 1, -1e8f}, sum(2), most(2);
  Call call(R"(kernel(i0 | j0, j1) {
    a0: f32[i0, j0, j1]
    a1: f32[j0]
    a2: f32[j0]
    %0: f32 = load a0
    %1: f32 = lines sum %0
    %2: f32 = lines max %0
    %3: f32 = neg %2
    store a1, %1
    store a2, %3
  })",
            {2, 2, 3});
  ASSERT_EQ(call.operand(x).operand(sum).operand(most).run(), "");
  EXPECT_EQ(sum, (std::vector<float>{6 + (1e8f + 1 + 1), 15 + (1 + 1 + -1e8f)}));
  EXPECT_EQ(most, (std::vector<float>{-1e8f, -6}));
}

TEST(Interpret, RunningSumsGoAlongTheLastColumn) {
  Kernel kernel;
  ASSERT_TRUE(parse_kernel(R"(kernel(i0 | j0, j1) {
  a0: f64[i0, j0, j1]
  a1: f64[i0, j0, j1]
  a2: f64[i0, j0, j1]
  %0: f64 = load a0
  %1: f64 = running sum %0
  %2: f64 = running product %0
  store a1, %1
  store a2, %2
})",
                           &kernel)
                  .ok());
  ASSERT_TRUE(verify(kernel).ok()) << verify(kernel).message();
  constexpr int64_t kLength = 40;
  std::vector<double> x(2 * 3 * kLength), sums(x.size()), products(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 7 == 3 ? -1 : static_cast<double>(i % 5 != 0) * 2;
  void* const data[] = {x.data(), sums.data(), products.data()};
  const int64_t sizes[] = {2, 3, kLength};
  const int64_t strides[] = {3 * kLength, kLength, 1, 3 * kLength, kLength, 1, 3 * kLength, kLength, 1};
  ASSERT_TRUE(interpret(kernel, {.sizes = sizes, .data = data, .strides = strides, .bounds = {}, .scalars = {}}).ok());
  for (size_t line = 0; line < 6; ++line) {
    double sum = 0, product = 1;
    for (size_t k = 0; k < kLength; ++k) {
      const size_t at = line * kLength + k;
      sum += x[at];
      product *= x[at];
      EXPECT_EQ(sums[at], sum) << at;
      EXPECT_EQ(products[at], product) << at;
    }
  }
}

TEST(Interpret, RunningLogarithmsOfSums) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Kernel kernel;
  ASSERT_TRUE(parse_kernel(R"(kernel(i0 | j0) {
  a0: f64[i0, j0]
  a1: f64[i0, j0]
  %0: f64 = load a0
  %1: f64 = running logsumexp %0
  store a1, %1
})",
                           &kernel)
                  .ok());
  constexpr size_t kLength = 40, kRows = 4;
  std::vector<double> x(kRows * kLength), made(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i * 37 % 101) * 9 - 300;
  std::fill_n(x.begin() + kLength, 20, -kInfinity);  // only -inf first, then numbers
  x[2 * kLength + 3] = x[2 * kLength + 30] = kInfinity;
  x[3 * kLength + 18] = kNan;
  void* const data[] = {x.data(), made.data()};
  const int64_t sizes[] = {kRows, kLength}, strides[] = {kLength, 1, kLength, 1};
  ASSERT_TRUE(interpret(kernel, {.sizes = sizes, .data = data, .strides = strides, .bounds = {}, .scalars = {}}).ok());
  for (size_t row = 0; row < kRows; ++row) {
    double most = -kInfinity;
    long double sum = 0;  // relative to exp(most)
    for (size_t k = 0; k < kLength; ++k) {
      const double next = x[row * kLength + k];
      if (next > most) {
        sum *= std::exp(static_cast<long double>(most) - next);
        most = next;
      }
      sum += next == most ? 1 : std::exp(static_cast<long double>(next) - most);
      const double want = std::isinf(most) ? most : static_cast<double>(most + std::log(sum)),
                   got = made[row * kLength + k];
      if (row == 3 && k >= 18) {
        EXPECT_TRUE(std::isnan(got)) << k;
      } else if (std::isinf(want)) {
        EXPECT_EQ(got, want) << row << " " << k;
      } else {
        EXPECT_NEAR(got, want, 1e-13 * std::max(1.0, std::abs(want))) << row << " " << k;
      }
    }
  }
}

TEST(Interpret, NothingToReduce) {
  std::vector<float> none(1), sum(2, 7), most(2, 7), product(1, 7);
  std::vector<int64_t> place(2, 7), count(1, 7);
  const std::string text = R"(kernel(i0 | j0) {
    a0: f32[i0, j0]
    a1: f32[i0]
    a2: f32[i0]
    a3: i64[i0]
    a4: f32[]
    a5: i64[]
    %0: f32 = load a0
    %1: f32 = columns sum %0
    %2: f32 = columns max %0
    %3: i64 = columns argmax %0
    %4: f32 = rows product %1
    %5: i64 = constant 1
    %6: i64 = rows sum %5
    store a1, %1
    store a2, %2
    store a3, %3
    store a4, %4
    store a5, %6
  })";
  Call no_columns(text, {2, 0});
  no_columns.operand(none).operand(sum).operand(most).operand(place).operand(product).operand(count);
  ASSERT_EQ(no_columns.run(), "");
  EXPECT_EQ(sum, (std::vector<float>{0, 0}));
  EXPECT_EQ(most, (std::vector<float>{-kInf, -kInf}));
  EXPECT_EQ(place, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(product[0], 0);
  EXPECT_EQ(count[0], 2);
  Call no_rows(text, {0, 5});
  no_rows.operand(none).operand(sum).operand(most).operand(place).operand(product).operand(count);
  ASSERT_EQ(no_rows.run(), "");
  EXPECT_EQ(product[0], 1);
  EXPECT_EQ(count[0], 0);
}

TEST(Interpret, ReductionsOfAllTypes) {
  std::vector<int8_t> a = {-3, 100, 100, -128}, a_min(1), a_max(1), a_product(1);
  std::vector<uint8_t> b = {3, 200, 100, 7}, b_min(1), b_sum(1), c = {1, 0, 1, 1}, c_min(1), c_max(1);
  std::vector<double> d = {1.5, 2, -4, 8}, d_min(1), d_product(1);
  Call call(R"(kernel(| j0) {
    a0: i8[j0]
    a1: i8[]
    a2: i8[]
    a3: i8[]
    a4: u8[j0]
    a5: u8[]
    a6: u8[]
    a7: bool[j0]
    a8: bool[]
    a9: bool[]
    a10: f64[j0]
    a11: f64[]
    a12: f64[]
    %0: i8 = load a0
    %1: i8 = columns min %0
    %2: i8 = columns max %0
    %3: i8 = columns product %0
    %4: u8 = load a4
    %5: u8 = columns min %4
    %6: u8 = columns sum %4
    %7: bool = load a7
    %8: bool = columns min %7
    %9: bool = columns max %7
    %10: f64 = load a10
    %11: f64 = columns min %10
    %12: f64 = columns product %10
    store a1, %1
    store a2, %2
    store a3, %3
    store a5, %5
    store a6, %6
    store a8, %8
    store a9, %9
    store a11, %11
    store a12, %12
  })",
            {4});
  call.operand(a).operand(a_min).operand(a_max).operand(a_product).operand(b).operand(b_min).operand(b_sum);
  ASSERT_EQ(call.operand(c).operand(c_min).operand(c_max).operand(d).operand(d_min).operand(d_product).run(), "");
  EXPECT_EQ(a_min[0], -128);
  EXPECT_EQ(a_max[0], 100);
  EXPECT_EQ(a_product[0], 0);
  EXPECT_EQ(b_min[0], 3);
  EXPECT_EQ(b_sum[0], 310 - 256);
  EXPECT_EQ(c_min[0], 0);
  EXPECT_EQ(c_max[0], 1);
  EXPECT_EQ(d_min[0], -4);
  EXPECT_EQ(d_product[0], -96);
}

TEST(Interpret, PlacesOfTheLargest) {
  std::vector<float> x = {1, 5, 5, -kInf, -kInf, -kInf, 1, kNan, kNan, 0.0f, -0.0f, 0.0f};
  std::vector<int64_t> largest(4), smallest(4);
  Call call(R"(kernel(i0 | j0) {
    a0: f32[i0, j0]
    a1: i64[i0]
    a2: i64[i0]
    %0: f32 = load a0
    %1: i64 = columns argmax %0
    %2: i64 = columns argmin %0
    store a1, %1
    store a2, %2
  })",
            {4, 3});
  ASSERT_EQ(call.operand(x).operand(largest).operand(smallest).run(), "");
  EXPECT_EQ(largest, (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_EQ(smallest, (std::vector<int64_t>{0, 0, 1, 0}));
}

Cell apply_f32(ir::ScalarOp op, float a, float b) { return apply(op, DType::kFloat32, to_cell(a), to_cell(b), {}); }

TEST(Interpret, TheLargerOne) {
  using ir::ScalarOp;
  const auto result = [](ScalarOp op, float a, float b) { return from_cell<float>(apply_f32(op, a, b)); };
  for (const ScalarOp op : {ScalarOp::kMax, ScalarOp::kMin}) {
    EXPECT_TRUE(std::isnan(result(op, kNan, 1)));
    EXPECT_TRUE(std::isnan(result(op, 1, kNan)));
    EXPECT_FALSE(std::signbit(result(op, -0.0f, 0.0f))) << "the second one of equal ones";
    EXPECT_TRUE(std::signbit(result(op, 0.0f, -0.0f)));
  }
  for (const ScalarOp op : {ScalarOp::kFmax, ScalarOp::kFmin}) {
    EXPECT_EQ(result(op, kNan, 1), 1);
    EXPECT_EQ(result(op, 1, kNan), 1);
    EXPECT_TRUE(std::isnan(result(op, kNan, kNan)));
    EXPECT_FALSE(std::signbit(result(op, -0.0f, 0.0f)));
  }
  EXPECT_EQ(result(ScalarOp::kMax, 2, 1), 2);
  EXPECT_EQ(result(ScalarOp::kMin, 2, 1), 1);
  EXPECT_EQ(result(ScalarOp::kFmax, 1, 2), 2);
  EXPECT_EQ(result(ScalarOp::kFmin, 1, 2), 1);
}

TEST(Interpret, PowersOfTwo) {
  const auto single = [](float a, float b) {
    return from_cell<float>(scaled(DType::kFloat32, to_cell(a), to_cell(b)));
  };
  EXPECT_EQ(single(1.25f, 3), 10);
  EXPECT_EQ(single(0x1.000002p0f, -149), 0x1p-149f) << "rounded once";
  EXPECT_EQ(single(0x1.800002p0f, -150), 0x1p-149f);
  EXPECT_EQ(single(1.5f, -400), 0);
  EXPECT_EQ(single(-1.5f, 128), -kInf);
  EXPECT_EQ(single(kInf, -300), kInf);
  EXPECT_TRUE(std::isnan(single(kNan, 1)));
  EXPECT_EQ(from_cell<double>(scaled(DType::kFloat64, to_cell(1.5), to_cell(-1073.0))), 0x1.8p-1073);
}

TEST(Interpret, IntegersWrapAround) {
  using ir::ScalarOp;
  const auto result = [](ScalarOp op, DType type, int64_t a, int64_t b) {
    return from_cell<int64_t>(apply(op, type, to_cell(a), to_cell(b), {}));
  };
  EXPECT_EQ(result(ScalarOp::kAdd, DType::kInt8, 127, 1), -128);
  EXPECT_EQ(result(ScalarOp::kSub, DType::kUInt8, 3, 5), 254);
  EXPECT_EQ(result(ScalarOp::kMul, DType::kInt16, 300, 300), 24464);
  EXPECT_EQ(result(ScalarOp::kMul, DType::kInt32, 1 << 20, 1 << 20), 0);
  EXPECT_EQ(result(ScalarOp::kAdd, DType::kInt64, INT64_MAX, 1), INT64_MIN);
  EXPECT_EQ(result(ScalarOp::kDiv, DType::kInt32, 7, 0), 0);
  EXPECT_EQ(result(ScalarOp::kDiv, DType::kInt32, -7, 2), -3);
  EXPECT_EQ(result(ScalarOp::kDiv, DType::kInt8, -128, -1), -128);
  EXPECT_EQ(result(ScalarOp::kDiv, DType::kInt64, INT64_MIN, -1), INT64_MIN);
  EXPECT_EQ(result(ScalarOp::kAbs, DType::kInt16, -32768, 0), -32768);
  EXPECT_EQ(result(ScalarOp::kNeg, DType::kUInt8, 1, 0), 255);
  EXPECT_EQ(result(ScalarOp::kBitNot, DType::kUInt8, 1, 0), 254);
  EXPECT_EQ(result(ScalarOp::kBitNot, DType::kBool, 1, 0), 0);
  EXPECT_EQ(result(ScalarOp::kBitNot, DType::kBool, 0, 0), 1);
  EXPECT_EQ(result(ScalarOp::kShiftLeft, DType::kInt8, 3, 7), -128);
  EXPECT_EQ(result(ScalarOp::kShiftLeft, DType::kInt8, 3, 8), 0);
  EXPECT_EQ(result(ScalarOp::kShiftLeft, DType::kInt32, 3, -1), 0);
  EXPECT_EQ(result(ScalarOp::kShiftRight, DType::kInt8, -128, 100), -1);
  EXPECT_EQ(result(ScalarOp::kShiftRight, DType::kInt32, -8, -1), -1);
  EXPECT_EQ(result(ScalarOp::kShiftRight, DType::kUInt8, 255, 8), 0);
  EXPECT_EQ(result(ScalarOp::kFloorDiv, DType::kInt8, -7, 2), -4);
}

TEST(Interpret, Conversions) {
  const auto of = [](DType to, double x) { return convert(DType::kFloat64, to, to_cell(x)); };
  EXPECT_EQ(from_cell<int64_t>(of(DType::kInt32, -3.9)), -3);
  EXPECT_EQ(from_cell<int64_t>(of(DType::kBool, 0.25)), 1);
  EXPECT_EQ(from_cell<int64_t>(of(DType::kBool, kNan)), 1);
  EXPECT_EQ(from_cell<int64_t>(of(DType::kBool, -0.0)), 0);
  EXPECT_EQ(from_cell<float>(of(DType::kFloat32, 1 + 0x1p-24 + 0x1p-50)), 1 + 0x1p-23f);
  EXPECT_EQ(from_cell<float>(convert(DType::kInt64, DType::kFloat32, to_cell((int64_t{1} << 53) + (1 << 29) + 1))),
            0x1p53f + 0x1p30f)
      << "rounded once";
  EXPECT_EQ(from_cell<int64_t>(convert(DType::kInt64, DType::kInt8, to_cell(int64_t{200}))), -56);
  EXPECT_EQ(from_cell<int64_t>(convert(DType::kInt64, DType::kBool, to_cell(int64_t{256}))), 1);
  EXPECT_EQ(from_cell<int64_t>(bits_as(DType::kInt32, to_cell(-2.0f))), -0x40000000);
  EXPECT_EQ(from_cell<float>(bits_as(DType::kFloat32, to_cell(int64_t{-0x40000000}))), -2.0f);
  EXPECT_EQ(from_cell<int64_t>(bits_as(DType::kInt8, to_cell(int64_t{255}))), -1);
}

// Every 16-bit number converts to itself. Numbers between two of them round to the nearer one, or to the even one.
template <uint16_t (*to)(float), float (*from)(uint16_t)>
void rounds_to_nearest(uint16_t infinity) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = from(static_cast<uint16_t>(bits));
    if ((bits & 0x7FFF) > infinity) {
      ASSERT_TRUE(std::isnan(x));
      continue;
    }
    ASSERT_EQ(to(x), bits);
    if ((bits & 0x7FFF) >= infinity) continue;
    // For numbers beyond the largest one, we use the next number that a larger format would have.
    const float largest = from(static_cast<uint16_t>(infinity - 1)), before = from(static_cast<uint16_t>(infinity - 2));
    float next = from(static_cast<uint16_t>(bits + 1));
    double middle = (double{x} + double{next}) / 2;
    if (std::isinf(next)) middle = std::copysign(double{largest} + (double{largest} - double{before}) / 2, x);
    const auto half = static_cast<float>(middle);
    ASSERT_EQ(double{half}, middle);
    ASSERT_EQ(to(half), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(to(std::nextafter(half, 0.0f)), bits);
    ASSERT_EQ(to(std::nextafter(half, x < 0 || bits >= 0x8000 ? -kInf : kInf)), bits + 1);
  }
  ASSERT_TRUE(std::isnan(from(to(kNan))));
  ASSERT_TRUE(std::isnan(from(to(std::bit_cast<float>(0x7F800001u)))));
}

TEST(Interpret, HalfTypesRoundToTheNearest) {
  rounds_to_nearest<to_f16, from_f16>(0x7C00);
  rounds_to_nearest<to_bf16, from_bf16>(0x7F80);
}

// These are test vectors of the paper's authors (Random123, kat_vectors).
TEST(Interpret, RandomWords) {
  const uint32_t zeros[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(static_cast<uint32_t>(random_word(0, 0, i)), zeros[i]);
}

TEST(Interpret, IndicesOutOfBounds) {
  std::vector<int64_t> index = {1, -1, 0, 3};
  std::vector<float> table = {10, 11, 20, 21, 30, 31}, out(8, 7);
  Call call(R"(kernel(i0 | j0) {
    a0: i64[i0]
    a1: f32[_, j0]
    a2: f32[i0, j0]
    %0: i64 = load a0
    %1: f32 = load a1[%0]
    store a2, %1
  })",
            {4, 2});
  ASSERT_EQ(call.operand(index).operand(table, {3}).operand(out).run(), "");
  EXPECT_EQ(out, (std::vector<float>{20, 21, 0, 0, 10, 11, 0, 0}));
  EXPECT_EQ(call.failure.operand, 1u);
  EXPECT_EQ(call.failure.index, -1) << "the first one";
  EXPECT_EQ(call.failure.bound, 3);
  index = {1, 1, 2, 0};
  ASSERT_EQ(call.run(), "");
  EXPECT_EQ(call.failure.operand, kNone);
}

TEST(Interpret, StoresAtIndicesAddInTheOrderOfRows) {
  std::vector<int64_t> index = {1, 0, 1, 1, 9};
  std::vector<float> x = {1, 2, 0x1p24f, 1, 5};
  std::vector<uint16_t> half = {to_bf16(1), to_bf16(1)};
  std::vector<float> sum = {0, 0};
  Call call(R"(kernel(i0 |) {
    a0: i64[i0]
    a1: f32[i0]
    a2: f32[_]
    a3: bf16[_]
    %0: i64 = load a0
    %1: f32 = load a1
    store a2[%0], %1 adds
    store a3[%0], %1 adds
  })",
            {5});
  ASSERT_EQ(call.operand(index).operand(x).operand(sum, {2}).operand(half, {2}).run(), "");
  EXPECT_EQ(sum, (std::vector<float>{2, (1 + 0x1p24f) + 1}));
  EXPECT_EQ(from_bf16(half[0]), 3);
  EXPECT_EQ(call.failure.operand, 2u);
  EXPECT_EQ(call.failure.index, 9);
}

TEST(Interpret, LoadsSeeWhatWasThereBefore) {
  std::vector<float> x = {1, 2, 3}, y = {10, 20, 30};
  Call call(R"(kernel(i0 |) {
    a0: f32[i0]
    a1: f32[i0]
    %0: f32 = load a0
    %1: f32 = load a1
    %2: f32 = add %0, %1
    store a0, %2
    store a1, %0
  })",
            {3});
  ASSERT_EQ(call.operand(x).operand(y).run(), "");
  EXPECT_EQ(x, (std::vector<float>{11, 22, 33}));
  EXPECT_EQ(y, (std::vector<float>{1, 2, 3}));
}

TEST(Interpret, WhatNoStoreIsMadeOfIsNotDone) {
  std::vector<int64_t> index = {-1};
  std::vector<float> x(1), out(1);
  Call call(R"(kernel(i0 |) {
    a0: i64[i0]
    a1: f32[_]
    %0: i64 = load a0
    %1: f32 = load a1[%0]
    store a0, %0
  })",
            {1});
  ASSERT_EQ(call.operand(index).operand(x, {1}).run(), "");
  EXPECT_EQ(call.failure.operand, kNone);
}

TEST(Interpret, ArgumentsThatDoNotFit) {
  const std::string text = "kernel(i0 | j0) {\n a0: f32[j0]\n %0: f32 = load a0\n}";
  std::vector<float> x(4);
  Call stride(text, {1, 4});
  stride.operand(x).strides_ = {0, 2};
  EXPECT_EQ(stride.run(), "interpret: a0 has stride 2 along dim 1, the kernel has 1");
  stride.strides_ = {3, 1};
  EXPECT_EQ(stride.run(), "interpret: a0 has stride 3 along dim 0, the kernel has 0");
  EXPECT_EQ(Call(text, {1, 4, 1}).operand(x).run(), "interpret: a size is needed for each dim");
  EXPECT_EQ(Call(text, {1, 4}).run(),
            "interpret: the number of data, strides, bounds or scalars differs from the kernel's");
  EXPECT_EQ(Call(text, {1, -4}).operand(x).run(), "interpret: a size is negative");
  EXPECT_EQ(
      Call(text, {1, 4}).operand(x).run({.lanes = 3}),
      "interpret: lanes, wide lanes, groups and folds must be powers of two, groups ascend up to lanes, block and "
      "narrow be multiples of lanes, chunk 1 or more");
  EXPECT_NE(Call(text, {1, 4}).operand(x).run({.short_sum = 16}), "");
  EXPECT_NE(Call(text, {1, 4}).operand(x).run({.wide_lanes = 3}), "");
  EXPECT_NE(Call(text, {1, 4}).operand(x).run({.lanes = 4, .groups = {4, 2}}), "");
  EXPECT_NE(Call(text, {1, 4}).operand(x).run({.chunk_lanes = 3}), "");
}

// 2^24 plus 1 is 2^24, but 2^24 plus 2 is exact.
TEST(Interpret, NeighboursOfAGroupComeFirst) {
  const float big = 0x1p24f;
  std::vector<float> x = {big, 1, 0, 1}, out(1);
  const auto sum = [&](const Order& order) {
    Call call(R"(kernel(i0 | j0) {
      a0: f32[j0]
      a1: f32[i0]
      %0: f32 = load a0
      %1: f32 = columns sum %0
      store a1, %1
    })",
              {1, 4});
    EXPECT_EQ(call.operand(x).operand(out).run(order), "");
    return out[0];
  };
  EXPECT_EQ(sum({.lanes = 4}), big + 2);                    // (big + 0) + (1 + 1)
  EXPECT_EQ(sum({.lanes = 4, .groups = {2, 4}}), big);      // (big + 1) + (0 + 1)
  EXPECT_EQ(sum({.lanes = 4, .groups = {1, 2}}), big);      // the same groups
  EXPECT_EQ(sum({.lanes = 2, .groups = {2, 2}}), big + 2);  // as lanes of two: big + 0, 1 + 1
}

// A wide sum retains 1 next to 2^24 if they are in different short sums, or if each is converted first.
TEST(Interpret, ShortSumsOfWideOnesAreNarrow) {
  const float big = 0x1p24f;
  const auto sum = [&](const std::string& operand, const std::vector<float>& x, const Order& order) {
    std::vector<float> in = x;
    std::vector<double> out(1);
    Call call("kernel(i0 | j0) {\n a0: f32[j0]\n a1: f64[i0]\n %0: f32 = load a0\n %1: f32 = " + operand +
                  "\n %2: f64 = columns sum %1\n store a1, %2\n}",
              {1, static_cast<int64_t>(in.size())});
    EXPECT_EQ(call.operand(in).operand(out).run(order), "");
    return out[0];
  };
  const std::vector<float> x = {big, 1, 1, 1};
  EXPECT_EQ(sum("neg %0", x, {.lanes = 1}), -big);
  EXPECT_EQ(sum("neg %0", x, {.lanes = 1, .short_sum = 2}), -double{big} - 2);
  EXPECT_EQ(sum("neg %0", x, {.lanes = 1, .short_sum = 1}), -double{big} - 3);
  EXPECT_EQ(sum("neg %0", x, {.lanes = 2, .short_sum = 4, .wide_lanes = 1}), -double{big} - 2);
  EXPECT_EQ(sum("neg %0", x, {.lanes = 2, .short_sum = 2, .wide_lanes = 2}), -double{big} - 3);
  // Products are not rounded before they are added: (2^12 + 1)^2 is 2^24 + 2^13 + 1.
  EXPECT_EQ(sum("mul %0, %0", {-1, 4097}, {.lanes = 1}), 0x1p24 + 0x1p13 + 2);
  EXPECT_EQ(sum("mul %0, %0", {-1, 4097}, {.lanes = 1, .short_sum = 1}), 0x1p24 + 0x1p13 + 1);
}

TEST(Interpret, ChunksAreAddedInLanes) {
  const float big = 0x1p24f;
  std::vector<float> x = {big, 1, 0, 1}, out(1);
  const auto sum = [&](const Order& order) {
    Call call(R"(kernel(i0 |) {
      a0: f32[i0]
      a1: f32[]
      %0: f32 = load a0
      %1: f32 = rows sum %0
      store a1, %1
    })",
              {4});
    EXPECT_EQ(call.operand(x).operand(out).run(order), "");
    return out[0];
  };
  EXPECT_EQ(sum({.chunk = 1}), big);
  EXPECT_EQ(sum({.chunk = 1, .chunk_lanes = 2}), big + 2);
  EXPECT_EQ(sum({.chunk = 1, .chunk_lanes = 4}), big + 2);
  EXPECT_EQ(sum({.chunk = 2, .chunk_lanes = 4}), big);  // (big + 1) + (0 + 1)
}

bool order_matters(const Kernel& kernel) {
  return std::ranges::any_of(kernel.values, [](const Value& value) {
    return value.kind == Kind::kReduce && (value.type == DType::kFloat32 || value.type == DType::kFloat64);
  });
}

TEST(Interpret, RandomKernels) {
  size_t failures = 0, changed = 0, other_order = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    testing::Rng rng(seed);
    const Kernel kernel = testing::random_kernel(rng, {.functions = seed % 4 == 0, .lines = true});
    const testing::TestData before(kernel, rng, {.max_points = 600});
    testing::TestData once = before, again = before, reordered = before;
    IndexFailure failure, same_failure;
    Status status = interpret(kernel, once.arguments(), {}, &failure);
    ASSERT_TRUE(status.ok()) << seed << ": " << status.message() << "\n" << print(kernel);
    status = interpret(kernel, again.arguments(), {}, &same_failure);
    ASSERT_EQ(once.difference(again), "") << seed;
    ASSERT_EQ(failure.index, same_failure.index);
    failures += failure.operand != kNone;
    changed += !once.difference(before).empty();
    if (order_matters(kernel)) continue;
    ++other_order;
    ASSERT_TRUE(interpret(kernel, reordered.arguments(), {.lanes = 8, .block = 16, .chunk = 3}).ok());
    ASSERT_EQ(once.difference(reordered), "") << seed << "\n" << print(kernel);
  }
  EXPECT_GT(failures, 10u);
  EXPECT_LT(failures, 200u);
  EXPECT_GT(changed, 500u);
  EXPECT_GT(other_order, 100u);
}

// Otherwise the results of random kernels would depend on the order of stores.
TEST(Interpret, RandomStoresAtIndicesDoNotMeet) {
  size_t seen = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    testing::Rng rng(seed);
    const Kernel kernel = testing::random_kernel(rng);
    testing::TestData data(kernel, rng, {.max_points = 600});
    const Arguments arguments = data.arguments();
    for (const Store& store : kernel.stores) {
      if (store.indices.size() != 1 || store.adds) continue;
      const Value& index = kernel.values[store.indices[0]];
      if (index.kind != Kind::kLoad) continue;
      // These are all elements of the index operand, which has all dims that the store's operand lacks.
      size_t first = 0;
      for (uint32_t i = 0; i < index.operand; ++i) first += kernel.dims() + kernel.operands[i].indexed;
      std::vector<int64_t> offsets = {0};
      for (uint32_t d = 0; d < kernel.dims(); ++d) {
        if ((kernel.operands[index.operand].dims >> d & 1) == 0) continue;
        std::vector<int64_t> next;
        for (int64_t i = 0; i < arguments.sizes[d]; ++i) {
          for (const int64_t offset : offsets) next.push_back(offset + i * arguments.strides[first + d]);
        }
        offsets = std::move(next);
      }
      std::set<int64_t> places;
      for (const int64_t offset : offsets) {
        places.insert(static_cast<const int64_t*>(arguments.data[index.operand])[offset]);
      }
      ASSERT_EQ(places.size(), offsets.size()) << seed << "\n" << print(kernel) << data.describe();
      ++seen;
    }
  }
  EXPECT_GT(seen, 100u);
}

// A stored operand shares memory with at most one other operand of the same positions, and each point has its own
// element.
TEST(Interpret, RandomOperandsShareMemoryAsTheyMay) {
  size_t seen = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    testing::Rng rng(seed);
    const Kernel kernel = testing::random_kernel(rng);
    const testing::TestData data(kernel, rng, {.max_points = 100});
    std::vector<size_t> first = {0};
    for (const Operand& operand : kernel.operands) first.push_back(first.back() + kernel.dims() + operand.indexed);
    for (uint32_t a = 0; a < kernel.operands.size(); ++a) {
      for (uint32_t b = 0; b < a; ++b) {
        if (data.views[a].buffer != data.views[b].buffer) continue;
        ++seen;
        ASSERT_EQ(kernel.operands[a], kernel.operands[b]) << seed;
        ASSERT_EQ(data.views[a].first, data.views[b].first) << seed;
        for (uint32_t d = 0; d < kernel.dims(); ++d) {
          ASSERT_EQ(data.strides[first[a] + d], data.strides[first[b] + d]) << seed;
          ASSERT_EQ(data.strides[first[a] + d] != 0, (kernel.operands[a].dims >> d & 1) != 0) << seed;
        }
        const auto stores = std::ranges::count_if(
            kernel.stores, [&](const Store& store) { return store.operand == a || store.operand == b; });
        ASSERT_EQ(stores, 1) << seed;
      }
    }
  }
  EXPECT_GT(seen, 100u);
}

}  // namespace
}  // namespace torch_remote::codegen

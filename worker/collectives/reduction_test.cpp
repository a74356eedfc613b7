#include "worker/collectives/reduction.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace torch_remote::worker {
namespace {

using ir::DType;

template <typename T>
std::vector<T> reduced(DType dtype, Reduction reduction, std::vector<std::vector<T>> sources) {
  std::vector<const void*> pointers;
  for (const std::vector<T>& source : sources) pointers.push_back(source.data());
  std::vector<T> result(sources[0].size());
  reduce(dtype, reduction, pointers, result.data(), static_cast<int64_t>(result.size()));
  return result;
}

TEST(Reduction, CombinesNumbers) {
  using F = std::vector<float>;
  EXPECT_EQ(reduced<float>(DType::kFloat32, Reduction::kSum, {{1, 2}, {10, 20}, {100, 200}}), (F{111, 222}));
  EXPECT_EQ(reduced<float>(DType::kFloat32, Reduction::kAvg, {{1, 2}, {10, 20}, {100, 200}}), (F{37, 74}));
  EXPECT_EQ(reduced<float>(DType::kFloat32, Reduction::kProduct, {{2, 3}, {5, -1}}), (F{10, -3}));
  EXPECT_EQ(reduced<float>(DType::kFloat32, Reduction::kMin, {{2, 3}, {5, -1}}), (F{2, -1}));
  EXPECT_EQ(reduced<float>(DType::kFloat32, Reduction::kMax, {{2, 3}, {5, -1}}), (F{5, 3}));
  using I = std::vector<int32_t>;
  EXPECT_EQ(reduced<int32_t>(DType::kInt32, Reduction::kAvg, {{7, -7}, {0, 0}}), (I{3, -3}));
  EXPECT_EQ(reduced<int32_t>(DType::kInt32, Reduction::kBand, {{6, 5}, {3, 4}}), (I{2, 4}));
  EXPECT_EQ(reduced<int32_t>(DType::kInt32, Reduction::kBor, {{6, 5}, {3, 4}}), (I{7, 5}));
  EXPECT_EQ(reduced<int32_t>(DType::kInt32, Reduction::kBxor, {{6, 5}, {3, 4}}), (I{5, 1}));
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(reduced<int64_t>(DType::kInt64, Reduction::kSum, {{most}, {1}}),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::min()}));
  EXPECT_EQ(reduced<uint8_t>(DType::kUInt8, Reduction::kProduct, {{16}, {17}}), (std::vector<uint8_t>{16}));
  EXPECT_EQ(reduced<uint16_t>(DType::kUInt16, Reduction::kProduct, {{65535}, {65535}}), (std::vector<uint16_t>{1}));
}

TEST(Reduction, AveragesOverMoreRanksThanTheTypeCounts) {
  std::vector<std::vector<int8_t>> bytes(200, std::vector<int8_t>{0});
  bytes[0] = {-100};
  EXPECT_EQ(reduced<int8_t>(DType::kInt8, Reduction::kAvg, bytes), (std::vector<int8_t>{0}));
  const std::vector<std::vector<uint8_t>> many(256, std::vector<uint8_t>{1});
  EXPECT_EQ(reduced<uint8_t>(DType::kUInt8, Reduction::kAvg, many), (std::vector<uint8_t>{0}));
}

TEST(Reduction, BoolsAreLogical) {
  using B = std::vector<uint8_t>;
  const std::vector<B> sources = {{0, 0, 1, 1}, {0, 1, 0, 1}};
  for (const Reduction any : {Reduction::kSum, Reduction::kMax, Reduction::kBor}) {
    EXPECT_EQ(reduced(DType::kBool, any, sources), (B{0, 1, 1, 1})) << name(any);
  }
  for (const Reduction all : {Reduction::kProduct, Reduction::kMin, Reduction::kBand}) {
    EXPECT_EQ(reduced(DType::kBool, all, sources), (B{0, 0, 0, 1})) << name(all);
  }
  EXPECT_EQ(reduced(DType::kBool, Reduction::kBxor, sources), (B{0, 1, 1, 0}));
}

TEST(Reduction, NansWinWhereverTheyAre) {
  const float nan = std::nanf("");
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    for (const auto& value : reduced<float>(DType::kFloat32, reduction, {{nan, 1}, {1, nan}})) {
      EXPECT_TRUE(std::isnan(value));
    }
  }
}

// 1 + 2^-9 + 2^-9: if each step were rounded, it would stay 1 (bf16 has 8 bits), and 2048 + 1 + 1 would stay 2048 (f16
// has 11 bits).
TEST(Reduction, HalfTypesAreRoundedOnce) {
  const auto bf16 = [](float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); };
  EXPECT_EQ(reduced<uint16_t>(DType::kBFloat16, Reduction::kSum, {{bf16(1)}, {bf16(0.00390625f)}, {bf16(0.00390625f)}}),
            (std::vector<uint16_t>{bf16(1.0078125f)}));
  EXPECT_EQ(reduced<uint16_t>(DType::kBFloat16, Reduction::kSum, {{bf16(std::nanf(""))}, {bf16(1)}})[0] & 0x7FC0,
            0x7FC0);
  std::vector<uint16_t> large(11, 0x6800), one(11, 0x3C00),
      expected(11, 0x6801);  // 2048, 1, 2050: the vector loop and the rest.
  EXPECT_EQ(reduced<uint16_t>(DType::kFloat16, Reduction::kSum, {large, one, one}), expected);
}

TEST(Reduction, ResultMayBeASource) {
  std::vector<double> a(3000, 1.5), b(3000, 2);
  const std::array<const void*, 3> sources{b.data(), a.data(), b.data()};
  reduce(DType::kFloat64, Reduction::kSum, sources, a.data(), 3000);
  EXPECT_EQ(a, std::vector<double>(3000, 5.5));
}

TEST(Reduction, RefusalsNameTheFix) {
  EXPECT_TRUE(check_reduction(DType::kBool, Reduction::kBxor).ok());
  EXPECT_TRUE(check_reduction(DType::kFloat16, Reduction::kAvg).ok());
  EXPECT_NE(check_reduction(DType::kFloat32, Reduction::kBor).message().find("use SUM"), std::string::npos);
  EXPECT_NE(check_reduction(DType::kComplex64, Reduction::kSum).message().find("view_as_real"), std::string::npos);
  EXPECT_NE(check_reduction(DType::kFloat8E4M3FN, Reduction::kSum).message().find("bfloat16"), std::string::npos);
}

TEST(Reduction, NamesAreTorchs) {
  EXPECT_EQ(reduction_from_name("bxor"), Reduction::kBxor);
  EXPECT_EQ(reduction_from_name("premul_sum"), std::nullopt);
}

}  // namespace
}  // namespace torch_remote::worker

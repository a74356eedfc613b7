#include "ir/dtype.h"

#include <gtest/gtest.h>

namespace torch_remote::ir {
namespace {

TEST(DType, NamesAreUniqueAndParseBack) {
  int valid = 0;
  for (int number = 0; number < 256; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (!is_valid(dtype)) {
      EXPECT_TRUE(name(dtype).empty()) << number;
      continue;
    }
    ++valid;
    EXPECT_EQ(dtype_from_name(name(dtype)), dtype) << number;
  }
  EXPECT_EQ(valid, 21);
  EXPECT_EQ(dtype_from_name("f31"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

TEST(DType, SizesAreThoseOfTheNames) {
  EXPECT_EQ(item_size(DType::kBool), 1u);
  EXPECT_EQ(item_size(DType::kBFloat16), 2u);
  EXPECT_EQ(item_size(DType::kComplex32), 4u);
  EXPECT_EQ(item_size(DType::kUInt64), 8u);
  EXPECT_EQ(item_size(DType::kComplex128), 16u);
  EXPECT_EQ(item_size(static_cast<DType>(12)), 0u);  // qint8 in torch's numbering
  EXPECT_EQ(item_size(static_cast<DType>(255)), 0u);
}

TEST(DType, LastIntegerIsTheLastWithoutAGap) {
  EXPECT_EQ(last_integer(DType::kBool), 1u);
  EXPECT_EQ(last_integer(DType::kUInt8), 255u);
  EXPECT_EQ(last_integer(DType::kInt8), 127u);
  EXPECT_EQ(last_integer(DType::kBFloat16), 256u);
  EXPECT_EQ(last_integer(DType::kFloat32), 1u << 24);
  EXPECT_EQ(last_integer(DType::kInt64), ~uint64_t{0} >> 1);
  EXPECT_EQ(last_integer(DType::kUInt64), ~uint64_t{0});
  EXPECT_EQ(last_integer(DType::kComplex64), 0u);
}

}  // namespace
}  // namespace torch_remote::ir

#include "worker/targets/cpu/compiled/pack.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace torch_remote::worker::kernels {
namespace {

template <typename T>
void check(int64_t rows, int64_t columns, int64_t row_stride) {
  const int64_t column_stride = rows * row_stride + 3, line = columns + 5;
  std::vector<T> source(static_cast<size_t>(columns * column_stride + 1));
  std::iota(source.begin(), source.end(), T{1});
  std::vector<T> packed(static_cast<size_t>(rows * line + 1)), expected = packed;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      expected[static_cast<size_t>(r * line + c)] = source[static_cast<size_t>(r * row_stride + c * column_stride)];
    }
  }
  pack({source.data(), row_stride, column_stride, packed.data(), line, rows, columns}, sizeof(T));
  EXPECT_EQ(packed, expected) << rows << " x " << columns << ", " << row_stride << " apart, " << sizeof(T) << " bytes";
  // Unpacking writes the original elements and nothing else.
  std::vector<T> back(source.size()), kept = back;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const auto place = static_cast<size_t>(r * row_stride + c * column_stride);
      kept[place] = source[place];
    }
  }
  unpack({back.data(), row_stride, column_stride, packed.data(), line, rows, columns}, sizeof(T));
  EXPECT_EQ(back, kept) << rows << " x " << columns << ", " << row_stride << " apart, " << sizeof(T) << " bytes";
}

TEST(Pack, PutsColumnsSideBySideAndBack) {
  for (const int64_t rows : {0, 1, 3, 4, 16, 21}) {
    for (const int64_t columns : {0, 1, 4, 7, 16, 35}) {
      for (const int64_t apart : {1, 2}) {
        check<uint8_t>(rows, columns, apart);
        check<uint16_t>(rows, columns, apart);
        check<uint32_t>(rows, columns, apart);
        check<float>(rows, columns, apart);
        check<uint64_t>(rows, columns, apart);
      }
    }
  }
}

}  // namespace
}  // namespace torch_remote::worker::kernels

#pragma once

#include <cstddef>
#include <cstdint>

// Products of a few rows with a matrix whose rows are added up (F.linear's weights): every weight is read once, as it
// lies, and nothing is packed. Compiled for two levels of x86-64 (product_loops.h); who calls it chooses.
namespace torch_remote::worker::kernels {

enum class ProductType : uint8_t { kFloat, kBFloat16, kHalf };

// result[r][n] = alpha * (sum over k of left[r][k] * right[n][k]) + beta * added[r][n], computed in f32 and rounded
// once. Neighbours lie along k of left and right, and along n of the result; strides are in elements.
struct ProductCall {
  ProductType type = ProductType::kFloat;  // of all but `left`
  int64_t rows = 0, columns = 0, depth = 0;
  const float* left = nullptr;  // what is a half type is converted before
  int64_t left_line = 0;
  const void* right = nullptr;
  int64_t right_line = 0;
  void* result = nullptr;
  int64_t result_line = 0;
  const void* added = nullptr;  // null: nothing is (beta is 0: what lies there counts not at all)
  int64_t added_row = 0, added_column = 0;
  float alpha = 1, beta = 1;
};

inline constexpr int64_t kProductColumns = 4;  // that are done at once: parts should begin at multiples of it

struct ProductLoops {
  // Columns [begin, end). A sum's order depends on `depth` alone.
  void (*run)(const ProductCall& call, int64_t begin, int64_t end);
  // `count` elements of a half type as floats.
  void (*convert)(ProductType type, const void* from, int64_t count, float* to);
};

extern const ProductLoops kProductV3;  // AVX2, FMA, F16C
extern const ProductLoops kProductV4;  // AVX-512

}  // namespace torch_remote::worker::kernels

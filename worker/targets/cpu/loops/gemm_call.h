#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/targets/cpu/loops/levels.h"

// GEMMs with few rows and a transposed right matrix (F.linear's weights): each weight is read once, in place, without
// packing. Compiled for several instruction sets (gemm_loops.cpp); the caller chooses one.
namespace torch_remote::worker::kernels {

enum class GemmType : uint8_t { kFloat, kBFloat16, kHalf };

// result[r][n] = alpha * (sum over k of left[r][k] * right[n][k]) + beta * addend[r][n], computed in f32 and rounded
// once. The stride of k in left and right, and of n in the result, is 1; other strides are in elements.
struct GemmCall {
  GemmType type = GemmType::kFloat;  // of all matrices but `left`
  int64_t rows = 0, columns = 0, depth = 0;
  const float* left = nullptr;  // half types are converted before
  int64_t left_line = 0;
  const void* right = nullptr;
  int64_t right_line = 0;
  void* result = nullptr;
  int64_t result_line = 0;
  const void* addend = nullptr;  // null: nothing is added (with beta 0 its contents are ignored)
  int64_t addend_row = 0, addend_column = 0;
  float alpha = 1, beta = 1;
};

inline constexpr int64_t kGemmColumns = 4;  // columns per step: parts should begin at multiples of this

struct GemmLoops {
  // Computes columns [begin, end). The order of a sum depends on `depth` alone.
  void (*run)(const GemmCall& call, int64_t begin, int64_t end);
  // Converts `count` elements of a half type to floats.
  void (*convert)(GemmType type, const void* from, int64_t count, float* to);
};

TORCH_REMOTE_LOOP_LEVELS(GemmLoops, kGemm);

}  // namespace torch_remote::worker::kernels

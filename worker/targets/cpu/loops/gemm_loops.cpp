// Compiled once for each instruction set (bazel/vector_loops.bzl).
#include "worker/targets/cpu/loops/gemm_call.h"
#include "worker/targets/cpu/loops/vector_block.h"

namespace torch_remote::worker::kernels::TORCH_REMOTE_ISA {
namespace {

constexpr int kColumns = static_cast<int>(kGemmColumns);
// With 6 rows, 24 sums, 6 rows and a weight use 31 of 32 registers. With 3 rows, they use all of 16 registers.
constexpr int kMostRows = kRegisters == 32 ? 6 : 3;
// Depth per step: this many elements of a tile's weights and rows stay in the L1 cache. Longer sums are split.
constexpr int64_t kDepth = 1024;
// Weights are used in panels of some columns: all rows use a panel before the next one begins. With a depth up to
// kShort, a tile's rows and weights fill only a part of the L1 cache. A panel then has up to kPanel bytes, which stay
// in the L2 cache. With a larger depth, a panel has kColumns columns.
constexpr int64_t kShort = 512, kPanel = 1 << 18;

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
static_assert(kColumns == 4);

// Loads kLanes elements as floats.
template <GemmType Type>
inline __attribute__((always_inline)) Floats load_as(const void* data, int64_t i) {
  if constexpr (Type == GemmType::kFloat) return load(static_cast<const float*>(data) + i);
  const uint16_t* const bits = static_cast<const uint16_t*>(data) + i;
  return Type == GemmType::kHalf ? floats_of_halves(bits) : floats_of_bfloat16s(bits);
}

template <GemmType Type>
inline float read(const void* data, int64_t i) {
  if constexpr (Type == GemmType::kFloat) return static_cast<const float*>(data)[i];
  if constexpr (Type == GemmType::kBFloat16) return float_of_bfloat16(static_cast<const uint16_t*>(data)[i]);
  if constexpr (Type == GemmType::kHalf) return float_of_half(static_cast<const uint16_t*>(data)[i]);
}

template <GemmType Type>
inline void write(void* data, int64_t i, float value) {
  if constexpr (Type == GemmType::kFloat) static_cast<float*>(data)[i] = value;
  if constexpr (Type == GemmType::kBFloat16) static_cast<uint16_t*>(data)[i] = bfloat16_of_float(value);
  if constexpr (Type == GemmType::kHalf) static_cast<uint16_t*>(data)[i] = half_of_float(value);
}

// Calls f.operator()<type>() with a runtime type as the template argument.
template <typename F>
inline void with_type(GemmType type, F&& f) {
  switch (type) {
    case GemmType::kFloat:
      return f.template operator()<GemmType::kFloat>();
    case GemmType::kBFloat16:
      return f.template operator()<GemmType::kBFloat16>();
    case GemmType::kHalf:
      return f.template operator()<GemmType::kHalf>();
  }
}

// Adds pairs of lanes that are Step apart. The sums of a are in lanes without bit `Step`, those of b in the others.
template <int Step>
inline __attribute__((always_inline)) Floats fold(Floats a, Floats b) {
  Ints low, high;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) {
    low[lane] = (lane & Step) == 0 ? lane : static_cast<int>(kLanes) + lane - Step;
    high[lane] = (lane & Step) == 0 ? lane + Step : static_cast<int>(kLanes) + lane;
  }
  return shuffled(a, b, low) + shuffled(a, b, high);
}

// The sum of the lanes of each of four vectors.
inline __attribute__((always_inline)) Four sums_of_four(Floats a, Floats b, Floats c, Floats d) {
  Floats sum = fold<2>(fold<1>(a, b), fold<1>(c, d));
  if constexpr (kLanes >= 8) sum = fold<4>(sum, sum);
  if constexpr (kLanes == 16) sum = fold<8>(sum, sum);
  return Four{sum[0], sum[1], sum[2], sum[3]};
}

// Loads `count` elements from `i` on, then zeros up to kLanes.
template <GemmType Type>
inline Floats load_rest(const void* data, int64_t i, int64_t count) {
  Floats rest = splat(0.0f);
  for (int64_t lane = 0; lane < count; ++lane) rest[lane] = read<Type>(data, i + lane);
  return rest;
}

// sums[r][c] of `Rows` rows and `Columns` columns, over elements [from, end) of the depth; adds to earlier sums.
// `Fetch`: prefetches the next columns' weights from memory.
template <GemmType Type, int Rows, int Columns, bool Fetch>
inline __attribute__((always_inline)) void add_up(const GemmCall& call, int64_t row, int64_t column, int64_t from,
                                                  int64_t end, Four* sums) {
  const float* left[Rows];
  const void* right[Columns];
  constexpr int64_t size = Type == GemmType::kFloat ? 4 : 2;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) left[r] = call.left + (row + r) * call.left_line;
#pragma GCC unroll 4
  for (int c = 0; c < Columns; ++c) {
    right[c] = static_cast<const char*>(call.right) + (column + c) * call.right_line * size;
  }
  Floats sum[Rows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sum[r][c] = splat(0.0f);
  }
  int64_t k = from;
  for (; k + kLanes <= end; k += kLanes) {
    Floats line[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) line[r] = load(left[r] + k);
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      if constexpr (Fetch && Columns == kColumns) {
        __builtin_prefetch(static_cast<const char*>(right[c]) + k * size + kColumns * call.right_line * size);
      }
      const Floats weight = load_as<Type>(right[c], k);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sum[r][c] += line[r] * weight;
    }
  }
  if (k < end) {
    Floats line[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) line[r] = load_rest<GemmType::kFloat>(left[r], k, end - k);
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      const Floats weight = load_rest<Type>(right[c], k, end - k);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sum[r][c] += line[r] * weight;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const Four all = sums_of_four(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    sums[r] = from == 0 ? all : sums[r] + all;
  }
}

template <GemmType Type, int Rows, int Columns, bool Fetch>
void run_tile(const GemmCall& call, int64_t row, int64_t column) {
  Four sums[Rows] = {};
  for (int64_t from = 0; from < call.depth; from += kDepth) {
    add_up<Type, Rows, Columns, Fetch>(call, row, column, from, smaller(call.depth, from + kDepth), sums);
  }
  for (int r = 0; r < Rows; ++r) {
    for (int c = 0; c < Columns; ++c) {
      float value = call.alpha * sums[r][c];
      if (call.addend != nullptr) {
        value += call.beta * read<Type>(call.addend, (row + r) * call.addend_row + (column + c) * call.addend_column);
      }
      write<Type>(call.result, (row + r) * call.result_line + column + c, value);
    }
  }
}

template <GemmType Type, int Columns, bool Fetch>
inline void run_rows(const GemmCall& call, int64_t row, int64_t count, int64_t column) {
  switch (count) {
    case 1:
      return run_tile<Type, 1, Columns, Fetch>(call, row, column);
    case 2:
      return run_tile<Type, 2, Columns, Fetch>(call, row, column);
    case 3:
      return run_tile<Type, 3, Columns, Fetch>(call, row, column);
    case 4:
      if constexpr (kMostRows >= 4) return run_tile<Type, 4, Columns, Fetch>(call, row, column);
      return;
    case 5:
      if constexpr (kMostRows >= 5) return run_tile<Type, 5, Columns, Fetch>(call, row, column);
      return;
    case 6:
      if constexpr (kMostRows >= 6) return run_tile<Type, 6, Columns, Fetch>(call, row, column);
      return;
    default:
      return;
  }
}

void run(const GemmCall& call, int64_t begin, int64_t end) {
  // Splits the rows into blocks of about the same size.
  const int64_t blocks = (call.rows + kMostRows - 1) / kMostRows;
  with_type(call.type, [&]<GemmType Type>() {
    constexpr int64_t size = Type == GemmType::kFloat ? 4 : 2;
    int64_t panel = kPanel / (call.depth * size) / kColumns * kColumns;
    if (panel < kColumns || call.depth > kShort) panel = kColumns;
    for (int64_t first = begin; first < end; first += panel) {
      const int64_t last = smaller(end, first + panel);
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t row = call.rows * b / blocks, count = call.rows * (b + 1) / blocks - row;
        int64_t column = first;
        for (; column + kColumns <= last; column += kColumns) {
          b == 0 ? run_rows<Type, kColumns, true>(call, row, count, column)
                 : run_rows<Type, kColumns, false>(call, row, count, column);
        }
        for (; column < last; ++column) run_rows<Type, 1, false>(call, row, count, column);
      }
    }
  });
}

void convert(GemmType type, const void* from, int64_t count, float* to) {
  with_type(type, [&]<GemmType Type>() {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(to + i, load_as<Type>(from, i));
    for (; i < count; ++i) to[i] = read<Type>(from, i);
  });
}

}  // namespace

const GemmLoops kGemm = {run, convert};

}  // namespace torch_remote::worker::kernels::TORCH_REMOTE_ISA

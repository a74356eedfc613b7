// Compiled once for each instruction set (bazel/vector_loops.bzl).
#include "worker/targets/cpu/loops/depthwise_call.h"
#include "worker/targets/cpu/loops/vector_block.h"

namespace torch_remote::worker::aten::TORCH_REMOTE_ISA {
namespace {

using namespace kernels::TORCH_REMOTE_ISA;

// Computes a band of result rows at a time. The input rows that they need are copied into lines with zero padding, so
// that a vector may be read at any position. With a stride s above one, a row becomes s lines: columns 0, s, 2 s, …;
// then 1, s + 1, …; so neighboring results read neighboring elements.
constexpr int64_t kBand = 12288;  // floats of a band's input rows, approximately

struct PaddedRows {
  int64_t size;                          // floats per line
  int64_t row;                           // floats of a row's lines
  int64_t rows;                          // result rows per band
  int64_t columns[kMaxDepthwiseKernel];  // offsets of the kernel's columns in a row's lines

  explicit PaddedRows(const DepthwiseCall& call) {
    const DepthwiseDim& width = call.width;
    size = padded(width.output) + (width.kernel - 1) * width.dilation / width.stride + 1;
    row = size * width.stride;
    for (int64_t j = 0; j < width.kernel; ++j) {
      const int64_t column = j * width.dilation;
      columns[j] = column % width.stride * size + column / width.stride;
    }
    const int64_t whole = kBand / (row * call.height.stride);
    rows = smaller(whole > 8 ? whole : 8, call.height.output);
  }

  int64_t rows_of_input(const DepthwiseCall& call, int64_t results) const {
    return (results - 1) * call.height.stride + (call.height.kernel - 1) * call.height.dilation + 1;
  }
};

inline void clear(float* data, int64_t count) {
  for (int64_t i = 0; i < count; ++i) data[i] = 0.0f;
}

// Copies the input's rows from `first` on; rows outside of the input are zeros.
inline void copy_rows(const DepthwiseCall& call, const PaddedRows& padded_rows, const float* input, int64_t first,
                      int64_t rows, float* to) {
  const DepthwiseDim& width = call.width;
  const int64_t stride = width.stride, count = smaller(width.input, padded_rows.row - width.padding);
  for (int64_t r = 0; r < rows; ++r, to += padded_rows.row) {
    clear(to, padded_rows.row);
    if (first + r < 0 || first + r >= call.height.input) continue;
    const float* from = input + (first + r) * width.input;
    if (stride == 1) {
      for (int64_t c = 0; c < count; ++c) to[width.padding + c] = from[c];
      continue;
    }
    for (int64_t phase = 0; phase < stride; ++phase) {
      // The first column of the input that belongs to this line.
      const int64_t begin = ((phase - width.padding) % stride + stride) % stride;
      float* line = to + phase * padded_rows.size + (begin + width.padding) / stride;
      for (int64_t c = begin; c < count; c += stride) *line++ = from[c];
    }
  }
}

// A mask with all bits set in the first `count` lanes.
inline Ints lanes_below(int64_t count) {
  Ints lanes;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  return lanes < static_cast<int32_t>(smaller(count, kLanes));
}

inline void store_some(float* data, Floats value, int64_t count) {
  if (count >= kLanes) return store(data, value);
  store_lanes(data, value, count, lanes_below(count));
}

// `Rows` adjacent rows of results, for a kernel of `Height` rows: each vector of the input is loaded once for all of
// them.
template <int Height, int Rows, int Vectors>
inline __attribute__((always_inline)) void convolve_rows(const DepthwiseCall& call, const PaddedRows& padded_rows,
                                                         const float* input, const float* kernel, float bias,
                                                         float* output, int64_t columns) {
  Floats sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) sum[r][v] = splat(bias);
  }
  const int64_t width = call.width.kernel;
  for (int64_t j = 0; j < width; ++j) {
    const float* at = input + padded_rows.columns[j];
#pragma GCC unroll 16
    for (int t = 0; t < Height + Rows - 1; ++t) {
      Floats value[Vectors];
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) value[v] = load(at + t * padded_rows.row + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        if (t < r || t - r >= Height) continue;
        const Floats factor = splat(kernel[(t - r) * width + j]);
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) sum[r][v] += factor * value[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      store_some(output + r * call.width.output + v * kLanes, sum[r][v], columns - v * kLanes);
    }
  }
}

// `Rows` rows of results, `Vectors` vectors wide. The sums stay in registers.
template <int Rows, int Vectors>
inline __attribute__((always_inline)) void convolve_tile(const DepthwiseCall& call, const PaddedRows& padded_rows,
                                                         const float* input, const float* kernel, float bias,
                                                         float* output, int64_t columns) {
  Floats sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[r][v] = splat(bias);
  }
  for (int64_t i = 0; i < call.height.kernel; ++i) {
    const float* row = input + i * call.height.dilation * padded_rows.row;
    for (int64_t j = 0; j < call.width.kernel; ++j) {
      const Floats factor = splat(*kernel++);
      const float* at = row + padded_rows.columns[j];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sum[r][v] += factor * load(at + r * padded_rows.row + v * kLanes);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      store_some(output + r * call.width.output + v * kLanes, sum[r][v], columns - v * kLanes);
    }
  }
}

// All rows of a band, for some columns; the last tile may overlap the one before it. `Height`: the kernel's height if
// it is not dilated; 0: any kernel.
template <int Height, int Rows, int Vectors>
inline void convolve_columns(const DepthwiseCall& call, const PaddedRows& padded_rows, const float* input,
                             const float* kernel, float bias, float* output, int64_t rows, int64_t columns) {
  const int64_t line = call.width.output;
  if (rows < Rows) {
    for (int64_t r = 0; r < rows; ++r) {
      convolve_tile<1, Vectors>(call, padded_rows, input + r * padded_rows.row, kernel, bias, output + r * line,
                                columns);
    }
    return;
  }
  for (int64_t r = 0; r < rows; r += Rows) {
    const int64_t first = smaller(r, rows - Rows);
    if constexpr (Height > 0) {
      convolve_rows<Height, Rows, Vectors>(call, padded_rows, input + first * padded_rows.row, kernel, bias,
                                           output + first * line, columns);
    } else {
      convolve_tile<Rows, Vectors>(call, padded_rows, input + first * padded_rows.row, kernel, bias,
                                   output + first * line, columns);
    }
  }
}

template <int Height>
inline void convolve_band(const DepthwiseCall& call, const PaddedRows& padded_rows, const float* input,
                          const float* kernel, float bias, float* output, int64_t rows) {
  for (int64_t x = 0; x < call.width.output;) {
    const int64_t left = call.width.output - x;
    const int64_t vectors = left > kLanes ? 2 : 1;
    if (vectors == 1) {
      convolve_columns<Height, 8, 1>(call, padded_rows, input + x, kernel, bias, output + x, rows, left);
    } else {
      convolve_columns<Height, 4, 2>(call, padded_rows, input + x, kernel, bias, output + x, rows, left);
    }
    x += vectors * kLanes;
  }
}

void convolve(const DepthwiseCall& call, const float* input, const float* kernel, float bias, float* output,
              float* scratch) {
  const PaddedRows padded_rows(call);
  for (int64_t y = 0; y < call.height.output; y += padded_rows.rows) {
    const int64_t rows = smaller(padded_rows.rows, call.height.output - y);
    copy_rows(call, padded_rows, input, y - call.height.padding, padded_rows.rows_of_input(call, rows), scratch);
    float* to = output + y * call.width.output;
    switch (call.height.dilation == 1 ? call.height.kernel : 0) {
      case 3:
        convolve_band<3>(call, padded_rows, scratch, kernel, bias, to, rows);
        break;
      case 5:
        convolve_band<5>(call, padded_rows, scratch, kernel, bias, to, rows);
        break;
      case 7:
        convolve_band<7>(call, padded_rows, scratch, kernel, bias, to, rows);
        break;
      default:
        convolve_band<0>(call, padded_rows, scratch, kernel, bias, to, rows);
    }
  }
}

// Adds a band's share to the gradients of `Rows` times `Columns` kernel elements, from (i, j) on. `mask`: the valid
// lanes of a row's last vector; the input's lines may be infinite after them.
template <int Rows, int Columns>
inline void add_tile(const DepthwiseCall& call, const PaddedRows& padded_rows, const float* input,
                     const float* grad_output, int64_t rows, int64_t i, int64_t j, Ints mask, float* sums) {
  Floats sum[Rows][Columns];
  float* const to = sums + (i * call.width.kernel + j) * kLanes;
#pragma GCC unroll 4
  for (int k = 0; k < Rows; ++k) {
#pragma GCC unroll 8
    for (int l = 0; l < Columns; ++l) sum[k][l] = load(to + (k * call.width.kernel + l) * kLanes);
  }
  const int64_t line = padded(call.width.output), below = call.height.dilation * padded_rows.row;
  for (int64_t y = 0; y < rows; ++y) {
    const float* row = input + (y * call.height.stride + i * call.height.dilation) * padded_rows.row;
    const float* grad = grad_output + y * line;
    const auto add = [&](int64_t x, bool last) __attribute__((always_inline)) {
      const Floats factor = load(grad + x);
#pragma GCC unroll 4
      for (int k = 0; k < Rows; ++k) {
#pragma GCC unroll 8
        for (int l = 0; l < Columns; ++l) {
          Floats value = load(row + k * below + padded_rows.columns[j + l] + x);
          if (last) value = __builtin_bit_cast(Floats, __builtin_bit_cast(Ints, value) & mask);
          sum[k][l] += factor * value;
        }
      }
    };
    for (int64_t x = 0; x < line - kLanes; x += kLanes) add(x, false);
    add(line - kLanes, true);
  }
#pragma GCC unroll 4
  for (int k = 0; k < Rows; ++k) {
#pragma GCC unroll 8
    for (int l = 0; l < Columns; ++l) store(to + (k * call.width.kernel + l) * kLanes, sum[k][l]);
  }
}

// Adds the gradients of `Columns` columns of the kernel, some rows of it at a time.
template <int Columns>
inline void add_columns(const DepthwiseCall& call, const PaddedRows& padded_rows, const float* input,
                        const float* grad_output, int64_t rows, int64_t j, Ints mask, float* sums) {
  constexpr int kRows = Columns <= 3 ? 3 : Columns <= 5 ? 2 : 1;  // the sums fit into AVX2's registers
  int64_t i = 0;
  for (; i + kRows <= call.height.kernel; i += kRows) {
    add_tile<kRows, Columns>(call, padded_rows, input, grad_output, rows, i, j, mask, sums);
  }
  for (; i < call.height.kernel; ++i) {
    add_tile<1, Columns>(call, padded_rows, input, grad_output, rows, i, j, mask, sums);
  }
}

// Copies a row. Returns false if some of it is not finite.
inline bool copy_finite(const float* from, int64_t count, float* to) {
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t infinite = 0;
  for (int64_t x = 0; x < count; ++x) {
    to[x] = from[x];
    infinite |= (__builtin_bit_cast(uint32_t, from[x]) & kExponent) == kExponent ? 1 : 0;
  }
  return infinite == 0;
}

bool add(const DepthwiseCall& call, const float* input, const float* grad_output, float* sums, float* scratch) {
  constexpr int64_t kColumns = 7;
  const PaddedRows padded_rows(call);
  const int64_t width = call.width.output, line = padded(width);
  float* const grads = scratch + padded_rows.rows_of_input(call, padded_rows.rows) * padded_rows.row;
  const Ints mask = lanes_below(width - line + kLanes);
  for (int64_t y = 0; y < call.height.output; y += padded_rows.rows) {
    const int64_t rows = smaller(padded_rows.rows, call.height.output - y);
    copy_rows(call, padded_rows, input, y * call.height.stride - call.height.padding,
              padded_rows.rows_of_input(call, rows), scratch);
    for (int64_t r = 0; r < rows; ++r) {
      if (!copy_finite(grad_output + (y + r) * width, width, grads + r * line)) return false;
      clear(grads + r * line + width, line - width);
    }
    for (int64_t j = 0; j < call.width.kernel; j += kColumns) {
      switch (smaller(kColumns, call.width.kernel - j)) {
        case 1:
          add_columns<1>(call, padded_rows, scratch, grads, rows, j, mask, sums);
          break;
        case 2:
          add_columns<2>(call, padded_rows, scratch, grads, rows, j, mask, sums);
          break;
        case 3:
          add_columns<3>(call, padded_rows, scratch, grads, rows, j, mask, sums);
          break;
        case 4:
          add_columns<4>(call, padded_rows, scratch, grads, rows, j, mask, sums);
          break;
        case 5:
          add_columns<5>(call, padded_rows, scratch, grads, rows, j, mask, sums);
          break;
        case 6:
          add_columns<6>(call, padded_rows, scratch, grads, rows, j, mask, sums);
          break;
        default:
          add_columns<7>(call, padded_rows, scratch, grads, rows, j, mask, sums);
      }
    }
  }
  return true;
}

int64_t scratch(const DepthwiseCall& call) {
  const PaddedRows padded_rows(call);
  return padded_rows.rows_of_input(call, padded_rows.rows) * padded_rows.row +
         padded_rows.rows * padded(call.width.output);
}

int64_t sums(const DepthwiseCall& call) { return call.height.kernel * call.width.kernel * kLanes; }

void fold(const DepthwiseCall& call, float* sums, double* gradient) {
  for (int64_t k = 0; k < call.height.kernel * call.width.kernel; ++k) {
    double sum = 0.0;
    for (int64_t lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(sums[k * kLanes + lane]);
    gradient[k] += sum;
  }
  clear(sums, call.height.kernel * call.width.kernel * kLanes);
}

}  // namespace

const DepthwiseLoops kDepthwise = {scratch, convolve, sums, add, fold};

}  // namespace torch_remote::worker::aten::TORCH_REMOTE_ISA

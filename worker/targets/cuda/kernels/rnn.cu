// Recurrent layers, step by step: GEMMs in tiles, and cells. Sums are f32 for f32 and half types, and f64 for f64, each
// in a fixed order. Elementary functions are in f64.

#include "worker/targets/cuda/kernels/device.h"
#include "worker/targets/cuda/kernels/rnn_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 16;

// The values of ir::RnnMode.
enum : i64 { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

using f64::sigmoid;
using f64::tanh;

template <typename T>
__device__ void gemm(const RnnGemmArguments& p) {
  __shared__ T left[kTile][kTile + 1], right[kTile][kTile + 1];
  const i64 wide = divide(p.columns + kTile - 1, kTile), high = divide(p.rows + kTile - 1, kTile);
  const i64 y = thread() / kTile, x = thread() % kTile;
  for (i64 tile = block(); tile < wide * high; tile += blocks()) {
    const i64 first_row = divide(tile, wide) * kTile, first_column = (tile - divide(tile, wide) * wide) * kTile;
    const i64 row = first_row + y, column = first_column + x;
    T sum = 0;
    for (i64 k = 0; k < p.depth; k += kTile) {
      sync();
      left[y][x] = row < p.rows && k + x < p.depth
                       ? static_cast<T>(load_float(p.a, row * p.a_row + (k + x) * p.a_depth, p.a_dtype))
                       : T(0);
      right[y][x] = column < p.columns && k + y < p.depth
                        ? static_cast<T>(load_float(p.b, (k + y) * p.b_depth + column * p.b_column, p.b_dtype))
                        : T(0);
      sync();
      for (int i = 0; i < kTile; ++i) sum += left[y][i] * right[i][x];
    }
    if (row >= p.rows || column >= p.columns) continue;
    double value = static_cast<double>(sum);
    if (p.bias != 0) value += load_float(p.bias, column, p.bias_dtype);
    if (p.more_bias != 0) value += load_float(p.more_bias, column, p.bias_dtype);
    if (p.adds != 0) value += load_float(p.c, row * p.columns + column, p.c_dtype);
    store_float(p.c, row * p.columns + column, p.c_dtype, value);
  }
}

}  // namespace

KERNEL(kThreads) rnn_gemm(const RnnGemmArguments arguments) { gemm<float>(arguments); }
KERNEL(kThreads) rnn_gemm_wide(const RnnGemmArguments arguments) { gemm<double>(arguments); }

KERNEL(kThreads) rnn_sum(const RnnSumArguments arguments) {
  for (i64 column = first_item(); column < arguments.columns; column += all_threads()) {
    double sum = 0;
    for (i64 row = 0; row < arguments.rows; ++row)
      sum += load_float(arguments.a, row * arguments.columns + column, arguments.a_dtype);
    store_float(arguments.out, column, arguments.out_dtype, sum);
  }
}

KERNEL(kThreads) rnn_cell(const RnnCellArguments cell) {
  const i64 gates = cell.mode == kLstm ? 4 : cell.mode == kGru ? 3 : 1;
  for (i64 item = first_item(); item < cell.batch * cell.units; item += all_threads()) {
    const i64 row = divide(item, cell.units), unit = item - row * cell.units;
    const auto gate = [&](u64 from, i64 which) {
      return load_float(from, (row * gates + which) * cell.units + unit, cell.wide);
    };
    const auto keep = [&](i64 part, double value) {
      if (cell.reserve != 0) store_float(cell.reserve, part * cell.part + item, cell.dtype, value);
    };
    double state = 0;
    if (cell.mode == kLstm) {
      const double i = sigmoid(gate(cell.gates, 0) + gate(cell.hidden, 0));
      const double f = sigmoid(gate(cell.gates, 1) + gate(cell.hidden, 1));
      const double g = tanh(gate(cell.gates, 2) + gate(cell.hidden, 2));
      const double o = sigmoid(gate(cell.gates, 3) + gate(cell.hidden, 3));
      const double next = f * load_float(cell.cell, item, cell.wide) + i * g;
      store_float(cell.cell, item, cell.wide, next);
      state = o * tanh(next);
      keep(0, i);
      keep(1, f);
      keep(2, g);
      keep(3, o);
      keep(4, next);
    } else if (cell.mode == kGru) {
      const double r = sigmoid(gate(cell.gates, 0) + gate(cell.hidden, 0));
      const double z = sigmoid(gate(cell.gates, 1) + gate(cell.hidden, 1));
      const double hidden = gate(cell.hidden, 2), n = tanh(gate(cell.gates, 2) + r * hidden);
      state = n + z * (load_float(cell.before, item, cell.wide) - n);
      keep(0, r);
      keep(1, z);
      keep(2, n);
      keep(3, hidden);
    } else {
      const double sum = gate(cell.gates, 0) + gate(cell.hidden, 0);
      state = cell.mode == kTanh ? tanh(sum) : sum != sum ? sum : sum > 0 ? sum : 0;
    }
    store_float(cell.state, item, cell.wide, state);
    if (cell.output != 0)
      store_float(cell.output, row * cell.output_batch + unit * cell.output_unit, cell.dtype, state);
  }
}

KERNEL(kThreads) rnn_cell_backward(const RnnCellBackwardArguments cell) {
  const i64 gates = cell.mode == kLstm ? 4 : cell.mode == kGru ? 3 : 1;
  for (i64 item = first_item(); item < cell.batch * cell.units; item += all_threads()) {
    const i64 row = divide(item, cell.units), unit = item - row * cell.units;
    const auto write = [&](u64 to, i64 which, double value) {
      store_float(to, (row * gates + which) * cell.units + unit, cell.wide, value);
    };
    const auto kept = [&](i64 part) { return load_float(cell.reserve, part * cell.part + item, cell.dtype); };
    double grad = load_float(cell.grad_state, item, cell.wide);
    if (cell.grad_output != 0)
      grad += load_float(cell.grad_output, row * cell.grad_batch + unit * cell.grad_unit, cell.dtype);
    if (cell.mode == kLstm) {
      const double i = kept(0), f = kept(1), g = kept(2), o = kept(3), inner = tanh(kept(4));
      const double c = load_float(cell.grad_cell, item, cell.wide) + grad * o * (1 - inner * inner);
      const double before = load_float(cell.before_cell, row * cell.before_cell_batch + unit, cell.dtype);
      write(cell.grad_gates, 0, c * g * i * (1 - i));
      write(cell.grad_gates, 1, c * before * f * (1 - f));
      write(cell.grad_gates, 2, c * i * (1 - g * g));
      write(cell.grad_gates, 3, grad * inner * o * (1 - o));
      store_float(cell.grad_cell, item, cell.wide, c * f);
    } else if (cell.mode == kGru) {
      const double r = kept(0), z = kept(1), n = kept(2), hidden = kept(3);
      const double before = load_float(cell.before, row * cell.before_batch + unit * cell.before_unit, cell.dtype);
      const double of_n = grad * (1 - z) * (1 - n * n);
      const double of_r = of_n * hidden * r * (1 - r), of_z = grad * (before - n) * z * (1 - z);
      write(cell.grad_gates, 0, of_r);
      write(cell.grad_gates, 1, of_z);
      write(cell.grad_gates, 2, of_n);
      write(cell.grad_hidden, 0, of_r);
      write(cell.grad_hidden, 1, of_z);
      write(cell.grad_hidden, 2, of_n * r);
      store_float(cell.grad_state, item, cell.wide, grad * z);
    } else {
      const double y = load_float(cell.output, row * cell.output_batch + unit * cell.output_unit, cell.dtype);
      write(cell.grad_gates, 0, cell.mode == kTanh ? grad * (1 - y * y) : y > 0 ? grad : 0);
    }
  }
}

}  // namespace torch_remote::worker::cuda

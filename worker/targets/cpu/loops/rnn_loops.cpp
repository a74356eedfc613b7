// Compiled once for each instruction set (bazel/vector_loops.bzl).
#include "worker/targets/cpu/loops/rnn_call.h"
#include "worker/targets/cpu/loops/vector_block.h"

namespace torch_remote::worker::aten::TORCH_REMOTE_ISA {
namespace {

using namespace kernels::TORCH_REMOTE_ISA;

// A block has the units of one vector with all their gates or, with a single gate, the units of four vectors. So a tile
// has several vectors per row, and its sums stay in registers.
template <RnnCell Cell>
inline constexpr int kGates = Cell == RnnCell::kLstm  ? 4
                              : Cell == RnnCell::kGru ? 3
                                                      : 1;
template <RnnCell Cell>
inline constexpr int kVectors = kGates<Cell> == 1 ? 4 : kGates<Cell>;
constexpr int kForwardRows = kRegisters == 32 ? 6 : 2, kBackwardRows = kRegisters == 32 ? 8 : 4;
constexpr int kBackwardVectors = 2;
constexpr int64_t kBackwardUnits = kBackwardVectors * kLanes;

inline int64_t gates_of(const RnnCall& call) {
  return call.cell == RnnCell::kLstm ? 4 : call.cell == RnnCell::kGru ? 3 : 1;
}
// The time index of step i.
inline int64_t time_of(const RnnCall& call, int64_t i) { return call.reverse ? call.steps - 1 - i : i; }

// Load and store the first `count` lanes; other lanes are read as 0 and not written.
inline Floats load_some(const float* data, int64_t count) {
  if (count >= kLanes) return load(data);
  Floats value = splat(0.0f);
  for (int64_t lane = 0; lane < count; ++lane) value[lane] = data[lane];
  return value;
}
inline void store_some(float* data, Floats value, int64_t count) {
  if (count >= kLanes) return store(data, value);
  for (int64_t lane = 0; lane < count; ++lane) data[lane] = value[lane];
}

inline Floats sigmoid_of(Floats x) { return splat(1.0f) / (splat(1.0f) + exp_of(-x)); }

// Accurate to 2 ulp. Near 0 it uses the polynomial of Cephes' tanhf (Moshier, 1989).
inline Floats tanh_of(Floats x) {
  const Floats size = x < splat(0.0f) ? -x : x;
  const Floats far = splat(1.0f) - splat(2.0f) / (exp_of(size + size) + splat(1.0f));
  const Floats square = x * x;
  Floats p = splat(-5.70498872745e-3f);
  p = p * square + splat(2.06390887954e-2f);
  p = p * square + splat(-5.37397155531e-2f);
  p = p * square + splat(1.33314422036e-1f);
  p = p * square + splat(-3.33332819422e-1f);
  const Floats near = x + x * square * p;
  return size < splat(0.625f) ? near : x < splat(0.0f) ? -far : far;
}

// Splits [begin, end) into tiles of almost the same number of rows, at most `Most`, and calls f.operator()<rows>(row).
template <int Most, typename F>
inline void for_tiles(int64_t begin, int64_t end, F&& f) {
  for (int64_t tiles = (end - begin + Most - 1) / Most; tiles > 0; --tiles) {
    const int64_t rows = (end - begin + tiles - 1) / tiles;
    switch (rows) {
      case 1:
        f.template operator()<1>(begin);
        break;
      case 2:
        f.template operator()<2>(begin);
        break;
      case 3:
        if constexpr (Most >= 3) f.template operator()<3>(begin);
        break;
      case 4:
        if constexpr (Most >= 4) f.template operator()<4>(begin);
        break;
      case 5:
        if constexpr (Most >= 5) f.template operator()<5>(begin);
        break;
      case 6:
        if constexpr (Most >= 6) f.template operator()<6>(begin);
        break;
      case 7:
        if constexpr (Most >= 7) f.template operator()<7>(begin);
        break;
      default:
        if constexpr (Most >= 8) f.template operator()<8>(begin);
    }
    begin += rows;
  }
}

// sums[i][v] = sum over r of a[i * along + r] * b[r][v]; b has `Vectors` vectors per line.
template <int Rows, int Vectors>
inline __attribute__((always_inline)) void gemm_tile(int64_t depth, const float* a, int64_t along, const float* b,
                                                     float* sums) {
  Floats sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[i][v] = splat(0.0f);
  }
  for (int64_t r = 0; r < depth; ++r) {
    Floats line[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) line[v] = load(b + (r * Vectors + v) * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const Floats factor = splat(a[i * along + r]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[i][v] += factor * line[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) store(sums + (i * Vectors + v) * kLanes, sum[i][v]);
  }
}

// -- forward

// Calls f.operator()<cell>() with a runtime cell type as the template argument.
template <typename F>
inline auto with_cell(const RnnCall& call, F&& f) {
  switch (call.cell) {
    case RnnCell::kRelu:
      return f.template operator()<RnnCell::kRelu>();
    case RnnCell::kTanh:
      return f.template operator()<RnnCell::kTanh>();
    case RnnCell::kLstm:
      return f.template operator()<RnnCell::kLstm>();
    default:
      return f.template operator()<RnnCell::kGru>();
  }
}

template <RnnCell Cell>
inline constexpr int64_t kUnits = kGates<Cell> == 1 ? kVectors<Cell> * kLanes : kLanes;  // units per block

int64_t forward_blocks(const RnnCall& call) {
  return with_cell(call, [&]<RnnCell Cell>() { return (call.units + kUnits<Cell> - 1) / kUnits<Cell>; });
}
int64_t forward_weights(const RnnCall& call) {
  return with_cell(call, [&]<RnnCell Cell>() { return forward_blocks(call) * call.units * kVectors<Cell> * kLanes; });
}

// packed[block][k][v][lane]: the weight from unit k to the lane's unit, in the vector's gate.
void pack_forward(const RnnCall& call, const float* w_hh, float* packed, int64_t block, int64_t block_end) {
  with_cell(call, [&]<RnnCell Cell>() {
    const int64_t units = call.units, line = kVectors<Cell> * kLanes, whole = units / kLanes * kLanes;
    for (; block < block_end; ++block) {
      float* to = packed + block * units * line;
      for (int64_t v = 0; v < kVectors<Cell>; ++v, to += kLanes) {
        const int64_t first = kGates<Cell> == 1 ? (block * kVectors<Cell> + v) * kLanes : block * kLanes;
        const int64_t count = smaller(kLanes, units - first), gate = kGates<Cell> == 1 ? 0 : v;
        const float* from = w_hh + (gate * units + first) * units;
        int64_t k = 0;
        if (count == kLanes) {
          transpose(kLanes, whole, from, units, to, line);
          k = whole;
        }
        for (; k < units; ++k) {
          for (int64_t lane = 0; lane < kLanes; ++lane) to[k * line + lane] = lane < count ? from[lane * units + k] : 0;
        }
      }
    }
  });
}

// One row of a block; `sums` is the hidden state's share.
template <RnnCell Cell>
inline void forward_units(const RnnCall& call, int64_t i, int64_t row, int64_t first, int64_t count,
                          const float* sums) {
  const int64_t t = time_of(call, i), units = call.units;
  constexpr int64_t kG = kGates<Cell>;
  float* gates = call.gates + (t * call.batch + row) * kG * units + first;
  const float* bias = call.bias + first;
  float* out = call.output + t * call.output_step + row * call.output_line + first;
  const auto share = [&](int64_t g) {
    return load_some(gates + g * units, count) + load_some(bias + g * units, count);
  };
  const auto save_gate = [&](int64_t g, Floats value) {
    if (call.save_gates) store_some(gates + g * units, value, count);
  };
  if constexpr (Cell == RnnCell::kLstm) {
    const Floats in = sigmoid_of(share(0) + load(sums)), forget = sigmoid_of(share(1) + load(sums + kLanes));
    const Floats fresh = tanh_of(share(2) + load(sums + 2 * kLanes));
    const Floats leave = sigmoid_of(share(3) + load(sums + 3 * kLanes));
    float* cells = call.cells + row * units + first;
    const float* before = i == 0 ? call.cx + row * units + first : cells + time_of(call, i - 1) * call.cells_step;
    const Floats cell = forget * load_some(before, count) + in * fresh;
    save_gate(0, in);
    save_gate(1, forget);
    save_gate(2, fresh);
    save_gate(3, leave);
    store_some(cells + t * call.cells_step, cell, count);
    store_some(out, leave * tanh_of(cell), count);
  } else if constexpr (Cell == RnnCell::kGru) {
    const Floats reset = sigmoid_of(share(0) + load(sums)), update = sigmoid_of(share(1) + load(sums + kLanes));
    const Floats hidden = load(sums + 2 * kLanes) + load_some(bias + 3 * units, count);
    const Floats fresh = tanh_of(share(2) + reset * hidden);
    const float* before = i == 0
                              ? call.hx + row * units + first
                              : call.output + time_of(call, i - 1) * call.output_step + row * call.output_line + first;
    save_gate(0, reset);
    save_gate(1, update);
    save_gate(2, fresh);
    if (call.hidden_new != nullptr) {
      store_some(call.hidden_new + (t * call.batch + row) * units + first, hidden, count);
    }
    store_some(out, fresh + update * (load_some(before, count) - fresh), count);
  } else {
    const Floats sum = share(0) + load(sums);
    const Floats positive = sum > splat(0.0f) ? sum : sum == sum ? splat(0.0f) : sum;
    store_some(out, Cell == RnnCell::kTanh ? tanh_of(sum) : positive, count);
  }
}

template <RnnCell Cell, int Rows>
void forward_tile(const RnnCall& call, int64_t i, int64_t row, int64_t block) {
  constexpr int kV = kVectors<Cell>;
  const int64_t units = call.units, first = block * kUnits<Cell>;
  alignas(64) float sums[Rows * kV * kLanes];
  if (call.weights != nullptr) {
    const int64_t line = i == 0 ? units : call.output_line;
    const float* state = i == 0 ? call.hx : call.output + time_of(call, i - 1) * call.output_step;
    gemm_tile<Rows, kV>(units, state + row * line, line, call.weights + block * units * kV * kLanes, sums);
  }
  for (int64_t r = 0; r < Rows; ++r) {
    float* mine = sums + r * kV * kLanes;
    for (int64_t v = 0; v < kV && call.weights == nullptr; ++v) {
      const int64_t at = kGates<Cell> == 1 ? first + v * kLanes : v * units + first;
      const int64_t end = kGates<Cell> == 1 ? units : (v + 1) * units;
      const float* from = call.hidden_projection + (row + r) * kGates<Cell> * units;
      store(mine + v * kLanes, at < end ? load_some(from + at, end - at) : splat(0.0f));
    }
    if constexpr (kGates<Cell> != 1) {
      forward_units<Cell>(call, i, row + r, first, units - first, mine);
    } else {
      for (int64_t u = first, v = 0; v < kV && u < units; u += kLanes, ++v) {
        forward_units<Cell>(call, i, row + r, u, units - u, mine + v * kLanes);
      }
    }
  }
}

void forward(const RnnCall& call, int64_t i, const RnnPart& part) {
  with_cell(call, [&]<RnnCell Cell>() {
    for (int64_t block = part.block; block < part.block_end; ++block) {
      for_tiles<kForwardRows>(part.row, part.row_end,
                              [&]<int Rows>(int64_t row) { forward_tile<Cell, Rows>(call, i, row, block); });
    }
  });
}

// -- backward

int64_t backward_blocks(const RnnCall& call) { return (call.units + kBackwardUnits - 1) / kBackwardUnits; }
int64_t backward_weights(const RnnCall& call) {
  return backward_blocks(call) * gates_of(call) * call.units * kBackwardUnits;
}

// packed[block][row of w_hh][unit of the block]
void pack_backward(const RnnCall& call, const float* w_hh, float* packed, int64_t block, int64_t block_end) {
  const int64_t rows = gates_of(call) * call.units;
  for (; block < block_end; ++block) {
    const int64_t first = block * kBackwardUnits, count = smaller(kBackwardUnits, call.units - first);
    float* to = packed + block * rows * kBackwardUnits;
    for (int64_t r = 0; r < rows; ++r, to += kBackwardUnits) {
      const float* from = w_hh + r * call.units + first;
      for (int64_t u = 0; u < kBackwardUnits; u += kLanes)
        store(to + u, load_some(from + u, count > u ? count - u : 0));
    }
  }
}

// A vector of units in one row. `grad`: the gradient of h from later steps and from hy.
template <RnnCell Cell>
inline void backward_units(const RnnCall& call, int64_t i, int64_t row, int64_t first, int64_t count, Floats grad) {
  const int64_t t = time_of(call, i), units = call.units;
  constexpr int64_t kG = kGates<Cell>;
  const Floats one = splat(1.0f);
  const int64_t place = (t * call.batch + row) * kG * units + first;
  float* carry = call.carry + row * units + first;
  const auto gate = [&](int64_t g) { return load_some(call.gates + place + g * units, count); };
  const auto give = [&](int64_t g, Floats value) {
    store_some(call.grad_input_projections + place + g * units, value, count);
  };
  if (call.grad_output != nullptr) {
    grad += load_some(call.grad_output + t * call.grad_step + row * call.grad_line + first, count);
  }
  if constexpr (Cell == RnnCell::kLstm) {
    const Floats in = gate(0), forget = gate(1), fresh = gate(2), leave = gate(3);
    const float* cells = call.cells + row * units + first;
    const float* before = i == 0 ? call.cx + row * units + first : cells + time_of(call, i - 1) * call.cells_step;
    const Floats shown = tanh_of(load_some(cells + t * call.cells_step, count));
    const Floats cell = load_some(carry, count) + grad * leave * (one - shown * shown);
    give(0, cell * fresh * in * (one - in));
    give(1, cell * load_some(before, count) * forget * (one - forget));
    give(2, cell * in * (one - fresh * fresh));
    give(3, grad * shown * leave * (one - leave));
    store_some(carry, cell * forget, count);
  } else if constexpr (Cell == RnnCell::kGru) {
    const Floats reset = gate(0), update = gate(1), fresh = gate(2);
    const Floats hidden = load_some(call.hidden_new + (t * call.batch + row) * units + first, count);
    const float* before = i == 0
                              ? call.hx + row * units + first
                              : call.output + time_of(call, i - 1) * call.output_step + row * call.output_line + first;
    grad += load_some(carry, count);
    const Floats to_fresh = grad * (one - update) * (one - fresh * fresh);
    const Floats to_reset = to_fresh * hidden * reset * (one - reset);
    const Floats to_update = grad * (load_some(before, count) - fresh) * update * (one - update);
    give(0, to_reset);
    give(1, to_update);
    give(2, to_fresh);
    store_some(call.grad_hidden_projections + place, to_reset, count);
    store_some(call.grad_hidden_projections + place + units, to_update, count);
    store_some(call.grad_hidden_projections + place + 2 * units, to_fresh * reset, count);
    store_some(carry, grad * update, count);
  } else {
    const Floats out = load_some(call.output + t * call.output_step + row * call.output_line + first, count);
    give(0, Cell == RnnCell::kTanh ? grad * (one - out * out) : grad * (out > splat(0.0f) ? one : splat(0.0f)));
  }
}

template <RnnCell Cell, int Rows>
void backward_tile(const RnnCall& call, int64_t i, int64_t row, int64_t block) {
  const int64_t units = call.units, depth = kGates<Cell> * units, first = block * kBackwardUnits;
  alignas(64) float sums[Rows * kBackwardUnits];
  const bool last = i == call.steps - 1;
  if (!last && call.weights != nullptr) {
    gemm_tile<Rows, kBackwardVectors>(depth,
                                      call.grad_hidden_projections + (time_of(call, i + 1) * call.batch + row) * depth,
                                      depth, call.weights + block * depth * kBackwardUnits, sums);
  }
  for (int64_t r = 0; r < Rows; ++r) {
    for (int64_t u = first, v = 0; v < kBackwardVectors && u < units; u += kLanes, ++v) {
      const int64_t place = (row + r) * units + u, count = units - u;
      Floats grad = splat(0.0f);
      if (last) {
        if (call.grad_hy != nullptr) grad = load_some(call.grad_hy + place, count);
      } else if (call.weights != nullptr) {
        grad = load(sums + (r * kBackwardVectors + v) * kLanes);
      } else {
        grad = load_some(call.hidden_projection + place, count);
      }
      if (i >= 0) {
        backward_units<Cell>(call, i, row + r, u, count, grad);
      } else {
        if (Cell == RnnCell::kGru) grad += load_some(call.carry + place, count);
        store_some(call.grad_hx + place, grad, count);
      }
    }
  }
}

void backward(const RnnCall& call, int64_t i, const RnnPart& part) {
  with_cell(call, [&]<RnnCell Cell>() {
    for (int64_t block = part.block; block < part.block_end; ++block) {
      for_tiles<kBackwardRows>(part.row, part.row_end,
                               [&]<int Rows>(int64_t row) { backward_tile<Cell, Rows>(call, i, row, block); });
    }
  });
}

}  // namespace

const RnnLoops kRnn = {forward_blocks, backward_blocks, forward_weights, backward_weights,
                       pack_forward,   pack_backward,   forward,         backward};

}  // namespace torch_remote::worker::aten::TORCH_REMOTE_ISA

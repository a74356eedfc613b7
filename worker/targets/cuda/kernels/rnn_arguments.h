#pragma once

// The arguments of the kernels in rnn.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// c[m, n] = sum over k of a[m, k] * b[k, n], plus biases; with `adds`, added to c.
struct RnnGemmArguments {
  u64 a = 0, b = 0, c = 0, bias = 0, more_bias = 0;  // Biases may be 0.
  i64 rows = 0, columns = 0, depth = 0;
  i64 a_row = 0, a_depth = 1, b_depth = 0, b_column = 1;  // Strides; rows of c are contiguous.
  i64 a_dtype = 0, b_dtype = 0, c_dtype = 0, bias_dtype = 0;
  i64 adds = 0;
};

// out[n] = sum over m of a[m, n]
struct RnnSumArguments {
  u64 a = 0, out = 0;
  i64 rows = 0, columns = 0;
  i64 a_dtype = 0, out_dtype = 0;
};

// One time step, for all sequences and units. `wide` is the dtype of the state between steps. What the backward pass
// needs is stored in parts (ir/rnn.h).
struct RnnCellArguments {
  u64 gates = 0, hidden = 0;            // [batch, gates, units], wide: from the input and from the hidden state.
  u64 before = 0, state = 0, cell = 0;  // [batch, units], wide: h before and after the step, and c, which is updated.
  u64 output = 0, reserve = 0;          // This step's; may be 0.
  i64 batch = 0, units = 0, mode = 0;
  i64 output_batch = 0, output_unit = 1;  // Strides.
  i64 part = 0;                           // Elements from one stored part to the next.
  i64 dtype = 0, wide = 0;                // dtype: of output and reserve.
};

// The backward pass of a step: from the gradients after the step to those before it.
struct RnnCellBackwardArguments {
  u64 grad_gates = 0, grad_hidden = 0;  // [batch, gates, units], wide: written; grad_hidden only for a GRU.
  // [batch, units], wide: the gradients of h and c. The kernel reads grad_state. An LSTM updates grad_cell. A GRU
  // replaces grad_state by the part that reaches the previous h without passing through a gate's GEMM.
  u64 grad_state = 0, grad_cell = 0;
  u64 grad_output = 0;              // May be 0.
  u64 before = 0, before_cell = 0;  // h before the step, for a GRU; c before the step, for an LSTM.
  u64 output = 0, reserve = 0;      // output: h after the step, for relu and tanh. reserve: for an LSTM and a GRU.
  i64 batch = 0, units = 0, mode = 0;
  i64 grad_batch = 0, grad_unit = 1, output_batch = 0, output_unit = 1;
  i64 before_batch = 0, before_unit = 1, before_cell_batch = 0;
  i64 part = 0;
  i64 dtype = 0, wide = 0;
};

}  // namespace torch_remote::worker::cuda

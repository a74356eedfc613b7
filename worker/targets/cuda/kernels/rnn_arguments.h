#pragma once

// What the kernels of rnn.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// c[m, n] = sum over k of a[m, k] * b[k, n], and biases, and what was there.
struct RnnProductArguments {
  u64 a = 0, b = 0, c = 0, bias = 0, more_bias = 0;  // biases may be none
  i64 rows = 0, columns = 0, depth = 0;
  i64 a_row = 0, a_depth = 1, b_depth = 0, b_column = 1;  // strides; rows of c are packed
  i64 a_dtype = 0, b_dtype = 0, c_dtype = 0, bias_dtype = 0;
  i64 adds = 0;
};

// out[n] = sum over m of a[m, n]
struct RnnSumArguments {
  u64 a = 0, out = 0;
  i64 rows = 0, columns = 0;
  i64 a_dtype = 0, out_dtype = 0;
};

// One step, of all sequences and units. `wide`: the dtype of what is between steps. What the backward pass reads again
// lies in parts (ir/rnn.h).
struct RnnCellArguments {
  u64 gates = 0, hidden = 0;            // [batch, gates, units], wide: of the input, of the hidden state; gates change
  u64 before = 0, state = 0, cell = 0;  // [batch, units], wide: h before and after, c, which changes
  u64 output = 0, kept = 0;             // may be none; of this step
  i64 batch = 0, units = 0, mode = 0;
  i64 output_batch = 0, output_unit = 1;  // strides
  i64 part = 0;                           // elements from a kept part to the next one
  i64 dtype = 0, wide = 0;                // dtype: of output and kept
};

// The same backwards. Gradients of what a step leaves become those of what it began with.
struct RnnCellBackwardArguments {
  u64 grad_gates = 0, grad_hidden = 0;  // [batch, gates, units], wide: written; the second one of a GRU alone
  u64 grad_state = 0, grad_cell = 0;    // [batch, units], wide: changed; of a GRU what does not go through the gates
  u64 grad_output = 0;                  // may be none
  u64 before = 0, before_cell = 0;      // h and c before it
  u64 output = 0, kept = 0;
  i64 batch = 0, units = 0, mode = 0;
  i64 grad_batch = 0, grad_unit = 1, output_batch = 0, output_unit = 1;
  i64 before_batch = 0, before_unit = 1, before_cell_batch = 0;
  i64 part = 0;
  i64 dtype = 0, wide = 0;
};

}  // namespace torch_remote::worker::cuda

#pragma once

#include <cstdint>

#include "worker/targets/cpu/loops/levels.h"

// The steps of a recurrent layer in one direction, in f32. A step multiplies the hidden state by w_hh^T (the hidden
// projection) and computes the gates from the result, for a block of units at a time. The products x @ w_ih^T of all
// steps (the input projections) are computed before. Compiled for several instruction sets (rnn_loops.cpp); the caller
// chooses one.
//
// T steps, batch B, H units, G gates (ir::rnn_gates). Tensors are contiguous, except for `output` and `grad_output`,
// whose H dim has stride 1.
namespace torch_remote::worker::aten {

enum class RnnCell : uint8_t { kRelu, kTanh, kLstm, kGru };

struct RnnCall {
  RnnCell cell = RnnCell::kLstm;
  bool reverse = false;  // steps go from the last one to the first one
  int64_t steps = 0, batch = 0, units = 0;
  const float *hx = nullptr, *cx = nullptr;  // [B, H]; cx is for LSTM only
  // w_hh as packed by `pack_forward` or `pack_backward`. If null, the caller runs the GEMM, and `hidden_projection` has
  // its result for this step: [B, G, H] in the forward pass; [B, H], the gradient of h, in the backward pass.
  const float* weights = nullptr;
  const float* hidden_projection = nullptr;
  // [T, B, G, H]. The forward pass reads the input projections, without biases. If `save_gates`, it overwrites them
  // with the gates. The backward pass reads the gates.
  float* gates = nullptr;
  bool save_gates = false;
  // [G + 1, H]: for each gate, the sum of the biases b_ih and b_hh. For a GRU's third gate, row 2 is b_ih and the last
  // row is b_hh, because the reset gate scales only the hidden projection and b_hh.
  const float* bias = nullptr;
  // An LSTM's cell states. [T, B, H] with cells_step = B * H; or [B, H] with cells_step = 0, if only the last ones are
  // needed.
  float* cells = nullptr;
  int64_t cells_step = 0;
  // GRU, [T, B, H]: the third gate's hidden projection plus b_hh. Written by the forward pass; null: not needed.
  float* hidden_new = nullptr;
  float* output = nullptr;                   // [T, B, H]
  int64_t output_step = 0, output_line = 0;  // strides of `output` along T and B

  // For the backward pass.
  const float* grad_output = nullptr;    // [T, B, H]; null: none
  int64_t grad_step = 0, grad_line = 0;  // strides of `grad_output` along T and B
  const float* grad_hy = nullptr;        // [B, H]; null: none
  // [B, H], carried from step to step. LSTM: the gradient of the cell state. The caller stores the gradient of cy there
  // before the first call, and finds that of cx after the last. GRU: the part of h's gradient that does not come from
  // the gates; 0 before the first call.
  float* carry = nullptr;
  float* grad_input_projections = nullptr;  // output: gradients of x @ w_ih^T, [T, B, G, H]
  // Output: gradients of h @ w_hh^T, [T, B, G, H]. Only a GRU has a tensor of its own for it; other cells pass
  // `grad_input_projections`, which has the same values.
  float* grad_hidden_projections = nullptr;
  float* grad_hx = nullptr;  // [B, H]
};

// The part of a step that one call computes: a range of the batch's rows, and of blocks of units.
struct RnnPart {
  int64_t row, row_end, block, block_end;
};

struct RnnLoops {
  // Number of blocks that the units are split into, and floats of the packed weights.
  int64_t (*forward_blocks)(const RnnCall& call);
  int64_t (*backward_blocks)(const RnnCall& call);
  int64_t (*forward_weights)(const RnnCall& call);
  int64_t (*backward_weights)(const RnnCall& call);
  // Packs w_hh, a contiguous [G * H, H], for blocks [block, block_end).
  void (*pack_forward)(const RnnCall& call, const float* w_hh, float* packed, int64_t block, int64_t block_end);
  void (*pack_backward)(const RnnCall& call, const float* w_hh, float* packed, int64_t block, int64_t block_end);
  // Runs step i for a part. Steps are counted in the layer's direction. All units of the part's rows must have finished
  // step i - 1.
  void (*forward)(const RnnCall& call, int64_t i, const RnnPart& part);
  // Runs step i of the backward pass; i = -1 computes the gradient of hx. All units of the part's rows must have
  // finished step i + 1.
  void (*backward)(const RnnCall& call, int64_t i, const RnnPart& part);
};

TORCH_REMOTE_LOOP_LEVELS(RnnLoops, kRnn);

}  // namespace torch_remote::worker::aten

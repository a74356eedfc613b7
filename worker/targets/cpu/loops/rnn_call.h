#pragma once

#include <cstdint>

#include "worker/targets/cpu/loops/levels.h"

// The steps of a recurrent layer in one direction, in f32: the GEMM with the hidden state fused with the gates'
// pointwise part, for a block of units at a time. Compiled for several instruction sets (rnn_loops.h); the caller
// chooses one.
//
// T steps, batch B, H units, G gates (ir::rnn_gates). The units' dim has stride 1; rows of [B, H] are H apart, and rows
// of [B, G, H] are G * H apart.
namespace torch_remote::worker::aten {

enum class RnnCell : uint8_t { kRelu, kTanh, kLstm, kGru };

struct RnnCall {
  RnnCell cell = RnnCell::kLstm;
  bool reverse = false;  // steps go from the last one to the first one
  int64_t steps = 0, batch = 0, units = 0;
  const float *hx = nullptr, *cx = nullptr;  // [B, H]; cx is for LSTM only
  // w_hh as packed by `pack_forward` or `pack_backward`. If null, `hidden_projection` holds the GEMM's result for this
  // step: [B, G, H] in the forward pass, [B, H] in the backward pass.
  const float* weights = nullptr;
  const float* hidden_projection = nullptr;
  // Forward: input, the input's share without biases; output, if `save_gates`, the gates. Backward: the gates. [T, B,
  // G, H].
  float* gates = nullptr;
  bool save_gates = false;
  // [G + 1, H]: the bias of each gate, and that of the hidden state's share of a GRU's third gate.
  const float* bias = nullptr;
  // An LSTM's cell states: [T, B, H], where those of time t begin at t * cells_step elements; or [B, H], with
  // cells_step 0, if only the last ones are needed.
  float* cells = nullptr;
  int64_t cells_step = 0;
  float* hidden_new = nullptr;  // GRU, [T, B, H]: the hidden state's share of the third gate; null: not needed
  float* output = nullptr;      // [T, B, H]
  int64_t output_step = 0, output_line = 0;

  // For the backward pass.
  const float* grad_output = nullptr;  // [T, B, H]; null: none
  int64_t grad_step = 0, grad_line = 0;
  const float* grad_hy = nullptr;  // [B, H]; null: none
  // [B, H]. LSTM: the gradient of cy before the first call, that of cx after the last. GRU: 0 before the first call.
  float* carry = nullptr;
  float* grad_input_projections = nullptr;   // output: gradients of x @ w_ih^T, [T, B, G, H]
  float* grad_hidden_projections = nullptr;  // output: gradients of h @ w_hh^T; a separate tensor for a GRU only
  float* grad_hx = nullptr;                  // [B, H]
};

// A range of the batch's rows, and of blocks of units.
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
  // Runs step i, in the direction's time, for a part. All units of the part's rows must have finished the step before.
  void (*forward)(const RnnCall& call, int64_t i, const RnnPart& part);
  // Runs step i of the backward pass; i = -1 computes the gradient of hx. All units of the part's rows must have
  // finished step i + 1.
  void (*backward)(const RnnCall& call, int64_t i, const RnnPart& part);
};

TORCH_REMOTE_LOOP_LEVELS(RnnLoops, kRnn);

}  // namespace torch_remote::worker::aten

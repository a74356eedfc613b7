#pragma once

#include <cstdint>

// The steps of a recurrent layer in one direction, in f32: the hidden state's product and the gates' pointwise part at
// once, a block of units at a time. Compiled for two levels of x86-64 (rnn_loops.h); who calls it chooses.
//
// T steps, batch B, H units, G gates (ir::rnn_gates). Units of a tensor are neighbours; rows of [B, H] lie H apart, of
// [B, G, H] G * H.
namespace torch_remote::worker::aten {

enum class RnnCell : uint8_t { kRelu, kTanh, kLstm, kGru };

struct RnnCall {
  RnnCell cell = RnnCell::kLstm;
  bool reverse = false;  // steps go from the last one to the first one
  int64_t steps = 0, batch = 0, units = 0;
  const float *hx = nullptr, *cx = nullptr;  // [B, H]; cx of an LSTM alone
  // w_hh as `pack_forward` or `pack_backward` leaves it. Null: what it would give for this step is in `product`,
  // [B, G, H] in the forward pass, [B, H] in the backward pass.
  const float* weights = nullptr;
  const float* product = nullptr;
  // Forward: in, the input's share without biases; out, if kept, the gates. Backward: the gates. [T, B, G, H].
  float* gates = nullptr;
  bool keep = false;
  // [G + 1, H]: what is added to each gate, and to the hidden state's share of a GRU's third one.
  const float* bias = nullptr;
  // An LSTM's states, `cells_step` apart: [T, B, H], or 0 where nobody wants but the last one.
  float* cells = nullptr;
  int64_t cells_step = 0;
  float* hidden_new = nullptr;  // a GRU's, [T, B, H]: the hidden state's share of the third gate; null: not kept
  float* output = nullptr;      // [T, B, H]
  int64_t output_step = 0, output_line = 0;

  // Backward.
  const float* grad_output = nullptr;  // [T, B, H]; null: none
  int64_t grad_step = 0, grad_line = 0;
  const float* grad_hy = nullptr;  // [B, H]; null: none
  // [B, H]. An LSTM's: at first the gradient of cy, at last that of cx. A GRU's: at first 0.
  float* carry = nullptr;
  float* from_input = nullptr;   // written: gradients of x @ w_ih^T, [T, B, G, H]
  float* from_hidden = nullptr;  // and of h @ w_hh^T; a GRU's differ, those of others are the same memory
  float* grad_hx = nullptr;      // [B, H]
};

// Rows of the batch and blocks of units.
struct RnnPart {
  int64_t row, row_end, block, block_end;
};

struct RnnLoops {
  // Blocks that the units are cut into, and floats of the packed weights.
  int64_t (*forward_blocks)(const RnnCall& call);
  int64_t (*backward_blocks)(const RnnCall& call);
  int64_t (*forward_weights)(const RnnCall& call);
  int64_t (*backward_weights)(const RnnCall& call);
  // Packs w_hh, [G * H, H] without gaps, for blocks [block, block_end).
  void (*pack_forward)(const RnnCall& call, const float* w_hh, float* packed, int64_t block, int64_t block_end);
  void (*pack_backward)(const RnnCall& call, const float* w_hh, float* packed, int64_t block, int64_t block_end);
  // The i-th step in the direction's time, of a part: needs all units of its rows of the step before.
  void (*forward)(const RnnCall& call, int64_t i, const RnnPart& part);
  // Needs all units of its rows of the step after; -1: the gradient of hx.
  void (*backward)(const RnnCall& call, int64_t i, const RnnPart& part);
};

extern const RnnLoops kRnnV3;  // AVX2, FMA
extern const RnnLoops kRnnV4;  // AVX-512

}  // namespace torch_remote::worker::aten

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <cstdint>

#include "ir/rnn.h"

// Types that all implementations of recurrent layers share.
namespace torch_remote::worker::aten {

// One direction of the layer. T steps, batch B, I inputs, H hidden units, G gates (ir::rnn_gates).
struct RnnDirection {
  ir::RnnMode mode;
  bool reverse;
  at::Tensor input;       // [T, B, I]
  at::Tensor hx, cx;      // [B, H]; cx is for LSTM only
  at::Tensor w_ih, w_hh;  // [G*H, I], [G*H, H]
  at::Tensor b_ih, b_hh;  // [G*H], or undefined
  at::Tensor output;      // [T, B, H]
  at::Tensor reserve;     // ir::rnn_reserve or more parts of [T, B, H] each; undefined if not wanted

  int64_t steps() const { return input.size(0); }
  int64_t batch() const { return input.size(1); }
  int64_t hidden() const { return hx.size(1); }
  int64_t gates() const { return ir::rnn_gates(mode); }
  // Whether all tensors have this dtype and the sizes above. A program may give any.
  bool is_consistent(at::ScalarType type) const {
    if (input.dim() != 3 || hx.dim() != 2) return false;
    const int64_t width = gates() * hidden();
    const auto is = [type](const at::Tensor& tensor, c10::IntArrayRef sizes) {
      return tensor.defined() && tensor.scalar_type() == type && tensor.sizes().equals(sizes);
    };
    const auto is_bias = [&](const at::Tensor& bias) { return b_ih.defined() ? is(bias, {width}) : !bias.defined(); };
    const bool has_reserve = !reserve.defined() || (reserve.scalar_type() == type && reserve.dim() == 1 &&
                                                    reserve.is_contiguous() && reserve.numel() >= saved_elements());
    return has_reserve && is(input, input.sizes()) && is(hx, {batch(), hidden()}) &&
           (mode != ir::RnnMode::kLstm || is(cx, {batch(), hidden()})) && is(w_ih, {width, input.size(2)}) &&
           is(w_hh, {width, hidden()}) && is_bias(b_ih) && is_bias(b_hh) && is(output, {steps(), batch(), hidden()});
  }
  int64_t saved_elements() const { return ir::rnn_reserve(mode) * steps() * batch() * hidden(); }
  // The time of the i-th step in this direction.
  int64_t at(int64_t i) const { return reverse ? steps() - 1 - i : i; }

  // [T, B, parts, H]: `parts` parts of the reserve, from part `first` on.
  at::Tensor saved(int64_t first, int64_t parts) const {
    const int64_t part = steps() * batch() * hidden();
    return reserve.narrow(0, first * part, parts * part).view({steps(), batch(), parts, hidden()});
  }
  // [T, B, H]: the state before each step.
  at::Tensor states_before(const at::Tensor& first, const at::Tensor& all) const {
    if (steps() == 1) return first.unsqueeze(0);
    return reverse ? at::cat({all.narrow(0, 1, steps() - 1), first.unsqueeze(0)})
                   : at::cat({first.unsqueeze(0), all.narrow(0, 0, steps() - 1)});
  }
};

// States after the last step, [B, H]; cy is for LSTM only.
struct RnnStates {
  at::Tensor hy, cy;
};

struct RnnGradients {
  at::Tensor output;  // [T, B, H]; all of these may be undefined
  at::Tensor hy, cy;  // [B, H]
};

// The result of the backward pass over all steps; the gradients of input, weights and biases follow from it.
struct RnnBackward {
  // Gradients of x @ w_ih^T + b_ih and of h @ w_hh^T + b_hh, [T * B, G * H].
  at::Tensor input_projections, hidden_projections;
  at::Tensor hx, cx;
};

}  // namespace torch_remote::worker::aten

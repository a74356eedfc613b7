#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Half-precision LSTM layers with oneDNN, as torch computes them on the CPU: the same numbers, with one call for all
// steps in each pass. oneDNN does not know the sizes of tensors, so callers check them (RnnDirection::is_consistent).
namespace torch_remote::worker::aten {

// One direction of a layer: T steps, batch B, I inputs, H hidden units.
struct OneDnnLstm {
  at::Tensor input;       // [T, B, I]
  at::Tensor w_ih, w_hh;  // [4*H, I], [4*H, H]
  at::Tensor b_ih, b_hh;  // [4*H], or undefined
  at::Tensor hx, cx;      // [B, H]
  bool reverse = false;
};

// Whether torch would use oneDNN on the CPU, with (`train`) or without a backward pass to follow.
bool supports_onednn(const OneDnnLstm& lstm, bool train);

struct OneDnnStates {
  at::Tensor output, hy, cy;  // [T, B, H], [B, H], [B, H]
};
// `reserve`: flat memory for the data that the backward pass needs; undefined if no backward pass follows. Returns
// false, and leaves `states` unchanged, if oneDNN's workspace does not fit into it.
bool onednn_forward(const OneDnnLstm& lstm, const at::Tensor& reserve, OneDnnStates* states);
// Whether onednn_forward filled this reserve.
bool is_onednn(const at::Tensor& reserve);

struct OneDnnGradients {
  at::Tensor input, w_ih, w_hh, bias, hx, cx;  // bias: the gradient of each of the two biases
};
// The gradients of output, hy and cy may be undefined, but not all of them.
OneDnnGradients onednn_backward(const OneDnnLstm& lstm, const at::Tensor& reserve, const at::Tensor& output,
                                const at::Tensor& grad_output, const at::Tensor& grad_hy, const at::Tensor& grad_cy);

}  // namespace torch_remote::worker::aten

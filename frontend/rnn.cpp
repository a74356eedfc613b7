#include <ATen/ATen.h>
#include <torch/library.h>

#include "frontend/tensor.h"

// torch uses fused LSTM and GRU cells on every device but the CPU, and has kernels for CUDA alone. Here they are
// spelled out in ops that are recorded and fused. The workspace is what the backward pass needs: the gates after their
// activations.
namespace torch_remote::frontend {
namespace {

using at::Tensor;

Tensor with_biases(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates.add(*bias) : gates;
}

// Gates in order: input, forget, cell, output. cy = f * cx + i * g; hy = o * tanh(cy).
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  const Tensor gates = with_biases(with_biases(input_gates.add(hidden_gates), input_bias), hidden_bias);
  const auto chunks = gates.chunk(4, 1);
  const Tensor i = chunks[0].sigmoid(), f = chunks[1].sigmoid(), g = chunks[2].tanh(), o = chunks[3].sigmoid();
  const Tensor cy = f.mul(cx).add(i.mul(g));
  return {o.mul(cy.tanh()), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy.has_value() && grad_hy->defined();
  const bool has_cy = grad_cy.has_value() && grad_cy->defined();
  if (!has_hy && !has_cy) return {};
  const auto chunks = workspace.chunk(4, 1);
  const Tensor &i = chunks[0], &f = chunks[1], &g = chunks[2], &o = chunks[3];
  const Tensor tanh_cy = cy.tanh();
  const Tensor grad_o = has_hy ? at::sigmoid_backward(grad_hy->mul(tanh_cy), o) : at::zeros_like(o);
  Tensor grad_c = has_hy ? at::tanh_backward(grad_hy->mul(o), tanh_cy) : *grad_cy;
  if (has_hy && has_cy) grad_c = grad_c.add(*grad_cy);
  const Tensor grad_gates = at::cat({at::sigmoid_backward(grad_c.mul(g), i), at::sigmoid_backward(grad_c.mul(cx), f),
                                     at::tanh_backward(grad_c.mul(i), g), grad_o},
                                    1);
  return {grad_gates, grad_c.mul(f), has_bias ? grad_gates.sum(0) : Tensor()};
}

// Gates in order: reset, input, new. hy = new + input * (hx - new), new = tanh(i_n + reset * h_n).
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  const auto in = with_biases(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_biases(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = in[0].add(hidden[0]).sigmoid();
  const Tensor input = in[1].add(hidden[1]).sigmoid();
  const Tensor fresh = in[2].add(reset.mul(hidden[2])).tanh();
  return {fresh.add(input.mul(hx.sub(fresh))), at::cat({reset, input, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto chunks = workspace.chunk(5, 1);
  const Tensor &reset = chunks[0], &input = chunks[1], &fresh = chunks[2], &hx = chunks[3], &hidden_n = chunks[4];
  const Tensor grad_input = at::sigmoid_backward(grad_hy.mul(hx.sub(fresh)), input);
  const Tensor grad_fresh = at::tanh_backward(grad_hy.sub(grad_hy.mul(input)), fresh);
  const Tensor grad_reset = at::sigmoid_backward(grad_fresh.mul(hidden_n), reset);
  const Tensor grad_in = at::cat({grad_reset, grad_input, grad_fresh}, 1);
  const Tensor grad_hidden = at::cat({grad_reset, grad_input, grad_fresh.mul(reset)}, 1);
  return {grad_in, grad_hidden, grad_hy.mul(input), has_bias ? grad_in.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace
}  // namespace torch_remote::frontend

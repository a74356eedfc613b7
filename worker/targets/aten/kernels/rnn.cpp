#include "ir/rnn.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "worker/targets/aten/kernels/multiply.h"
#include "worker/targets/aten/kernels/rnn_fused.h"
#include "worker/targets/aten/kernels/rnn_layer.h"
#include "worker/targets/aten/kernels/rnn_onednn.h"
#include "worker/targets/aten/kernels/special.h"
#include "worker/targets/aten/kernels/special_generated.h"

// Recurrent layers, recorded as one op `remote::rnn` for any device: one layer, in one or two directions, over all time
// steps. Work that does not depend on earlier steps is one op for all steps (the matmul with the input weights, the
// factors of the gradients). Each step then runs its matmul with the hidden state and a few pointwise ops.
namespace torch_remote::worker::aten {
namespace {

using at::Tensor;
using ir::RnnMode;
using Direction = RnnDirection;
using Gradients = RnnGradients;
using Backward = RnnBackward;

// Saves, if there will be a backward pass, the gates, [T, B, G, H], and one more part, [T, B, H].
void save_reserve(const Direction& d, const Tensor& gates, const Tensor& last) {
  if (!d.reserve.defined()) return;
  d.saved(0, gates.size(2)).copy_(gates);
  d.saved(gates.size(2), 1).copy_(last.unsqueeze(2));
}
// input @ w_ih^T + bias, [T, B, G, H].
Tensor project_input(const Direction& d, const Tensor& bias) {
  const Tensor rows = d.input.reshape({d.steps() * d.batch(), d.input.size(2)});
  const Tensor all = bias.defined() ? at::addmm(bias, rows, d.w_ih.t()) : at::mm(rows, d.w_ih.t());
  return all.view({d.steps(), d.batch(), d.gates(), d.hidden()});
}
Tensor both_biases(const Direction& d) { return d.b_ih.defined() ? d.b_ih + d.b_hh : Tensor(); }
OneDnnLstm onednn(const Direction& d) { return {d.input, d.w_ih, d.w_hh, d.b_ih, d.b_hh, d.hx, d.cx, d.reverse}; }

bool can_use_onednn(const Direction& d, bool train) {
  return d.is_consistent(d.input.scalar_type()) && supports_onednn(onednn(d), train);
}

// Computes the layer with oneDNN. Returns false if oneDNN does not support it.
bool lstm_onednn(const Direction& d, Tensor* hy, Tensor* cy) {
  OneDnnStates states;
  if (!can_use_onednn(d, d.reserve.defined()) || !onednn_forward(onednn(d), d.reserve, &states)) return false;
  d.output.copy_(states.output);
  *hy = states.hy;
  *cy = states.cy;
  return true;
}

// i, f, g, o = sigmoid, sigmoid, tanh, sigmoid; c = f * c + i * g; h = o * tanh(c). Saves i, f, g, o, then c.
Tensor lstm(const Direction& d, Tensor* cy) {
  const Tensor gates = project_input(d, both_biases(d));
  const Tensor cells = at::empty_like(d.output, at::MemoryFormat::Contiguous);
  const Tensor w = d.w_hh.t();
  Tensor h = d.hx, c = d.cx;
  for (int64_t i = 0; i < d.steps(); ++i) {
    const int64_t t = d.at(i);
    const Tensor g = gates[t];  // [B, 4, H]
    g.view({d.batch(), 4 * d.hidden()}).addmm_(h, w);
    g.narrow(1, 0, 2).sigmoid_();
    const Tensor fresh = g.select(1, 2).tanh_(), out = g.select(1, 3).sigmoid_();
    Tensor next = cells[t];
    at::mul_out(next, g.select(1, 1), c);
    next.addcmul_(g.select(1, 0), fresh);
    Tensor y = d.output[t];
    at::mul_out(y, out, next.tanh());
    h = y;
    c = next;
  }
  save_reserve(d, gates, cells);
  *cy = c;
  return h;
}

// r, z = sigmoid; n = tanh(x_n + r * h_n); h = n + z * (h - n). Saves r, z, n, then h_n.
Tensor gru(const Direction& d) {
  const Tensor gates = project_input(d, d.b_ih);
  const Tensor hidden_n = at::empty_like(d.output, at::MemoryFormat::Contiguous);
  const Tensor w = d.w_hh.t();
  Tensor h = d.hx;
  for (int64_t i = 0; i < d.steps(); ++i) {
    const int64_t t = d.at(i);
    const Tensor g = gates[t];  // [B, 3, H]
    const Tensor hidden_projection =
        (d.b_hh.defined() ? at::addmm(d.b_hh, h, w) : at::mm(h, w)).view({d.batch(), 3, d.hidden()});
    g.narrow(1, 0, 2).add_(hidden_projection.narrow(1, 0, 2)).sigmoid_();
    hidden_n[t].copy_(hidden_projection.select(1, 2));
    const Tensor fresh = g.select(1, 2).addcmul_(g.select(1, 0), hidden_projection.select(1, 2)).tanh_();
    Tensor y = d.output[t];
    at::lerp_out(y, fresh, h, g.select(1, 1));
    h = y;
  }
  save_reserve(d, gates, hidden_n);
  return h;
}

Tensor simple(const Direction& d) {
  const Tensor all = project_input(d, both_biases(d));
  const Tensor w = d.w_hh.t();
  Tensor h = d.hx;
  for (int64_t i = 0; i < d.steps(); ++i) {
    const Tensor y = d.output[d.at(i)];
    const Tensor sum = all[d.at(i)].select(1, 0).addmm_(h, w);
    y.copy_(d.mode == RnnMode::kTanh ? sum.tanh_() : sum.relu_());
    h = y;
  }
  return h;
}

Tensor step_gradient(const Gradients& gradients, int64_t t, const Tensor& later) {
  if (!gradients.output.defined()) return later;
  return later.defined() ? gradients.output[t] + later : gradients.output[t];
}

Backward lstm_backward(const Direction& d, const Gradients& gradients) {
  const Tensor gates = d.saved(0, 4), cells = d.saved(4, 1).select(2, 0);
  const Tensor i = gates.select(2, 0), f = gates.select(2, 1), g = gates.select(2, 2), o = gates.select(2, 3);
  const Tensor tanh_c = cells.tanh();
  const Tensor to_o = tanh_c * o * (1 - o);       // factor of h's gradient
  const Tensor to_c = o * (1 - tanh_c * tanh_c);  // factor of h's gradient
  // i, f, g: factors of c's gradient
  const Tensor to_rest = at::empty({d.steps(), d.batch(), 3, d.hidden()}, gates.options());
  to_rest.select(2, 0).copy_(g * i * (1 - i));
  to_rest.select(2, 1).copy_(d.states_before(d.cx, cells) * f * (1 - f));
  to_rest.select(2, 2).copy_(i * (1 - g * g));
  const Tensor all = at::empty_like(gates, at::MemoryFormat::Contiguous);
  Tensor h = gradients.hy, c = gradients.cy;
  for (int64_t step = d.steps(); step-- > 0;) {
    const int64_t t = d.at(step);
    const Tensor gates_t = all[t];
    h = step_gradient(gradients, t, h);
    if (h.defined()) {
      Tensor out = gates_t.select(1, 3);
      at::mul_out(out, h, to_o[t]);
      c = c.defined() ? c.addcmul(h, to_c[t]) : h * to_c[t];
    } else {
      gates_t.select(1, 3).zero_();
      if (!c.defined()) c = at::zeros_like(d.cx);
    }
    Tensor rest = gates_t.narrow(1, 0, 3);
    at::mul_out(rest, c.unsqueeze(1), to_rest[t]);
    c = c * f[t];
    h = at::mm(gates_t.view({d.batch(), 4 * d.hidden()}), d.w_hh);
  }
  const Tensor rows = all.view({d.steps() * d.batch(), 4 * d.hidden()});
  return {rows, rows, h, c};
}

Backward gru_backward(const Direction& d, const Gradients& gradients) {
  const Tensor gates = d.saved(0, 3), hidden_n = d.saved(3, 1).select(2, 0);
  const Tensor r = gates.select(2, 0), z = gates.select(2, 1), n = gates.select(2, 2);
  // Factors of h's gradient for r, z, n, as the hidden state's matmul needs them.
  const Tensor to_hidden = at::empty_like(gates, at::MemoryFormat::Contiguous);
  const Tensor to_n = (1 - z) * (1 - n * n);
  to_hidden.select(2, 0).copy_(to_n * hidden_n * r * (1 - r));
  to_hidden.select(2, 1).copy_((d.states_before(d.hx, d.output) - n) * z * (1 - z));
  to_hidden.select(2, 2).copy_(to_n * r);
  const Tensor hidden = at::empty_like(gates, at::MemoryFormat::Contiguous);
  const Tensor all = at::empty_like(d.output, at::MemoryFormat::Contiguous);
  Tensor h = gradients.hy;
  for (int64_t step = d.steps(); step-- > 0;) {
    const int64_t t = d.at(step);
    h = step_gradient(gradients, t, h);
    if (!h.defined()) h = at::zeros_like(d.hx);
    all[t].copy_(h);
    Tensor here = hidden[t];
    at::mul_out(here, h.unsqueeze(1), to_hidden[t]);
    h = at::addmm(h * z[t], here.view({d.batch(), 3 * d.hidden()}), d.w_hh);
  }
  const Tensor input = hidden.clone();
  input.select(2, 2).copy_(all * to_n);
  const int64_t rows = d.steps() * d.batch(), width = 3 * d.hidden();
  return {input.view({rows, width}), hidden.view({rows, width}), h, Tensor()};
}

Backward simple_backward(const Direction& d, const Gradients& gradients) {
  const Tensor factor = d.mode == RnnMode::kTanh ? 1 - d.output * d.output : d.output.gt(0).to(d.output.scalar_type());
  const Tensor all = at::empty_like(d.output, at::MemoryFormat::Contiguous);
  Tensor h = gradients.hy;
  for (int64_t step = d.steps(); step-- > 0;) {
    const int64_t t = d.at(step);
    h = step_gradient(gradients, t, h);
    if (!h.defined()) h = at::zeros_like(d.hx);
    Tensor here = all[t];
    at::mul_out(here, h, factor[t]);
    h = at::mm(here, d.w_hh);
  }
  const Tensor rows = all.view({d.steps() * d.batch(), d.hidden()});
  return {rows, rows, h, Tensor()};
}

Tensor optional(const c10::IValue& value) { return value.isNone() ? Tensor() : value.toTensor(); }
Tensor part(const Tensor& tensor, int64_t dim, int64_t index, int64_t count) {
  if (!tensor.defined()) return {};
  const int64_t size = tensor.size(dim) / count;
  return tensor.narrow(dim, index * size, size);
}

// The layer's directions. `weights`: for each direction w_ih, w_hh and, if there are four per direction, b_ih, b_hh.
std::vector<Direction> directions(int64_t mode, const Tensor& input, const std::vector<Tensor>& weights,
                                  const Tensor& hx, const Tensor& cx, const Tensor& output, const Tensor& reserve) {
  const int64_t count = hx.size(0), stride = count == 0 ? 0 : static_cast<int64_t>(weights.size()) / count;
  TORCH_CHECK(mode >= 0 && mode <= static_cast<int64_t>(RnnMode::kGru), "remote: no recurrent layer has mode ", mode);
  TORCH_CHECK((stride == 2 || stride == 4) && static_cast<int64_t>(weights.size()) == count * stride && count <= 2,
              "remote: a recurrent op must be one layer with one or two directions");
  std::vector<Direction> all;
  for (int64_t i = 0; i < count; ++i) {
    const Tensor* w = &weights[i * stride];
    const Tensor none;
    all.push_back({static_cast<RnnMode>(mode), i == 1, input, hx[i], cx.defined() ? cx[i] : none, w[0], w[1],
                   stride == 4 ? w[2] : none, stride == 4 ? w[3] : none, part(output, 2, i, count),
                   reserve.defined() && reserve.numel() > 0 ? part(reserve, 0, i, count) : none});
  }
  return all;
}

void add_or_store(const Tensor& result, const Tensor& value, bool first) {
  first ? result.copy_(value) : result.add_(value);
}

// result = a @ b if `first`, otherwise result += a @ b. The result is [T, B, I].
void add_gemm(const Tensor& result, const Tensor& a, const Tensor& b, bool first) {
  if (!result.is_contiguous()) return add_or_store(result, at::mm(a, b).view(result.sizes()), first);
  gemm_into(result.view({a.size(0), b.size(1)}), a, b, !first);
}

// Computes the gradients of w_ih, w_hh and, if there are any, the biases. Undefined tensors are not computed.
void weight_gradients(const Direction& d, const Backward& b, std::span<const Tensor> w) {
  const int64_t rows = d.steps() * d.batch();
  if (w[0].defined()) {
    gemm_into(w[0], b.input_projections.t(), d.input.reshape({rows, d.input.size(2)}));
  }
  if (w[1].defined()) {
    gemm_into(w[1], b.hidden_projections.t(), d.states_before(d.hx, d.output).reshape({rows, d.hidden()}));
  }
  if (w.size() < 4 || (!w[2].defined() && !w[3].defined())) return;
  const Tensor sum = b.input_projections.sum(0);
  if (w[2].defined()) w[2].copy_(sum);
  if (w[3].defined()) w[3].copy_(b.hidden_projections.is_same(b.input_projections) ? sum : b.hidden_projections.sum(0));
}

void backward_onednn(const Direction& d, const Gradients& gradients, std::span<const Tensor> results, int64_t index,
                     int64_t stride) {
  TORCH_CHECK(can_use_onednn(d, /*train=*/true), "remote: the reserve of a recurrent layer is not this layer's");
  const OneDnnGradients all =
      onednn_backward(onednn(d), d.reserve, d.output, gradients.output, gradients.hy, gradients.cy);
  if (results[0].defined()) add_or_store(results[0], all.input, index == 0);
  if (results[1].defined()) results[1][index].copy_(all.hx);
  if (results[2].defined()) results[2][index].copy_(all.cx);
  if (results.size() == 3) return;  // the weights need no gradients
  const Tensor* w = &results[3 + index * stride];
  if (w[0].defined()) w[0].copy_(all.w_ih);
  if (w[1].defined()) w[1].copy_(all.w_hh);
  for (int64_t bias = 2; bias < stride; ++bias) {
    if (w[bias].defined()) w[bias].copy_(all.bias);
  }
}

}  // namespace

// (input, weight, hx, cx, mode) -> (output, hy, cy, reserve)
void rnn_kernels::forward(const SpecialCall& call) {
  const int64_t mode = call.args[4].toInt();
  // An unused output is undefined, but the steps need its memory.
  const Tensor input = call.args[0].toTensor(), hx = call.args[2].toTensor();
  Tensor output = call.results[0];
  if (!output.defined()) output = at::empty({input.size(0), input.size(1), hx.size(0) * hx.size(2)}, input.options());
  auto all =
      directions(mode, input, call.args[1].toTensorVector(), hx, optional(call.args[3]), output, call.results[3]);
  const RnnLoops* const loops = rnn_loops();
  std::vector<RnnStates> fused;
  if (loops != nullptr && std::ranges::all_of(all, supports_fused)) fused = fused_forward(*loops, all);
  for (int64_t i = 0; i < static_cast<int64_t>(all.size()); ++i) {
    Tensor hy, cy;
    const Direction& d = all[i];
    if (!fused.empty()) {
      hy = fused[i].hy;
      cy = fused[i].cy;
    } else if (d.mode != RnnMode::kLstm) {
      hy = d.mode == RnnMode::kGru ? gru(d) : simple(d);
    } else if (!lstm_onednn(d, &hy, &cy)) {
      hy = lstm(d, &cy);
    }
    if (call.results[1].defined()) call.results[1][i].copy_(hy);
    if (call.results[2].defined() && cy.defined()) call.results[2][i].copy_(cy);
  }
}

// (input, weight, hx, cx, output, grad_output, grad_hy, grad_cy, mode, reserve) -> (grad_input, grad_hx, grad_cx,
// grad_weights)
void rnn_kernels::backward(const SpecialCall& call) {
  const std::vector<Tensor> weights = call.args[1].toTensorVector();
  auto all = directions(call.args[8].toInt(), call.args[0].toTensor(), weights, call.args[2].toTensor(),
                        optional(call.args[3]), call.args[4].toTensor(), call.args[9].toTensor());
  const Tensor grad_output = optional(call.args[5]), grad_hy = optional(call.args[6]), grad_cy = optional(call.args[7]);
  const auto count = static_cast<int64_t>(all.size()), stride = static_cast<int64_t>(weights.size()) / count;
  TORCH_CHECK(call.results.size() == 3 || call.results.size() == 3 + weights.size(),
              "remote: the gradients of a recurrent layer are for ", weights.size(), " weights, not for ",
              call.results.size() - 3);
  std::vector<Gradients> gradients;
  for (int64_t i = 0; i < count; ++i) {
    gradients.push_back({part(grad_output, 2, i, count), grad_hy.defined() ? grad_hy[i] : Tensor(),
                         grad_cy.defined() && grad_cy.numel() > 0 ? grad_cy[i] : Tensor()});
  }
  const RnnLoops* const loops = rnn_loops();
  std::vector<Backward> fused;
  if (loops != nullptr && std::ranges::all_of(all, supports_fused)) fused = fused_backward(*loops, all, gradients);
  for (int64_t i = 0; i < count; ++i) {
    const Direction& d = all[i];
    if (d.mode == RnnMode::kLstm && fused.empty() && is_onednn(d.reserve)) {
      backward_onednn(d, gradients[i], call.results, i, stride);
      continue;
    }
    const Backward b = !fused.empty()             ? fused[i]
                       : d.mode == RnnMode::kLstm ? lstm_backward(d, gradients[i])
                       : d.mode == RnnMode::kGru  ? gru_backward(d, gradients[i])
                                                  : simple_backward(d, gradients[i]);
    if (call.results[0].defined()) add_gemm(call.results[0], b.input_projections, d.w_ih, i == 0);
    if (call.results[1].defined()) call.results[1][i].copy_(b.hx);
    if (call.results[2].defined()) call.results[2][i].copy_(b.cx);
    if (call.results.size() == 3) continue;  // the weights need no gradients
    weight_gradients(d, b, {&call.results[3 + i * stride], static_cast<size_t>(stride)});
  }
}

}  // namespace torch_remote::worker::aten

#include "ir/rnn.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/_cudnn_rnn_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <algorithm>

#include "frontend/device/tensor.h"
#include "frontend/record/record_kernel.h"
#include "frontend/record/recorder.h"
#include "ir/ops/op_table_generated.h"

// Recurrent layers. torch's composite loops over the time steps: a new program for each sequence length, and tens of
// ops per step. Here a layer is one op, as on CUDA: torch's `_cudnn_rnn`, for which torch has a derivative formula. It
// is recorded as `remote::rnn`.
//
// torch's composite handles cells, packed sequences, projections, everything under torch.func, and
// torch.backends.cudnn.flags(enabled=False). It also recomputes a layer whose gradient is differentiated itself. On
// every device but the CPU the composite calls fused LSTM and GRU cells, for which torch has kernels only on CUDA. Here
// these cells are composed of ops that are recorded and fused. Their workspace has what the backward pass needs: the
// gates after their activations.
namespace torch_remote::frontend {
namespace {

using at::Tensor;
using c10::IValue;

Tensor with_biases(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates.add(*bias) : gates;
}

// Order of the gates: input, forget, cell, output. cy = f * cx + i * g; hy = o * tanh(cy).
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

// Order of the gates: reset, input, new. hy = new + input * (hx - new), new = tanh(i_n + reset * h_n).
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

// -- whole layers

using ir::RnnMode;

// Number of elements that one direction keeps for its gradient: the parts in ir/rnn.h. If the worker computes an LSTM
// with oneDNN (bfloat16), it keeps oneDNN's workspace, a header and the last cell state instead. The workspace's size
// is internal to oneDNN. This is an upper bound for 3.x; if it is too small, the worker does not use oneDNN.
int64_t reserve_size(RnnMode mode, int64_t steps, int64_t batch, int64_t inputs, int64_t units, int64_t item_size) {
  const int64_t own = ir::rnn_reserve(mode) * steps * batch * units;
  if (mode != RnnMode::kLstm || item_size != 2) return own;
  constexpr int64_t kPage = 4096, kAreas = 7;
  const auto padded = [](int64_t size) { return (size + 63) / 64 * 64 + 64; };  // rows, against cache conflicts
  const int64_t widest = padded(std::max(inputs, units)), state = padded(units);
  const int64_t gates = steps * padded(4 * units) * item_size;
  const int64_t states = 2 * (steps + 1) * (widest * (item_size + 8) + state * (item_size + 4));
  const int64_t bytes = kPage + batch * (units * item_size + gates + states) + kAreas * kPage;
  return std::max(own, (bytes + 63) / 64 * 64 / item_size);
}

void check_layer(int64_t proj_size, int64_t layers, bool batch_first, double dropout, c10::SymIntArrayRef batch_sizes) {
  TORCH_CHECK_NOT_IMPLEMENTED(proj_size == 0 && layers == 1 && !batch_first && dropout == 0 && batch_sizes.empty(),
                              "remote: '_cudnn_rnn' supports one layer of [steps, batch, inputs] without projection or "
                              "dropout; call torch.lstm, torch.gru, torch.rnn_tanh or torch.rnn_relu");
}

// NOLINTBEGIN(performance-unnecessary-value-param): the signatures of torch's kernels

// Returns (output, hy, cy, reserve, weight_buf). CUDA returns its flat weights in weight_buf; here it is empty.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> layer_forward(
    const Tensor& input, at::TensorList weight, int64_t, const std::optional<Tensor>&, const Tensor& hx,
    const std::optional<Tensor>& cx, int64_t number, c10::SymInt, c10::SymInt proj_size, int64_t layers,
    bool batch_first, double dropout, bool train, bool, c10::SymIntArrayRef batch_sizes, const std::optional<Tensor>&) {
  check_layer(proj_size.expect_int(), layers, batch_first, dropout, batch_sizes);
  const auto mode = static_cast<RnnMode>(number);
  const ir::OpDesc& op = ir::op_desc(ir::ops::remote_rnn);
  const IValue args[] = {input, weight, hx, cx, number};
  const c10::DeviceIndex device = operand_device(op, args);
  const auto type = input.scalar_type();
  const int64_t steps = input.size(0), batch = input.size(1), directions = hx.size(0), units = hx.size(2);
  const auto item_size = static_cast<int64_t>(c10::elementSize(type));
  const int64_t kept = train ? directions * reserve_size(mode, steps, batch, input.size(2), units, item_size) : 0;
  const auto make = [&](c10::IntArrayRef sizes) { return make_contiguous_tensor(sizes, type, device); };
  const Tensor output = make({steps, batch, directions * units}), hy = make(hx.sizes());
  const Tensor cy = make(mode == RnnMode::kLstm ? hx.sizes() : c10::IntArrayRef{0}), reserve = make({kept});
  Recorder::get(device).record(op, args, {output, hy, cy, reserve}, {}, std::nullopt);
  return {output, hy, cy, reserve, make({0})};
}

std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>> layer_backward(
    const Tensor& input, at::TensorList weight, int64_t, const Tensor&, const Tensor& hx,
    const std::optional<Tensor>& cx, const Tensor& output, const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_hy, const std::optional<Tensor>& grad_cy, int64_t mode, c10::SymInt,
    c10::SymInt proj_size, int64_t layers, bool batch_first, double dropout, bool, bool,
    c10::SymIntArrayRef batch_sizes, const std::optional<Tensor>&, const Tensor& reserve, std::array<bool, 4> mask) {
  check_layer(proj_size.expect_int(), layers, batch_first, dropout, batch_sizes);
  const ir::OpDesc& op = ir::op_desc(ir::ops::remote_rnn_backward);
  const IValue args[] = {input, weight, hx, cx, output, grad_output, grad_hy, grad_cy, mode, reserve};
  const c10::DeviceIndex device = operand_device(op, args);
  std::vector<Tensor> results;
  const auto add = [&](bool wanted, const Tensor& like) {
    const bool made = wanted && like.defined();
    results.push_back(made ? make_contiguous_tensor(like.sizes(), like.scalar_type(), device) : Tensor());
  };
  add(mask[0], input);
  add(mask[1], hx);
  add(mask[2], cx.value_or(Tensor()));
  for (size_t i = 0; mask[3] && i < weight.size(); ++i) add(true, weight[i]);
  const auto listed = static_cast<uint32_t>(results.size() - 3);
  Recorder::get(device).record(op, args, results, listed, std::nullopt);
  return {results[0], results[1], results[2], {results.begin() + 3, results.end()}};
}

// NOLINTEND(performance-unnecessary-value-param)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_cudnn_rnn", &layer_forward);
  library.impl("_cudnn_rnn_backward", &layer_backward);
}

using SingleStateRnn = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, at::TensorList, bool, int64_t, double,
                                                  bool, bool, bool);

// Computes the layer again with torch's composite. Returns (output, hy, cy); cy is defined only for an LSTM.
std::vector<Tensor> layer_as_composite(RnnMode mode, const Tensor& input, at::TensorList hidden, at::TensorList weight,
                                       bool has_biases, bool bidirectional) {
  const auto single = [&](SingleStateRnn* torchs) -> std::vector<Tensor> {
    auto [output, hy] = torchs(input, hidden[0], weight, has_biases, /*num_layers=*/1, /*dropout=*/0.0,
                               /*train=*/false, bidirectional, /*batch_first=*/false);
    return {output, hy, Tensor()};
  };
  switch (mode) {
    case RnnMode::kRelu:
      return single(at::native::rnn_relu);
    case RnnMode::kTanh:
      return single(at::native::rnn_tanh);
    case RnnMode::kGru:
      return single(at::native::gru);
    case RnnMode::kLstm:
      break;
  }
  auto [output, hy, cy] = at::native::lstm(input, hidden, weight, has_biases, /*num_layers=*/1, /*dropout=*/0.0,
                                           /*train=*/false, bidirectional, /*batch_first=*/false);
  return {output, hy, cy};
}

// The gradient with create_graph. CUDA raises for it; on CPU layers are composites anyway.
std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>> layer_backward_with_graph(
    const Tensor& input, at::TensorList weight, int64_t weight_stride, const Tensor& weight_buf, const Tensor& hx,
    const std::optional<Tensor>& cx, const Tensor& output, const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_hy, const std::optional<Tensor>& grad_cy, int64_t mode, c10::SymInt units,
    c10::SymInt proj_size, int64_t layers, bool batch_first, double dropout, bool train, bool bidirectional,
    c10::SymIntArrayRef batch_sizes, const std::optional<Tensor>& dropout_state, const Tensor& reserve,
    std::array<bool, 4> mask) {
  std::vector<Tensor> operands{input, hx, cx.value_or(Tensor())};
  operands.insert(operands.end(), weight.begin(), weight.end());
  const std::array<Tensor, 3> gradients{grad_output.value_or(Tensor()), grad_hy.value_or(Tensor()),
                                        grad_cy.value_or(Tensor())};
  const auto differentiable = [](const Tensor& t) { return t.defined() && t.requires_grad(); };
  if (!c10::GradMode::is_enabled() || (std::none_of(operands.begin(), operands.end(), differentiable) &&
                                       std::none_of(gradients.begin(), gradients.end(), differentiable))) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::_cudnn_rnn_backward_symint(input, weight, weight_stride, weight_buf, hx, cx, output, grad_output,
                                          grad_hy, grad_cy, mode, std::move(units), std::move(proj_size), layers,
                                          batch_first, dropout, train, bidirectional, batch_sizes, dropout_state,
                                          reserve, mask);
  }
  // Aliases at which the gradients stop, because one operand may be computed from another one.
  std::vector<Tensor> own, wanted;
  std::vector<size_t> places;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Tensor& operand = operands[i];
    own.push_back(operand.defined() ? operand.alias() : operand);
    if (!operand.defined() || !mask[std::min<size_t>(i, 3)]) continue;
    if (!own[i].requires_grad()) own[i].requires_grad_();
    wanted.push_back(own[i]);
    places.push_back(i);
  }
  const bool lstm = own[2].defined();
  const auto outputs =
      layer_as_composite(static_cast<RnnMode>(mode), own[0], at::TensorList(own).slice(1, lstm ? 2 : 1),
                         at::TensorList(own).slice(3), weight_stride == 4, bidirectional);
  std::vector<Tensor> from, with;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !gradients[i].defined()) continue;
    from.push_back(outputs[i]);
    with.push_back(gradients[i]);
  }
  std::vector<Tensor> results(operands.size());
  if (!from.empty()) {
    auto found = torch::autograd::grad(from, wanted, with, /*retain_graph=*/true, /*create_graph=*/true,
                                       /*allow_unused=*/true);
    for (size_t i = 0; i < places.size(); ++i) results[places[i]] = std::move(found[i]);
  }
  return {results[0], results[1], results[2], {results.begin() + 3, results.end()}};
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("_cudnn_rnn_backward", &layer_backward_with_graph);
}

struct RecurrentLayers {
  RnnMode mode;
  Tensor input;                // [steps, batch, inputs], or batch first
  std::vector<Tensor> hidden;  // hx, and cx for an LSTM: [layers * directions, batch, units]
  std::vector<Tensor> params;  // per layer and direction: w_ih, w_hh, and with biases b_ih, b_hh
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train, bidirectional, batch_first;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t stride() const { return has_biases ? 4 : 2; }
};

// Whether torch.func (vmap, grad, ...) or forward AD wraps the tensor. They have no rules for the op.
bool is_transformed(const Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrappers({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});
  return tensor.key_set().has_any(kWrappers) || tensor._fw_grad(/*level=*/0).defined();
}

bool is_shape(const Tensor& tensor, c10::IntArrayRef sizes) { return tensor.sizes().equals(sizes); }

// Whether `remote::rnn` supports the layer. If not, torch's composite computes it, or raises.
bool is_supported(const RecurrentLayers& net) {
  if (!at::globalContext().userEnabledCuDNN()) return false;
  if (net.input.dim() != 3 || net.input.numel() == 0 || net.layers < 1) return false;
  if (static_cast<int64_t>(net.params.size()) != net.layers * net.directions() * net.stride()) return false;
  if (net.hidden.size() != (net.mode == RnnMode::kLstm ? 2 : 1)) return false;
  const auto type = net.input.scalar_type();
  const auto fits = [&](const Tensor& t) {
    return t.defined() && is_remote(t) && t.device() == net.input.device() && t.scalar_type() == type &&
           !t.unsafeGetTensorImpl()->is_python_dispatch() && !is_transformed(t);
  };
  if (!c10::isFloatingType(type) || !fits(net.input)) return false;
  const Tensor& hx = net.hidden[0];
  if (hx.dim() != 3) return false;
  const int64_t units = hx.size(2), rows = ir::rnn_gates(net.mode) * units;
  for (const Tensor& h : net.hidden) {
    if (!fits(h) || !is_shape(h, {net.layers * net.directions(), net.input.size(net.batch_first ? 0 : 1), units})) {
      return false;
    }
  }
  for (size_t i = 0; i < net.params.size(); ++i) {
    const Tensor& p = net.params[i];
    const auto place = static_cast<int64_t>(i) % net.stride();
    const bool first_layer = static_cast<int64_t>(i) < net.directions() * net.stride();
    const int64_t inputs = first_layer ? net.input.size(2) : units * net.directions();
    if (!fits(p)) return false;
    if (place == 0 ? !is_shape(p, {rows, inputs}) : place == 1 ? !is_shape(p, {rows, units}) : !is_shape(p, {rows})) {
      return false;
    }
  }
  return true;
}

// Casts to the lower precision, as on CUDA.
void autocast(RecurrentLayers& net) {
  if (!at::autocast::is_autocast_enabled(at::kPrivateUse1)) return;
  const auto cast = [](Tensor& tensor) {
    tensor = at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kPrivateUse1), tensor, at::kPrivateUse1);
  };
  cast(net.input);
  for (Tensor& tensor : net.hidden) cast(tensor);
  for (Tensor& tensor : net.params) cast(tensor);
}

bool needs_gradient(const RecurrentLayers& net) {
  const auto needs = [](const Tensor& t) { return t.requires_grad(); };
  return c10::GradMode::is_enabled() && (needs(net.input) || std::any_of(net.hidden.begin(), net.hidden.end(), needs) ||
                                         std::any_of(net.params.begin(), net.params.end(), needs));
}

// Returns (output, hy, cy); cy is defined only for an LSTM.
std::tuple<Tensor, Tensor, Tensor> run(const RecurrentLayers& net) {
  const bool lstm = net.mode == RnnMode::kLstm, gradient = needs_gradient(net);
  const int64_t directions = net.directions(), params = directions * net.stride(), units = net.hidden[0].size(2);
  Tensor x = net.batch_first ? net.input.transpose(0, 1) : net.input;
  std::vector<Tensor> hy, cy;
  for (int64_t layer = 0; layer < net.layers; ++layer) {
    const auto part = [&](const Tensor& t) { return t.narrow(0, layer * directions, directions); };
    const auto results = at::_cudnn_rnn(
        x, at::TensorList(net.params).slice(layer * params, params), net.stride(), std::nullopt, part(net.hidden[0]),
        lstm ? std::optional(part(net.hidden[1])) : std::nullopt, static_cast<int64_t>(net.mode), units,
        /*proj_size=*/0, /*num_layers=*/1, /*batch_first=*/false, /*dropout=*/0.0, /*train=*/gradient,
        net.bidirectional, /*batch_sizes=*/{}, /*dropout_state=*/std::nullopt);
    x = std::get<0>(results);
    hy.push_back(std::get<1>(results));
    if (lstm) cy.push_back(std::get<2>(results));
    if (net.train && net.dropout > 0 && layer + 1 < net.layers) x = at::dropout(x, net.dropout, true);
  }
  const auto join = [](std::vector<Tensor>& all) {
    return all.empty() ? Tensor() : all.size() == 1 ? all[0] : at::cat(all);
  };
  return {net.batch_first ? x.transpose(0, 1) : x, join(hy), join(cy)};
}

// torch's composite adds in place to tensors made from the states. So the states need the batch dim that
// torch.func.vmap hides in the input.
std::vector<Tensor> batched_states(const Tensor& input, at::TensorList states) {
  std::vector<Tensor> result = states.vec();
  if (!is_transformed(input) || input.numel() == 0) return result;
  const Tensor zero = at::zeros_like(input.flatten().narrow(0, 0, 1));
  for (Tensor& state : result) state = state.add(zero);
  return result;
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                                        int64_t layers, double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  RecurrentLayers net{RnnMode::kLstm, input,   hx.vec(), params.vec(),  has_biases,
                      layers,         dropout, train,    bidirectional, batch_first};
  autocast(net);
  if (is_supported(net)) return run(net);
  return at::native::lstm(input, batched_states(input, hx), params, has_biases, layers, dropout, train, bidirectional,
                          batch_first);
}

template <RnnMode mode, SingleStateRnn* torchs>
std::tuple<Tensor, Tensor> single_state(const Tensor& input, const Tensor& hx, at::TensorList params, bool has_biases,
                                        int64_t layers, double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  RecurrentLayers net{mode, input, {hx}, params.vec(), has_biases, layers, dropout, train, bidirectional, batch_first};
  autocast(net);
  if (!is_supported(net)) {
    return torchs(input, batched_states(input, hx)[0], params, has_biases, layers, dropout, train, bidirectional,
                  batch_first);
  }
  const auto [output, hy, none] = run(net);
  return {output, hy};
}

void register_layers(torch::Library& library) {
  library.impl("lstm.input", &lstm);
  library.impl("gru.input", &single_state<RnnMode::kGru, at::native::gru>);
  library.impl("rnn_tanh.input", &single_state<RnnMode::kTanh, at::native::rnn_tanh>);
  library.impl("rnn_relu.input", &single_state<RnnMode::kRelu, at::native::rnn_relu>);
}

// The layers consist of differentiable ops, so the same kernels serve with and without autograd (inference mode).
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { register_layers(library); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { register_layers(library); }

}  // namespace

}  // namespace torch_remote::frontend

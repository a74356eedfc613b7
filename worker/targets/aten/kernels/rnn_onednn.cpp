#include "worker/targets/aten/kernels/rnn_onednn.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mkldnn_rnn_layer_backward.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "ir/rnn.h"
#include "worker/targets/aten/kernels/parallel.h"

namespace torch_remote::worker::aten {
namespace {

using at::Tensor;

constexpr int64_t kLstm = static_cast<int64_t>(ir::RnnMode::kLstm);

// Begins a reserve that holds oneDNN's workspace. The last cell state lies between the header and the workspace.
struct alignas(64) Header {
  uint64_t magic;
  uint64_t workspace;  // bytes
};
constexpr uint64_t kMagic = 0x6e6e64656e6f5254;  // differs from any gates: both of its floats are above 1

bool supported(const char* question) {
  const auto op = c10::Dispatcher::singleton().findOp({question, ""});
  return op && op->typed<bool()>().call();
}

bool has_half(at::ScalarType type) {
  static const bool bfloat16 = supported("mkldnn::_is_mkldnn_bf16_supported");
  static const bool half = supported("mkldnn::_is_mkldnn_fp16_supported");
  return type == at::kBFloat16 ? bfloat16 : half;
}

std::byte* bytes(const Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

int64_t states_offset() { return static_cast<int64_t>(sizeof(Header)); }
int64_t workspace_offset(const Tensor& cx) {
  return states_offset() + (static_cast<int64_t>(cx.nbytes()) + 63) / 64 * 64;
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t count) {
  run_parallel(count, 256 << 10, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

struct Biases {
  Tensor ih, hh;
};
Biases biases(const OneDnnLstm& lstm) {
  if (lstm.b_ih.defined()) return {lstm.b_ih, lstm.b_hh};
  const Tensor none = at::zeros({lstm.w_ih.size(0)}, lstm.w_ih.options());
  return {none, none};
}

}  // namespace

bool supports_onednn(const OneDnnLstm& lstm, bool train) {
  const at::ScalarType type = lstm.input.scalar_type();
  if (!at::globalContext().userEnabledMkldnn() || lstm.input.numel() == 0) return false;
  return (type == at::kBFloat16 && has_half(type)) || (type == at::kHalf && !train && has_half(type));
}

bool onednn_forward(const OneDnnLstm& lstm, const Tensor& reserve, OneDnnStates* states) {
  // Torch reads the grad mode to decide whether there will be a backward pass.
  const c10::AutoGradMode train(reserve.defined());
  const Tensor cx = lstm.cx.contiguous();
  const auto [b_ih, b_hh] = biases(lstm);
  auto [output, hy, cy, workspace] = at::mkldnn_rnn_layer(
      lstm.input.contiguous(), lstm.w_ih, lstm.w_hh, b_ih, b_hh, lstm.hx.contiguous(), cx, lstm.reverse,
      /*batch_sizes=*/{}, kLstm, lstm.hx.size(1), /*num_layers=*/1, /*has_biases=*/lstm.b_ih.defined(),
      /*bidirectional=*/false, /*batch_first=*/false, reserve.defined());
  if (reserve.defined()) {
    const int64_t begin = workspace_offset(cx);
    if (begin + workspace.numel() > static_cast<int64_t>(reserve.nbytes())) return false;
    const Header header{kMagic, static_cast<uint64_t>(workspace.numel())};
    std::memcpy(bytes(reserve), &header, sizeof(header));
    std::memcpy(bytes(reserve) + states_offset(), cy.const_data_ptr(), cy.nbytes());
    copy_bytes(bytes(reserve) + begin, bytes(workspace), workspace.numel());
  }
  *states = {std::move(output), std::move(hy), std::move(cy)};
  return true;
}

bool is_onednn(const Tensor& reserve) {
  if (reserve.nbytes() < sizeof(Header)) return false;
  Header header;
  std::memcpy(&header, bytes(reserve), sizeof(header));
  return header.magic == kMagic && header.workspace <= reserve.nbytes();
}

OneDnnGradients onednn_backward(const OneDnnLstm& lstm, const Tensor& reserve, const Tensor& output,
                                const Tensor& grad_output, const Tensor& grad_hy, const Tensor& grad_cy) {
  const c10::AutoGradMode train(true);
  const Tensor cx = lstm.cx.contiguous(), y = output.contiguous();
  const Tensor cy = at::from_blob(bytes(reserve) + states_offset(), cx.sizes(), cx.options());
  Header header;
  std::memcpy(&header, bytes(reserve), sizeof(header));
  const Tensor workspace =
      at::from_blob(bytes(reserve) + workspace_offset(cx), {static_cast<int64_t>(header.workspace)}, at::kByte);
  const auto [b_ih, b_hh] = biases(lstm);
  const auto optional = [](const Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; };
  auto [dx, dw_ih, dw_hh, db, db_again, dhx, dcx] = at::mkldnn_rnn_layer_backward(
      lstm.input.contiguous(), lstm.w_ih, lstm.w_hh, b_ih, b_hh, lstm.hx.contiguous(), cx, y, y[lstm.reverse ? 0 : -1],
      cy, optional(grad_output), optional(grad_hy), optional(grad_cy), lstm.reverse, kLstm, lstm.hx.size(1),
      /*num_layers=*/1, /*has_biases=*/lstm.b_ih.defined(), /*train=*/true, /*bidirectional=*/false,
      /*batch_sizes=*/{}, /*batch_first=*/false, workspace);
  return {dx, dw_ih, dw_hh, db, dhx, dcx};
}

}  // namespace torch_remote::worker::aten

#include "worker/targets/aten/kernels/rnn_onednn.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mkldnn_rnn_layer_backward.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "ir/rnn.h"
#include "worker/targets/aten/kernels/parallel.h"

namespace torch_remote::worker::aten {
namespace {

using at::Tensor;

constexpr int64_t kLstm = static_cast<int64_t>(ir::RnnMode::kLstm);

// Begins a reserve that holds oneDNN's workspace. The last cell state lies between the header and the workspace.
struct alignas(64) Header {
  uint64_t magic;
  uint64_t unused[7] = {};
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

// output, hy, cy and the workspace. `cx` is contiguous.
std::tuple<Tensor, Tensor, Tensor, Tensor> run_layer(const OneDnnLstm& lstm, const Tensor& cx, bool train) {
  // Torch reads the grad mode to decide whether there will be a backward pass.
  const c10::AutoGradMode grad_mode(train);
  const auto [b_ih, b_hh] = biases(lstm);
  return at::mkldnn_rnn_layer(lstm.input.contiguous(), lstm.w_ih, lstm.w_hh, b_ih, b_hh, lstm.hx.contiguous(), cx,
                              lstm.reverse, /*batch_sizes=*/{}, kLstm, lstm.hx.size(1), /*num_layers=*/1,
                              /*has_biases=*/lstm.b_ih.defined(), /*bidirectional=*/false, /*batch_first=*/false,
                              train);
}

// The sizes in bytes of the layers' workspaces. In the backward pass oneDNN reads a workspace of the size that it has
// chosen. We cannot store this size in the reserve, because the client may change the reserve.
class WorkspaceSizes {
 public:
  void set(const OneDnnLstm& lstm, int64_t size) {
    const std::lock_guard lock(mutex_);
    if (sizes_.size() >= kMost) sizes_.clear();
    sizes_[key(lstm)] = size;
  }
  // If this process has not run a layer of these sizes, runs the forward pass again.
  int64_t get(const OneDnnLstm& lstm, const Tensor& cx) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = sizes_.find(key(lstm)); found != sizes_.end()) return found->second;
    }
    const int64_t size = std::get<3>(run_layer(lstm, cx, /*train=*/true)).numel();
    set(lstm, size);
    return size;
  }

 private:
  using Key = std::array<int64_t, 4>;
  static Key key(const OneDnnLstm& lstm) {
    return {lstm.input.size(0), lstm.input.size(1), lstm.input.size(2), lstm.hx.size(1)};
  }
  static constexpr size_t kMost = 4096;  // a client may choose any sizes

  std::mutex mutex_;
  std::map<Key, int64_t> sizes_;
};

WorkspaceSizes& workspace_sizes() {
  static WorkspaceSizes sizes;
  return sizes;
}

}  // namespace

bool supports_onednn(const OneDnnLstm& lstm, bool train) {
  const at::ScalarType type = lstm.input.scalar_type();
  if (!at::globalContext().userEnabledMkldnn() || lstm.input.numel() == 0 || lstm.hx.numel() == 0) return false;
  return (type == at::kBFloat16 && has_half(type)) || (type == at::kHalf && !train && has_half(type));
}

bool onednn_forward(const OneDnnLstm& lstm, const Tensor& reserve, OneDnnStates* states) {
  const Tensor cx = lstm.cx.contiguous();
  auto [output, hy, cy, workspace] = run_layer(lstm, cx, reserve.defined());
  if (reserve.defined()) {
    workspace_sizes().set(lstm, workspace.numel());
    const int64_t begin = workspace_offset(cx);
    if (begin + workspace.numel() > static_cast<int64_t>(reserve.nbytes())) return false;
    const Header header{kMagic};
    std::memcpy(bytes(reserve), &header, sizeof(header));
    std::memcpy(bytes(reserve) + states_offset(), cy.const_data_ptr(), cy.nbytes());
    copy_bytes(bytes(reserve) + begin, bytes(workspace), workspace.numel());
  }
  *states = {std::move(output), std::move(hy), std::move(cy)};
  return true;
}

bool is_onednn(const Tensor& reserve) {
  if (!reserve.defined() || !reserve.is_contiguous() || reserve.nbytes() < sizeof(Header)) return false;
  Header header;
  std::memcpy(&header, bytes(reserve), sizeof(header));
  return header.magic == kMagic;
}

OneDnnGradients onednn_backward(const OneDnnLstm& lstm, const Tensor& reserve, const Tensor& output,
                                const Tensor& grad_output, const Tensor& grad_hy, const Tensor& grad_cy) {
  const auto fits = [](const Tensor& gradient, const Tensor& of) {
    return !gradient.defined() || gradient.sizes() == of.sizes();
  };
  TORCH_CHECK(fits(grad_output, output) && fits(grad_hy, lstm.hx) && fits(grad_cy, lstm.cx),
              "remote: the gradients of a recurrent layer do not have the sizes of its results");
  const Tensor cx = lstm.cx.contiguous(), y = output.contiguous();
  const int64_t begin = workspace_offset(cx), size = workspace_sizes().get(lstm, cx);
  TORCH_CHECK(begin + size <= static_cast<int64_t>(reserve.nbytes()), "remote: the reserve of a recurrent layer has ",
              reserve.nbytes(), " bytes, but its gradient needs ", begin + size);
  const c10::AutoGradMode train(true);
  const Tensor cy = at::from_blob(bytes(reserve) + states_offset(), cx.sizes(), cx.options());
  const Tensor workspace = at::from_blob(bytes(reserve) + begin, {size}, at::kByte);
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

#include "worker/targets/aten/kernels/special.h"

#include <torch/library.h>

namespace torch_remote::worker::aten {
namespace {

// Schemas of the op table's ops that torch lacks, as in ir/ops/*.toml, for code that reads an op's arguments here.
// These ops have only the special kernels.
TORCH_LIBRARY_FRAGMENT(remote, library) {
  library.def("add_select_backward(Tensor self, Tensor grad, int dim, int index, Scalar alpha) -> Tensor");
  library.def(
      "add_slice_backward(Tensor self, Tensor grad, int dim, int start, int end, int step, Scalar alpha) -> Tensor");
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float? scale) -> (Tensor, "
      "Tensor)");
  library.def(
      "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor? "
      "bias, bool is_causal, float? scale) -> (Tensor, Tensor, Tensor)");
  library.def(
      "rnn(Tensor input, Tensor[] weight, Tensor hx, Tensor? cx, int mode) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "rnn_backward(Tensor input, Tensor[] weight, Tensor hx, Tensor? cx, Tensor output, Tensor? grad_output, Tensor? "
      "grad_hy, Tensor? grad_cy, int mode, Tensor reserve) -> (Tensor, Tensor, Tensor, Tensor[])");
}

}  // namespace

Special find_special(std::string_view name) {
  if (Special found = find_random(name)) return found;
  if (Special found = find_add_slice(name)) return found;
  if (Special found = find_attention(name)) return found;
  if (Special found = find_embedding(name)) return found;
  if (Special found = find_matmul_dtype(name)) return found;
  if (Special found = find_sync_batch_norm(name)) return found;
  return find_rnn(name);
}

}  // namespace torch_remote::worker::aten

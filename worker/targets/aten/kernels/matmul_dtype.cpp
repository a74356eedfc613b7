#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "worker/targets/aten/kernels/special_generated.h"

// Matmuls whose result has a dtype that the caller names (CUDA's overloads with `out_dtype`, which torch lacks on the
// CPU). The operands are converted to that dtype, so nothing is rounded before the sums are complete.
namespace torch_remote::worker::aten {

// (a, b, out_dtype) or (added, a, b, out_dtype, beta, alpha), for matrices or batches of them; then `out`, if given.
void matmul_dtype_kernels::product(const SpecialCall& call) {
  const bool adds = call.args[2].isTensor();
  const size_t first = adds ? 1 : 0;
  if (!call.results[0].defined() && !call.args.back().isTensor()) return;  // the result is unused
  const c10::ScalarType dtype = call.args[first + 2].toScalarType();
  at::Tensor result = call.results[0].defined() ? call.results[0] : call.args.back().toTensor();
  const at::Tensor a = call.args[first].toTensor().to(dtype), b = call.args[first + 1].toTensor().to(dtype);
  const bool batches = a.dim() == 3;
  if (!adds) {
    batches ? at::bmm_out(result, a, b) : at::mm_out(result, a, b);
    return;
  }
  const at::Tensor added = call.args[0].toTensor().to(dtype);
  const at::Scalar beta = call.args[4].toScalar(), alpha = call.args[5].toScalar();
  batches ? at::baddbmm_out(result, added, a, b, beta, alpha) : at::addmm_out(result, added, a, b, beta, alpha);
}

}  // namespace torch_remote::worker::aten

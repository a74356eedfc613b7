#include "worker/targets/aten/kernels/multiply.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <atomic>

// A function of torch's own (ATen/native/mkldnn/Matmul.h, which is not installed): result = beta * result + alpha * a @
// b, for matrices or batches of them. Torch itself calls it for half types alone. Null if this libtorch lacks it.
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                                         float alpha);
}  // namespace at::native

namespace torch_remote::worker::aten {
namespace {

at::Tensor tensor(const tr_matmul& matmul, const tr_matrix& matrix, int64_t rows, int64_t columns) {
  const auto options = at::TensorOptions(static_cast<c10::ScalarType>(matmul.dtype));
  if (matmul.batches == 0)
    return at::from_blob(matrix.data, {rows, columns}, {matrix.row_stride, matrix.column_stride}, options);
  return at::from_blob(matrix.data, {matmul.batches, rows, columns},
                       {matrix.batch_stride, matrix.row_stride, matrix.column_stride}, options);
}

tr_matrix matrix(const at::Tensor& tensor) {
  return {const_cast<void*>(tensor.const_data_ptr()), 0, tensor.stride(0), tensor.stride(1)};
}

// Whether the GEMM is one of float32 matrices whose sizes fit together. Otherwise torch reports what is wrong.
bool is_float_gemm(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right) {
  return result.scalar_type() == at::kFloat && left.scalar_type() == at::kFloat && right.scalar_type() == at::kFloat &&
         result.dim() == 2 && left.dim() == 2 && right.dim() == 2 && left.size(1) == right.size(0) &&
         result.size(0) == left.size(0) && result.size(1) == right.size(1);
}

std::atomic<const tr_host*> asked = nullptr;

}  // namespace

bool run_gemm(const tr_matmul& matmul) {
  const c10::InferenceMode inference;
  const bool onednn = matmul.algorithm == TR_MATMUL_ONEDNN, batched = matmul.batches != 0;
  const bool adds = matmul.addend.data != nullptr;
  if (onednn && (at::native::mkldnn_matmul == nullptr || matmul.dtype != static_cast<int>(at::kFloat))) return false;
  const at::Tensor left = tensor(matmul, matmul.left, matmul.rows, matmul.depth),
                   right = tensor(matmul, matmul.right, matmul.depth, matmul.columns);
  at::Tensor result = tensor(matmul, matmul.result, matmul.rows, matmul.columns), addend;
  if (adds) addend = tensor(matmul, matmul.addend, matmul.rows, matmul.columns);
  if (onednn) {
    if (adds && matmul.addend.data != matmul.result.data) result.copy_(addend);
    at::native::mkldnn_matmul(left, right, result, adds ? 1 : 0, 1);
  } else if (adds) {
    batched ? at::baddbmm_out(result, addend, left, right) : at::addmm_out(result, addend, left, right);
  } else {
    batched ? at::bmm_out(result, left, right) : at::mm_out(result, left, right);
  }
  return true;
}

void set_gemm_host(const tr_host* host) {
  const bool known = host != nullptr && host->struct_size >= sizeof(tr_host) && host->matmul_algorithm != nullptr;
  asked = known ? host : nullptr;
}

void gemm_into(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right, bool adds) {
  at::Tensor to = result;
  if (const tr_host* const host = asked;
      host != nullptr && result.is_contiguous() && is_float_gemm(result, left, right)) {
    tr_matmul matmul{};
    matmul.struct_size = sizeof(matmul);
    matmul.dtype = static_cast<int>(at::kFloat);
    matmul.rows = left.size(0);
    matmul.depth = left.size(1);
    matmul.columns = right.size(1);
    matmul.left = matrix(left);
    matmul.right = matrix(right);
    matmul.result = matrix(result);
    if (adds) matmul.addend = matmul.result;
    matmul.algorithm = host->matmul_algorithm(host->context, &matmul);
    if (matmul.algorithm == TR_MATMUL_ONEDNN && run_gemm(matmul)) return;
  }
  adds ? to.addmm_(left, right) : at::mm_out(to, left, right);
}

}  // namespace torch_remote::worker::aten

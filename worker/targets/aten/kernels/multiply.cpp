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

at::Tensor tensor(const tr_product& product, const tr_matrix& matrix, int64_t rows, int64_t columns) {
  const auto options = at::TensorOptions(static_cast<c10::ScalarType>(product.dtype));
  if (product.batches == 0) return at::from_blob(matrix.data, {rows, columns}, {matrix.row, matrix.column}, options);
  return at::from_blob(matrix.data, {product.batches, rows, columns}, {matrix.batch, matrix.row, matrix.column},
                       options);
}

tr_matrix matrix(const at::Tensor& tensor) {
  return {const_cast<void*>(tensor.const_data_ptr()), 0, tensor.stride(0), tensor.stride(1)};
}

std::atomic<const tr_host*> asked = nullptr;

}  // namespace

bool run_gemm(const tr_product& product) {
  const c10::InferenceMode inference;
  const bool onednn = product.way == TR_PRODUCT_ONEDNN, batched = product.batches != 0;
  const bool adds = product.added.data != nullptr;
  if (onednn && (at::native::mkldnn_matmul == nullptr || product.dtype != static_cast<int>(at::kFloat))) return false;
  const at::Tensor left = tensor(product, product.left, product.rows, product.depth),
                   right = tensor(product, product.right, product.depth, product.columns);
  at::Tensor result = tensor(product, product.result, product.rows, product.columns), added;
  if (adds) added = tensor(product, product.added, product.rows, product.columns);
  if (onednn) {
    if (adds && product.added.data != product.result.data) result.copy_(added);
    at::native::mkldnn_matmul(left, right, result, adds ? 1 : 0, 1);
  } else if (adds) {
    batched ? at::baddbmm_out(result, added, left, right) : at::addmm_out(result, added, left, right);
  } else {
    batched ? at::bmm_out(result, left, right) : at::mm_out(result, left, right);
  }
  return true;
}

void set_gemm_host(const tr_host* host) {
  const bool known = host != nullptr && host->struct_size >= sizeof(tr_host) && host->product_way != nullptr;
  asked = known ? host : nullptr;
}

void gemm_into(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right, bool adds) {
  at::Tensor to = result;
  if (const tr_host* const host = asked;
      host != nullptr && result.scalar_type() == at::kFloat && result.is_contiguous()) {
    tr_product product{};
    product.struct_size = sizeof(product);
    product.dtype = static_cast<int>(at::kFloat);
    product.rows = left.size(0);
    product.depth = left.size(1);
    product.columns = right.size(1);
    product.left = matrix(left);
    product.right = matrix(right);
    product.result = matrix(result);
    if (adds) product.added = product.result;
    product.way = host->product_way(host->context, &product);
    if (product.way == TR_PRODUCT_ONEDNN && run_gemm(product)) return;
  }
  adds ? to.addmm_(left, right) : at::mm_out(to, left, right);
}

}  // namespace torch_remote::worker::aten

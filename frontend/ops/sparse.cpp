#include "frontend/ops/sparse.h"

#include <torch/library.h>

#include <initializer_list>
#include <string>

// Registers torch's kernels and ours.
namespace torch_remote::frontend {
namespace {

using c10::DispatchKey;

// Calls torch's kernel for the CPU and this layout.
template <DispatchKey key>
void as_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

template <DispatchKey key>
void all_as_on_cpu(torch::Library& library, std::initializer_list<const char*> names) {
  for (const char* name : names) library.impl(name, torch::CppFunction::makeFromBoxedFunction<&as_on_cpu<key>>());
}

// Ops that map 0 to 0: they apply to the values.
constexpr const char* kOfValues[] = {"abs",    "asin",  "asinh", "atan", "atanh", "ceil", "deg2rad", "erf",
                                     "erfinv", "expm1", "floor", "frac", "log1p", "neg",  "rad2deg", "round",
                                     "sgn",    "sign",  "sin",   "sinh", "sqrt",  "tan",  "tanh",    "trunc"};

template <DispatchKey key>
void values_as_on_cpu(torch::Library& library) {
  for (const std::string name : kOfValues) {
    for (const std::string& form : {name, name + "_", name + ".out"}) {
      library.impl(form.c_str(), torch::CppFunction::makeFromBoxedFunction<&as_on_cpu<key>>());
    }
  }
  all_as_on_cpu<key>(library, {"isnan", "isinf", "isneginf", "isposinf", "isneginf.out", "isposinf.out", "signbit",
                               "signbit.out", "relu", "relu_", "threshold_backward"});
}

void products(torch::Library& library) {
  library.impl("addmm", &sparse::sparse_addmm);
  library.impl("addmm.out", &sparse::sparse_addmm_out);
  library.impl("mv", &sparse::matrix_vector);
  library.impl("addmv.out", &sparse::sparse_addmv_out);
  library.impl("bmm", &sparse::sparse_bmm);
  library.impl("baddbmm", &sparse::sparse_baddbmm);
  library.impl("_to_sparse_bsr", &sparse::to_blocks<at::kSparseBsr>);
  library.impl("_to_sparse_bsc", &sparse::to_blocks<at::kSparseBsc>);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  all_as_on_cpu<DispatchKey::SparseCPU>(library, {"_coalesced_",
                                                  "_dimI",
                                                  "_dimV",
                                                  "_indices",
                                                  "_nnz",
                                                  "_sparse_broadcast_to",
                                                  "_sparse_coo_tensor_with_dims",
                                                  "_sparse_coo_tensor_with_dims_and_tensors",
                                                  "_to_dense",
                                                  "_to_sparse",
                                                  "_to_sparse.sparse_dim",
                                                  "_to_sparse_csr",
                                                  "_to_sparse_csc",
                                                  "_values",
                                                  "any",
                                                  "cat",
                                                  "clone",
                                                  "copy_",
                                                  "conj_physical.out",
                                                  "copy_sparse_to_sparse_",
                                                  "dense_dim",
                                                  "div.Tensor",
                                                  "div_.Tensor",
                                                  "div.out",
                                                  "div.Tensor_mode",
                                                  "div_.Tensor_mode",
                                                  "div.out_mode",
                                                  "empty.memory_format",
                                                  "empty_like",
                                                  "indices",
                                                  "is_coalesced",
                                                  "mm",
                                                  "nan_to_num",
                                                  "nan_to_num.out",
                                                  "nan_to_num_",
                                                  "narrow_copy",
                                                  "native_norm",
                                                  "native_norm.ScalarOpt_dim_dtype",
                                                  "norm.ScalarOpt_dim",
                                                  "norm.ScalarOpt_dim_dtype",
                                                  "permute",
                                                  "pow.Tensor_Scalar",
                                                  "pow.Tensor_Scalar_out",
                                                  "resize_as_sparse_",
                                                  "sparse_dim",
                                                  "sparse_resize_",
                                                  "sparse_resize_and_clear_",
                                                  "sum",
                                                  "sum.dim_IntList",
                                                  "unsqueeze",
                                                  "values",
                                                  "zero_"});
  values_as_on_cpu<DispatchKey::SparseCPU>(library);
  library.impl("_coalesce", &sparse::coalesce);
  library.impl("add.Tensor", &sparse::added);
  library.impl("add_.Tensor", &sparse::add_to);
  library.impl("add.out", &sparse::sum_out);
  library.impl("sub.Tensor", &sparse::difference);
  library.impl("sub_.Tensor", &sparse::subtract);
  library.impl("sub.out", &sparse::difference_out);
  library.impl("mul.Tensor", &sparse::multiplied);
  library.impl("mul_.Tensor", &sparse::multiply);
  library.impl("mul.out", &sparse::multiplied_out);
  products(library);
  library.impl("addmm_", &sparse::sparse_addmm_in_place);
  library.impl("_sparse_sparse_matmul", &sparse::sparse_sparse_mm);
  library.impl("hspmm", &sparse::sparse_hspmm);
  library.impl("sspaddmm.out", &sparse::sparse_sspaddmm_out);
  library.impl("sparse_mask", &sparse::mask);
  library.impl("_sparse_mask_projection", &sparse::project);
  library.impl("index_select", &sparse::select_index);
  library.impl("_sparse_sum_backward", &sparse::sum_backward);
  library.impl("_sparse_softmax", &sparse::softmax<false>);
  library.impl("_sparse_log_softmax", &sparse::softmax<true>);
  library.impl("_sparse_softmax_backward_data", &sparse::softmax_backward<false>);
  library.impl("_sparse_log_softmax_backward_data", &sparse::softmax_backward<true>);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, library) {
  all_as_on_cpu<DispatchKey::SparseCsrCPU>(library, {"_nnz",
                                                     "_to_sparse",
                                                     "_to_sparse.sparse_dim",
                                                     "ccol_indices",
                                                     "clone",
                                                     "col_indices",
                                                     "copy_",
                                                     "crow_indices",
                                                     "dense_dim",
                                                     "empty.memory_format",
                                                     "empty_like",
                                                     "fill_.Scalar",
                                                     "resize_as_sparse_",
                                                     "row_indices",
                                                     "select.int",
                                                     "sparse_dim",
                                                     "sparse_mask",
                                                     "sum",
                                                     "values",
                                                     "zero_"});
  values_as_on_cpu<DispatchKey::SparseCsrCPU>(library);
  library.impl("add.Tensor", &sparse::compressed_add);
  library.impl("mul.Tensor", &sparse::compressed_mul);
  library.impl("mul.Scalar", &sparse::compressed_mul_by_number);
  library.impl("mm", &sparse::compressed_mm);
  library.impl("sparse_sampled_addmm", &sparse::sampled_addmm);
  library.impl("_sparse_mm_reduce_impl", &sparse::mm_reduce);
  library.impl("_sparse_mm_reduce_impl_backward", &sparse::mm_reduce_backward);
  library.impl("_to_dense", &sparse::compressed_to_dense);
  library.impl("_to_sparse_csr", &sparse::to_compressed<at::kSparseCsr>);
  library.impl("_to_sparse_csc", &sparse::to_compressed<at::kSparseCsc>);
  products(library);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  all_as_on_cpu<DispatchKey::CPU>(library, {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc",
                                            "_to_sparse_bsr", "_to_sparse_bsc"});
  library.impl("_convert_indices_from_coo_to_csr", &sparse::to_csr);
  library.impl("_convert_indices_from_csr_to_coo", &sparse::to_coo);
  library.impl("_validate_compressed_sparse_indices", &sparse::validate);
}

}  // namespace
}  // namespace torch_remote::frontend

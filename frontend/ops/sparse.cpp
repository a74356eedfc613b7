#include <torch/library.h>

#include <initializer_list>
#include <string>

// Registers torch's kernels that run unchanged (sparse.h).
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
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  all_as_on_cpu<DispatchKey::CPU>(library, {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc",
                                            "_to_sparse_bsr", "_to_sparse_bsc"});
}

}  // namespace
}  // namespace torch_remote::frontend

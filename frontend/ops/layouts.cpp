#include <ATen/core/Tensor.h>
#include <torch/library.h>

// Tensors that are not one strided block of memory: quantized tensors, and nested ones except for torch.jagged, which
// consist of strided tensors. The device does not support them; ops that would make or use one raise at the call. Ops
// that are missing for sparse tensors (sparse.h) raise, too.
namespace torch_remote::frontend {
namespace {

constexpr char kSparse[] = "kernel for sparse tensors; convert them with to_dense()";
constexpr char kNested[] = "nested tensors of torch.strided; use layout=torch.jagged";
constexpr char kQuantized[] = "quantized tensors; quantize on the CPU, and train with fake quantization";

template <const char* kWhat>
void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "remote: '", c10::toString(op.operator_name()),
                              "' cannot run, as the device has no ", kWhat);
}

template <const char* kWhat>
void refuse_all(torch::Library& library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<kWhat>>());
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, library) { refuse_all<kSparse>(library); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, library) { refuse_all<kSparse>(library); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, library) { refuse_all<kNested>(library); }
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, library) { refuse_all<kQuantized>(library); }

// In eval mode, nn.TransformerEncoder asks whether all padding is at the ends. If so, it packs the sequences into a
// nested tensor; if not, they stay padded. On this device they always stay padded.
bool left_aligned(const at::Tensor&, const at::Tensor&) { return false; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_nested_tensor_from_mask_left_aligned", &left_aligned);
  // Without this kernel autograd would ask the resulting tensor for its sizes, and must not raise there.
  library.impl("_nested_tensor_from_tensor_list", torch::CppFunction::makeFromBoxedFunction<&refuse<kNested>>());
}

}  // namespace
}  // namespace torch_remote::frontend

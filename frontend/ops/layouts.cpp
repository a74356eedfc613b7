#include <ATen/core/Tensor.h>
#include <torch/library.h>

// Tensors that are not one strided block of memory: quantized, and nested ones (but for torch.jagged, which is made of
// strided tensors). The device has none; what would make or use one says so at the call. So does what is not there for
// sparse ones (sparse.h).
namespace torch_remote::frontend {
namespace {

constexpr char kSparse[] = "kernel of it for sparse tensors; to_dense() makes them strided ones";
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

// nn.TransformerEncoder asks at rest whether padding is at the ends, and then packs the sequences into a nested tensor;
// where it is not, they stay padded. That is the way to go here, whatever the mask.
bool left_aligned(const at::Tensor&, const at::Tensor&) { return false; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_nested_tensor_from_mask_left_aligned", &left_aligned);
  // Autograd would ask the tensor that it makes for its sizes, where no error may come from.
  library.impl("_nested_tensor_from_tensor_list", torch::CppFunction::makeFromBoxedFunction<&refuse<kNested>>());
}

}  // namespace
}  // namespace torch_remote::frontend

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <string>

// torch.fft in half precision. These ops are composites whose dtype check allows half precision only on CUDA. Here they
// compute in float32 and round the result. Sizes may have any factors; on CUDA they must be powers of two.
namespace torch_remote::frontend {
namespace {

using torch::jit::Stack;

bool is_half(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  if (c10::isIntegralType(type, /*includeBool=*/true)) return c10::get_default_dtype_as_scalartype() == at::kHalf;
  return type == at::kHalf;
}

at::Tensor to_half(const at::Tensor& tensor) { return tensor.to(tensor.is_complex() ? at::kComplexHalf : at::kHalf); }

void transform(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  const at::Tensor self = (*stack)[base].toTensor();
  if (!is_half(self)) {
    // The dispatcher's CPU kernel is the composite, whose ops run on the device of their tensors.
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    return;
  }
  (*stack)[base] = self.to(at::kFloat);
  if (arguments.back().name() != "out") {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    stack->back() = to_half(stack->back().toTensor());
    return;
  }
  const at::Tensor out = stack->back().toTensor();
  stack->pop_back();
  static auto& dispatcher = c10::Dispatcher::singleton();
  const auto functional = dispatcher.findSchemaOrThrow(op.schema().name().c_str(), "");
  functional.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const at::Tensor result = to_half(stack->back().toTensor());
  if (!out.sizes().equals(result.sizes())) out.resize_(result.sizes());
  out.copy_(result);
  stack->back() = out;
}

void register_transforms(torch::Library& library) {
  for (const char* direction : {"fft", "ifft", "rfft", "irfft", "hfft", "ihfft"}) {
    for (const char* dims : {"", "2", "n"}) {
      const std::string name = std::string("fft_") + direction + dims;
      for (const char* overload : {"", ".out"}) {
        library.impl((name + overload).c_str(), torch::CppFunction::makeFromBoxedFunction<&transform>());
      }
    }
  }
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { register_transforms(library); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { register_transforms(library); }

}  // namespace
}  // namespace torch_remote::frontend

// Shape functions that torch lacks. Without one, an eager call is a round trip, and torch.compile runs the op while it
// traces: a random one then takes numbers that the program was to have.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace torch_remote::frontend {
namespace {

at::Tensor new_like(const at::Tensor& self) { return at::empty_symint(self.sym_sizes(), self.options()); }

at::Tensor sample_dirichlet(const at::Tensor& self, std::optional<at::Generator>) { return new_like(self); }

at::Tensor binomial(const at::Tensor& count, const at::Tensor&, std::optional<at::Generator>) {
  return new_like(count);
}

at::Tensor dirichlet_grad(const at::Tensor& x, const at::Tensor&, const at::Tensor&) { return new_like(x); }

at::Tensor standard_gamma_grad(const at::Tensor& self, const at::Tensor&) { return at::empty_like(self); }

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_sample_dirichlet", &sample_dirichlet);
  library.impl("binomial", &binomial);
  library.impl("_dirichlet_grad", &dirichlet_grad);
  library.impl("_standard_gamma_grad", &standard_gamma_grad);
}

}  // namespace
}  // namespace torch_remote::frontend

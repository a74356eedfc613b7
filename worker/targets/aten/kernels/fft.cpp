#include "worker/targets/aten/kernels/fft.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fft_c2c_native.h>
#include <ATen/ops/_fft_c2r_native.h>
#include <torch/library.h>

#include "worker/targets/aten/checks/no_warnings.h"

namespace torch_remote::worker::aten {
namespace {

// Transforms of several dims are left to MKL if each has at most this size. fft_memory_test finds writes outside of
// blocks from sizes of about 260 on.
constexpr int64_t kMostTogether = 64;

bool are_small(const at::Tensor& self, c10::IntArrayRef dims) {
  for (const int64_t dim : dims) {
    if (self.size(dim) > kMostTogether) return false;
  }
  return true;
}

// The normalization factors of several dims are the product of those of each dim.
at::Tensor c2c(const at::Tensor& self, c10::SymIntArrayRef dims, int64_t normalization, bool forward) {
  const c10::IntArrayRef all = C10_AS_INTARRAYREF_SLOW(dims);
  if (all.size() <= 1 || are_small(self, all)) return at::native::_fft_c2c_mkl(self, all, normalization, forward);
  at::Tensor made = self;
  for (size_t i = all.size(); i-- > 0;) made = at::native::_fft_c2c_mkl(made, all[i], normalization, forward);
  return made;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): torch's signature
at::Tensor c2r(const at::Tensor& self, c10::IntArrayRef dims, int64_t normalization, c10::SymInt last_size) {
  const int64_t size = last_size.guard_int(__FILE__, __LINE__);
  if (dims.size() <= 1 || are_small(self, dims)) return at::native::_fft_c2r_mkl(self, dims, normalization, size);
  at::Tensor made = self;
  for (size_t i = dims.size() - 1; i-- > 0;) made = at::native::_fft_c2c_mkl(made, dims[i], normalization, false);
  return at::native::_fft_c2r_mkl(made, dims.back(), normalization, size);
}

}  // namespace

void transform_dims_apart() {
  static const auto* const library = [] {
    const NoWarnings quiet;  // torch warns about kernels that are replaced
    auto* const made = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    made->impl("_fft_c2c", TORCH_FN(c2c));
    made->impl("_fft_c2r", TORCH_FN(c2r));
    return made;
  }();
  (void)library;
}

}  // namespace torch_remote::worker::aten

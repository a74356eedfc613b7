#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "worker/targets/aten/kernels/special_generated.h"

// Gradients of slices, written to the program's memory (torch would allocate a tensor); and sums of such gradients
// (passes/accumulate.cpp). A sum adds each slice in place, in the memory of the sum so far if the result shares it.
namespace torch_remote::worker::aten {
namespace {

using at::Tensor;

bool is_finite(const c10::Scalar& number) {
  if (!number.isComplex()) return !number.isFloatingPoint() || std::isfinite(number.toDouble());
  const c10::complex<double> value = number.toComplexDouble();
  return std::isfinite(value.real()) && std::isfinite(value.imag());
}

// The part of `whole` that an op's arguments from the third one on select: dim and index, or dim, start, end and step.
Tensor selected(const SpecialCall& call, const Tensor& whole) {
  return whole.select(call.args[2].toInt(), call.args[3].toInt());
}

Tensor sliced(const SpecialCall& call, const Tensor& whole) {
  return whole.slice(call.args[2].toInt(), call.args[3].toInt(), call.args[4].toInt(), call.args[5].toInt());
}

// (grad, sizes, the part's arguments)
template <Tensor part(const SpecialCall&, const Tensor&)>
void pad(const SpecialCall& call) {
  const Tensor& result = call.results[0];
  if (result.defined()) part(call, result.zero_()).copy_(call.args[0].toTensor());
}

// (self, grad, the part's arguments, alpha)
template <Tensor part(const SpecialCall&, const Tensor&)>
void add_to_part(const SpecialCall& call) {
  const Tensor& self = call.args[0].toTensor();
  const Tensor& grad = call.args[1].toTensor();
  const c10::Scalar alpha = call.args.back().toScalar();
  const Tensor& result = call.results[0];
  if (!result.defined()) return;
  if (result.const_data_ptr() != self.const_data_ptr()) result.copy_(self);
  if (is_finite(alpha)) {
    part(call, result).add_(grad, alpha);
  } else {  // alpha times the zeros around the slice gives NaN
    const Tensor padded = at::zeros_like(result);
    part(call, padded).copy_(grad);
    result.add_(padded, alpha);
  }
}

}  // namespace

void add_slice_kernels::pad_selected(const SpecialCall& call) { pad<selected>(call); }
void add_slice_kernels::pad_sliced(const SpecialCall& call) { pad<sliced>(call); }
void add_slice_kernels::add_to_selected(const SpecialCall& call) { add_to_part<selected>(call); }
void add_slice_kernels::add_to_sliced(const SpecialCall& call) { add_to_part<sliced>(call); }

}  // namespace torch_remote::worker::aten

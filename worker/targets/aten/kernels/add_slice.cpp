#include <ATen/ATen.h>

#include <cmath>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/aten/kernels/special.h"

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

Special find_add_slice(std::string_view name) {
  if (name == ir::op_desc(ir::ops::aten_select_backward).name) return pad<selected>;
  if (name == ir::op_desc(ir::ops::aten_slice_backward).name) return pad<sliced>;
  if (name == "remote::add_select_backward") return add_to_part<selected>;
  if (name == "remote::add_slice_backward") return add_to_part<sliced>;
  return nullptr;
}

}  // namespace torch_remote::worker::aten

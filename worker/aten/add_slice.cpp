#include <ATen/ATen.h>

#include <cmath>

#include "ir/op_table_generated.h"
#include "worker/aten/special.h"

// Gradients of slices, in memory of the program's (torch makes a tensor of its own); and sums of them
// (passes/accumulate.cpp), which add each slice where it is: in the memory of the sum so far, if the result has that.
namespace torch_remote::worker::aten {
namespace {

using at::Tensor;

bool is_finite(const c10::Scalar& number) {
  if (!number.isComplex()) return !number.isFloatingPoint() || std::isfinite(number.toDouble());
  const c10::complex<double> value = number.toComplexDouble();
  return std::isfinite(value.real()) && std::isfinite(value.imag());
}

// (grad, sizes, dim, index)
void select_backward(const SpecialCall& call) {
  const Tensor& result = call.results[0];
  if (result.defined())
    result.zero_().select(call.args[2].toInt(), call.args[3].toInt()).copy_(call.args[0].toTensor());
}

// (grad, sizes, dim, start, end, step)
void slice_backward(const SpecialCall& call) {
  const Tensor& result = call.results[0];
  if (!result.defined()) return;
  result.zero_()
      .slice(call.args[2].toInt(), call.args[3].toInt(), call.args[4].toInt(), call.args[5].toInt())
      .copy_(call.args[0].toTensor());
}

// `part` gives the slice of a tensor.
template <typename Part>
void add_to_part(const SpecialCall& call, const c10::Scalar& alpha, const Part& part) {
  const Tensor& self = call.args[0].toTensor();
  const Tensor& grad = call.args[1].toTensor();
  const Tensor& result = call.results[0];
  if (!result.defined()) return;
  if (result.const_data_ptr() != self.const_data_ptr()) result.copy_(self);
  if (is_finite(alpha)) {
    part(result).add_(grad, alpha);
  } else {  // the zeros around the slice make NaN of it
    const Tensor padded = at::zeros_like(result);
    part(padded).copy_(grad);
    result.add_(padded, alpha);
  }
}

// (self, grad, dim, index, alpha)
void add_select_backward(const SpecialCall& call) {
  const auto part = [&](const Tensor& whole) { return whole.select(call.args[2].toInt(), call.args[3].toInt()); };
  add_to_part(call, call.args[4].toScalar(), part);
}

// (self, grad, dim, start, end, step, alpha)
void add_slice_backward(const SpecialCall& call) {
  const auto part = [&](const Tensor& whole) {
    return whole.slice(call.args[2].toInt(), call.args[3].toInt(), call.args[4].toInt(), call.args[5].toInt());
  };
  add_to_part(call, call.args[6].toScalar(), part);
}

}  // namespace

Special find_add_slice(std::string_view name) {
  if (name == ir::op_desc(ir::ops::aten_select_backward).name) return select_backward;
  if (name == ir::op_desc(ir::ops::aten_slice_backward).name) return slice_backward;
  if (name == "remote::add_select_backward") return add_select_backward;
  if (name == "remote::add_slice_backward") return add_slice_backward;
  return nullptr;
}

}  // namespace torch_remote::worker::aten

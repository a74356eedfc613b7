#include <algorithm>
#include <bit>
#include <utility>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/complex_arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Ops on complex numbers. Operands are converted to one dtype and expanded to one size; sums are sums of the parts.
namespace torch_remote::worker::cuda {
namespace {

using ir::ArgTag;
using ir::DType;

struct Number {
  double real = 0, imaginary = 0;
};

// Reads a number argument of the call. False: the argument is a tensor.
bool number_of(OpPlanner& planner, std::string_view name, Number* number) {
  const ir::Arg* const arg = planner.argument(name);
  if (arg == nullptr || arg->tag == ArgTag::kView) return false;
  const bool is_tensor = arg->tag == ArgTag::kScalarTensor;
  if (arg->tag == ArgTag::kComplex || (is_tensor && ir::is_complex(static_cast<DType>(arg->b & 0xFF)))) {
    *number = {std::bit_cast<double>(planner.value(arg->a)), std::bit_cast<double>(planner.value(arg->a + 1))};
  } else {
    *number = {planner.number(name), 0};
  }
  return true;
}

// A tensor without dims that holds the number.
OpTensor element(OpPlanner& planner, Number number, DType dtype) {
  const DType part = part_of(dtype);
  OpTensor one;
  one.dtype = dtype;
  one.location = planner.scratch(ir::item_size(dtype));
  for (const bool imaginary : {false, true}) {
    const double x = imaginary ? number.imaginary : number.real;
    Location location = one.location;
    if (imaginary) location.offset += ir::item_size(part);
    planner
        .launch(KernelFile::kFill, "fill_bits",
                FillArguments{.count = 1, .item = ir::item_size(part), .bits = float_bits(x, part)}, 1, 32)
        .at(&FillArguments::out, location);
  }
  return one;
}
// A tensor with the sizes of `like`, filled with the number.
OpTensor spread(OpPlanner& planner, Number number, DType dtype, const OpTensor& like) {
  const OpTensor one = element(planner, number, dtype);
  OpTensor all = like;
  all.dtype = dtype;
  all.strides = packed_strides(all.sizes);
  all.location = planner.scratch(all.nbytes());
  planner.copy(one, all);
  return all;
}

// The operand, contiguous, expanded to the result's sizes and converted to `dtype`. None: it is absent.
std::optional<Location> expand_to(OpPlanner& planner, std::string_view name, DType dtype, const OpTensor& to) {
  if (const auto tensor = planner.tensor(name)) {
    if (tensor->sizes == to.sizes) return planner.packed(*tensor, dtype);
    OpTensor all = to;
    all.dtype = dtype;
    all.strides = packed_strides(all.sizes);
    all.location = planner.scratch(all.nbytes());
    planner.copy(*tensor, all);
    return all.location;
  }
  Number number;
  if (!number_of(planner, name, &number)) return std::nullopt;
  return spread(planner, number, dtype, to).location;
}

// The complex dtype in which an op computes. It is that of operands with dims, whatever the result's dtype is (`out=`).
// If none of these is complex, it is that of the result or of operands without dims. None: all operands are real, and
// so is the computation.
std::optional<DType> dtype_of(OpPlanner& planner, const OpTensor& to) {
  DType dtype = to.dtype;
  bool is_real = true;
  bool has_complex = false, has_wide = false;  // Among operands with dims.
  for (const std::string_view name :
       {"self", "other", "exponent", "tensor1", "tensor2", "end", "weight", "grad_output", "output"}) {
    const auto tensor = planner.tensor(name);
    const ir::Arg* const arg = planner.argument(name);
    if (arg == nullptr) continue;
    const bool is_number = arg->tag == ArgTag::kScalarTensor && ir::is_complex(static_cast<DType>(arg->b & 0xFF));
    is_real &= tensor ? !ir::is_complex(tensor->dtype) : arg->tag != ArgTag::kComplex && !is_number;
    if (!tensor) continue;
    if (ir::is_complex(tensor->dtype) && !ir::is_complex(dtype)) dtype = tensor->dtype;
    if (tensor->dtype == DType::kComplex128) dtype = DType::kComplex128;
    if (tensor->sizes.empty()) continue;
    has_complex |= ir::is_complex(tensor->dtype);
    has_wide |= tensor->dtype == DType::kComplex128 || tensor->dtype == DType::kFloat64;
  }
  if (is_real) return std::nullopt;
  if (has_complex) return has_wide ? DType::kComplex128 : DType::kComplex64;
  if (dtype != DType::kComplex64 && dtype != DType::kComplex128) return std::nullopt;
  return dtype;
}

// The dtype of the op's result; a result tensor of another dtype (`out=`) gets a copy.
DType made_of(ComplexOp what, DType dtype) {
  if (what <= ComplexOp::kIsInfinite) return DType::kBool;
  return what == ComplexOp::kAbs || what == ComplexOp::kAngle ? part_of(dtype) : dtype;
}

struct Names {
  std::string_view a = "self", b = {}, c = {};
};

// Computes the result element by element.
Status compute(OpPlanner& planner, ComplexOp what, Names names = {}, Number times = {1, 0}) {
  const auto to = planner.result(0);
  if (!to) return unsupported("without a result");
  const auto dtype = dtype_of(planner, *to);
  if (!dtype) return unsupported("of these complex numbers");
  const auto operand = [&](std::string_view name) {
    return name.empty() ? Location() : expand_to(planner, name, *dtype, *to);
  };
  const std::optional<Location> a = operand(names.a), b = operand(names.b), c = operand(names.c);
  if (!a || !b || !c) return unsupported("of a number of the CPU");
  OpTensor made = *to;
  made.dtype = made_of(what, *dtype);
  if (made.dtype == to->dtype) {
    made.location = planner.output(*to);
  } else {
    made.strides = packed_strides(made.sizes);
    made.location = planner.scratch(made.nbytes());
  }
  const bool is_inverse = what >= ComplexOp::kAsin && what <= ComplexOp::kAtanh;
  planner
      .launch(KernelFile::kComplex, is_inverse ? "complex_inverse" : "complex_pointwise",
              ComplexArguments{.count = to->count(),
                               .dtype = static_cast<i64>(part_of(*dtype)),
                               .out_dtype = static_cast<i64>(part_of(made.dtype)),
                               .what = what,
                               .real = times.real,
                               .imaginary = times.imaginary},
              blocks_for(to->count()))
      .at(&ComplexArguments::a, *a)
      .at(&ComplexArguments::b, *b)
      .at(&ComplexArguments::c, *c)
      .at(&ComplexArguments::out, made.location);
  if (made.dtype != to->dtype) planner.copy(made, *to);
  return {};
}

Status add(OpPlanner& planner, const Names& names, double sign) {
  Number alpha{1, 0};
  if (planner.has("alpha") && !number_of(planner, "alpha", &alpha)) return unsupported("times a tensor");
  return compute(planner, ComplexOp::kAdd, names, {sign * alpha.real, sign * alpha.imaginary});
}

Status add_pair(OpPlanner& planner, ComplexOp what) {
  Number times{1, 0};
  if (planner.has("value") && !number_of(planner, "value", &times)) return unsupported("times a tensor");
  return compute(planner, what, {.b = "tensor1", .c = "tensor2"}, times);
}

Status backward(OpPlanner& planner, ComplexOp what) {
  return compute(planner, what, {.a = "grad_output", .b = "output"});
}

// Logical ops on truth values, which say whether elements are not 0.
Status logical(OpPlanner& planner, ir::Opcode opcode) {
  const auto self = planner.tensor("self"), other = planner.tensor("other"), to = planner.result(0);
  if (!self || !other || !to) return unsupported("of a number of the CPU");
  return plan_op(planner, opcode,
                 {planner.packed_tensor(*self, DType::kBool), planner.packed_tensor(*other, DType::kBool)}, {to});
}

// Selects `there` where the condition is true, and `elsewhere` where it is false.
Status choose(OpPlanner& planner, std::string_view condition, std::string_view there, std::string_view elsewhere) {
  const auto to = planner.result(0);
  if (!to || (to->dtype != DType::kComplex64 && to->dtype != DType::kComplex128)) return unsupported("of these dtypes");
  const auto a = expand_to(planner, there, to->dtype, *to), b = expand_to(planner, elsewhere, to->dtype, *to),
             c = expand_to(planner, condition, DType::kBool, *to);
  if (!a || !b || !c) return unsupported("of a number of the CPU");
  const auto part = static_cast<i64>(part_of(to->dtype));
  planner
      .launch(KernelFile::kComplex, "complex_pointwise",
              ComplexArguments{.count = to->count(), .dtype = part, .out_dtype = part, .what = ComplexOp::kSelect},
              blocks_for(to->count()))
      .at(&ComplexArguments::a, *a)
      .at(&ComplexArguments::b, *b)
      .at(&ComplexArguments::c, *c)
      .at(&ComplexArguments::out, planner.output(*to));
  return {};
}

// The product along a dim, or the cumulative product.
Status product_along(OpPlanner& planner, const char* kernel, const OuterLengthInner& dims, int64_t grid) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  const bool known = to && (to->dtype == DType::kComplex64 || to->dtype == DType::kComplex128);
  if (!self || !known) return unsupported("of these dtypes");
  const auto part = static_cast<i64>(part_of(to->dtype));
  planner
      .launch(KernelFile::kComplex, kernel,
              ScanArguments{
                  .outer = dims.outer, .length = dims.length, .inner = dims.inner, .in_dtype = part, .out_dtype = part},
              grid)
      .at(&ScanArguments::in, planner.packed(*self, to->dtype))
      .at(&ScanArguments::out, planner.output(*to));
  return {};
}

}  // namespace

Status complex_plans::is_infinite(OpPlanner& planner) { return compute(planner, ComplexOp::kIsInfinite); }
Status complex_plans::logical_not(OpPlanner& planner) { return compute(planner, ComplexOp::kEqual); }
Status complex_plans::negative(OpPlanner& planner) { return compute(planner, ComplexOp::kNegative); }
Status complex_plans::conjugate(OpPlanner& planner) { return compute(planner, ComplexOp::kConjugate); }
Status complex_plans::reciprocal(OpPlanner& planner) { return compute(planner, ComplexOp::kReciprocal); }
Status complex_plans::square(OpPlanner& planner) { return compute(planner, ComplexOp::kSquare); }
Status complex_plans::square_root(OpPlanner& planner) { return compute(planner, ComplexOp::kSquareRoot); }
Status complex_plans::exp(OpPlanner& planner) { return compute(planner, ComplexOp::kExp); }
Status complex_plans::log(OpPlanner& planner) { return compute(planner, ComplexOp::kLog); }
Status complex_plans::sine(OpPlanner& planner) { return compute(planner, ComplexOp::kSine); }
Status complex_plans::cosine(OpPlanner& planner) { return compute(planner, ComplexOp::kCosine); }
Status complex_plans::tangent(OpPlanner& planner) { return compute(planner, ComplexOp::kTangent); }
Status complex_plans::sinh(OpPlanner& planner) { return compute(planner, ComplexOp::kSinh); }
Status complex_plans::cosh(OpPlanner& planner) { return compute(planner, ComplexOp::kCosh); }
Status complex_plans::tanh(OpPlanner& planner) { return compute(planner, ComplexOp::kTanh); }
Status complex_plans::asin(OpPlanner& planner) { return compute(planner, ComplexOp::kAsin); }
Status complex_plans::acos(OpPlanner& planner) { return compute(planner, ComplexOp::kAcos); }
Status complex_plans::atan(OpPlanner& planner) { return compute(planner, ComplexOp::kAtan); }
Status complex_plans::asinh(OpPlanner& planner) { return compute(planner, ComplexOp::kAsinh); }
Status complex_plans::acosh(OpPlanner& planner) { return compute(planner, ComplexOp::kAcosh); }
Status complex_plans::atanh(OpPlanner& planner) { return compute(planner, ComplexOp::kAtanh); }
Status complex_plans::exp2(OpPlanner& planner) { return compute(planner, ComplexOp::kExp2); }
Status complex_plans::expm1(OpPlanner& planner) { return compute(planner, ComplexOp::kExpm1); }
Status complex_plans::log2(OpPlanner& planner) { return compute(planner, ComplexOp::kLog2); }
Status complex_plans::log10(OpPlanner& planner) { return compute(planner, ComplexOp::kLog10); }
Status complex_plans::log1p(OpPlanner& planner) { return compute(planner, ComplexOp::kLog1p); }
Status complex_plans::reciprocal_root(OpPlanner& planner) { return compute(planner, ComplexOp::kReciprocalRoot); }
Status complex_plans::sigmoid(OpPlanner& planner) { return compute(planner, ComplexOp::kSigmoid); }
Status complex_plans::silu(OpPlanner& planner) { return compute(planner, ComplexOp::kSilu); }
Status complex_plans::sinc(OpPlanner& planner) { return compute(planner, ComplexOp::kSinc); }
Status complex_plans::sign(OpPlanner& planner) { return compute(planner, ComplexOp::kSign); }
Status complex_plans::abs(OpPlanner& planner) { return compute(planner, ComplexOp::kAbs); }
Status complex_plans::angle(OpPlanner& planner) { return compute(planner, ComplexOp::kAngle); }

Status complex_plans::multiply(OpPlanner& planner) { return compute(planner, ComplexOp::kMultiply, {.b = "other"}); }
Status complex_plans::equal(OpPlanner& planner) { return compute(planner, ComplexOp::kEqual, {.b = "other"}); }
Status complex_plans::not_equal(OpPlanner& planner) { return compute(planner, ComplexOp::kNotEqual, {.b = "other"}); }
Status complex_plans::sum_of_both(OpPlanner& planner) { return add(planner, {.b = "other"}, 1); }
Status complex_plans::difference(OpPlanner& planner) { return add(planner, {.b = "other"}, -1); }
Status complex_plans::difference_from(OpPlanner& planner) { return add(planner, {.a = "other", .b = "self"}, -1); }

Status complex_plans::add_product(OpPlanner& planner) { return add_pair(planner, ComplexOp::kAddProduct); }
Status complex_plans::add_quotient(OpPlanner& planner) { return add_pair(planner, ComplexOp::kAddQuotient); }
Status complex_plans::tanh_backward(OpPlanner& planner) { return backward(planner, ComplexOp::kTanhBackward); }
Status complex_plans::sigmoid_backward(OpPlanner& planner) { return backward(planner, ComplexOp::kSigmoidBackward); }
Status complex_plans::lerp(OpPlanner& planner) {
  return compute(planner, ComplexOp::kLerp, {.b = "end", .c = "weight"});
}

Status complex_plans::divide(OpPlanner& planner) {
  if (planner.has("rounding_mode")) return unsupported("of complex numbers, rounded");
  return compute(planner, ComplexOp::kDivide, {.b = "other"});
}

Status complex_plans::power(OpPlanner& planner) {
  const ir::Arg* const exponent = planner.argument("exponent");
  const bool of_tensor =
      exponent != nullptr && (exponent->tag == ArgTag::kView || exponent->tag == ArgTag::kScalarTensor);
  return compute(planner, of_tensor ? ComplexOp::kPower : ComplexOp::kPowerOfNumber, {.b = "exponent"});
}

// Only NaN does not equal itself.
Status complex_plans::is_nan(OpPlanner& planner) { return compute(planner, ComplexOp::kNotEqual, {.b = "self"}); }

Status complex_plans::logical_and(OpPlanner& planner) { return logical(planner, ir::ops::aten_logical_and); }
Status complex_plans::logical_or(OpPlanner& planner) { return logical(planner, ir::ops::aten_logical_or); }
Status complex_plans::logical_xor(OpPlanner& planner) { return logical(planner, ir::ops::aten_logical_xor); }

// Makes complex numbers from absolute values and angles, or from parts.
Status complex_plans::polar(OpPlanner& planner) {
  const auto size = planner.tensor("abs"), to = planner.result(0);
  if (!size || !to) return unsupported("without a result");
  const DType part = part_of(to->dtype);
  const auto a = expand_to(planner, "abs", part, *to), b = expand_to(planner, "angle", part, *to);
  if (!a || !b) return unsupported("of numbers");
  planner
      .launch(KernelFile::kComplex, "complex_pointwise",
              ComplexArguments{.count = to->count(),
                               .dtype = static_cast<i64>(part),
                               .out_dtype = static_cast<i64>(part),
                               .what = ComplexOp::kPolar},
              blocks_for(to->count()))
      .at(&ComplexArguments::a, *a)
      .at(&ComplexArguments::b, *b)
      .at(&ComplexArguments::out, planner.output(*to));
  return {};
}

Status complex_plans::of_parts(OpPlanner& planner) {
  const auto real = planner.tensor("real"), imaginary = planner.tensor("imag"), to = planner.result(0);
  if (!real || !imaginary || !to) return unsupported("of numbers");
  OpTensor parts = parts_of(*to);
  parts.sizes.pop_back();
  parts.strides.pop_back();
  planner.copy(*real, parts);
  parts.location.offset += ir::item_size(parts.dtype);
  planner.copy(*imaginary, parts);
  return {};
}

// The same as for real numbers (op_pointwise.cpp).
Status complex_plans::cross(OpPlanner& planner) {
  const auto self = planner.tensor("self"), other = planner.tensor("other"), to = planner.result(0);
  const bool known = to && (to->dtype == DType::kComplex64 || to->dtype == DType::kComplex128);
  if (!self || !other || !known || to->sizes.empty()) return unsupported("of these dtypes");
  const int64_t given = planner.integer("dim", -1);
  const auto dim = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(to->sizes.size()) : given);
  if (to->sizes[dim] != 3) return unsupported("along such a dim");
  const auto side = [&](const OpTensor& from, int64_t by) {
    return broadcast_and_roll(planner, from, *to, to->dtype, dim, by).location;
  };
  const Location product = planner.scratch(to->nbytes());
  const auto part = static_cast<i64>(part_of(to->dtype));
  ComplexArguments arguments{
      .count = to->count(), .dtype = part, .out_dtype = part, .what = ComplexOp::kMultiply, .real = -1};
  planner.launch(KernelFile::kComplex, "complex_pointwise", arguments, blocks_for(arguments.count))
      .at(&ComplexArguments::a, side(*self, 1))
      .at(&ComplexArguments::b, side(*other, 2))
      .at(&ComplexArguments::out, product);
  arguments.what = ComplexOp::kAddProduct;
  planner.launch(KernelFile::kComplex, "complex_pointwise", arguments, blocks_for(arguments.count))
      .at(&ComplexArguments::a, product)
      .at(&ComplexArguments::b, side(*self, 2))
      .at(&ComplexArguments::c, side(*other, 1))
      .at(&ComplexArguments::out, planner.output(*to));
  return {};
}

Status complex_plans::where(OpPlanner& planner) { return choose(planner, "condition", "self", "other"); }
Status complex_plans::masked_fill(OpPlanner& planner) { return choose(planner, "mask", "value", "self"); }
Status complex_plans::product(OpPlanner& planner) {
  const auto self = planner.tensor("self");
  if (!self) return unsupported("of a number");
  const OuterLengthInner dims =
      planner.has("dim") ? split(self->sizes, planner.integer("dim")) : OuterLengthInner{1, self->count(), 1};
  return product_along(planner, "complex_product", dims, std::min<int64_t>(dims.outer * dims.inner, 1 << 16));
}

Status complex_plans::running_product(OpPlanner& planner) {
  const auto self = planner.tensor("self");
  if (!self) return unsupported("of a number");
  const OuterLengthInner dims = split(self->sizes, planner.integer("dim"));
  return product_along(planner, "complex_running_product", dims, blocks_for(dims.outer * dims.inner));
}

Status complex_plans::fill(OpPlanner& planner) {
  const auto to = planner.result(0), value = planner.tensor("value");
  if (!to) return unsupported("without a result");
  if (value) {
    planner.copy(planner.without_overlap(*value, *to), *to);
    return {};
  }
  Number number;
  if (to->dtype == DType::kComplex32 || !number_of(planner, "value", &number)) return unsupported("of such a number");
  planner.copy(spread(planner, number, to->dtype, *to), *to);
  return {};
}

std::optional<OpTensor> complex_number(OpPlanner& planner, std::string_view name, DType dtype) {
  Number number;
  if (dtype == DType::kComplex32 || !number_of(planner, name, &number)) return std::nullopt;
  return element(planner, number, dtype);
}

OpTensor absolute_values(OpPlanner& planner, const OpTensor& tensor) {
  OpTensor sizes = tensor;
  sizes.dtype = part_of(tensor.dtype);
  sizes.strides = packed_strides(sizes.sizes);
  sizes.location = planner.scratch(sizes.nbytes());
  const auto part = static_cast<i64>(sizes.dtype);
  planner
      .launch(KernelFile::kComplex, "complex_pointwise",
              ComplexArguments{.count = sizes.count(), .dtype = part, .out_dtype = part, .what = ComplexOp::kAbs},
              blocks_for(sizes.count()))
      .at(&ComplexArguments::a, planner.packed(tensor))
      .at(&ComplexArguments::out, sizes.location);
  return sizes;
}

}  // namespace torch_remote::worker::cuda

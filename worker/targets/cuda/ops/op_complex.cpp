#include "worker/targets/cuda/ops/op_complex.h"

#include <algorithm>
#include <bit>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/complex_arguments.h"
#include "worker/targets/cuda/ops/op_lowered.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"
#include "worker/targets/cuda/ops/op_view.h"

// Ops on complex numbers. Operands are converted to one dtype and expanded to one size; sums are sums of the parts.
namespace torch_remote::worker::cuda {
namespace {

using ir::ArgTag;
using ir::DType;

struct Number {
  double real = 0, imaginary = 0;
};

// Reads a number argument of the call. False: the argument is a tensor.
bool number_of(OpNode& node, std::string_view name, Number* number) {
  const ir::Arg* const arg = node.argument(name);
  if (arg == nullptr || arg->tag == ArgTag::kView) return false;
  const bool is_tensor = arg->tag == ArgTag::kScalarTensor;
  if (arg->tag == ArgTag::kComplex || (is_tensor && ir::is_complex(static_cast<DType>(arg->b & 0xFF)))) {
    *number = {std::bit_cast<double>(node.value(arg->a)), std::bit_cast<double>(node.value(arg->a + 1))};
  } else {
    *number = {node.number(name), 0};
  }
  return true;
}

// A tensor without dims that holds the number.
OpTensor element(PlanBuilder& plan, Number number, DType dtype) {
  const DType part = part_of(dtype);
  const OpTensor one = plan.scratch_tensor(dtype, {});
  for (const bool imaginary : {false, true}) {
    const double x = imaginary ? number.imaginary : number.real;
    Location location = one.location;
    if (imaginary) location.offset += ir::item_size(part);
    plan.fill(location, 1, part, float_bits(x, part));
  }
  return one;
}
// A tensor with the sizes of `like`, filled with the number.
OpTensor spread(PlanBuilder& plan, Number number, DType dtype, const OpTensor& like) {
  return plan.copy_of(element(plan, number, dtype), dtype, like.sizes);
}

// The operand, contiguous, expanded to the result's sizes and converted to `dtype`. None: it is absent.
std::optional<Location> expand_to(OpNode& node, PlanBuilder& plan, std::string_view name, DType dtype,
                                  const OpTensor& to) {
  if (const auto tensor = node.tensor(name)) return plan.expanded(*tensor, dtype, to.sizes);
  Number number;
  if (!number_of(node, name, &number)) return std::nullopt;
  return spread(plan, number, dtype, to).location;
}

// The complex dtype in which an op computes. It is that of operands with dims, whatever the result's dtype is (`out=`).
// If none of these is complex, it is that of the result or of operands without dims. None: all operands are real, and
// so is the computation.
std::optional<DType> dtype_of(OpNode& node, const OpTensor& to) {
  DType dtype = to.dtype;
  bool is_real = true;
  bool has_complex = false, has_wide = false;  // Among operands with dims.
  for (const std::string_view name :
       {"self", "other", "exponent", "tensor1", "tensor2", "end", "weight", "grad_output", "output"}) {
    const auto tensor = node.tensor(name);
    const ir::Arg* const arg = node.argument(name);
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
Status compute(OpNode& node, PlanBuilder& plan, ComplexOp what, Names names = {}, Number times = {1, 0}) {
  const auto to = node.result(0);
  if (!to) return unsupported("without a result");
  const auto dtype = dtype_of(node, *to);
  if (!dtype) return unsupported("of these complex numbers");
  const auto operand = [&](std::string_view name) {
    return name.empty() ? Location() : expand_to(node, plan, name, *dtype, *to);
  };
  const std::optional<Location> a = operand(names.a), b = operand(names.b), c = operand(names.c);
  if (!a || !b || !c) return unsupported("of a number of the CPU");
  OpTensor made = *to;
  made.dtype = made_of(what, *dtype);
  if (made.dtype == to->dtype) {
    made.location = plan.output(*to);
  } else {
    made = plan.scratch_tensor(made.dtype, to->sizes);
  }
  const bool is_inverse = what >= ComplexOp::kAsin && what <= ComplexOp::kAtanh;
  plan.launch(KernelFile::kComplex, is_inverse ? "complex_inverse" : "complex_pointwise",
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
  if (made.dtype != to->dtype) plan.copy(made, *to);
  return {};
}

Status add(OpNode& node, PlanBuilder& plan, const Names& names, double sign) {
  Number alpha{1, 0};
  if (node.has("alpha") && !number_of(node, "alpha", &alpha)) return unsupported("times a tensor");
  return compute(node, plan, ComplexOp::kAdd, names, {sign * alpha.real, sign * alpha.imaginary});
}

// Selects `there` where the condition is true, and `elsewhere` where it is false.
Status choose(OpNode& node, PlanBuilder& plan, std::string_view condition, std::string_view there,
              std::string_view elsewhere) {
  const auto to = node.result(0);
  if (!to || (to->dtype != DType::kComplex64 && to->dtype != DType::kComplex128)) return unsupported("of these dtypes");
  const auto a = expand_to(node, plan, there, to->dtype, *to), b = expand_to(node, plan, elsewhere, to->dtype, *to),
             c = expand_to(node, plan, condition, DType::kBool, *to);
  if (!a || !b || !c) return unsupported("of a number of the CPU");
  const auto part = static_cast<i64>(part_of(to->dtype));
  plan.launch(KernelFile::kComplex, "complex_pointwise",
              ComplexArguments{.count = to->count(), .dtype = part, .out_dtype = part, .what = ComplexOp::kSelect},
              blocks_for(to->count()))
      .at(&ComplexArguments::a, *a)
      .at(&ComplexArguments::b, *b)
      .at(&ComplexArguments::c, *c)
      .at(&ComplexArguments::out, plan.output(*to));
  return {};
}

// The product along a dim, or the cumulative product. `count`: elements of the result.
Status product_along(OpNode& node, PlanBuilder& plan, const char* kernel, const OuterLengthInner& dims, int64_t grid,
                     int64_t count) {
  const auto self = node.tensor("self"), to = node.result(0);
  const bool known = to && (to->dtype == DType::kComplex64 || to->dtype == DType::kComplex128);
  if (!self || !known) return unsupported("of these dtypes");
  if (to->count() != count) return unsupported("into another size");
  const auto part = static_cast<i64>(part_of(to->dtype));
  plan.launch(KernelFile::kComplex, kernel,
              ScanArguments{
                  .outer = dims.outer, .length = dims.length, .inner = dims.inner, .in_dtype = part, .out_dtype = part},
              grid)
      .at(&ScanArguments::in, plan.packed(*self, to->dtype))
      .at(&ScanArguments::out, plan.output(*to));
  return {};
}

}  // namespace

Status complex_plans::unary(OpNode& node, PlanBuilder& plan, ComplexOp what) { return compute(node, plan, what); }

Status complex_plans::binary(OpNode& node, PlanBuilder& plan, ComplexOp what) {
  return compute(node, plan, what, {.b = "other"});
}

Status complex_plans::backward(OpNode& node, PlanBuilder& plan, ComplexOp what) {
  return compute(node, plan, what, {.a = "grad_output", .b = "output"});
}

Status complex_plans::add_pair(OpNode& node, PlanBuilder& plan, ComplexOp what) {
  Number times{1, 0};
  if (node.has("value") && !number_of(node, "value", &times)) return unsupported("times a tensor");
  return compute(node, plan, what, {.b = "tensor1", .c = "tensor2"}, times);
}

Status complex_plans::sum_of_both(OpNode& node, PlanBuilder& plan) { return add(node, plan, {.b = "other"}, 1); }
Status complex_plans::difference(OpNode& node, PlanBuilder& plan) { return add(node, plan, {.b = "other"}, -1); }
Status complex_plans::difference_from(OpNode& node, PlanBuilder& plan) {
  return add(node, plan, {.a = "other", .b = "self"}, -1);
}

Status complex_plans::lerp(OpNode& node, PlanBuilder& plan) {
  return compute(node, plan, ComplexOp::kLerp, {.b = "end", .c = "weight"});
}

Status complex_plans::divide(OpNode& node, PlanBuilder& plan) {
  if (node.has("rounding_mode")) return unsupported("of complex numbers, rounded");
  return compute(node, plan, ComplexOp::kDivide, {.b = "other"});
}

Status complex_plans::power(OpNode& node, PlanBuilder& plan) {
  const ir::Arg* const exponent = node.argument("exponent");
  const bool of_tensor =
      exponent != nullptr && (exponent->tag == ArgTag::kView || exponent->tag == ArgTag::kScalarTensor);
  return compute(node, plan, of_tensor ? ComplexOp::kPower : ComplexOp::kPowerOfNumber, {.b = "exponent"});
}

// Only NaN does not equal itself.
Status complex_plans::is_nan(OpNode& node, PlanBuilder& plan) {
  return compute(node, plan, ComplexOp::kNotEqual, {.b = "self"});
}

// Logical ops on truth values, which say whether elements are not 0.
Status complex_plans::logical(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), other = node.tensor("other"), to = node.result(0);
  if (!self || !other || !to) return unsupported("of a number of the CPU");
  return plan_op(plan, ir::op_desc(node.ir_node().opcode).functional,
                 {plan.packed_tensor(*self, DType::kBool), plan.packed_tensor(*other, DType::kBool)}, {to});
}

// Makes complex numbers from absolute values and angles, or from parts.
Status complex_plans::polar(OpNode& node, PlanBuilder& plan) {
  const auto size = node.tensor("abs"), to = node.result(0);
  if (!size || !to || !ir::is_complex(to->dtype)) return unsupported("without a result");
  const DType part = part_of(to->dtype);
  const auto a = expand_to(node, plan, "abs", part, *to), b = expand_to(node, plan, "angle", part, *to);
  if (!a || !b) return unsupported("of numbers");
  plan.launch(KernelFile::kComplex, "complex_pointwise",
              ComplexArguments{.count = to->count(),
                               .dtype = static_cast<i64>(part),
                               .out_dtype = static_cast<i64>(part),
                               .what = ComplexOp::kPolar},
              blocks_for(to->count()))
      .at(&ComplexArguments::a, *a)
      .at(&ComplexArguments::b, *b)
      .at(&ComplexArguments::out, plan.output(*to));
  return {};
}

Status complex_plans::of_parts(OpNode& node, PlanBuilder& plan) {
  const auto real = node.tensor("real"), imaginary = node.tensor("imag"), to = node.result(0);
  if (!real || !imaginary || !to || !ir::is_complex(to->dtype)) return unsupported("of numbers");
  OpTensor parts = parts_of(*to);
  parts.sizes.pop_back();
  parts.strides.pop_back();
  plan.copy(*real, parts);
  parts.location.offset += ir::item_size(parts.dtype);
  plan.copy(*imaginary, parts);
  return {};
}

// The same as for real numbers (op_pointwise.cpp).
Status complex_plans::cross(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), other = node.tensor("other"), to = node.result(0);
  const bool known = to && (to->dtype == DType::kComplex64 || to->dtype == DType::kComplex128);
  if (!self || !other || !known || to->sizes.empty()) return unsupported("of these dtypes");
  const size_t dim = node.dim(node.integer("dim", -1), to->sizes.size());
  if (to->sizes[dim] != 3) return unsupported("along such a dim");
  const auto side = [&](const OpTensor& from, int64_t by) {
    return broadcast_and_roll(plan, from, *to, to->dtype, dim, by).location;
  };
  const Location product = plan.scratch(to->nbytes());
  const auto part = static_cast<i64>(part_of(to->dtype));
  ComplexArguments arguments{
      .count = to->count(), .dtype = part, .out_dtype = part, .what = ComplexOp::kMultiply, .real = -1};
  plan.launch(KernelFile::kComplex, "complex_pointwise", arguments, blocks_for(arguments.count))
      .at(&ComplexArguments::a, side(*self, 1))
      .at(&ComplexArguments::b, side(*other, 2))
      .at(&ComplexArguments::out, product);
  arguments.what = ComplexOp::kAddProduct;
  plan.launch(KernelFile::kComplex, "complex_pointwise", arguments, blocks_for(arguments.count))
      .at(&ComplexArguments::a, product)
      .at(&ComplexArguments::b, side(*self, 2))
      .at(&ComplexArguments::c, side(*other, 1))
      .at(&ComplexArguments::out, plan.output(*to));
  return {};
}

Status complex_plans::where(OpNode& node, PlanBuilder& plan) {
  return choose(node, plan, "condition", "self", "other");
}
Status complex_plans::masked_fill(OpNode& node, PlanBuilder& plan) {
  return choose(node, plan, "mask", "value", "self");
}
Status complex_plans::product(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self");
  if (!self) return unsupported("of a number");
  const OuterLengthInner dims =
      node.has("dim") ? split(self->sizes, node.integer("dim")) : OuterLengthInner{1, self->count(), 1};
  const int64_t lines = dims.outer * dims.inner;
  return product_along(node, plan, "complex_product", dims, std::min<int64_t>(lines, 1 << 16), lines);
}

Status complex_plans::running_product(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self");
  if (!self) return unsupported("of a number");
  const OuterLengthInner dims = split(self->sizes, node.integer("dim"));
  return product_along(node, plan, "complex_running_product", dims, blocks_for(dims.outer * dims.inner), self->count());
}

Status complex_plans::fill(OpNode& node, PlanBuilder& plan) {
  const auto to = node.result(0), value = node.tensor("value");
  if (!to) return unsupported("without a result");
  if (value) {
    plan.copy(plan.without_overlap(*value, *to), *to);
    return {};
  }
  Number number;
  if (to->dtype == DType::kComplex32 || !number_of(node, "value", &number)) return unsupported("of such a number");
  plan.copy(spread(plan, number, to->dtype, *to), *to);
  return {};
}

std::optional<OpTensor> complex_number(OpNode& node, PlanBuilder& plan, std::string_view name, DType dtype) {
  Number number;
  if (dtype == DType::kComplex32 || !number_of(node, name, &number)) return std::nullopt;
  return element(plan, number, dtype);
}

}  // namespace torch_remote::worker::cuda

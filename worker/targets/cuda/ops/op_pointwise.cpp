#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "codegen/lower/result_type.h"
#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/kernels/pointwise_arguments.h"
#include "worker/targets/cuda/ops/op_lowered.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"
#include "worker/targets/cuda/ops/op_reduce.h"
#include "worker/targets/cuda/ops/op_search.h"
#include "worker/targets/cuda/ops/op_view.h"

// Pointwise ops in forms that compiled kernels do not support. Operands are converted to one dtype and expanded to one
// size.
namespace torch_remote::worker::cuda {
namespace {

using codegen::ResultType;
using ir::DType;

// A number rounded to the dtype of an element.
double as_element(double x, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<float>(x);
    case DType::kFloat16:
      return static_cast<double>(static_cast<_Float16>(static_cast<float>(x)));
    case DType::kBFloat16: {
      const auto wide = std::bit_cast<uint32_t>(static_cast<float>(x));
      if (std::isnan(x)) return x;
      return std::bit_cast<float>((wide + 0x7FFF + (wide >> 16 & 1)) & 0xFFFF0000);
    }
    default:
      return x;
  }
}
int64_t as_element(int64_t x, DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return x != 0 ? 1 : 0;
    case DType::kUInt8:
      return static_cast<uint8_t>(x);
    case DType::kInt8:
      return static_cast<int8_t>(x);
    case DType::kInt16:
      return static_cast<int16_t>(x);
    case DType::kInt32:
      return static_cast<int32_t>(x);
    default:
      return x;
  }
}
// -- operands ---------------------------------------------------------------------------------------------------------

struct Operand {
  bool is_given = false;
  std::optional<OpTensor> tensor = std::nullopt;
  double number = 0;
  int64_t integer = 0;
  Location location = {};
};

Operand operand(OpNode& node, std::string_view name, ResultType* types) {
  Operand made;
  const ir::Arg* const arg = node.argument(name);
  if (arg == nullptr) return made;
  made.is_given = true;
  made.tensor = node.tensor(name);
  types->argument(node.graph(), *arg);
  if (made.tensor) return made;
  made.number = node.number(name);
  const bool is_float = arg->tag == ir::ArgTag::kFloat ||
                        (arg->tag == ir::ArgTag::kScalarTensor && ir::is_float(static_cast<DType>(arg->b & 0xFF)));
  if (!is_float || (made.number >= -0x1p63 && made.number < 0x1p63)) made.integer = node.integer(name);
  return made;
}
DType dtype_of(const ResultType& types) { return types.get().value_or(DType::kFloat32); }

// Converts an operand to the dtype of the computation and expands it to the result's sizes.
void expand_to(PlanBuilder& plan, const OpTensor& to, DType dtype, Operand* operand) {
  if (!operand->tensor) {
    operand->number = as_element(operand->number, dtype);
    operand->integer = as_element(operand->integer, dtype);
  } else {
    operand->location = plan.expanded(*operand->tensor, dtype, to.sizes);
  }
}

Status compute(PlanBuilder& plan, Pointwise what, DType dtype, const OpTensor& to, Operand a, Operand b = {},
               Operand c = {}, double d = 0) {
  for (Operand* const one : {&a, &b, &c}) {
    if (one->is_given) expand_to(plan, to, dtype, one);
  }
  const bool floats = ir::is_float(dtype);
  const PointwiseArguments arguments{.count = to.count(),
                                     .dtype = static_cast<i64>(dtype),
                                     .out_dtype = static_cast<i64>(to.dtype),
                                     .what = what,
                                     .has_c = c.is_given ? 1 : 0,
                                     .a_number = a.number,
                                     .b_number = b.number,
                                     .c_number = c.number,
                                     .d_number = d,
                                     .a_int = a.integer,
                                     .b_int = b.integer,
                                     .c_int = c.integer};
  const bool divides_integers = what == Pointwise::kTruncDivide && !floats;
  const bool can_fail = divides_integers || what == Pointwise::kBinaryCrossEntropy;
  if (can_fail) plan.add_operand(divides_integers ? kDivision : -1);
  const char* const kernel = what >= Pointwise::kBesselI ? "pointwise_special"
                             : floats                    ? "pointwise_float"
                                                         : "pointwise_int";
  plan.launch(KernelFile::kPointwise, kernel, arguments, blocks_for(arguments.count))
      .at(&PointwiseArguments::a, a.location)
      .at(&PointwiseArguments::b, b.location)
      .at(&PointwiseArguments::c, c.location)
      .at(&PointwiseArguments::out, plan.output(to))
      .failure([](const PointwiseArguments& words) { return &words.failure; }, can_fail);
  return {};
}

// The result is a copy of the operand.
Status same(PlanBuilder& plan, const OpTensor& self, const OpTensor& to) {
  if (self.location.buffer == to.location.buffer && self.location.offset == to.location.offset) return {};
  plan.copy(self, to);
  return {};
}

Status compute_special(OpNode& node, PlanBuilder& plan, Pointwise what, double b = 0, double c = 0) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || !ir::is_float(to->dtype)) return unsupported("without a result");
  const DType dtype = ir::is_float(self->dtype) ? self->dtype : to->dtype;
  return compute(plan, what, dtype, *to, {.is_given = true, .tensor = self}, {.is_given = true, .number = b},
                 {.is_given = true, .number = c});
}
// `order` is 0 or 1.
Status bessel_i(OpNode& node, PlanBuilder& plan, int order, bool scales) {
  return compute_special(node, plan, Pointwise::kBesselI, order, scales ? 1 : 0);
}

// GLU: the two halves of a dim; one is multiplied by the sigmoid of the other.
std::optional<std::pair<OpTensor, OpTensor>> halves_of(OpNode& node, const OpTensor& whole) {
  if (whole.sizes.empty()) return std::nullopt;
  const size_t dim = node.dim(node.integer("dim", -1), whole.sizes.size());
  const int64_t half = whole.sizes[dim] / 2;
  return std::pair(slice(whole, dim, 0, half), slice(whole, dim, half, half));
}

}  // namespace

// -- the ops ----------------------------------------------------------------------------------------------------------

Status pointwise_plans::unary(OpNode& node, PlanBuilder& plan, Pointwise what) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to) return unsupported("without a result");
  const bool widens = ir::is_float(to->dtype) && !ir::is_float(self->dtype);
  return compute(plan, what, widens ? to->dtype : self->dtype, *to, {.is_given = true, .tensor = self});
}

Status pointwise_plans::binary(OpNode& node, PlanBuilder& plan, Pointwise what) {
  ResultType types;
  const auto to = node.result(0);
  Operand a = operand(node, "self", &types), b = operand(node, "other", &types);
  if (!to || !a.is_given || !b.is_given) return unsupported("without a result");
  return compute(plan, what, dtype_of(types), *to, std::move(a), std::move(b));
}

// Division with a rounding mode.
Status pointwise_plans::divide(OpNode& node, PlanBuilder& plan) {
  const ir::Arg* const mode = node.argument("rounding_mode");
  if (mode == nullptr || mode->tag != ir::ArgTag::kString) return unsupported("of these dtypes");
  if (mode->text == "floor") return plan_as(plan, ir::ops::aten_floor_divide);
  return pointwise_plans::binary(node, plan, Pointwise::kTruncDivide);
}

// Rounds to decimals. Integers need no rounding.
Status pointwise_plans::round(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->dtype != to->dtype || !node.has("decimals")) return unsupported("of these dtypes");
  if (!ir::is_float(self->dtype)) return same(plan, *self, *to);
  const int64_t decimals = node.integer("decimals");
  const Operand to_decimals{.is_given = true, .number = static_cast<double>(decimals)},
      ten{.is_given = true, .number = std::pow(10.0, static_cast<double>(std::abs(decimals)))};
  return compute(plan, Pointwise::kRoundDecimals, self->dtype, *to, {.is_given = true, .tensor = self}, to_decimals,
                 ten);
}

// frexp: mantissa and exponent.
Status pointwise_plans::parts_of_floats(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), mantissa = node.result(0), exponent = node.result(1);
  if (!self || !ir::is_float(self->dtype)) return unsupported("of integers");
  const Operand a{.is_given = true, .tensor = self};
  if (mantissa) {
    Status status = compute(plan, Pointwise::kMantissa, self->dtype, *mantissa, a);
    if (!status.ok()) return status;
  }
  return exponent ? compute(plan, Pointwise::kExponent, self->dtype, *exponent, a) : Status();
}

// -- Special functions ------------------------------------------------------------------------------------------------

Status pointwise_plans::bessel_i0(OpNode& node, PlanBuilder& plan) { return bessel_i(node, plan, 0, false); }
Status pointwise_plans::scaled_bessel_i0(OpNode& node, PlanBuilder& plan) { return bessel_i(node, plan, 0, true); }
Status pointwise_plans::bessel_i1(OpNode& node, PlanBuilder& plan) { return bessel_i(node, plan, 1, false); }
Status pointwise_plans::scaled_bessel_i1(OpNode& node, PlanBuilder& plan) { return bessel_i(node, plan, 1, true); }
Status pointwise_plans::special(OpNode& node, PlanBuilder& plan, Pointwise what) {
  return compute_special(node, plan, what);
}
Status pointwise_plans::polygamma(OpNode& node, PlanBuilder& plan) {
  return compute_special(node, plan, Pointwise::kPolygamma, node.number("n"));
}

Status pointwise_plans::zeta(OpNode& node, PlanBuilder& plan) {
  ResultType types;
  const auto to = node.result(0);
  Operand a = operand(node, "self", &types), b = operand(node, "other", &types);
  if (!to || !a.is_given || !b.is_given || !ir::is_float(to->dtype)) return unsupported("without a result");
  const DType dtype = ir::is_float(dtype_of(types)) ? dtype_of(types) : to->dtype;
  return compute(plan, Pointwise::kZeta, dtype, *to, std::move(a), std::move(b));
}

// out[i] = a[i + 1] b[i + 2] - a[i + 2] b[i + 1] along a dim of three.
Status pointwise_plans::cross(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), other = node.tensor("other"), to = node.result(0);
  if (!self || !other || !to || to->sizes.empty() || to->dtype == DType::kBool) return unsupported("of these dtypes");
  const size_t dim = node.dim(node.integer("dim", -1), to->sizes.size());
  if (to->sizes[dim] != 3) return unsupported("along such a dim");
  const DType wide = ir::is_float(to->dtype) ? DType::kFloat64 : DType::kInt64;
  const auto side = [&](const OpTensor& from, int64_t by) {
    return broadcast_and_roll(plan, from, *to, wide, dim, by);
  };
  const OpTensor product = plan.scratch_tensor(wide, to->sizes);
  Status status = plan_op(plan, ir::ops::aten_mul_Tensor, {side(*self, 1), side(*other, 2)}, {product});
  if (!status.ok()) return status;
  return plan_op(plan, ir::ops::aten_addcmul, {product, side(*self, 2), side(*other, 1), int64_t{-1}}, {*to});
}

// Scales down slices along a dim whose norm is too large.
Status pointwise_plans::renorm(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->sizes.empty() || self->dtype != to->dtype) return unsupported("of these dtypes");
  const size_t dim = node.dim(node.integer("dim"), self->sizes.size());
  std::vector<int64_t> sizes(self->sizes.size(), 1);
  sizes[dim] = self->sizes[dim];
  OpTensor norms = plan.scratch_tensor(DType::kFloat64, std::move(sizes));
  std::vector<int64_t> dims;
  for (size_t d = 0; d < self->sizes.size(); ++d) {
    if (d != dim) dims.push_back(static_cast<int64_t>(d));
  }
  if (Status status = norm_over(plan, *self, dims, node.number("p"), norms); !status.ok()) return status;
  OpTensor from = *self, made = *to;
  if (ir::is_complex(to->dtype)) {  // Both parts get the same factor.
    from = parts_of(from);
    made = parts_of(made);
    norms.sizes.push_back(1);
    norms.strides.push_back(1);
  }
  return compute(plan, Pointwise::kRenorm, DType::kFloat64, made, {.is_given = true, .tensor = from},
                 {.is_given = true, .tensor = norms}, {}, node.number("maxnorm"));
}

Status pointwise_plans::glu(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  const auto halves = halves_of(node, *self);
  if (!halves) return unsupported("of a number");
  return compute(plan, Pointwise::kGlu, self->dtype, *to, {.is_given = true, .tensor = halves->first},
                 {.is_given = true, .tensor = halves->second});
}

Status pointwise_plans::glu_backward(OpNode& node, PlanBuilder& plan) {
  const auto grad = node.tensor("grad_output"), self = node.tensor("self"), to = node.result(0);
  if (!grad || !self || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  const auto halves = halves_of(node, *self), made = halves_of(node, *to);
  if (!halves || !made) return unsupported("of a number");
  const Operand of_grad{.is_given = true, .tensor = grad}, gate{.is_given = true, .tensor = halves->second};
  const Operand gated{.is_given = true, .tensor = halves->first};
  Status status = compute(plan, Pointwise::kGlu, self->dtype, made->first, of_grad, gate);
  if (!status.ok()) return status;
  return compute(plan, Pointwise::kGluSlope, self->dtype, made->second, gated, gate, of_grad);
}

Status pointwise_plans::binary_cross_entropy(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), target = node.tensor("target"), to = node.result(0);
  const auto weight = node.tensor("weight");
  if (!self || !target || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  const auto how = node.integer("reduction", 1);
  const DType dtype = codegen::promoted(self->dtype, target->dtype);
  OpTensor losses = *to;
  if (how != 0) {  // Losses that are summed are at least f32.
    if (target->sizes != self->sizes) return unsupported("of targets of other sizes");
    losses = plan.scratch_tensor(dtype == DType::kFloat64 ? dtype : DType::kFloat32, self->sizes);
  }
  Status status =
      compute(plan, Pointwise::kBinaryCrossEntropy, dtype, losses, {.is_given = true, .tensor = self},
              {.is_given = true, .tensor = target}, weight ? Operand{.is_given = true, .tensor = weight} : Operand{});
  if (!status.ok() || how == 0) return status;
  return reduce_all(plan, how == 1 ? ReduceAll::kMean : ReduceAll::kSum, losses, *to);
}

// isin. A single test element is compared directly. Several are sorted and searched; NaN is never a member.
Status pointwise_plans::is_in(OpNode& node, PlanBuilder& plan) {
  const bool inverts = node.flag("invert");
  if (!node.has("test_elements")) return plan_as(plan, inverts ? ir::ops::aten_ne_Scalar : ir::ops::aten_eq_Scalar);
  ResultType types;
  const auto to = node.result(0);
  Operand elements = operand(node, node.has("elements") ? "elements" : "element", &types),
          tests = operand(node, "test_elements", &types);
  if (!to || !elements.is_given || !tests.is_given) return unsupported("without a result");
  const DType dtype = dtype_of(types);
  if (!tests.tensor) return unsupported("of a number");
  expand_to(plan, *to, dtype, &elements);
  if (elements.location.buffer == kNoLocation) {  // It is a number.
    if (to->count() != 1) return unsupported("into another size");
    elements.location = plan.scratch(8);
    plan.fill(elements.location, 1, dtype, node.bits("element", dtype));
  }
  return search_members(plan, elements.location, *to, plan.packed_tensor(*tests.tensor, dtype), inverts);
}

// Whether all elements are equal: a bool on the host.
Status pointwise_plans::equal(OpNode& node, PlanBuilder& plan) {
  auto self = node.tensor("self"), other = node.tensor("other");
  if (!self || !other || self->dtype != other->dtype) return unsupported("of two dtypes");
  const Location count = plan.scratch(8);
  plan.built().count = count;
  const bool same_sizes = self->sizes == other->sizes;
  plan.built().plan_rest = [same_sizes](int64_t different, OpPlan*, std::vector<DynamicResult>* results) {
    results->push_back({.number = same_sizes && different == 0 ? 1 : 0});
    return Status();
  };
  if (!same_sizes || self->count() == 0) {
    plan.zero(count, 8);
    return {};
  }
  DType dtype = self->dtype;
  int64_t numbers = self->count();
  const Location a = plan.packed(*self), b = plan.packed(*other);
  if (ir::is_complex(dtype)) {
    if (dtype == DType::kComplex32) return unsupported("of complex32");
    dtype = dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
    numbers *= 2;
  }
  const auto parts = [&](const Location& location) {
    return OpTensor{.location = location, .dtype = dtype, .sizes = {numbers}, .strides = {1}};
  };
  const OpTensor flags = plan.scratch_tensor(DType::kBool, {numbers});
  if (Status status = plan_op(plan, ir::ops::aten_ne_Tensor, {parts(a), parts(b)}, {flags}); !status.ok()) {
    return status;
  }
  return count_nonzero(plan, flags, count);
}

}  // namespace torch_remote::worker::cuda

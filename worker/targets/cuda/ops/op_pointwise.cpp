#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "codegen/lower/result_type.h"
#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/pointwise_arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

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

Operand operand(OpPlanner& planner, std::string_view name, ResultType* types) {
  Operand made;
  const ir::Arg* const arg = planner.argument(name);
  if (arg == nullptr) return made;
  made.is_given = true;
  made.tensor = planner.tensor(name);
  types->argument(planner.graph(), *arg);
  if (made.tensor) return made;
  made.number = planner.number(name);
  const bool is_float = arg->tag == ir::ArgTag::kFloat ||
                        (arg->tag == ir::ArgTag::kScalarTensor && ir::is_float(static_cast<DType>(arg->b & 0xFF)));
  if (!is_float || (made.number >= -0x1p63 && made.number < 0x1p63)) made.integer = planner.integer(name);
  return made;
}
DType dtype_of(const ResultType& types) { return types.get().value_or(DType::kFloat32); }

// Converts an operand to the dtype of the computation and expands it to the result's sizes.
void expand_to(OpPlanner& planner, const OpTensor& to, DType dtype, Operand* operand) {
  if (!operand->tensor) {
    operand->number = as_element(operand->number, dtype);
    operand->integer = as_element(operand->integer, dtype);
  } else if (operand->tensor->sizes == to.sizes) {
    operand->location = planner.packed(*operand->tensor, dtype);
  } else {
    OpTensor wide = to;
    wide.dtype = dtype;
    wide.strides = packed_strides(wide.sizes);
    wide.location = planner.scratch(wide.nbytes());
    planner.copy(*operand->tensor, wide);
    operand->location = wide.location;
  }
}

Status compute(OpPlanner& planner, Pointwise what, DType dtype, const OpTensor& to, Operand a, Operand b = {},
               Operand c = {}, double d = 0) {
  for (Operand* const one : {&a, &b, &c}) {
    if (one->is_given) expand_to(planner, to, dtype, one);
  }
  const bool floats = ir::is_float(dtype);
  const PointwiseArguments arguments{.count = to.count(),
                                     .dtype = static_cast<i64>(dtype),
                                     .out_dtype = static_cast<i64>(to.dtype),
                                     .what = what,
                                     .has_b = b.is_given ? 1 : 0,
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
  if (can_fail) planner.add_operand(divides_integers ? kDivision : -1);
  const char* const kernel = what >= Pointwise::kBesselI ? "pointwise_special"
                             : floats                    ? "pointwise_float"
                                                         : "pointwise_int";
  planner.launch(KernelFile::kPointwise, kernel, arguments, blocks_for(arguments.count))
      .at(&PointwiseArguments::a, a.location)
      .at(&PointwiseArguments::b, b.location)
      .at(&PointwiseArguments::c, c.location)
      .at(&PointwiseArguments::out, planner.output(to))
      .failure([](const PointwiseArguments& words) { return &words.failure; }, can_fail);
  return {};
}

Status binary(OpPlanner& planner, Pointwise what, std::string_view second = "other") {
  ResultType types;
  const auto to = planner.result(0);
  Operand a = operand(planner, "self", &types), b = operand(planner, second, &types);
  if (!to || !a.is_given || !b.is_given) return unsupported("without a result");
  return compute(planner, what, dtype_of(types), *to, std::move(a), std::move(b));
}

// The result is a copy of the operand.
Status same(OpPlanner& planner, const OpTensor& self, const OpTensor& to) {
  if (self.location.buffer == to.location.buffer && self.location.offset == to.location.offset) return {};
  planner.copy(self, to);
  return {};
}

Status unary(OpPlanner& planner, Pointwise what) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to) return unsupported("without a result");
  const bool widens = ir::is_float(to->dtype) && !ir::is_float(self->dtype);
  return compute(planner, what, widens ? to->dtype : self->dtype, *to, {.is_given = true, .tensor = self});
}

Status special(OpPlanner& planner, Pointwise what, double b = 0, double c = 0) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || !ir::is_float(to->dtype)) return unsupported("without a result");
  const DType dtype = ir::is_float(self->dtype) ? self->dtype : to->dtype;
  return compute(planner, what, dtype, *to, {.is_given = true, .tensor = self}, {.is_given = true, .number = b},
                 {.is_given = true, .number = c});
}
// `order` is 0 or 1.
Status bessel_i(OpPlanner& planner, int order, bool scales) {
  return special(planner, Pointwise::kBesselI, order, scales ? 1 : 0);
}

// GLU: the two halves of a dim; one is multiplied by the sigmoid of the other.
std::optional<std::pair<OpTensor, OpTensor>> halves_of(OpPlanner& planner, const OpTensor& whole) {
  if (whole.sizes.empty()) return std::nullopt;
  const int64_t given = planner.integer("dim", -1);
  const auto dim = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(whole.sizes.size()) : given);
  std::pair<OpTensor, OpTensor> made = {whole, whole};
  const int64_t half = whole.sizes[dim] / 2;
  made.first.sizes[dim] = made.second.sizes[dim] = half;
  made.second.location.offset += static_cast<uint64_t>(half * whole.strides[dim]) * ir::item_size(whole.dtype);
  return made;
}

}  // namespace

// -- the ops ----------------------------------------------------------------------------------------------------------

Status pointwise_plans::next_after(OpPlanner& planner) { return binary(planner, Pointwise::kNextAfter); }
Status pointwise_plans::gcd(OpPlanner& planner) { return binary(planner, Pointwise::kGcd); }
Status pointwise_plans::lcm(OpPlanner& planner) { return binary(planner, Pointwise::kLcm); }

// Division with a rounding mode.
Status pointwise_plans::divide(OpPlanner& planner) {
  const ir::Arg* const mode = planner.argument("rounding_mode");
  if (mode == nullptr || mode->tag != ir::ArgTag::kString) return unsupported("of these dtypes");
  if (mode->text == "floor") return plan_as(planner, ir::ops::aten_floor_divide);
  return binary(planner, Pointwise::kTruncDivide);
}

// Rounds to decimals. Integers need no rounding.
Status pointwise_plans::round(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || self->dtype != to->dtype || !planner.has("decimals")) return unsupported("of these dtypes");
  if (!ir::is_float(self->dtype)) return same(planner, *self, *to);
  const int64_t decimals = planner.integer("decimals");
  const Operand to_decimals{.is_given = true, .number = static_cast<double>(decimals)},
      ten{.is_given = true, .number = std::pow(10.0, static_cast<double>(std::abs(decimals)))};
  return compute(planner, Pointwise::kRoundDecimals, self->dtype, *to, {.is_given = true, .tensor = self}, to_decimals,
                 ten);
}

// frexp: mantissa and exponent.
Status pointwise_plans::parts_of_floats(OpPlanner& planner) {
  const auto self = planner.tensor("self"), mantissa = planner.result(0), exponent = planner.result(1);
  if (!self || !ir::is_float(self->dtype)) return unsupported("of integers");
  const Operand a{.is_given = true, .tensor = self};
  if (mantissa) {
    Status status = compute(planner, Pointwise::kMantissa, self->dtype, *mantissa, a);
    if (!status.ok()) return status;
  }
  return exponent ? compute(planner, Pointwise::kExponent, self->dtype, *exponent, a) : Status();
}

Status pointwise_plans::sign_bit(OpPlanner& planner) { return unary(planner, Pointwise::kSignBit); }
Status pointwise_plans::inverse_erf(OpPlanner& planner) { return unary(planner, Pointwise::kErfInv); }
Status pointwise_plans::digamma(OpPlanner& planner) { return unary(planner, Pointwise::kDigamma); }
Status pointwise_plans::angle(OpPlanner& planner) { return unary(planner, Pointwise::kAngle); }
Status pointwise_plans::sinc(OpPlanner& planner) { return unary(planner, Pointwise::kSinc); }
Status pointwise_plans::entropy(OpPlanner& planner) { return unary(planner, Pointwise::kEntropy); }

// -- Special functions ------------------------------------------------------------------------------------------------

Status pointwise_plans::bessel_i0(OpPlanner& planner) { return bessel_i(planner, 0, false); }
Status pointwise_plans::scaled_bessel_i0(OpPlanner& planner) { return bessel_i(planner, 0, true); }
Status pointwise_plans::bessel_i1(OpPlanner& planner) { return bessel_i(planner, 1, false); }
Status pointwise_plans::scaled_bessel_i1(OpPlanner& planner) { return bessel_i(planner, 1, true); }
Status pointwise_plans::scaled_erfc(OpPlanner& planner) { return special(planner, Pointwise::kErfcx); }
Status pointwise_plans::log_ndtr(OpPlanner& planner) { return special(planner, Pointwise::kLogNdtr); }
Status pointwise_plans::ndtri(OpPlanner& planner) { return special(planner, Pointwise::kNdtri); }
Status pointwise_plans::polygamma(OpPlanner& planner) {
  return special(planner, Pointwise::kPolygamma, planner.number("n"));
}

Status pointwise_plans::zeta(OpPlanner& planner) {
  ResultType types;
  const auto to = planner.result(0);
  Operand a = operand(planner, "self", &types), b = operand(planner, "other", &types);
  if (!to || !a.is_given || !b.is_given || !ir::is_float(to->dtype)) return unsupported("without a result");
  const DType dtype = ir::is_float(dtype_of(types)) ? dtype_of(types) : to->dtype;
  return compute(planner, Pointwise::kZeta, dtype, *to, std::move(a), std::move(b));
}

// out[i] = a[i + 1] b[i + 2] - a[i + 2] b[i + 1] along a dim of three.
Status pointwise_plans::cross(OpPlanner& planner) {
  const auto self = planner.tensor("self"), other = planner.tensor("other"), to = planner.result(0);
  if (!self || !other || !to || to->sizes.empty() || to->dtype == DType::kBool) return unsupported("of these dtypes");
  const int64_t given = planner.integer("dim", -1);
  const auto dim = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(to->sizes.size()) : given);
  if (to->sizes[dim] != 3) return unsupported("along such a dim");
  const DType wide = ir::is_float(to->dtype) ? DType::kFloat64 : DType::kInt64;
  const auto side = [&](const OpTensor& from, int64_t by) {
    return broadcast_and_roll(planner, from, *to, wide, dim, by);
  };
  OpTensor product = *to;
  product.dtype = wide;
  product.strides = packed_strides(product.sizes);
  product.location = planner.scratch(product.nbytes());
  Status status = plan_op(planner, ir::ops::aten_mul_Tensor, {side(*self, 1), side(*other, 2)}, {product});
  if (!status.ok()) return status;
  return plan_op(planner, ir::ops::aten_addcmul, {product, side(*self, 2), side(*other, 1), int64_t{-1}}, {*to});
}

// Scales down slices along a dim whose norm is too large.
Status pointwise_plans::renorm(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || self->sizes.empty() || self->dtype != to->dtype) return unsupported("of these dtypes");
  const int64_t given = planner.integer("dim");
  const auto dim = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(self->sizes.size()) : given);
  OpTensor norms;
  norms.dtype = DType::kFloat64;
  norms.sizes.assign(self->sizes.size(), 1);
  norms.sizes[dim] = self->sizes[dim];
  norms.strides = packed_strides(norms.sizes);
  norms.location = planner.scratch(norms.nbytes());
  std::vector<int64_t> dims;
  for (size_t d = 0; d < self->sizes.size(); ++d) {
    if (d != dim) dims.push_back(static_cast<int64_t>(d));
  }
  if (Status status = norm_over(planner, *self, dims, planner.number("p"), norms); !status.ok()) return status;
  OpTensor from = *self, made = *to;
  if (ir::is_complex(to->dtype)) {  // Both parts get the same factor.
    from = parts_of(from);
    made = parts_of(made);
    norms.sizes.push_back(1);
    norms.strides.push_back(1);
  }
  return compute(planner, Pointwise::kRenorm, DType::kFloat64, made, {.is_given = true, .tensor = from},
                 {.is_given = true, .tensor = norms}, {}, planner.number("maxnorm"));
}

Status pointwise_plans::glu(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  const auto halves = halves_of(planner, *self);
  if (!halves) return unsupported("of a number");
  return compute(planner, Pointwise::kGlu, self->dtype, *to, {.is_given = true, .tensor = halves->first},
                 {.is_given = true, .tensor = halves->second});
}

Status pointwise_plans::glu_backward(OpPlanner& planner) {
  const auto grad = planner.tensor("grad_output"), self = planner.tensor("self"), to = planner.result(0);
  if (!grad || !self || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  const auto halves = halves_of(planner, *self), made = halves_of(planner, *to);
  if (!halves || !made) return unsupported("of a number");
  const Operand of_grad{.is_given = true, .tensor = grad}, gate{.is_given = true, .tensor = halves->second};
  const Operand gated{.is_given = true, .tensor = halves->first};
  Status status = compute(planner, Pointwise::kGlu, self->dtype, made->first, of_grad, gate);
  if (!status.ok()) return status;
  return compute(planner, Pointwise::kGluSlope, self->dtype, made->second, gated, gate, of_grad);
}

Status pointwise_plans::binary_cross_entropy(OpPlanner& planner) {
  const auto self = planner.tensor("self"), target = planner.tensor("target"), to = planner.result(0);
  const auto weight = planner.tensor("weight");
  if (!self || !target || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  const auto how = planner.integer("reduction", 1);
  const DType dtype = codegen::promoted(self->dtype, target->dtype);
  OpTensor losses = *to;
  if (how != 0) {  // Losses that are summed are at least f32.
    losses.sizes = self->sizes;
    if (target->sizes != self->sizes) return unsupported("of targets of other sizes");
    losses.dtype = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
    losses.strides = packed_strides(losses.sizes);
    losses.location = planner.scratch(losses.nbytes());
  }
  Status status =
      compute(planner, Pointwise::kBinaryCrossEntropy, dtype, losses, {.is_given = true, .tensor = self},
              {.is_given = true, .tensor = target}, weight ? Operand{.is_given = true, .tensor = weight} : Operand{});
  if (!status.ok() || how == 0) return status;
  return reduce_all(planner, how == 1 ? ReduceAll::kMean : ReduceAll::kSum, losses, *to);
}

// isin. A single test element is compared directly. Several are sorted and searched; NaN is never a member.
Status pointwise_plans::is_in(OpPlanner& planner) {
  const bool inverts = planner.flag("invert");
  if (!planner.has("test_elements"))
    return plan_as(planner, inverts ? ir::ops::aten_ne_Scalar : ir::ops::aten_eq_Scalar);
  ResultType types;
  const auto to = planner.result(0);
  Operand elements = operand(planner, planner.has("elements") ? "elements" : "element", &types),
          tests = operand(planner, "test_elements", &types);
  if (!to || !elements.is_given || !tests.is_given) return unsupported("without a result");
  const DType dtype = dtype_of(types);
  if (!tests.tensor) return unsupported("of a number");
  expand_to(planner, *to, dtype, &elements);
  OpTensor all = *tests.tensor;
  if (elements.location.buffer == kNoLocation) {  // It is a number.
    elements.location = planner.scratch(8);
    planner
        .launch(KernelFile::kFill, "fill_bits",
                FillArguments{.count = 1, .item = ir::item_size(dtype), .bits = planner.bits("element", dtype)}, 1, 32)
        .at(&FillArguments::out, elements.location);
  }
  all.location = planner.packed(all, dtype);
  all.dtype = dtype;
  return search_members(planner, elements.location, *to, all, inverts);
}

// Whether all elements are equal: a bool on the host.
Status pointwise_plans::equal(OpPlanner& planner) {
  auto self = planner.tensor("self"), other = planner.tensor("other");
  if (!self || !other || self->dtype != other->dtype) return unsupported("of two dtypes");
  const Location count = planner.scratch(8);
  planner.plan().count = count;
  const bool same_sizes = self->sizes == other->sizes;
  planner.plan().plan_rest = [same_sizes](int64_t different, OpPlan*, std::vector<DynamicResult>* results) {
    results->push_back({.number = same_sizes && different == 0 ? 1 : 0});
    return Status();
  };
  if (!same_sizes || self->count() == 0) {
    planner.zero(count, 8);
    return {};
  }
  DType dtype = self->dtype;
  int64_t numbers = self->count();
  const Location a = planner.packed(*self), b = planner.packed(*other);
  if (ir::is_complex(dtype)) {
    if (dtype == DType::kComplex32) return unsupported("of complex32");
    dtype = dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
    numbers *= 2;
  }
  const auto parts = [&](const Location& location) {
    return OpTensor{.location = location, .dtype = dtype, .sizes = {numbers}, .strides = {1}};
  };
  const OpTensor flags{.location = planner.scratch(static_cast<uint64_t>(numbers)),
                       .dtype = DType::kBool,
                       .sizes = {numbers},
                       .strides = {1}};
  if (Status status = plan_op(planner, ir::ops::aten_ne_Tensor, {parts(a), parts(b)}, {flags}); !status.ok()) {
    return status;
  }
  return count_nonzero(planner, flags, count);
}

}  // namespace torch_remote::worker::cuda

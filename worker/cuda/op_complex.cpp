#include <bit>
#include <utility>

#include "worker/cuda/kernels/arguments.h"
#include "worker/cuda/kernels/complex_arguments.h"
#include "worker/cuda/op_plan.h"

// Ops of complex numbers. Operands are brought to one dtype and one size; sums are sums of parts.
namespace torch_remote::worker::cuda {
namespace {

using ir::ArgTag;
using ir::DType;

struct Number {
  double real = 0, imaginary = 0;
};

// A number of the call; of a tensor it is none.
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

// An element of that dtype, as often as `like` has elements.
OpTensor spread(OpPlanner& planner, Number number, DType dtype, const OpTensor& like) {
  const DType part = part_of(dtype);
  OpTensor one;
  one.dtype = dtype;
  one.place = planner.scratch(ir::item_size(dtype));
  for (const bool imaginary : {false, true}) {
    const double x = imaginary ? number.imaginary : number.real;
    Place place = one.place;
    if (imaginary) place.offset += ir::item_size(part);
    const uint64_t bits =
        part == DType::kFloat64 ? std::bit_cast<uint64_t>(x) : uint64_t{std::bit_cast<uint32_t>(static_cast<float>(x))};
    planner
        .launch(KernelFile::kFill, "fill_bits", FillArguments{.count = 1, .item = ir::item_size(part), .bits = bits}, 1,
                32)
        .at(&FillArguments::out, place);
  }
  OpTensor all = like;
  all.dtype = dtype;
  all.strides = packed_strides(all.sizes);
  all.place = planner.scratch(all.nbytes());
  planner.copy(one, all);
  return all;
}

// An operand at all places of the result, in that dtype. None: it is not there.
std::optional<Place> bring(OpPlanner& planner, std::string_view name, DType dtype, const OpTensor& to) {
  if (const auto tensor = planner.tensor(name)) {
    if (tensor->sizes == to.sizes) return planner.packed(*tensor, dtype);
    OpTensor all = to;
    all.dtype = dtype;
    all.strides = packed_strides(all.sizes);
    all.place = planner.scratch(all.nbytes());
    planner.copy(*tensor, all);
    return all.place;
  }
  Number number;
  if (!number_of(planner, name, &number)) return std::nullopt;
  return spread(planner, number, dtype, to).place;
}

// The complex dtype that an op computes in: that of its operands with dims, whatever the result's (`out=`); if none of
// these is complex, that of its result or of operands without dims.
std::optional<DType> dtype_of(OpPlanner& planner, const OpTensor& to) {
  DType dtype = to.dtype;
  bool has_complex = false, has_wide = false;  // with dims
  for (const std::string_view name : {"self", "other", "exponent"}) {
    const auto tensor = planner.tensor(name);
    if (!tensor) continue;
    if (ir::is_complex(tensor->dtype) && !ir::is_complex(dtype)) dtype = tensor->dtype;
    if (tensor->dtype == DType::kComplex128) dtype = DType::kComplex128;
    if (tensor->sizes.empty()) continue;
    has_complex |= ir::is_complex(tensor->dtype);
    has_wide |= tensor->dtype == DType::kComplex128 || tensor->dtype == DType::kFloat64;
  }
  if (has_complex) return has_wide ? DType::kComplex128 : DType::kComplex64;
  if (dtype != DType::kComplex64 && dtype != DType::kComplex128) return std::nullopt;
  return dtype;
}

// What the op makes of that; a result of another dtype (`out=`) gets a copy.
DType made_of(ComplexOp what, DType dtype) {
  if (what == ComplexOp::kEqual || what == ComplexOp::kNotEqual) return DType::kBool;
  return what == ComplexOp::kAbs || what == ComplexOp::kAngle ? part_of(dtype) : dtype;
}

Status compute(OpPlanner& planner, ComplexOp what, std::string_view second = "", Number times = {1, 0}) {
  const auto to = planner.result(0);
  if (!to) return refuse("without a result");
  const auto dtype = dtype_of(planner, *to);
  if (!dtype) return refuse("of these complex numbers");
  const auto a = bring(planner, "self", *dtype, *to);
  const auto b = second.empty() ? Place() : bring(planner, second, *dtype, *to);
  if (!a || !b) return refuse("of a number of the CPU");
  OpTensor made = *to;
  made.dtype = made_of(what, *dtype);
  if (made.dtype == to->dtype) {
    made.place = planner.output(*to);
  } else {
    made.strides = packed_strides(made.sizes);
    made.place = planner.scratch(made.nbytes());
  }
  planner
      .launch(KernelFile::kComplex, "complex_pointwise",
              ComplexArguments{.count = to->count(),
                               .dtype = static_cast<i64>(part_of(*dtype)),
                               .out_dtype = static_cast<i64>(part_of(made.dtype)),
                               .what = what,
                               .real = times.real,
                               .imaginary = times.imaginary},
              blocks_for(to->count()))
      .at(&ComplexArguments::a, *a)
      .at(&ComplexArguments::b, *b)
      .at(&ComplexArguments::out, made.place);
  if (made.dtype != to->dtype) planner.copy(made, *to);
  return {};
}

template <ComplexOp kWhat>
Status unary(OpPlanner& planner) {
  return compute(planner, kWhat);
}
template <ComplexOp kWhat>
Status binary(OpPlanner& planner) {
  return compute(planner, kWhat, "other");
}

Status add(OpPlanner& planner, double sign) {
  Number alpha{1, 0};
  if (planner.has("alpha") && !number_of(planner, "alpha", &alpha)) return refuse("times a tensor");
  return compute(planner, ComplexOp::kAdd, "other", {sign * alpha.real, sign * alpha.imaginary});
}
Status sum_of_both(OpPlanner& planner) { return add(planner, 1); }
Status difference(OpPlanner& planner) { return add(planner, -1); }

Status divide(OpPlanner& planner) {
  if (planner.has("rounding_mode")) return refuse("of complex numbers, rounded");
  return compute(planner, ComplexOp::kDivide, "other");
}
Status power(OpPlanner& planner) {
  const ir::Arg* const exponent = planner.argument("exponent");
  const bool of_tensor =
      exponent != nullptr && (exponent->tag == ArgTag::kView || exponent->tag == ArgTag::kScalarTensor);
  return compute(planner, of_tensor ? ComplexOp::kPower : ComplexOp::kPowerOfNumber, "exponent");
}

// A complex number of two real ones: its size and angle, or its parts.
Status polar(OpPlanner& planner) {
  const auto size = planner.tensor("abs"), to = planner.result(0);
  if (!size || !to) return refuse("without a result");
  const DType part = part_of(to->dtype);
  const auto a = bring(planner, "abs", part, *to), b = bring(planner, "angle", part, *to);
  if (!a || !b) return refuse("of numbers");
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
Status of_parts(OpPlanner& planner) {
  const auto real = planner.tensor("real"), imaginary = planner.tensor("imag"), to = planner.result(0);
  if (!real || !imaginary || !to) return refuse("of numbers");
  OpTensor parts = parts_of(*to);
  parts.sizes.pop_back();
  parts.strides.pop_back();
  planner.copy(*real, parts);
  parts.place.offset += ir::item_size(parts.dtype);
  planner.copy(*imaginary, parts);
  return {};
}

Status where(OpPlanner& planner) {
  const auto to = planner.result(0);
  if (!to || (to->dtype != DType::kComplex64 && to->dtype != DType::kComplex128)) return refuse("of these dtypes");
  const auto a = bring(planner, "self", to->dtype, *to), b = bring(planner, "other", to->dtype, *to),
             c = bring(planner, "condition", DType::kBool, *to);
  if (!a || !b || !c) return refuse("of a number of the CPU");
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

Status fill(OpPlanner& planner) {
  const auto to = planner.result(0), value = planner.tensor("value");
  if (!to) return refuse("without a result");
  if (value) {
    planner.copy(planner.apart(*value, *to), *to);
    return {};
  }
  Number number;
  if (to->dtype == DType::kComplex32 || !number_of(planner, "value", &number)) return refuse("of such a number");
  planner.copy(spread(planner, number, to->dtype, *to), *to);
  return {};
}

constexpr NamedPlan kComplexPlans[] = {{"add", sum_of_both, true},
                                       {"sub", difference, true},
                                       {"mul", binary<ComplexOp::kMultiply>, true},
                                       {"div", divide, true},
                                       {"pow", power, true},
                                       {"eq", binary<ComplexOp::kEqual>, true},
                                       {"ne", binary<ComplexOp::kNotEqual>, true},
                                       {"neg", unary<ComplexOp::kNegative>, true},
                                       {"conj_physical", unary<ComplexOp::kConjugate>, true},
                                       {"_conj_physical", unary<ComplexOp::kConjugate>, true},
                                       {"reciprocal", unary<ComplexOp::kReciprocal>, true},
                                       {"square", unary<ComplexOp::kSquare>, true},
                                       {"sqrt", unary<ComplexOp::kSquareRoot>, true},
                                       {"exp", unary<ComplexOp::kExp>, true},
                                       {"log", unary<ComplexOp::kLog>, true},
                                       {"sin", unary<ComplexOp::kSine>, true},
                                       {"cos", unary<ComplexOp::kCosine>, true},
                                       {"sgn", unary<ComplexOp::kSign>, true},
                                       {"abs", unary<ComplexOp::kAbs>, true},
                                       {"angle", unary<ComplexOp::kAngle>, true},
                                       {"polar", polar, true},
                                       {"complex", of_parts, true},
                                       {"where", where, true},
                                       {"fill", fill, true},
                                       {"sum", sum_of_parts, true},
                                       {"mean", mean_of_parts, true}};

}  // namespace

std::span<const NamedPlan> complex_plans() { return kComplexPlans; }

}  // namespace torch_remote::worker::cuda

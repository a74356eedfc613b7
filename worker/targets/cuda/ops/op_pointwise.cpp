#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/pointwise_arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"

// Pointwise ops in forms that compiled kernels do not support. Operands are converted to one dtype and expanded to one
// size.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// -- dtypes -----------------------------------------------------------------------------------------------------------

int kind_of(DType dtype) { return dtype == DType::kBool ? 0 : ir::is_float(dtype) ? 2 : 1; }

// at::result_type: tensors with dims take precedence over those without, and these over numbers, unless of a lower
// kind.
class ResultType {
 public:
  void add_tensor(DType dtype, bool has_dims) { add(has_dims ? 0 : 1, dtype); }
  void add_number(DType dtype) { add(2, dtype); }
  DType get() const {
    std::optional<DType> all;
    for (const std::optional<DType>& one : found_) {
      if (one && (!all || kind_of(*one) > kind_of(*all))) all = one;
    }
    return all.value_or(DType::kFloat32);
  }

 private:
  void add(int level, DType dtype) { found_[level] = found_[level] ? promote(*found_[level], dtype) : dtype; }
  std::optional<DType> found_[3];
};

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
double largest_of(DType dtype) {
  return dtype == DType::kFloat64   ? std::numeric_limits<double>::max()
         : dtype == DType::kFloat16 ? 65504.0
         : dtype == DType::kFloat32 ? static_cast<double>(std::numeric_limits<float>::max())
                                    : 0x1.FEp127;
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
  if (made.tensor) {
    types->add_tensor(made.tensor->dtype, !made.tensor->sizes.empty());
    return made;
  }
  made.number = planner.number(name);
  const bool is_tensor = arg->tag == ir::ArgTag::kScalarTensor;
  const auto dtype = static_cast<DType>(arg->b & 0xFF);
  const bool is_float = is_tensor ? ir::is_float(dtype) : arg->tag == ir::ArgTag::kFloat;
  if (!is_float) made.integer = planner.integer(name);
  if (is_tensor && (arg->b >> 8 & 1) == 0) {
    types->add_tensor(dtype, false);
  } else {
    const bool is_truth = is_tensor ? dtype == DType::kBool : arg->tag == ir::ArgTag::kBool;
    types->add_number(is_float ? DType::kFloat32 : is_truth ? DType::kBool : DType::kInt64);
  }
  return made;
}

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
  const bool divides = what == Pointwise::kFmod || what == Pointwise::kRemainder || what == Pointwise::kFloorDivide ||
                       what == Pointwise::kTruncDivide;
  const bool divides_integers = divides && !floats;
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

// -- the ops ----------------------------------------------------------------------------------------------------------

Status binary(OpPlanner& planner, Pointwise what, std::string_view second = "other") {
  ResultType types;
  const auto to = planner.result(0);
  Operand a = operand(planner, "self", &types), b = operand(planner, second, &types);
  if (!to || !a.is_given || !b.is_given) return unsupported("without a result");
  return compute(planner, what, types.get(), *to, std::move(a), std::move(b));
}
template <Pointwise kWhat>
Status binary(OpPlanner& planner) {
  return binary(planner, kWhat);
}
Status heaviside(OpPlanner& planner) { return binary(planner, Pointwise::kHeaviside, "values"); }

Status divide(OpPlanner& planner) {
  const ir::Arg* const mode = planner.argument("rounding_mode");
  if (mode == nullptr || mode->tag != ir::ArgTag::kString) return unsupported("of these dtypes");
  return binary(planner, mode->text == "floor" ? Pointwise::kFloorDivide : Pointwise::kTruncDivide);
}

Status clamp(OpPlanner& planner) {
  ResultType types;
  const auto to = planner.result(0);
  Operand a = operand(planner, "self", &types), least = operand(planner, "min", &types),
          most = operand(planner, "max", &types);
  if (!to || !a.is_given) return unsupported("without a result");
  return compute(planner, Pointwise::kClamp, types.get(), *to, std::move(a), std::move(least), std::move(most));
}

// The result is a copy of the operand.
Status same(OpPlanner& planner, const OpTensor& self, const OpTensor& to) {
  if (self.location.buffer == to.location.buffer && self.location.offset == to.location.offset) return {};
  planner.copy(self, to);
  return {};
}

Status nan_to_num(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to) return unsupported("without a result");
  if (!ir::is_float(self->dtype)) return same(planner, *self, *to);
  const double most = largest_of(self->dtype);
  Operand a{.is_given = true, .tensor = self}, nan{.is_given = true, .number = planner.number("nan", 0)},
      infinite{.is_given = true, .number = planner.number("posinf", most)};
  return compute(planner, Pointwise::kNanToNum, self->dtype, *to, std::move(a), std::move(nan), std::move(infinite),
                 as_element(planner.number("neginf", -most), self->dtype));
}

// Integers need no rounding.
Status round(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || self->dtype != to->dtype) return unsupported("of these dtypes");
  if (!ir::is_float(self->dtype)) return same(planner, *self, *to);
  if (!planner.has("decimals")) return unsupported("of these dtypes");
  const int64_t decimals = planner.integer("decimals");
  const Operand to_decimals{.is_given = true, .number = static_cast<double>(decimals)},
      ten{.is_given = true, .number = std::pow(10.0, static_cast<double>(std::abs(decimals)))};
  return compute(planner, Pointwise::kRoundDecimals, self->dtype, *to, {.is_given = true, .tensor = self}, to_decimals,
                 ten);
}

// frexp: mantissa and exponent.
Status parts_of_floats(OpPlanner& planner) {
  const auto self = planner.tensor("self"), mantissa = planner.result(0), exponent = planner.result(1);
  if (!self || !ir::is_float(self->dtype)) return unsupported("of integers");
  const Operand a{.is_given = true, .tensor = self};
  if (mantissa) {
    Status status = compute(planner, Pointwise::kMantissa, self->dtype, *mantissa, a);
    if (!status.ok()) return status;
  }
  return exponent ? compute(planner, Pointwise::kExponent, self->dtype, *exponent, a) : Status();
}

// For bools, torch supports only the exponents 0 and 1.
Status power(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  const double exponent = planner.number("exponent", -1);
  if (!self || !to || self->dtype != DType::kBool || to->dtype != DType::kBool) return unsupported("of these dtypes");
  if (exponent == 1) return same(planner, *self, *to);
  if (exponent != 0) return unsupported("of bools to this power");
  return compute(planner, Pointwise::kGreaterOrEqual, DType::kBool, *to, {.is_given = true, .tensor = self},
                 {.is_given = true});
}

Status unary(OpPlanner& planner, Pointwise what) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to) return unsupported("without a result");
  const bool widens = ir::is_float(to->dtype) && !ir::is_float(self->dtype);
  return compute(planner, what, widens ? to->dtype : self->dtype, *to, {.is_given = true, .tensor = self});
}
Status same_bools(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || self->dtype != DType::kBool || to->dtype != DType::kBool) return unsupported("of these dtypes");
  return same(planner, *self, *to);
}
Status infinity_of_bools(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || self->dtype != DType::kBool || to->dtype != DType::kBool) return unsupported("of these dtypes");
  planner.zero(planner.output(*to), to->nbytes());
  return {};
}
Status sign_bit(OpPlanner& planner) { return unary(planner, Pointwise::kSignBit); }
Status inverse_erf(OpPlanner& planner) { return unary(planner, Pointwise::kErfInv); }
Status log_gamma(OpPlanner& planner) { return unary(planner, Pointwise::kLogGamma); }
Status digamma(OpPlanner& planner) { return unary(planner, Pointwise::kDigamma); }
Status angle(OpPlanner& planner) { return unary(planner, Pointwise::kAngle); }

// Only for integers; floats are compiled.
Status logit(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || ir::is_float(self->dtype) || !ir::is_float(to->dtype)) return unsupported("of these dtypes");
  return compute(planner, Pointwise::kLogit, to->dtype, *to, {.is_given = true, .tensor = self},
                 {.is_given = true, .number = planner.number("eps", -1)});
}

Status sinc(OpPlanner& planner) { return unary(planner, Pointwise::kSinc); }
Status entropy(OpPlanner& planner) { return unary(planner, Pointwise::kEntropy); }

// -- Special functions ------------------------------------------------------------------------------------------------

Status special(OpPlanner& planner, Pointwise what, double b = 0, double c = 0) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || !ir::is_float(to->dtype)) return unsupported("without a result");
  const DType dtype = ir::is_float(self->dtype) ? self->dtype : to->dtype;
  return compute(planner, what, dtype, *to, {.is_given = true, .tensor = self}, {.is_given = true, .number = b},
                 {.is_given = true, .number = c});
}
template <int kOrder, bool kScales>
Status bessel_i(OpPlanner& planner) {
  return special(planner, Pointwise::kBesselI, kOrder, kScales ? 1 : 0);
}
template <Pointwise kWhat>
Status special(OpPlanner& planner) {
  return special(planner, kWhat);
}
Status polygamma(OpPlanner& planner) { return special(planner, Pointwise::kPolygamma, planner.number("n")); }

Status zeta(OpPlanner& planner) {
  ResultType types;
  const auto to = planner.result(0);
  Operand a = operand(planner, "self", &types), b = operand(planner, "other", &types);
  if (!to || !a.is_given || !b.is_given || !ir::is_float(to->dtype)) return unsupported("without a result");
  const DType dtype = ir::is_float(types.get()) ? types.get() : to->dtype;
  return compute(planner, Pointwise::kZeta, dtype, *to, std::move(a), std::move(b));
}

Status log_sigmoid(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0), kept = planner.result(1);
  if (!self || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  const Operand a{.is_given = true, .tensor = self};
  if (kept && kept->sizes == self->sizes) {
    if (Status status = compute(planner, Pointwise::kExpOfNegative, self->dtype, *kept, a); !status.ok()) return status;
  }
  return compute(planner, Pointwise::kLogSigmoid, self->dtype, *to, a);
}

// out[i] = a[i + 1] b[i + 2] - a[i + 2] b[i + 1] along a dim of three.
Status cross(OpPlanner& planner) {
  const auto self = planner.tensor("self"), other = planner.tensor("other"), to = planner.result(0);
  if (!self || !other || !to || to->sizes.empty() || to->dtype == DType::kBool) return unsupported("of these dtypes");
  const int64_t given = planner.integer("dim", -1);
  const auto dim = static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(to->sizes.size()) : given);
  if (to->sizes[dim] != 3) return unsupported("along such a dim");
  const DType wide = ir::is_float(to->dtype) ? DType::kFloat64 : DType::kInt64;
  const auto side = [&](const OpTensor& from, int64_t by) {
    return Operand{.is_given = true, .tensor = broadcast_and_roll(planner, from, *to, wide, dim, by)};
  };
  OpTensor product = *to;
  product.dtype = wide;
  product.strides = packed_strides(product.sizes);
  product.location = planner.scratch(product.nbytes());
  Status status = compute(planner, Pointwise::kTimes, wide, product, side(*self, 1), side(*other, 2));
  if (!status.ok()) return status;
  return compute(planner, Pointwise::kMinusProduct, wide, *to, side(*self, 2), side(*other, 1),
                 {.is_given = true, .tensor = product});
}

// Scales down slices along a dim whose norm is too large.
Status renorm(OpPlanner& planner) {
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
  std::vector<bool> dims(self->sizes.size(), true);
  dims[dim] = false;
  norm_over(planner, *self, dims, planner.number("p"), norms);
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
Status glu(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  const auto halves = halves_of(planner, *self);
  if (!halves) return unsupported("of a number");
  return compute(planner, Pointwise::kGlu, self->dtype, *to, {.is_given = true, .tensor = halves->first},
                 {.is_given = true, .tensor = halves->second});
}
Status glu_backward(OpPlanner& planner) {
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

// Losses of pairs of elements, reduced or not.
Status pair_loss(OpPlanner& planner, Pointwise what, double d = 0) {
  const auto self = planner.tensor("self"), target = planner.tensor("target"), weight = planner.tensor("weight"),
             of_truth = planner.tensor("pos_weight"), to = planner.result(0);
  if (!self || !target || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  const auto how = planner.integer("reduction", 1);
  const DType dtype = promote(self->dtype, target->dtype);
  OpTensor losses = *to;
  if (how != 0) {
    losses.sizes = self->sizes;
    if (target->sizes != self->sizes) return unsupported("of targets of other sizes");
  }
  // Losses that are still summed or multiplied are at least f32.
  const bool ends = how == 0 && (!weight || what == Pointwise::kBinaryCrossEntropy);
  if (!ends) {
    losses.dtype = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
    losses.strides = packed_strides(losses.sizes);
    losses.location = planner.scratch(losses.nbytes());
  }
  const bool of_chances = what == Pointwise::kBinaryCrossEntropy;
  const std::optional<OpTensor>& third = of_chances ? weight : of_truth;
  Status status =
      compute(planner, what, dtype, losses, {.is_given = true, .tensor = self}, {.is_given = true, .tensor = target},
              third ? Operand{.is_given = true, .tensor = third} : Operand{}, d);
  if (!status.ok() || ends) return status;
  if (weight && !of_chances) {
    OpTensor weighted = how == 0 ? *to : losses;
    if (how != 0) weighted.location = planner.scratch(losses.nbytes());
    status = compute(planner, Pointwise::kTimes, losses.dtype, weighted, {.is_given = true, .tensor = losses},
                     {.is_given = true, .tensor = weight});
    if (!status.ok() || how == 0) return status;
    losses = weighted;
  }
  reduce_all(planner, how == 1 ? ReduceAll::kMean : ReduceAll::kSum, losses, *to);
  return {};
}
Status binary_cross_entropy(OpPlanner& planner) { return pair_loss(planner, Pointwise::kBinaryCrossEntropy); }
Status logits_cross_entropy(OpPlanner& planner) { return pair_loss(planner, Pointwise::kBinaryCrossEntropyOfLogits); }
Status mse_loss(OpPlanner& planner) { return pair_loss(planner, Pointwise::kSquaredDifference); }
Status smooth_l1_loss(OpPlanner& planner) {
  return pair_loss(planner, Pointwise::kSmoothL1, planner.number("beta", 1));
}
Status huber_loss(OpPlanner& planner) { return pair_loss(planner, Pointwise::kHuber, planner.number("delta", 1)); }
Status soft_margin_loss(OpPlanner& planner) { return pair_loss(planner, Pointwise::kSoftMargin); }

// isin. A single test element is compared directly. Several are sorted and searched; NaN is never a member.
Status is_in(OpPlanner& planner) {
  ResultType types;
  const auto to = planner.result(0);
  const bool one = !planner.has("test_elements");
  Operand elements = operand(planner, planner.has("elements") ? "elements" : "element", &types),
          tests = operand(planner, one ? "test_element" : "test_elements", &types);
  if (!to || !elements.is_given || !tests.is_given) return unsupported("without a result");
  const DType dtype = types.get();
  const bool inverts = planner.flag("invert");
  if (one) {
    return compute(planner, inverts ? Pointwise::kNotEqual : Pointwise::kEqual, dtype, *to, std::move(elements),
                   std::move(tests));
  }
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
Status equal(OpPlanner& planner) {
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
  const Location flags = planner.scratch(static_cast<uint64_t>(numbers));
  planner
      .launch(KernelFile::kPointwise, ir::is_float(dtype) ? "pointwise_float" : "pointwise_int",
              PointwiseArguments{.count = numbers,
                                 .dtype = static_cast<i64>(dtype),
                                 .out_dtype = static_cast<i64>(DType::kBool),
                                 .what = Pointwise::kNotEqual},
              blocks_for(numbers))
      .at(&PointwiseArguments::a, a)
      .at(&PointwiseArguments::b, b)
      .at(&PointwiseArguments::out, flags);
  count_nonzero(planner, flags, DType::kBool, numbers, count);
  return {};
}

constexpr NamedPlan kPointwisePlans[] = {{"clamp", clamp},
                                         {"clamp_min", clamp},
                                         {"clamp_max", clamp},
                                         {"nan_to_num", nan_to_num},
                                         {"fmod", binary<Pointwise::kFmod>},
                                         {"remainder", binary<Pointwise::kRemainder>},
                                         {"floor_divide", binary<Pointwise::kFloorDivide>},
                                         {"div", divide},
                                         {"fmax", binary<Pointwise::kFmax>},
                                         {"fmin", binary<Pointwise::kFmin>},
                                         {"heaviside", heaviside},
                                         {"eq", binary<Pointwise::kEqual>},
                                         {"ne", binary<Pointwise::kNotEqual>},
                                         {"lt", binary<Pointwise::kLess>},
                                         {"le", binary<Pointwise::kLessOrEqual>},
                                         {"gt", binary<Pointwise::kGreater>},
                                         {"ge", binary<Pointwise::kGreaterOrEqual>},
                                         {"round", round},
                                         {"ceil", round},
                                         {"floor", round},
                                         {"trunc", round},
                                         {"pow", power},
                                         {"abs", same_bools},
                                         {"isposinf", infinity_of_bools},
                                         {"isneginf", infinity_of_bools},
                                         {"sign", same_bools},
                                         {"sgn", same_bools},
                                         {"signbit", sign_bit},
                                         {"angle", angle},
                                         {"erfinv", inverse_erf},
                                         {"lgamma", log_gamma},
                                         {"digamma", digamma},
                                         {"logit", logit},
                                         {"sinc", sinc},
                                         {"special_entr", entropy},
                                         {"i0", bessel_i<0, false>},
                                         {"special_i0e", bessel_i<0, true>},
                                         {"special_i1", bessel_i<1, false>},
                                         {"special_i1e", bessel_i<1, true>},
                                         {"special_erfcx", special<Pointwise::kErfcx>},
                                         {"special_log_ndtr", special<Pointwise::kLogNdtr>},
                                         {"special_ndtri", special<Pointwise::kNdtri>},
                                         {"special_zeta", zeta},
                                         {"polygamma", polygamma},
                                         {"frexp", parts_of_floats},
                                         {"nextafter", binary<Pointwise::kNextAfter>},
                                         {"gcd", binary<Pointwise::kGcd>},
                                         {"lcm", binary<Pointwise::kLcm>},
                                         {"linalg_cross", cross},
                                         {"renorm", renorm, true},
                                         {"log_sigmoid_forward", log_sigmoid},
                                         {"glu", glu},
                                         {"glu_backward", glu_backward},
                                         {"binary_cross_entropy", binary_cross_entropy},
                                         {"binary_cross_entropy_with_logits", logits_cross_entropy},
                                         {"mse_loss", mse_loss},
                                         {"smooth_l1_loss", smooth_l1_loss},
                                         {"huber_loss", huber_loss},
                                         {"soft_margin_loss", soft_margin_loss},
                                         {"isin", is_in},
                                         {"equal", equal, true}};

}  // namespace

ir::DType promote(ir::DType a, ir::DType b) {
  if (a == b) return a;
  if (kind_of(a) != kind_of(b)) return kind_of(a) > kind_of(b) ? a : b;
  if (ir::item_size(a) != ir::item_size(b)) return ir::item_size(a) > ir::item_size(b) ? a : b;
  return kind_of(a) == 2 ? DType::kFloat32 : DType::kInt16;  // float16 and bfloat16; uint8 and int8.
}

std::span<const NamedPlan> pointwise_plans() { return kPointwisePlans; }

}  // namespace torch_remote::worker::cuda

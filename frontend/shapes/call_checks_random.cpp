// Checks of random ops: bounds and moments. They call torch's own templates with kernels that draw nothing. Common
// arguments return early.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorFactories.h>

#include "frontend/device/generator.h"
#include "frontend/shapes/call_checks_generated.h"
#include "frontend/shapes/shape_rules.h"

namespace torch_remote::frontend::checks {
namespace {

using c10::IValue;
using c10::ScalarType;
namespace templates = at::native::templates;

template <typename Rng>
struct NoKernel {
  template <typename... Args>
  void operator()(Args&&...) const {}
};

void check_dtype(const at::Tensor& self, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(is_standard_float(self.scalar_type()), "\"", kernel, "\" not implemented for '",
                              self.scalar_type(), "'");
}

}  // namespace

// uniform_(self, from, to)
void uniform(const OpEntry&, const IValue* args) {
  const double from = args[1].toDouble(), to = args[2].toDouble();
  at::Tensor self = tensor_at(args, 0);
  constexpr double kSmall = 65504;  // within the range of every floating-point dtype
  if (is_standard_float(self.scalar_type()) && from >= -kSmall / 2 && from <= to && to <= kSmall / 2) return;
  templates::uniform_impl_<NoKernel, RemoteGenerator>(self, from, to, std::nullopt);
}

// normal_(self, mean, std), and normal(mean, std) with numbers
void normal(const OpEntry& op, const IValue* args) {
  const bool in_place = op.desc->flags & ir::kOpInPlace;
  const IValue &mean = args[in_place ? 1 : 0], &std = args[in_place ? 2 : 1];
  if (!std.isTensor()) {
    TORCH_CHECK(std.toDouble() >= 0, "normal expects std >= 0.0, but found std ", std.toDouble());
  } else {
    TORCH_CHECK(!std.toTensor().is_complex(), "normal expects standard deviation to be non-complex");
    if (mean.isTensor()) at::infer_size_dimvector(mean.toTensor().sizes(), std.toTensor().sizes());
  }
  const at::Tensor* self = written_at(op, args, 0);
  if (self != nullptr && !self->is_complex()) check_dtype(*self, "normal_kernel_cpu");
}

// random_(self), random_(self, to), random_(self, from, to)
void random(const OpEntry& op, const IValue* args) {
  at::Tensor self = tensor_at(args, 0);
  TORCH_CHECK_NOT_IMPLEMENTED(args[1].isInt() || !self.is_complex(), "\"random_kernel_cpu\" not implemented for '",
                              self.scalar_type(), "'");
  if (!args[1].isInt()) return;
  const bool has_from = op.desc->name.find(".from") != op.desc->name.npos;
  const int64_t from = has_from ? args[1].toInt() : 0;
  const IValue& limit = args[has_from ? 2 : 1];
  const auto to = limit.isNone() ? std::nullopt : std::optional(limit.toInt());
  if (self.scalar_type() == ScalarType::Long && to && from < *to) return;
  templates::random_from_to_impl<NoKernel, RemoteGenerator>(self, from, to, std::nullopt);
}

// bernoulli_(self, p), bernoulli(self, p), where p is a number or a tensor that broadcasts to self; bernoulli(self)
void bernoulli(const OpEntry& op, const IValue* args) {
  if (args[1].isDouble()) {
    const double p = args[1].toDouble();
    TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  } else if (args[1].isTensor()) {
    const at::Tensor &self = tensor_at(args, 0), &p = tensor_at(args, 1);
    if (self.numel() > 0 && !at::is_expandable_to(p.sizes(), self.sizes())) (void)p.expand(self.sizes());  // raises
    if ((op.desc->flags & ir::kOpInPlace) && p.sizes().equals(self.sizes())) at::assert_no_partial_overlap(self, p);
  }
  if (is_out(op)) at::assert_no_internal_overlap(*written_at(op, args, 0));
}

// native_dropout(input, p, train)
void dropout(const OpEntry&, const IValue* args) {
  const double p = 1 - args[1].toDouble();
  TORCH_CHECK((0 <= p && p <= 1) || (!args[2].isNone() && !args[2].toBool()),
              "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

void exponential(const OpEntry&, const IValue* args) {
  const at::Tensor& self = tensor_at(args, 0);
  const double rate = args[1].toDouble();
  TORCH_CHECK(rate > 0, "exponential_ expects lambda > 0.0, but found lambda=", rate);
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "Exponential distribution is a continuous probability distribution. dtype must be a floating point but you "
      "specified ",
      self.scalar_type());
}

void cauchy(const OpEntry&, const IValue* args) {
  at::Tensor self = tensor_at(args, 0);
  templates::cauchy_impl_<NoKernel, RemoteGenerator>(self, args[1].toDouble(), args[2].toDouble(), std::nullopt);
}

void log_normal(const OpEntry&, const IValue* args) {
  at::Tensor self = tensor_at(args, 0);
  templates::log_normal_impl_<NoKernel, RemoteGenerator>(self, args[1].toDouble(), args[2].toDouble(), std::nullopt);
  check_dtype(self, "log_normal_cpu");
}

void geometric(const OpEntry&, const IValue* args) {
  at::Tensor self = tensor_at(args, 0);
  templates::geometric_impl_<NoKernel, RemoteGenerator>(self, args[1].toDouble(), std::nullopt);
}

// multinomial(self, num_samples, replacement)
void multinomial(const OpEntry& op, const IValue* args) {
  const at::Tensor& self = tensor_at(args, 0);
  const int64_t samples = args[1].toInt();
  const at::Tensor* out = written_at(op, args, 0);
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(out == nullptr || out->scalar_type() == ScalarType::Long,
              "multinomial expects Long tensor out, got: ", out->scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(args[2].toBool() || samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  constexpr int64_t kMostCategories = int64_t{1} << 24;  // float32 represents all integers up to here
  TORCH_CHECK(self.size(-1) <= kMostCategories, "number of categories cannot exceed 2^24");
}

// randperm(n, ..., dtype)
void randperm(const OpEntry& op, const IValue* args) {
  const at::Tensor* out = written_at(op, args, 0);
  const ScalarType dtype = out != nullptr ? out->scalar_type() : dtype_arg(op, args, ScalarType::Long);
  at::native::check_supported_max_int_with_precision(args[0].toInt(), at::empty({0}, at::dtype(dtype)));
}

}  // namespace torch_remote::frontend::checks

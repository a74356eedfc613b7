#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/view_as_real.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "ir/dtype.h"
#include "ir/philox.h"
#include "worker/targets/aten/kernels/parallel.h"
#include "worker/targets/aten/kernels/special.h"
#include "worker/targets/aten/kernels/special_generated.h"

// Random fills. Element i, counted in row-major order whatever the strides are, depends on (seed, offset, i) alone. It
// does not depend on threads, on the layout, or on earlier ops.
namespace torch_remote::worker::aten {
namespace {

using ir::Philox;

constexpr int64_t kElementsOfThread = 1 << 14;  // number of elements that is worth a thread

// Calls fill(data) on contiguous memory for `self`, and copies the result to `self` if that is not contiguous.
template <typename T, typename F>
void with_packed(const at::Tensor& self, F&& fill) {
  if (self.is_contiguous()) {
    fill(self.mutable_data_ptr<T>());
    return;
  }
  const at::Tensor packed = at::empty(self.sizes(), self.options(), c10::MemoryFormat::Contiguous);
  fill(packed.mutable_data_ptr<T>());
  self.copy_(packed);
}

// data[i] = make(i, words of element i); each element uses kWords of a block's four words.
template <int kWords, typename T, typename F>
void fill(const at::Tensor& self, const Philox& philox, F&& make) {
  constexpr int64_t kPerBlock = 4 / kWords;
  const int64_t n = self.numel();
  with_packed<T>(self, [&](T* data) {
    const int64_t blocks = (n + kPerBlock - 1) / kPerBlock;
    run_parallel(blocks, kElementsOfThread / kPerBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const auto words = philox.block(static_cast<uint64_t>(block));
        const int64_t first = block * kPerBlock;
        const int64_t count = std::min(kPerBlock, n - first);
        for (int64_t i = 0; i < count; ++i) data[first + i] = make(first + i, words.data() + i * kWords);
      }
    });
  });
}

uint64_t wide(const uint32_t* words) { return uint64_t{words[1]} << 32 | words[0]; }

// The number of significant bits of a floating-point type, the hidden bit included.
template <typename T>
constexpr int kDigits = std::numeric_limits<T>::digits;

// A number in [0, 1) with no more bits than T holds, so that rounding cannot make it 1.
template <typename T>
double unit(const uint32_t* words) {
  if constexpr (std::is_same_v<T, double>) {
    return static_cast<double>(wide(words) >> 11) * 0x1p-53;
  } else {
    return static_cast<double>(words[0] >> (32 - kDigits<T>)) * std::ldexp(1.0, -kDigits<T>);
  }
}

template <typename T>
constexpr int kUnitWords = std::is_same_v<T, double> ? 2 : 1;

void draw_uniform(const at::Tensor& self, const Philox& philox, double from, double to) {
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  if (self.is_complex()) {
    const at::Tensor parts = at::empty(self.sizes(), self.options(), c10::MemoryFormat::Contiguous);
    draw_uniform(at::view_as_real(parts), philox, from, to);
    self.copy_(parts);
    return;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "uniform_", [&] {
    fill<kUnitWords<scalar_t>, scalar_t>(self, philox, [=](int64_t, const uint32_t* words) {
      return static_cast<scalar_t>(unit<scalar_t>(words) * (to - from) + from);
    });
  });
}

// Box-Muller: two normal numbers from two uniform ones. A block makes four numbers in float, two in double.
template <typename T, typename C>
void fill_normal(const at::Tensor& self, const Philox& philox, C mean, C std) {
  constexpr int64_t kPerBlock = std::is_same_v<C, double> ? 2 : 4;
  const int64_t n = self.numel();
  with_packed<T>(self, [&](T* data) {
    const int64_t blocks = (n + kPerBlock - 1) / kPerBlock;
    run_parallel(blocks, kElementsOfThread / kPerBlock / 4, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const auto words = philox.block(static_cast<uint64_t>(block));
        C values[4];
        for (size_t pair = 0; pair < kPerBlock / 2; ++pair) {
          C u, v;  // u in (0, 1], v in [0, 1)
          if constexpr (std::is_same_v<C, double>) {
            u = static_cast<double>((wide(words.data()) >> 11) + 1) * 0x1p-53;
            v = static_cast<double>(wide(words.data() + 2) >> 11) * 0x1p-53;
          } else {
            u = static_cast<float>((words[2 * pair] >> 8) + 1) * 0x1p-24f;
            v = static_cast<float>(words[2 * pair + 1] >> 8) * 0x1p-24f;
          }
          const C radius = std::sqrt(C{-2} * std::log(u));
          const C angle = C{2} * std::numbers::pi_v<C> * v;
          values[2 * pair] = radius * std::cos(angle);
          values[2 * pair + 1] = radius * std::sin(angle);
        }
        const int64_t first = block * kPerBlock;
        const int64_t count = std::min(kPerBlock, n - first);
        for (int64_t i = 0; i < count; ++i) data[first + i] = static_cast<T>(values[i] * std + mean);
      }
    });
  });
}

void draw_normal(const at::Tensor& self, const Philox& philox, double mean, double std) {
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
  if (self.is_complex()) {
    // The real and the imaginary part each have half of the variance.
    const at::Tensor parts = at::empty(self.sizes(), self.options(), c10::MemoryFormat::Contiguous);
    draw_normal(at::view_as_real(parts), philox, 0, std * std::numbers::sqrt2 / 2);
    self.copy_(parts);
    if (mean != 0) self.add_(mean);
    return;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "normal_", [&] {
    using compute_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    fill_normal<scalar_t, compute_t>(self, philox, static_cast<compute_t>(mean), static_cast<compute_t>(std));
  });
}

// Integers in [from, from + range); a range of 0 stands for 2^64.
void integers(const at::Tensor& self, const Philox& philox, int64_t from, uint64_t range) {
  AT_DISPATCH_V2(self.scalar_type(), "random_", AT_WRAP([&] {
                   if (range != 0 && range <= (uint64_t{1} << 32)) {
                     fill<1, scalar_t>(self, philox, [=](int64_t, const uint32_t* words) {
                       return static_cast<scalar_t>(from + static_cast<int64_t>(words[0] % range));
                     });
                   } else {
                     fill<2, scalar_t>(self, philox, [=](int64_t, const uint32_t* words) {
                       const uint64_t value = wide(words);
                       return static_cast<scalar_t>(
                           static_cast<int64_t>(static_cast<uint64_t>(from) + (range ? value % range : value)));
                     });
                   }
                 }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, at::kBFloat16);
}

void integers_between(const at::Tensor& self, const Philox& philox, int64_t from, int64_t to) {
  TORCH_CHECK(from < to, "random_ expects 'from' to be less than 'to', but got from=", from, " >= to=", to);
  integers(self, philox, from, static_cast<uint64_t>(to) - static_cast<uint64_t>(from));
}

void draw_bernoulli(const at::Tensor& self, const Philox& philox, double p) {
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  const auto threshold = static_cast<uint64_t>(std::ldexp(p, 32));  // in units of 2^-32
  AT_DISPATCH_V2(self.scalar_type(), "bernoulli_", AT_WRAP([&] {
                   fill<1, scalar_t>(self, philox, [=](int64_t, const uint32_t* words) {
                     return static_cast<scalar_t>(words[0] < threshold);
                   });
                 }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, at::kBFloat16);
}

void draw_bernoulli(const at::Tensor& self, const Philox& philox, const at::Tensor& probabilities) {
  const at::Tensor p = probabilities.to(at::kDouble).expand(self.sizes()).contiguous();
  const double* data = p.const_data_ptr<double>();
  for (int64_t i = 0, n = p.numel(); i < n; ++i) {
    TORCH_CHECK(0 <= data[i] && data[i] <= 1, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  }
  AT_DISPATCH_V2(self.scalar_type(), "bernoulli_", AT_WRAP([&] {
                   fill<1, scalar_t>(self, philox, [=](int64_t i, const uint32_t* words) {
                     return static_cast<scalar_t>(words[0] < std::ldexp(data[i], 32));
                   });
                 }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, at::kBFloat16);
}

void draw_exponential(const at::Tensor& self, const Philox& philox, double lambda) {
  TORCH_CHECK(lambda > 0, "exponential_ expects lambda > 0.0, but found lambda=", lambda);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "exponential_", [&] {
    fill<kUnitWords<scalar_t>, scalar_t>(self, philox, [=](int64_t, const uint32_t* words) {
      // u is in the open interval (0, 1), so that the result is neither 0 nor infinite.
      const double u = std::is_same_v<scalar_t, double> ? (static_cast<double>(wide(words) >> 12) + 0.5) * 0x1p-52
                                                        : (static_cast<double>(words[0]) + 0.5) * 0x1p-32;
      return static_cast<scalar_t>(-std::log(u) / lambda);
    });
  });
}

void dropout(const at::Tensor& output, const at::Tensor& mask, const at::Tensor& input, const Philox& philox, double p,
             bool train) {
  TORCH_CHECK(0 <= p && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const at::Tensor keep = mask.defined() ? mask : at::empty_like(input, input.options().dtype(at::kBool));
  if (!train) {
    if (mask.defined()) mask.fill_(true);
    if (output.defined()) output.copy_(input);
    return;
  }
  draw_bernoulli(keep, philox, 1 - p);
  if (!output.defined()) return;
  at::mul_out(const_cast<at::Tensor&>(output), input, keep);
  output.mul_(p == 1 ? 0 : 1 / (1 - p));
}

// Fisher-Yates shuffle; step i draws number i.
void permutation(const at::Tensor& result, const Philox& philox, int64_t n) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  const at::Tensor order = at::empty({n}, at::kLong);
  auto* data = order.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) data[i] = i;
  for (int64_t i = 0; i + 1 < n; ++i) {
    const auto words = philox.block(static_cast<uint64_t>(i));
    std::swap(data[i], data[i + static_cast<int64_t>(wide(words.data()) % static_cast<uint64_t>(n - i))]);
  }
  result.copy_(order);
}

Philox philox_of(const SpecialCall& call) { return {call.seed, call.offset}; }
const at::Tensor& self_of(const SpecialCall& call) { return call.args[0].toTensor(); }
uint64_t last_integer_of(const SpecialCall& call) {
  return ir::last_integer(static_cast<ir::DType>(self_of(call).scalar_type()));
}

double number(const c10::IValue& value) { return value.toScalar().toDouble(); }

}  // namespace

void random_kernels::uniform(const SpecialCall& call) {
  draw_uniform(self_of(call), philox_of(call), number(call.args[1]), number(call.args[2]));
}
void random_kernels::normal(const SpecialCall& call) {
  draw_normal(self_of(call), philox_of(call), number(call.args[1]), number(call.args[2]));
}
void random_kernels::exponential(const SpecialCall& call) {
  draw_exponential(self_of(call), philox_of(call), number(call.args[1]));
}
void random_kernels::random(const SpecialCall& call) {
  integers(self_of(call), philox_of(call), 0, last_integer_of(call) + 1);
}
void random_kernels::random_to(const SpecialCall& call) {
  integers_between(self_of(call), philox_of(call), 0, call.args[1].toInt());
}
void random_kernels::random_from(const SpecialCall& call) {
  const int64_t from = call.args[1].toInt();
  if (call.args[2].isNone()) {
    integers(self_of(call), philox_of(call), from, last_integer_of(call) + 1 - static_cast<uint64_t>(from));
  } else {
    integers_between(self_of(call), philox_of(call), from, call.args[2].toInt());
  }
}
void random_kernels::bernoulli_float(const SpecialCall& call) {
  draw_bernoulli(self_of(call), philox_of(call), number(call.args[1]));
}
void random_kernels::bernoulli_tensor(const SpecialCall& call) {
  draw_bernoulli(self_of(call), philox_of(call), call.args[1].toTensor());
}

// Ops that return a new tensor: the result exists already and has the right sizes.
void random_kernels::bernoulli(const SpecialCall& call) {
  if (call.results[0].defined()) draw_bernoulli(call.results[0], philox_of(call), self_of(call));
}
void random_kernels::bernoulli_out(const SpecialCall& call) {
  draw_bernoulli(call.args.back().toTensor(), philox_of(call), self_of(call));
}
void random_kernels::bernoulli_p(const SpecialCall& call) {
  if (call.results[0].defined()) draw_bernoulli(call.results[0], philox_of(call), number(call.args[1]));
}
void random_kernels::rand(const SpecialCall& call) {
  if (call.results[0].defined()) draw_uniform(call.results[0], philox_of(call), 0, 1);
}
void random_kernels::randn(const SpecialCall& call) {
  if (call.results[0].defined()) draw_normal(call.results[0], philox_of(call), 0, 1);
}
void random_kernels::randint_high(const SpecialCall& call) {
  if (call.results[0].defined()) integers_between(call.results[0], philox_of(call), 0, call.args[0].toInt());
}
void random_kernels::randint_low(const SpecialCall& call) {
  if (!call.results[0].defined()) return;
  integers_between(call.results[0], philox_of(call), call.args[0].toInt(), call.args[1].toInt());
}
void random_kernels::randint_like_high(const SpecialCall& call) {
  if (call.results[0].defined()) integers_between(call.results[0], philox_of(call), 0, call.args[1].toInt());
}
void random_kernels::randint_like_low(const SpecialCall& call) {
  if (!call.results[0].defined()) return;
  integers_between(call.results[0], philox_of(call), call.args[1].toInt(), call.args[2].toInt());
}
void random_kernels::native_dropout(const SpecialCall& call) {
  dropout(call.results[0], call.results[1], self_of(call), philox_of(call), number(call.args[1]),
          call.args[2].isNone() || call.args[2].toBool());
}
void random_kernels::randperm(const SpecialCall& call) {
  if (call.results[0].defined()) permutation(call.results[0], philox_of(call), call.args[0].toInt());
}

}  // namespace torch_remote::worker::aten

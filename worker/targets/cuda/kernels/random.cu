// Random fills with the numbers of worker/targets/aten/kernels/random.cpp. A thread uses one Philox4x32-10 block.

#include "worker/targets/cuda/kernels/philox.h"
#include "worker/targets/cuda/kernels/search_arguments.h"
#include "worker/targets/cuda/kernels/sorted.h"

namespace torch_remote::worker::cuda {
namespace {

// Seed and offset: from a kernel's parameters, or from memory.
struct State {
  u64 seed, offset;
};
template <typename Arguments>
__device__ State state_of(const Arguments& f) {
  if (f.numbers == 0) return {f.seed, f.offset};
  const auto* const numbers = pointer<const u64>(f.numbers);
  return {numbers[0], numbers[1]};
}

__device__ u64 wide(u32 low, u32 high) { return static_cast<u64>(high) << 32 | low; }

// [0, 1), with no more bits than the dtype holds.
__device__ double unit(i64 dtype, u32 low, u32 high) {
  switch (dtype) {
    case kFloat64:
      return static_cast<double>(wide(low, high) >> 11) * 0x1p-53;
    case kFloat32:
      return static_cast<double>(low >> 8) * 0x1p-24;
    case kFloat16:
      return static_cast<double>(low >> 21) * 0x1p-11;
    default:
      return static_cast<double>(low >> 24) * 0x1p-8;
  }
}

// Box-Muller: f64 makes two numbers from a block, other dtypes four, computed in f32.
__device__ void normal(const RandomArguments& to, i64 first, const Words& words) {
  const bool is_double = to.dtype == kFloat64;
  double made[4];
  for (int pair = 0; pair < (is_double ? 1 : 2); ++pair) {
    double sine = 0, cosine = 0;
    if (is_double) {
      const double u = static_cast<double>((wide(words.word[0], words.word[1]) >> 11) + 1) * 0x1p-53;
      const double v = static_cast<double>(wide(words.word[2], words.word[3]) >> 11) * 0x1p-53;
      const double radius = __builtin_sqrt(-2 * log(u));
      sine_cosine(2 * 3.141592653589793 * v, &sine, &cosine);
      made[0] = radius * cosine * to.b + to.a;
      made[1] = radius * sine * to.b + to.a;
      continue;
    }
    const u32 first_word = pair == 0 ? words.word[0] : words.word[2],
              second = pair == 0 ? words.word[1] : words.word[3];
    const float u = static_cast<float>((first_word >> 8) + 1) * 0x1p-24F;
    const float v = static_cast<float>(second >> 8) * 0x1p-24F;
    const auto radius = static_cast<float>(__builtin_sqrt(static_cast<double>(-2.0F * static_cast<float>(log(u)))));
    sine_cosine(static_cast<double>(2.0F * 3.14159265F * v), &sine, &cosine);
    const auto mean = static_cast<float>(to.a), deviation = static_cast<float>(to.b);
    made[2 * pair] = radius * static_cast<float>(cosine) * deviation + mean;
    made[2 * pair + 1] = radius * static_cast<float>(sine) * deviation + mean;
  }
  const int count = is_double ? 2 : 4;
  for (int i = 0; i < count; ++i) {
    if (first + i < to.count) store_float(to.out, first + i, to.dtype, made[i]);
  }
}

__device__ double exponential(const RandomArguments& to, u32 low, u32 high) {
  const double u = to.dtype == kFloat64 ? (static_cast<double>(wide(low, high) >> 12) + 0.5) * 0x1p-52
                                        : (static_cast<double>(low) + 0.5) * 0x1p-32;
  return -log(u) / to.a;
}

__device__ void store_number(const RandomArguments& to, i64 i, i64 x) {
  if (is_float(to.dtype)) {
    store_float(to.out, i, to.dtype, static_cast<double>(x));
  } else {
    store_int(to.out, i, to.dtype, x);
  }
}

__device__ void draw(const RandomArguments& to, i64 i, u32 low, u32 high) {
  switch (to.draw) {
    case Draw::kUniform:
      store_float(to.out, i, to.dtype, unit(to.dtype, low, high) * (to.b - to.a) + to.a);
      break;
    case Draw::kExponential:
      store_float(to.out, i, to.dtype, exponential(to, low, high));
      break;
    case Draw::kIntegers: {
      const bool narrow = to.range != 0 && to.range <= (u64{1} << 32);
      const u64 value = narrow ? low : wide(low, high);
      store_number(to, i, static_cast<i64>(static_cast<u64>(to.first) + (to.range != 0 ? value % to.range : value)));
      break;
    }
    case Draw::kGeometric: {
      const double u = (static_cast<double>(low) + 0.5) * 0x1p-32;
      const double x = __builtin_ceil(log(u) / to.a), trials = x < 1 ? 1 : x;
      if (is_float(to.dtype)) {
        store_float(to.out, i, to.dtype, trials);
      } else {
        store_int(to.out, i, to.dtype, trials < 0x1p62 ? static_cast<i64>(trials) : i64{1} << 62);
      }
      break;
    }
    case Draw::kBernoulli:
      store_number(to, i, low < to.range);
      break;
    default: {
      const double p = pointer<const double>(to.probabilities)[i];
      if (!(p >= 0 && p <= 1)) fail(to.failure, 0, 0, 0);
      store_number(to, i, static_cast<double>(low) < p * 0x1p32);
    }
  }
}

}  // namespace

KERNEL(256) random_fill(const RandomArguments to) {
  const bool takes_two = to.draw == Draw::kIntegers ? to.range == 0 || to.range > (u64{1} << 32)
                                                    : to.dtype == kFloat64 && to.draw <= Draw::kExponential;
  const i64 each = takes_two ? 2 : 4;
  const State state = state_of(to);
  for (i64 number = first_item(); number * each < to.count; number += all_threads()) {
    const Words words = philox(state.seed, state.offset, static_cast<u64>(number));
    const i64 first = number * each;
    if (to.draw == Draw::kNormal) {
      normal(to, first, words);
    } else if (takes_two) {
      draw(to, first, words.word[0], words.word[1]);
      if (first + 1 < to.count) draw(to, first + 1, words.word[2], words.word[3]);
    } else {
      for (int i = 0; i < 4; ++i) {
        if (first + i < to.count) draw(to, first + i, words.word[i], 0);
      }
    }
  }
}

// Draws with replacement, or a single draw, from rows of cumulative sums. One thread per draw.
KERNEL(256) multinomial_draw(const MultinomialArguments f) {
  const State state = state_of(f);
  for (i64 i = first_item(); i < f.rows * f.samples; i += all_threads()) {
    const Words words = philox(state.seed, state.offset, static_cast<u64>(i));
    const auto* const sums = pointer<const double>(f.sums) + divide(i, f.samples) * f.length;
    const double all = sums[f.length - 1], x = unit(kFloat64, words.word[0], words.word[1]) * all;
    // The first sum greater than x; x may be rounded up to the total.
    pointer<i64>(f.out)[i] =
        partition_point(0, f.length - 1, [&](i64 at) { return !(sums[at] > x) && sums[at] < all; });
  }
}

// Weights divided by exponential random numbers: the largest ones are draws without replacement.
KERNEL(256) multinomial_keys(const MultinomialArguments f) {
  const State state = state_of(f);
  for (i64 i = first_item(); i < f.rows * f.length; i += all_threads()) {
    const Words words = philox(state.seed, state.offset, static_cast<u64>(i));
    const double u = (static_cast<double>(wide(words.word[0], words.word[1]) >> 12) + 0.5) * 0x1p-52;
    pointer<double>(f.out)[i] = load_float(f.in, i, f.dtype) / -log(u);
  }
}

// Checks the weights; one block per row.
KERNEL(256) multinomial_check(const MultinomialArguments f) {
  __shared__ u8 weighs[256];
  for (i64 row = block(); row < f.rows; row += blocks()) {
    bool has = false;
    for (i64 i = thread(); i < f.length; i += threads()) {
      const double x = load_float(f.in, row * f.length + i, f.dtype);
      has |= x > 0;
      if (x >= 0 && x < __builtin_inf()) continue;
      const BadWeights bad = f.is_strict == 0 ? BadWeights::kInvalid
                             : x < 0          ? BadWeights::kNegative
                                              : BadWeights::kInfinite;
      fail(f.failure, 0, static_cast<i64>(bad), 0);
      has = true;
    }
    weighs[thread()] = has;
    sync();
    if (thread() == 0) {
      bool any = false;
      for (i64 i = 0; i < threads(); ++i) any |= weighs[i] != 0;
      if (!any && f.length != 0) fail(f.failure, 0, static_cast<i64>(BadWeights::kAllZero), 0);
    }
    sync();
  }
}

}  // namespace torch_remote::worker::cuda

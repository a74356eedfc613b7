#include "worker/collectives/reduction.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace torch_remote::worker {
namespace {

using ir::DType;

constexpr auto kNames = std::to_array<std::string_view>({"sum", "avg", "product", "min", "max", "band", "bor", "bxor"});
constexpr int64_t kBlock = 1024;  // Elements that are combined at a time, in the L1 cache.

// --- half types, as floats -------------------------------------------------------------------------------------------

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void halves_to_floats_f16c(const uint16_t* source, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
  }
  for (; i < count; ++i) to[i] = _cvtsh_ss(source[i]);
}

__attribute__((target("avx,f16c"))) void floats_to_halves_f16c(const float* source, uint16_t* to, int64_t count) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(source + i), kNearest));
  }
  for (; i < count; ++i) to[i] = _cvtss_sh(source[i], kNearest);
}

bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has;
}
#endif

void to_floats(DType dtype, const uint16_t* source, float* to, int64_t count) {
  if (dtype == DType::kBFloat16) {
    for (int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(uint32_t{source[i]} << 16);
    return;
  }
#if defined(__x86_64__)
  if (has_f16c()) return halves_to_floats_f16c(source, to, count);
#endif
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(std::bit_cast<_Float16>(source[i]));
}

void to_halves(DType dtype, const float* source, uint16_t* to, int64_t count) {
  if (dtype == DType::kBFloat16) {
    for (int64_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<uint32_t>(source[i]);
      const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
      to[i] = nan ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
    }
    return;
  }
#if defined(__x86_64__)
  if (has_f16c()) return floats_to_halves_f16c(source, to, count);
#endif
  for (int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<uint16_t>(static_cast<_Float16>(source[i]));
}

// --- combining -------------------------------------------------------------------------------------------------------

template <typename T>
void combine(Reduction reduction, const T* from, T* to, int64_t count) {
  const auto each = [&](auto&& f) {
    for (int64_t i = 0; i < count; ++i) to[i] = f(to[i], from[i]);
  };
  if constexpr (std::is_same_v<T, bool>) {
    switch (reduction) {
      case Reduction::kProduct:
      case Reduction::kMin:
      case Reduction::kBand:
        return each([](bool a, bool b) { return a && b; });
      case Reduction::kBxor:
        return each([](bool a, bool b) { return a != b; });
      default:
        return each([](bool a, bool b) { return a || b; });
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    switch (reduction) {
      case Reduction::kProduct:
        return each([](T a, T b) { return a * b; });
      case Reduction::kMin:
        return each([](T a, T b) { return std::isnan(a) || a < b ? a : b; });
      case Reduction::kMax:
        return each([](T a, T b) { return std::isnan(a) || a > b ? a : b; });
      default:
        return each([](T a, T b) { return a + b; });
    }
  } else {
    using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;  // Unsigned: wraps around.
    switch (reduction) {
      case Reduction::kProduct:
        return each([](T a, T b) { return static_cast<T>(static_cast<U>(a) * static_cast<U>(b)); });
      case Reduction::kMin:
        return each([](T a, T b) { return std::min(a, b); });
      case Reduction::kMax:
        return each([](T a, T b) { return std::max(a, b); });
      case Reduction::kBand:
        return each([](T a, T b) { return static_cast<T>(a & b); });
      case Reduction::kBor:
        return each([](T a, T b) { return static_cast<T>(a | b); });
      case Reduction::kBxor:
        return each([](T a, T b) { return static_cast<T>(a ^ b); });
      default:
        return each([](T a, T b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); });
    }
  }
}

template <typename T>
void divide(T* values, int64_t count, size_t by) {
  if constexpr (!std::is_same_v<T, bool>) {
    // A small integer type may not represent the number of ranks.
    using Wide =
        std::conditional_t<std::is_floating_point_v<T>, T, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / static_cast<Wide>(by));
  }
}

// Works in blocks: all sources of a block are read before its result is written.
template <typename T>
void reduce_as(Reduction reduction, std::span<const void* const> sources, void* result, int64_t count) {
  std::array<T, kBlock> sum;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    std::copy_n(static_cast<const T*>(sources[0]) + begin, block, sum.data());
    for (const void* source : sources.subspan(1)) {
      combine(reduction, static_cast<const T*>(source) + begin, sum.data(), block);
    }
    if (reduction == Reduction::kAvg) divide(sum.data(), block, sources.size());
    std::copy_n(sum.data(), block, static_cast<T*>(result) + begin);
  }
}

void reduce_halves(DType dtype, Reduction reduction, std::span<const void* const> sources, void* result,
                   int64_t count) {
  std::array<float, kBlock> sum, next;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    to_floats(dtype, static_cast<const uint16_t*>(sources[0]) + begin, sum.data(), block);
    for (const void* source : sources.subspan(1)) {
      to_floats(dtype, static_cast<const uint16_t*>(source) + begin, next.data(), block);
      combine(reduction, next.data(), sum.data(), block);
    }
    if (reduction == Reduction::kAvg) divide(sum.data(), block, sources.size());
    to_halves(dtype, sum.data(), static_cast<uint16_t*>(result) + begin, block);
  }
}

}  // namespace

std::optional<Reduction> reduction_from_name(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Reduction>(found - kNames.begin());
}

std::string_view name(Reduction reduction) { return kNames[static_cast<size_t>(reduction)]; }

Status check_reduction(DType dtype, Reduction reduction) {
  const bool bits = reduction == Reduction::kBand || reduction == Reduction::kBor || reduction == Reduction::kBxor;
  const bool is_float = ir::is_float(dtype);
  if (ir::is_complex(dtype) || (is_float && ir::item_size(dtype) == 1)) {
    return Status::invalid("remote: ranks cannot combine tensors of " + std::string(ir::name(dtype)) +
                           (is_float ? "; convert them to bfloat16" : "; use torch.view_as_real"));
  }
  if (is_float && bits) {
    return Status::invalid("remote: " + std::string(name(reduction)) + " combines bits of integers, not of " +
                           std::string(ir::name(dtype)) + "; use SUM, AVG, PRODUCT, MIN or MAX");
  }
  return {};
}

void reduce(DType dtype, Reduction reduction, std::span<const void* const> sources, void* result, int64_t count) {
  switch (dtype) {
    case DType::kFloat32:
      return reduce_as<float>(reduction, sources, result, count);
    case DType::kFloat64:
      return reduce_as<double>(reduction, sources, result, count);
    case DType::kFloat16:
    case DType::kBFloat16:
      return reduce_halves(dtype, reduction, sources, result, count);
    case DType::kBool:
      return reduce_as<bool>(reduction, sources, result, count);
    case DType::kUInt8:
      return reduce_as<uint8_t>(reduction, sources, result, count);
    case DType::kInt8:
      return reduce_as<int8_t>(reduction, sources, result, count);
    case DType::kInt16:
      return reduce_as<int16_t>(reduction, sources, result, count);
    case DType::kUInt16:
      return reduce_as<uint16_t>(reduction, sources, result, count);
    case DType::kInt32:
      return reduce_as<int32_t>(reduction, sources, result, count);
    case DType::kUInt32:
      return reduce_as<uint32_t>(reduction, sources, result, count);
    case DType::kInt64:
      return reduce_as<int64_t>(reduction, sources, result, count);
    case DType::kUInt64:
      return reduce_as<uint64_t>(reduction, sources, result, count);
    default:  // check_reduction() refuses these types.
      return;
  }
}

}  // namespace torch_remote::worker

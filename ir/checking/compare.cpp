#include "ir/checking/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

namespace torch_remote::ir {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Number of parts of an element: complex numbers have two.
int parts(DType dtype) { return is_complex(dtype) ? 2 : 1; }

double half(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const int mantissa = bits & 0x3FF;
  double value;
  if (exponent == 0x1F) {
    value = mantissa ? std::numeric_limits<double>::quiet_NaN() : kInfinity;
  } else {
    value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa | 0x400, exponent - 25);
  }
  return bits & 0x8000 ? -value : value;
}

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// An element's part as a number; nothing for types that are compared by bits alone.
std::optional<double> number(DType dtype, const std::byte* p) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kBool:
      return load<uint8_t>(p);
    case DType::kInt8:
      return load<int8_t>(p);
    case DType::kInt16:
      return load<int16_t>(p);
    case DType::kUInt16:
      return load<uint16_t>(p);
    case DType::kInt32:
      return load<int32_t>(p);
    case DType::kUInt32:
      return load<uint32_t>(p);
    case DType::kInt64:
      return static_cast<double>(load<int64_t>(p));
    case DType::kUInt64:
      return static_cast<double>(load<uint64_t>(p));
    case DType::kFloat16:
    case DType::kComplex32:
      return half(load<uint16_t>(p));
    case DType::kBFloat16:
      return std::bit_cast<float>(uint32_t{load<uint16_t>(p)} << 16);
    case DType::kFloat32:
    case DType::kComplex64:
      return load<float>(p);
    case DType::kFloat64:
    case DType::kComplex128:
      return load<double>(p);
    default:
      return std::nullopt;
  }
}

std::string text(DType dtype, const std::byte* p) {
  std::string result;
  const int count = parts(dtype);
  const uint32_t size = item_size(dtype) / static_cast<uint32_t>(count);
  for (int part = 0; part < count; ++part) {
    char buffer[40];
    if (const auto value = number(dtype, p + part * size)) {
      std::snprintf(buffer, sizeof(buffer), "%.9g", *value);
    } else {
      std::snprintf(buffer, sizeof(buffer), "0x%02x", static_cast<unsigned>(p[part]));
    }
    result += (part ? ", " : "") + std::string(buffer);
  }
  return count > 1 ? "(" + result + ")" : result;
}

double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double d = std::abs(a - b);
  return std::isnan(d) ? kInfinity : d;
}

}  // namespace

std::optional<Difference> compare(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                                  const Tolerance& tolerance) {
  const uint32_t item = item_size(dtype);
  Difference difference;
  difference.elements = std::max(a.size(), b.size()) / item;
  if (a.size() != b.size()) {
    difference.differing = difference.elements;
    difference.a = std::to_string(a.size()) + " bytes";
    difference.b = std::to_string(b.size()) + " bytes";
    return difference;
  }
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return std::nullopt;
  const bool exact = tolerance.rtol == 0 && tolerance.atol == 0;
  const uint32_t part = item / static_cast<uint32_t>(parts(dtype));
  for (uint64_t i = 0; i < difference.elements; ++i) {
    const std::byte* const x = a.data() + i * item;
    const std::byte* const y = b.data() + i * item;
    if (std::memcmp(x, y, item) == 0) continue;
    double most = 0, relative = 0;
    bool agree = !exact;
    for (uint32_t at = 0; at < item; at += part) {
      const auto u = number(dtype, x + at), v = number(dtype, y + at);
      if (!u) {
        agree = false;
        continue;
      }
      if (tolerance.nonfinite && !std::isfinite(*u) && !std::isfinite(*v)) continue;
      const double d = distance(*u, *v);
      most = std::max(most, d);
      const bool finite = std::isfinite(d);
      if (d > 0) relative = std::max(relative, finite && *v != 0 ? d / std::abs(*v) : kInfinity);
      agree = agree && (d == 0 || (finite && d <= tolerance.atol + tolerance.rtol * std::abs(*v)));
    }
    if (agree) continue;
    if (difference.differing++ == 0) {
      difference.first = i;
      difference.a = text(dtype, x);
      difference.b = text(dtype, y);
    }
    difference.max_abs = std::max(difference.max_abs, most);
    difference.max_rel = std::max(difference.max_rel, relative);
  }
  if (difference.differing == 0) return std::nullopt;
  return difference;
}

double largest(DType dtype, std::span<const std::byte> elements) {
  const uint32_t part = item_size(dtype) / static_cast<uint32_t>(parts(dtype));
  double most = 0;
  for (size_t at = 0; at + part <= elements.size(); at += part) {
    const auto value = number(dtype, elements.data() + at);
    if (value && std::isfinite(*value)) most = std::max(most, std::abs(*value));
  }
  return most;
}

std::string to_string(const Difference& difference) {
  char errors[100];
  std::snprintf(errors, sizeof(errors), "at most by %.3g (relative %.3g)", difference.max_abs, difference.max_rel);
  return std::to_string(difference.differing) + " of " + std::to_string(difference.elements) + " elements differ, " +
         errors + "; element " + std::to_string(difference.first) + ": " + difference.a + " and " + difference.b;
}

}  // namespace torch_remote::ir

#include "codegen/loop/testing/function_errors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "codegen/loop/testing/fast_evaluator.h"

namespace torch_remote::codegen::testing {
namespace {

using ir::DType;
using ir::ScalarOp;

#define UNARY(name)                                              \
  [](double x, double) { return static_cast<double>(name(x)); }, \
      [](long double x, long double) { return static_cast<long double>(name##l(x)); }
#define BINARY(name) \
  [](double x, double y) { return name(x, y); }, [](long double x, long double y) { return name##l(x, y); }
#define BY(expression) \
  [](double x, double) { return expression; }, [](long double x, long double) { return expression; }

std::vector<Function> make_functions() {
  return {
      {ScalarOp::kExp, "exp", 1, 0.95, 0.95, UNARY(::exp)},
      {ScalarOp::kExp2, "exp2", 1, 0.85, 0.85, UNARY(::exp2)},
      {ScalarOp::kExpm1, "expm1", 1, 1.45, 1.85, UNARY(::expm1)},
      {ScalarOp::kLog, "log", 1, 0.9, 0.85, UNARY(::log)},
      {ScalarOp::kLog2, "log2", 1, 0.85, 0.9, UNARY(::log2)},
      {ScalarOp::kLog10, "log10", 1, 0.8, 0.8, UNARY(::log10)},
      {ScalarOp::kLog1p, "log1p", 1, 1.5, 1.45, UNARY(::log1p)},
      {ScalarOp::kSigmoid, "sigmoid", 1, 2.5, 1.65, BY(1 / (1 + std::exp(-x)))},
      {ScalarOp::kTanh, "tanh", 1, 1.6, 1.6, UNARY(::tanh)},
      {ScalarOp::kErf, "erf", 1, 1.95, 1, UNARY(::erf)},
      {ScalarOp::kErfc, "erfc", 1, 0.51, 2, UNARY(::erfc)},
      {ScalarOp::kSin, "sin", 1, 1.6, 0.85, UNARY(::sin)},
      {ScalarOp::kCos, "cos", 1, 1.6, 0.85, UNARY(::cos)},
      {ScalarOp::kTan, "tan", 1, 0.51, 0.95, UNARY(::tan)},
      {ScalarOp::kAsin, "asin", 1, 0.7, 0.75, UNARY(::asin)},
      {ScalarOp::kAcos, "acos", 1, 0.7, 0.75, UNARY(::acos)},
      {ScalarOp::kAtan, "atan", 1, 1.35, 1.55, UNARY(::atan)},
      {ScalarOp::kAtan2, "atan2", 2, 1.5, 1.5, BINARY(::atan2)},
      {ScalarOp::kSinh, "sinh", 1, 1.6, 1.6, UNARY(::sinh)},
      {ScalarOp::kCosh, "cosh", 1, 1.4, 1.35, UNARY(::cosh)},
      {ScalarOp::kAsinh, "asinh", 1, 0.51, 1.5, UNARY(::asinh)},
      {ScalarOp::kAcosh, "acosh", 1, 0.51, 1.45, UNARY(::acosh)},
      {ScalarOp::kAtanh, "atanh", 1, 0.51, 1.45, UNARY(::atanh)},
      {ScalarOp::kPow, "pow", 2, 0.51, 0.95, BINARY(::pow)},
      {ScalarOp::kHypot, "hypot", 2, 0.51, 1, BINARY(::hypot)},
      {ScalarOp::kRsqrt, "rsqrt", 1, 1.55, 1.55, BY(1 / std::sqrt(x))},
      {ScalarOp::kReciprocal, "reciprocal", 1, 0.5, 0.5, BY(1 / x)},
      {ScalarOp::kFmod, "fmod", 2, 0, 0, BINARY(::fmod)},
      {ScalarOp::kLgamma, "lgamma", 1, 0.51, 1.95, UNARY(::lgamma)},
  };
}

// The difference of `got` and `expected` in units in the last place of the format.
template <typename T, typename Wide>
double ulps(T got, Wide expected) {
  constexpr int kDigits = std::numeric_limits<T>::digits;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (std::isnan(expected)) return std::isnan(got) ? 0 : kInfinity;
  if (std::isnan(got)) return kInfinity;
  if (expected == 0) return got == 0 && std::signbit(got) == std::signbit(expected) ? 0 : kInfinity;
  // Numbers out of range count as the next power of two, which a larger format would have.
  const Wide limit = std::ldexp(Wide{1}, std::numeric_limits<T>::max_exponent);
  const Wide a = std::clamp(static_cast<Wide>(got), -limit, limit), b = std::clamp(expected, -limit, limit);
  if (std::isinf(expected) != std::isinf(got) && std::isinf(expected)) return kInfinity;
  if (std::signbit(a) != std::signbit(b)) return kInfinity;
  const int exponent = std::max(std::ilogb(std::min(std::fabs(b), std::nextafter(limit, Wide{0}))),
                                std::numeric_limits<T>::min_exponent - 1);
  return static_cast<double>(std::ldexp(std::fabs(a - b), kDigits - 1 - exponent));
}

template <typename T>
struct Batch {
  const Function& function;
  FastEvaluator evaluator;
  Error worst;

  void run(const T* x, const T* y, size_t count) {
    T results[FastEvaluator::kBlock];
    const void* const inputs[] = {x, y};
    evaluator.run(inputs, count, results);
    for (size_t i = 0; i < count; ++i) {
      double error = 0;
      double expected = 0;
      if constexpr (sizeof(T) == 4) {
        expected = function.in_double(x[i], y[i]);
        error = ulps<T, double>(results[i], expected);
      } else {
        const long double wide = function.in_long_double(x[i], y[i]);
        expected = static_cast<double>(wide);
        error = ulps<T, long double>(results[i], wide);
      }
      if (error > worst.ulps) worst = {error, x[i], y[i], results[i], expected};
    }
  }
};

template <typename T>
Error error_of(const Function& function, const std::vector<T>& xs, const std::vector<T>& ys) {
  const DType type = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;
  Batch<T> batch{function, FastEvaluator(kernel_of(function.op, function.arity, type)), {}};
  for (size_t at = 0; at < xs.size(); at += FastEvaluator::kBlock) {
    batch.run(&xs[at], &ys[at], std::min(FastEvaluator::kBlock, xs.size() - at));
  }
  return batch.worst;
}

// Numbers at which the behavior of a function changes. Their neighbors are tried, too.
std::vector<double> special_points() {
  std::vector<double> points = {0,       1e-45,   0x1p-126, 0x1p-1022, 0x1p-149, 0x1p-1074, 0.25,    0.5,     0.7,
                                1,       1.4,     2,        2.4,       3,        8,         88.7228, 87.3365, 103.972,
                                103.28,  708.396, 709.783,  710.4758,  745.1332, 89.416,    128,     126,     149,
                                150,     1024,    1022,     1074,      1075,     0.414213,  2.414,   3.92,    5.93,
                                10.054,  10.19,   26.54,    27.2,      9.01,     19.06,     0x1p-24, 0x1p-25, 0x1p-13,
                                0x1p-53, 0x1p-54, 0x1p-28,  0x1p23,    0x1p24,   0x1p46,    0x1p52,  0x1p53,  0x1p55,
                                0x1p26,  1e6,     171.6,    35.04,     2.5e305,  4.08e36,   0x1p127, 0x1p1023};
  points.push_back(std::numeric_limits<float>::max());
  points.push_back(std::numeric_limits<double>::max());
  points.push_back(std::numeric_limits<double>::infinity());
  points.push_back(std::numeric_limits<double>::quiet_NaN());
  for (int i = 1; i < 200; ++i) points.push_back(i * 1.5707963267948966);
  for (int i = 1; i < 60; ++i) points.push_back(i * 0.34657359027997264);
  for (int i = 1; i < 20; ++i) points.push_back(i);
  points.push_back(
      5.319372648326541e+255);  // 6381956970095103 * 2^797, the f64 that is nearest to a multiple of pi / 2
  return points;
}

template <typename T, typename Bits>
void add_neighbours(double point, int count, std::vector<T>* out) {
  const auto bits = std::bit_cast<Bits>(static_cast<T>(point));
  for (int i = -count; i <= count; ++i) {
    const T x = std::bit_cast<T>(static_cast<Bits>(bits + static_cast<Bits>(i)));
    out->push_back(x);
    out->push_back(-x);
  }
}

// lgamma of negative numbers has zeros, near which a relative error means nothing.
bool is_wanted(std::string_view function, double x) { return function != "lgamma" || !(x < 0); }

}  // namespace

const std::vector<Function>& functions() {
  static const std::vector<Function> all = make_functions();
  return all;
}

const Function* function_of(ScalarOp op) {
  for (const Function& function : functions()) {
    if (function.op == op) return &function;
  }
  return nullptr;
}

Kernel kernel_of(ScalarOp op, int arity, DType type, bool expand) {
  Kernel kernel;
  kernel.columns = 1;
  const bool answers = op == ScalarOp::kIsNan || op == ScalarOp::kIsInf;
  for (int i = 0; i < arity; ++i) {
    kernel.operands.push_back({.dtype = type, .dims = 1});
    kernel.values.push_back({.kind = Kind::kLoad, .type = type, .operand = static_cast<uint32_t>(i)});
  }
  kernel.operands.push_back({.dtype = answers ? DType::kBool : type, .dims = 1});
  Value value{.kind = Kind::kScalarOp, .type = answers ? DType::kBool : type, .op = op, .a = 0};
  if (arity == 2) value.b = 1;
  kernel.values.push_back(value);
  kernel.stores.push_back({.operand = static_cast<uint32_t>(arity), .value = static_cast<uint32_t>(arity)});
  if (expand) expand_functions(kernel);
  return kernel;
}

Cost cost_of(ScalarOp op, int arity, DType type) {
  Cost cost;
  for (const Value& value : kernel_of(op, arity, type).values) {
    cost.operations += value.kind != Kind::kConstant && value.kind != Kind::kLoad && value.kind != Kind::kBits;
    cost.divisions += value.kind == Kind::kScalarOp && (value.op == ScalarOp::kDiv || value.op == ScalarOp::kSqrt);
  }
  return cost;
}

std::vector<float> arguments32(std::string_view function) {
  std::vector<float> all;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 21799) {
    all.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  // This is the range of most arguments: 2^-8 to 2^7, with either sign.
  for (uint32_t bits = 0x3b800000; bits < 0x43000000; bits += 1237) {
    all.push_back(std::bit_cast<float>(bits));
    all.push_back(-std::bit_cast<float>(bits + 600));
  }
  for (const double point : special_points()) add_neighbours<float, uint32_t>(point, 12, &all);
  std::erase_if(all, [&](float x) { return !is_wanted(function, x); });
  return all;
}

std::vector<double> arguments64(std::string_view function, uint64_t count) {
  std::vector<double> all;
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < count / 2; ++i) all.push_back(std::bit_cast<double>(random()));
  std::uniform_real_distribution<double> exponents(-10, 10);
  for (uint64_t i = 0; i < count / 2; ++i) {
    all.push_back(std::exp2(exponents(random)) * ((random() & 1) != 0 ? -1 : 1));
  }
  // In this range sin, cos and tan change from one reduction to the other.
  std::uniform_real_distribution<double> large(44, 54);
  for (uint64_t i = 0; i < count / 8; ++i) all.push_back(std::exp2(large(random)));
  for (const double point : special_points()) add_neighbours<double, uint64_t>(point, 12, &all);
  std::erase_if(all, [&](double x) { return !is_wanted(function, x); });
  return all;
}

Error error32(const Function& function, const std::vector<float>& xs, const std::vector<float>& ys) {
  return error_of(function, xs, ys);
}
Error error64(const Function& function, const std::vector<double>& xs, const std::vector<double>& ys) {
  return error_of(function, xs, ys);
}

Error sweep32(const Function& function, uint64_t begin, uint64_t end) {
  Batch<float> batch{function, FastEvaluator(kernel_of(function.op, 1, DType::kFloat32)), {}};
  std::vector<float> x(FastEvaluator::kBlock);
  for (uint64_t at = begin; at < end; at += x.size()) {
    const size_t count = std::min<uint64_t>(x.size(), end - at);
    for (size_t i = 0; i < count; ++i) x[i] = std::bit_cast<float>(static_cast<uint32_t>(at + i));
    if (is_wanted(function.name, x[0])) batch.run(x.data(), x.data(), count);
  }
  return batch.worst;
}

}  // namespace torch_remote::codegen::testing

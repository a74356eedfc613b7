#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "ir/dtype.h"
#include "ir/philox.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Random fills, with the same numbers as worker/targets/aten/kernels/random.cpp.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

Status invalid(std::string what) { return {ErrorCode::kOpFailed, std::move(what), "RuntimeError"}; }

// Fills the op's result, or `self`.
Status fill(OpNode& node, PlanBuilder& plan, RandomArguments draw, Location probabilities = {}) {
  std::optional<OpTensor> to = node.result(0);
  if (!to) to = node.tensor("self");
  const ir::Arg* const generator = node.argument("generator");
  if (!to || generator == nullptr || generator->tag != ir::ArgTag::kGenerator)
    return unsupported("without a generator");
  if (!ir::is_complex(to->dtype) && !is_kernel_dtype(to->dtype)) return unsupported("of these dtypes");
  draw.count = to->count();
  draw.dtype = static_cast<i64>(to->dtype);
  const bool is_complex = to->dtype == DType::kComplex64 || to->dtype == DType::kComplex128;
  if (is_complex) {  // Real and imaginary parts, which share the variance.
    if (draw.draw != Draw::kUniform && (draw.draw != Draw::kNormal || draw.a != 0))
      return unsupported("of complex numbers");
    draw.count *= 2;
    draw.dtype = static_cast<i64>(to->dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64);
    if (draw.draw == Draw::kNormal) draw.b = draw.b * std::numbers::sqrt2 / 2;
  } else if (draw.draw <= Draw::kExponential && !ir::is_float(to->dtype)) {
    return unsupported("of integers");
  }
  const Location location = plan.output(*to);
  // A thread makes two or four numbers from one Philox block of words.
  plan.launch(KernelFile::kRandom, "random_fill", draw, blocks_for((draw.count + 1) / 2))
      .at(&RandomArguments::out, location)
      .at(&RandomArguments::probabilities, probabilities)
      .parameters(&RandomArguments::numbers, {generator->a, generator->a + 1})
      .failure([](const RandomArguments& words) { return &words.failure; }, draw.draw == Draw::kBernoulliEach);
  if (draw.draw == Draw::kBernoulliEach) plan.add_operand(-1);
  return {};
}

// For more elements, ATen draws 64 bits for each.
constexpr int64_t kMaxPermuted = UINT32_MAX / 20;

}  // namespace

Status random_plans::uniform(OpNode& node, PlanBuilder& plan) {
  const RandomArguments draw{.draw = Draw::kUniform, .a = node.number("from"), .b = node.number("to", 1)};
  if (!(draw.a <= draw.b)) return invalid("uniform_ expects to return a [from, to) range");
  return fill(node, plan, draw);
}

Status random_plans::normal(OpNode& node, PlanBuilder& plan) {
  if (node.tensor("mean") || node.tensor("std")) return unsupported("a mean or standard deviation for each element");
  const RandomArguments draw{.draw = Draw::kNormal, .a = node.number("mean"), .b = node.number("std", 1)};
  if (!(draw.b >= 0)) return invalid("normal expects std >= 0.0");
  return fill(node, plan, draw);
}

Status random_plans::exponential(OpNode& node, PlanBuilder& plan) {
  const RandomArguments draw{.draw = Draw::kExponential, .a = node.number("lambd", 1)};
  if (!(draw.a > 0)) return invalid("exponential_ expects lambda > 0.0");
  return fill(node, plan, draw);
}

Status random_plans::geometric(OpNode& node, PlanBuilder& plan) {
  const double p = node.number("p");
  if (!(p > 0 && p < 1)) return invalid("geometric_ expects p to be in (0, 1), but got p=" + std::to_string(p));
  return fill(node, plan, {.draw = Draw::kGeometric, .a = std::log1p(-p)});
}

Status random_plans::integers(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self");
  if (!self) return unsupported("without a tensor");
  RandomArguments draw{.draw = Draw::kIntegers, .first = node.integer("from")};
  if (node.has("to")) {
    const int64_t to = node.integer("to");
    if (draw.first >= to) return invalid("random_ expects 'from' to be less than 'to'");
    draw.range = static_cast<uint64_t>(to) - static_cast<uint64_t>(draw.first);
  } else {
    draw.range = ir::last_integer(self->dtype) + 1 - static_cast<uint64_t>(draw.first);
  }
  return fill(node, plan, draw);
}

Status random_plans::bernoulli(OpNode& node, PlanBuilder& plan) {
  if (const std::optional<OpTensor> each = node.tensor("p")) {
    const std::optional<OpTensor> self = node.tensor("self");
    if (!self) return unsupported("without a tensor");
    if (!has_count(node.result(0), self->count())) return unsupported("into another size");
    const OpTensor wide = plan.copy_of(*each, DType::kFloat64, self->sizes);
    return fill(node, plan, {.draw = Draw::kBernoulliEach}, wide.location);
  }
  const double p = node.number("p", 0.5);
  if (!(p >= 0 && p <= 1)) return invalid("bernoulli_ expects p to be in [0, 1], but got p=" + std::to_string(p));
  return fill(node, plan, {.draw = Draw::kBernoulli, .range = static_cast<uint64_t>(std::ldexp(p, 32))});
}

// Fisher-Yates shuffle: each step depends on the previous one. So the host computes it, with ATen's generator, as the
// CPU worker does.
Status random_plans::permutation(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> to = node.result(0);
  const ir::Arg* const generator = node.argument("generator");
  if (!to || generator == nullptr || generator->tag != ir::ArgTag::kGenerator)
    return unsupported("without a generator");
  const int64_t count = to->count();
  if (count != node.integer("n") || count == 0) return count == 0 ? Status() : unsupported("of other sizes");
  if (count > kMaxPermuted) return unsupported("of so many elements");
  const OpTensor order = plan.scratch_tensor(DType::kInt64, to->sizes);
  const ir::Sym seed = generator->a;
  plan.upload({order.location, [count, seed](std::span<const int64_t> values) {
                 const ir::Philox philox(static_cast<uint64_t>(values[seed]), static_cast<uint64_t>(values[seed + 1]));
                 std::mt19937 numbers(static_cast<uint32_t>(philox.derived_seed()));
                 std::vector<int64_t> made(static_cast<size_t>(count));
                 std::iota(made.begin(), made.end(), 0);
                 for (int64_t i = 0; i + 1 < count; ++i) {
                   const uint64_t drawn = numbers();
                   const auto other = static_cast<size_t>(i) + drawn % static_cast<uint64_t>(count - i);
                   std::swap(made[static_cast<size_t>(i)], made[other]);
                 }
                 std::vector<std::byte> bytes(made.size() * sizeof(int64_t));
                 std::memcpy(bytes.data(), made.data(), bytes.size());
                 return bytes;
               }});
  plan.copy(order, *to);
  return {};
}

}  // namespace torch_remote::worker::cuda

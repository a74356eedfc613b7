#include "worker/targets/aten/kernels/images/images.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "worker/targets/aten/kernels/images/layout_conversion.h"
#include "worker/targets/aten/kernels/images/packed_weights.h"
#include "worker/targets/aten/testing.h"

// Ops on images of which some are contiguous (NCHW) and some channels last.
namespace torch_remote::worker::aten {
namespace {

using Sizes = std::vector<int64_t>;
constexpr auto kLast = at::MemoryFormat::ChannelsLast;

at::Tensor last(const at::Tensor& image) {
  return image.contiguous(image.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : kLast);
}

at::Tensor numbers(const Sizes& sizes, at::ScalarType type) {
  at::Tensor x = at::randint(-30000, 30000, sizes, at::kInt);
  if (type == at::kFloat || type == at::kDouble) x.view(-1)[1] = 0x7FC00123;
  return type == at::kFloat ? x.view(at::kFloat).clone() : x.to(type);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

TEST(Turn, CopiesEveryElementAndNothingBesides) {
  at::manual_seed(0);
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong}) {
    for (const Sizes& sizes : {Sizes{2, 3, 5, 7}, Sizes{1, 64, 16, 16}, Sizes{3, 33, 1, 50}, Sizes{2, 4, 9, 1},
                               Sizes{1, 300, 4, 5}, Sizes{2, 5, 3, 4, 6}}) {
      const at::Tensor plain = numbers(sizes, type);
      for (const bool to_last : {false, true}) {
        const at::Tensor from = to_last ? plain : last(plain);
        // A slice of a larger tensor's channels; the other channels must stay unchanged.
        Sizes more = sizes;
        more[1] += 5;
        at::Tensor whole = at::full(more, 7, plain.options());
        if (to_last) whole = last(whole);
        EXPECT_TRUE(copy_converting_layout(from, whole.narrow(1, 2, sizes[1]))) << from.sizes() << type;
        EXPECT_TRUE(same_bits(whole.narrow(1, 2, sizes[1]), plain)) << from.sizes() << type;
        EXPECT_TRUE((whole.narrow(1, 0, 2) == 7).all().item<bool>());
        EXPECT_TRUE((whole.narrow(1, 2 + sizes[1], 3) == 7).all().item<bool>());
      }
    }
  }
}

TEST(Turn, LeavesWhatIsNotTurned) {
  const at::Tensor plain = at::randn({2, 4, 6, 8}), made = at::zeros_like(plain);
  EXPECT_FALSE(copy_converting_layout(plain, made));  // the layouts are equal
  EXPECT_FALSE(
      copy_converting_layout(plain.transpose(2, 3), last(made)));  // this layout is neither NCHW nor channels last
  EXPECT_FALSE(copy_converting_layout(plain, last(made.to(at::kDouble))));                  // different dtypes
  EXPECT_FALSE(copy_converting_layout(plain.narrow(3, 0, 4), last(made.narrow(3, 0, 4))));  // positions with gaps
  EXPECT_FALSE(copy_converting_layout(at::randn({4, 6}), at::randn({4, 6})));
  EXPECT_EQ(made.count_nonzero().item<int64_t>(), 0);
}

ir::Opcode opcode(std::string_view name) { return ir::find_op(name); }

TEST(Images, JoinsWhatLiesInTwoWays) {
  at::manual_seed(0);
  for (const int64_t dim : {0, 1, 2, 3, -3}) {
    const at::Tensor a = at::randn({2, 8, 16, 16}), b = last(at::randn({2, 8, 16, 16}));
    for (const bool to_last : {false, true}) {
      const at::Tensor wanted = at::cat({a, b}, dim), result = to_last ? last(wanted) : wanted.contiguous();
      TestRunner runner(/*inproc=*/false, uint64_t{1} << 30, /*threads=*/2);
      TestGraph builder;
      builder.call("aten::cat", {c10::List<at::Tensor>({a, b}), dim}, {result});
      TestRunner::Loaded program(runner, builder);
      const auto outcome = program.run();
      ASSERT_EQ(outcome.code, 0) << outcome.error.message;
      EXPECT_TRUE(same_bits(program.tensor(builder.graph.nodes[0].results[0].a), wanted)) << dim;
      ir::Node node;
      node.opcode = opcode("aten::cat");
      const std::vector<c10::IValue> arguments = {c10::List<at::Tensor>({a, b}), dim};
      const auto made = run_image_kernel(node, arguments, result);
      // In slices along rows, the positions have gaps.
      EXPECT_EQ(made.size(), dim == 3 ? 0U : 1U) << dim << to_last;
    }
  }
  // torch skips empty tensors.
  ir::Node node;
  node.opcode = opcode("aten::cat");
  const at::Tensor a = at::randn({2, 8, 16, 16});
  const std::vector<c10::IValue> arguments = {c10::List<at::Tensor>({a, at::empty({0})}), 1};
  EXPECT_TRUE(run_image_kernel(node, arguments, last(a)).empty());
}

double error_of(const at::Tensor& got, const at::Tensor& exact) {
  return (got.to(at::kDouble) - exact).abs().max().item<double>();
}

// Compares group norm of `x`, which is channels last, with the exact result and with torch's.
void norm(const at::Tensor& x, int64_t groups, bool affine) {
  const int64_t images = x.size(0), channels = x.size(1), positions = x[0][0].numel();
  const at::Tensor weight = affine ? at::randn({channels}) : at::Tensor(),
                   bias = affine ? at::randn({channels}) : weight;
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
  const auto [exact, mean, rstd] =
      at::native_group_norm(wide(x).contiguous(), wide(weight), wide(bias), images, channels, positions, groups, 1e-5);
  const auto [torchs, torchs_mean, torchs_rstd] =
      at::native_group_norm(x.contiguous(), weight, bias, images, channels, positions, groups, 1e-5);
  const auto optional = [](const at::Tensor& t) { return t.defined() ? c10::IValue(t) : c10::IValue(); };
  std::vector<at::Tensor> before;
  for (const int threads : {1, 2}) {
    TestRunner runner(/*inproc=*/false, uint64_t{1} << 30, threads);
    TestGraph builder;
    builder.call("aten::native_group_norm",
                 {x, optional(weight), optional(bias), images, channels, positions, groups, 1e-5},
                 {last(torchs), torchs_mean, torchs_rstd});
    TestRunner::Loaded program(runner, builder);
    const auto outcome = program.run();
    ASSERT_EQ(outcome.code, 0) << outcome.error.message;
    std::vector<at::Tensor> got;
    for (const ir::Arg& result : builder.graph.nodes[0].results) got.push_back(program.tensor(result.a));
    const double scale = exact.abs().max().item<double>() * 1e-7;
    EXPECT_LE(error_of(got[0], exact), 2 * error_of(torchs, exact) + scale) << x.sizes() << groups;
    EXPECT_LE(error_of(got[1], mean), 2 * error_of(torchs_mean, mean) + x.abs().max().item<double>() * 1e-7);
    EXPECT_LE(error_of(got[2], rstd), 2 * error_of(torchs_rstd, rstd) + rstd.abs().max().item<double>() * 2e-7);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(same_bits(got[i], before[i])) << "threads change bits";
    before = got;
  }
}

TEST(Images, NormsGroupsAsPreciselyAsTorch) {
  at::manual_seed(0);
  norm(last(at::randn({2, 32, 24, 24})), 8, true);
  norm(last(at::randn({1, 6, 37, 41})), 3, false);
  norm(last(at::randn({3, 512, 3, 5})), 32, true);
  norm(last(at::randn({2, 48, 9, 11})), 1, true);
  norm(last(at::randn({2, 48, 9, 11})), 48, true);
  norm(last(at::randn({2, 10, 5, 6, 7})), 5, true);
  norm(last(at::randn({1, 9000, 2, 2})), 3, true);
  // Far from zero, where sums of squares would lose small differences.
  norm(last(at::randn({2, 32, 24, 24}) + 3000), 8, true);
  norm(last(at::full({1, 8, 24, 24}, 5.25)), 4, true);
}

TEST(Images, NormsWhatIsNotFiniteAsTorch) {
  at::Tensor x = last(at::randn({2, 32, 16, 16}));
  x[0][3][5][5] = std::numeric_limits<float>::quiet_NaN();
  x[1][20][1][2] = std::numeric_limits<float>::infinity();
  const auto [wanted, mean, rstd] = at::native_group_norm(x, {}, {}, 2, 32, 256, 8, 1e-5);
  ir::Node node;
  node.opcode = opcode("aten::native_group_norm");
  const std::vector<c10::IValue> arguments = {x, {}, {}, 2, 32, 256, 8, 1e-5};
  const auto made = run_image_kernel(node, arguments, wanted);
  ASSERT_EQ(made.size(), 3U);
  EXPECT_TRUE(at::equal(made[0].isfinite(), wanted.isfinite()));
  EXPECT_EQ(made[2].isnan().sum().item<int64_t>(), 2);
}

TEST(Images, WhatIsNotTakenIsTorchs) {
  ir::Node node;
  node.opcode = opcode("aten::native_group_norm");
  const at::Tensor x = at::randn({2, 32, 16, 16});
  const auto takes = [&](const at::Tensor& image, const c10::IValue& weight) {
    const std::vector<c10::IValue> arguments = {image, weight, {}, 2, 32, 256, 8, 1e-5};
    return !run_image_kernel(node, arguments, image).empty();
  };
  EXPECT_TRUE(takes(last(x), {}));
  EXPECT_FALSE(takes(x, {}));
  EXPECT_FALSE(takes(last(x.to(at::kBFloat16)), {}));
  EXPECT_FALSE(takes(last(x), at::randn({64}).slice(0, 0, 64, 2)));
  EXPECT_TRUE(takes(last(x), at::randn({32})));
  EXPECT_FALSE(takes(last(x), at::randn({16})));
  for (const int64_t groups : {0, -1, 5, 64}) {
    const std::vector<c10::IValue> arguments = {last(x), {}, {}, 2, 32, 256, groups, 1e-5};
    EXPECT_TRUE(run_image_kernel(node, arguments, last(x)).empty()) << groups;
  }
}

// Parts that do not fill the result, or do not fit into it.
TEST(Images, PartsThatDoNotFitAreTorchs) {
  ir::Node node;
  node.opcode = opcode("aten::cat");
  const at::Tensor a = at::randn({2, 8, 16, 16}), b = last(a);
  const auto takes = [&](const at::Tensor& second, const Sizes& result, int64_t dim = 1) {
    const std::vector<c10::IValue> arguments = {c10::List<at::Tensor>({a, second}), dim};
    return !run_image_kernel(node, arguments, at::empty(result)).empty();
  };
  EXPECT_TRUE(takes(b, {2, 16, 16, 16}));
  EXPECT_FALSE(takes(b, {2, 20, 16, 16}));
  EXPECT_FALSE(takes(b, {2, 12, 16, 16}));
  EXPECT_FALSE(takes(b.narrow(0, 0, 1), {2, 16, 16, 16}));
  EXPECT_FALSE(takes(b, {2, 16, 16, 16}, 4));
  EXPECT_FALSE(takes(b, {2, 16, 16, 16}, -5));
}

TEST(Images, PackedWeightsAreOfOneDtype) {
  const at::Tensor x = last(at::randn({1, 16, 8, 8})), w = at::randn({16, 16, 3, 3});
  const Sizes ones = {1, 1}, zeros = {0, 0};
  const auto arguments = [&](at::ScalarType type) {
    return std::vector<c10::IValue>{x.to(type), w.to(type), {}, ones, zeros, ones, false, zeros, 1};
  };
  tr_cached_data cached{};
  EXPECT_FALSE(packed_weights(&cached, arguments(at::kFloat)).defined());  // seen for the first time
  EXPECT_TRUE(packed_weights(&cached, arguments(at::kFloat)).defined());
  EXPECT_FALSE(packed_weights(&cached, arguments(at::kBFloat16)).defined());
  cached.release(cached.data);
}

// A contiguous image whose result is channels last is convolved as a channels-last copy.
TEST(Images, ConvolvesAPlainImageToOneThatLiesChannelsLast) {
  at::manual_seed(0);
  const at::Tensor x = at::randn({2, 16, 20, 20}), w = at::randn({8, 16, 3, 3}), b = at::randn({8});
  const at::Tensor wanted = at::conv2d(last(x), w, b, 1, 1);
  ASSERT_TRUE(wanted.is_contiguous(kLast));
  TestRunner runner(/*inproc=*/false, uint64_t{1} << 30, /*threads=*/2);
  TestGraph builder;
  const Sizes ones = {1, 1}, zeros = {0, 0};
  builder.call("aten::convolution", {x, w, b, ones, ones, ones, false, zeros, 1}, {wanted});
  TestRunner::Loaded program(runner, builder);
  for (int i = 0; i < 3; ++i) {
    const auto outcome = program.run();
    ASSERT_EQ(outcome.code, 0) << outcome.error.message;
    const at::Tensor got = program.tensor(builder.graph.nodes[0].results[0].a);
    EXPECT_TRUE(at::allclose(got, wanted, 1e-5, 1e-5));
  }
}

TEST(Images, ConvolvesPlainImagesOfOtherRanks) {
  at::manual_seed(0);
  for (const int64_t dims : {1, 3}) {
    Sizes image(static_cast<size_t>(dims + 2), 8), kernel(image.size(), 3);
    kernel[0] = kernel[1] = 8;
    const Sizes ones(static_cast<size_t>(dims), 1), zeros(ones.size(), 0);
    const at::Tensor x = at::randn(image), w = at::randn(kernel);
    const at::Tensor wanted = at::convolution(x, w, {}, ones, ones, ones, false, zeros, 1);
    const at::Tensor result = wanted.transpose(1, -1).contiguous().transpose(1, -1);
    TestRunner runner;
    TestGraph builder;
    builder.call("aten::convolution", {x, w, {}, ones, ones, ones, false, zeros, 1},
                 {dims == 3 ? last(wanted) : result});
    TestRunner::Loaded program(runner, builder);
    const auto outcome = program.run();
    ASSERT_EQ(outcome.code, 0) << outcome.error.message;
    EXPECT_TRUE(at::allclose(program.tensor(builder.graph.nodes[0].results[0].a), wanted, 1e-4, 1e-4)) << dims;
  }
}

}  // namespace
}  // namespace torch_remote::worker::aten

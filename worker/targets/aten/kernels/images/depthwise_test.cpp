#include "worker/targets/aten/kernels/images/depthwise.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <sstream>
#include <string>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/aten/testing.h"
#include "worker/targets/cpu/loops/host.h"

// Compares depthwise convolutions by our own loops, of both instruction sets, with torch's in double precision, and
// checks which of them are left to torch.
namespace torch_remote::worker::aten {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  Sizes images, kernel;  // [N, C, …], […]
  Sizes stride, padding, dilation;

  int64_t channels() const { return images[1]; }
  Tensor make_images() const { return at::randn(images); }
  Tensor make_kernels() const {
    Sizes sizes = {channels(), 1};
    sizes.insert(sizes.end(), kernel.begin(), kernel.end());
    return at::randn(sizes);
  }
  Tensor convolve(const Tensor& x, const Tensor& k, const Tensor& bias) const {
    return at::convolution(x, k, bias, stride, padding, dilation, false, Sizes(kernel.size()), channels());
  }
  std::vector<Tensor> gradients(const Tensor& grad, const Tensor& x, const Tensor& k) const {
    const auto [a, b, c] = at::convolution_backward(grad, x, k, Sizes{channels()}, stride, padding, dilation, false,
                                                    Sizes(kernel.size()), channels(), {true, true, true});
    return {a, b, c};
  }
  std::vector<Tensor> convolve_by(const DepthwiseLoops& loops, const Tensor& x, const Tensor& k,
                                  const Tensor& bias) const {
    ir::Node node;
    node.opcode = ir::ops::aten_convolution;
    return depthwise(loops, node,
                     std::vector<c10::IValue>{x, k, bias.defined() ? c10::IValue(bias) : c10::IValue(), stride, padding,
                                              dilation, false, Sizes(kernel.size()), channels()},
                     /*least=*/0);
  }
  std::vector<Tensor> gradients_by(const DepthwiseLoops& loops, const Tensor& grad, const Tensor& x, const Tensor& k,
                                   const std::array<bool, 3>& wanted = {true, true, true}) const {
    ir::Node node;
    node.opcode = ir::ops::aten_convolution_backward;
    return depthwise(
        loops, node,
        std::vector<c10::IValue>{grad, x, k, Sizes{channels()}, stride, padding, dilation, false, Sizes(kernel.size()),
                                 channels(), c10::List<bool>({wanted[0], wanted[1], wanted[2]})},
        /*least=*/0);
  }
};

std::vector<const DepthwiseLoops*> all_loops() {
  std::vector<const DepthwiseLoops*> loops;
  for (const auto& level : loops_of_host(kDepthwiseLevels)) loops.push_back(level.loops);
  return loops;
}

// The error is at most twice that of torch's float32 result, plus some rounding errors of the largest element.
void expect_near(const Tensor& got, const Tensor& exact, const Tensor& torchs, const std::string& what) {
  ASSERT_TRUE(got.defined() && got.sizes() == exact.sizes()) << what;
  const auto error = [&](const Tensor& x) { return (x.to(at::kDouble) - exact).abs().max().item<double>(); };
  const double unit = 4 * std::numeric_limits<float>::epsilon() * exact.abs().max().item<double>();
  EXPECT_LE(error(got), 2 * error(torchs) + unit) << what;
}

std::string name_of(const Case& c, const DepthwiseLoops* loops) {
  std::ostringstream text;
  text << c10::IntArrayRef(c.images) << " by " << c10::IntArrayRef(c.kernel) << ", " << c10::IntArrayRef(c.stride)
       << c10::IntArrayRef(c.padding) << c10::IntArrayRef(c.dilation) << ", " << target_of(loops, kDepthwiseLevels);
  return text.str();
}

// Rows shorter and longer than a vector, kernels of all widths, with and without shared rows, and bands of rows.
const Case kCases[] = {
    {{2, 3, 56, 56}, {7, 7}, {1, 1}, {3, 3}, {1, 1}},
    {{1, 5, 14, 14}, {7, 7}, {1, 1}, {3, 3}, {1, 1}},
    {{3, 4, 9, 17}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {{2, 4, 33, 47}, {5, 5}, {1, 1}, {2, 2}, {1, 1}},
    {{2, 2, 6, 6}, {3, 3}, {1, 1}, {0, 0}, {1, 1}},
    {{2, 3, 20, 21}, {4, 6}, {1, 1}, {2, 0}, {1, 1}},
    {{1, 2, 40, 40}, {3, 3}, {1, 1}, {2, 2}, {2, 2}},
    {{1, 2, 30, 31}, {2, 3}, {1, 1}, {1, 4}, {3, 2}},
    {{1, 2, 300, 90}, {3, 5}, {1, 1}, {1, 2}, {1, 1}},
    {{1, 2, 11, 700}, {9, 11}, {1, 1}, {4, 5}, {1, 1}},
    {{2, 2, 8, 9}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {{2, 2, 7, 5}, {7, 5}, {1, 1}, {0, 0}, {1, 1}},
    {{2, 3, 12, 12}, {3, 3}, {1, 1}, {5, 4}, {1, 1}},
    {{2, 3, 1, 64}, {1, 4}, {1, 1}, {0, 3}, {1, 1}},
    {{3, 6, 50}, {4}, {1}, {3}, {1}},
    {{2, 2, 33}, {3}, {1}, {1}, {2}},
};
const Case kWithSteps[] = {
    {{2, 3, 28, 29}, {5, 5}, {2, 2}, {2, 2}, {1, 1}}, {{1, 4, 33, 20}, {7, 7}, {2, 3}, {3, 3}, {1, 1}},
    {{2, 2, 40, 41}, {4, 4}, {4, 1}, {0, 1}, {2, 1}}, {{2, 2, 31, 64}, {4, 5}, {1, 2}, {6, 7}, {1, 3}},
    {{1, 2, 25, 26}, {5, 5}, {3, 4}, {0, 0}, {1, 1}},
};

TEST(Depthwise, IsTheFormula) {
  for (const DepthwiseLoops* loops : all_loops()) {
    for (const Case& c : kCases) {
      at::manual_seed(1);
      const std::string name = name_of(c, loops);
      const Tensor x = c.make_images(), k = c.make_kernels();
      for (const Tensor& bias : {Tensor(), at::randn({c.channels()})}) {
        const Tensor exact =
            c.convolve(x.to(at::kDouble), k.to(at::kDouble), bias.defined() ? bias.to(at::kDouble) : Tensor());
        at::set_num_threads(3);
        const std::vector<Tensor> got = c.convolve_by(*loops, x, k, bias);
        ASSERT_EQ(got.size(), 1u) << name;
        expect_near(got[0], exact, c.convolve(x, k, bias), name);
        at::set_num_threads(1);
        EXPECT_TRUE(at::equal(c.convolve_by(*loops, x, k, bias)[0], got[0])) << name;
      }
    }
  }
}

TEST(Depthwise, GradientsAreTheFormula) {
  for (const DepthwiseLoops* loops : all_loops()) {
    for (const auto& cases : {std::span<const Case>(kCases), std::span<const Case>(kWithSteps)}) {
      for (const Case& c : cases) {
        at::manual_seed(2);
        const std::string name = name_of(c, loops);
        const Tensor x = c.make_images(), k = c.make_kernels();
        const Tensor grad = at::randn_like(c.convolve(x, k, {}));
        const std::vector<Tensor> exact = c.gradients(grad.to(at::kDouble), x.to(at::kDouble), k.to(at::kDouble)),
                                  torchs = c.gradients(grad, x, k);
        at::set_num_threads(3);
        const std::vector<Tensor> got = c.gradients_by(*loops, grad, x, k);
        ASSERT_EQ(got.size(), 3u) << name;
        for (size_t i = 0; i < 3; ++i) expect_near(got[i], exact[i], torchs[i], name + ", " + std::to_string(i));
        at::set_num_threads(1);
        const std::vector<Tensor> alone = c.gradients_by(*loops, grad, x, k);
        EXPECT_TRUE(at::equal(alone[1], got[1])) << name;
      }
    }
  }
}

// The loops also compute the gradients of large kernels when images or gradients are not contiguous.
TEST(Depthwise, GradientsOfWhatLiesOtherwise) {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast;
  for (const DepthwiseLoops* loops : all_loops()) {
    for (const Case& c : {kCases[3], kCases[0], kWithSteps[0], kCases[2]}) {
      at::manual_seed(5);
      const std::string name = name_of(c, loops);
      const Tensor x = c.make_images(), k = c.make_kernels(), grad = at::randn_like(c.convolve(x, k, {}));
      const std::vector<Tensor> exact = c.gradients(grad.to(at::kDouble), x.to(at::kDouble), k.to(at::kDouble)),
                                torchs = c.gradients(grad, x, k);
      for (const bool x_last : {false, true}) {
        const Tensor images = x_last ? x.contiguous(kLast) : x, grads = grad.contiguous(kLast);
        const std::vector<Tensor> got = c.gradients_by(*loops, grads, images, k);
        if (x_last && c.kernel[0] == 3) {
          EXPECT_TRUE(got.empty());
          continue;
        }
        ASSERT_EQ(got.size(), 3u) << name;
        for (size_t i = 0; i < 3; ++i) expect_near(got[i], exact[i], torchs[i], name + ", " + std::to_string(i));
      }
    }
  }
}

TEST(Depthwise, MakesWhatIsWanted) {
  const Case& c = kCases[2];
  const Tensor x = c.make_images(), k = c.make_kernels(), grad = at::randn_like(c.convolve(x, k, {}));
  for (const DepthwiseLoops* loops : all_loops()) {
    for (int mask = 0; mask < 8; ++mask) {
      const std::array<bool, 3> wanted = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
      const std::vector<Tensor> got = c.gradients_by(*loops, grad, x, k, wanted);
      ASSERT_EQ(got.size(), 3u);
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(got[i].defined(), wanted[i]);
    }
  }
}

// Non-finite values spread as far as on the CPU: zeros around an image are not multiplied there, and neighbors of the
// last column are in no sum.
TEST(Depthwise, InfinitiesStayWhereTheyAre) {
  const Case c{{1, 2, 9, 13}, {3, 3}, {1, 1}, {1, 1}, {1, 1}};
  const auto same = [](const Tensor& a, const Tensor& b) { return at::allclose(a, b, 1e-4, 1e-4, /*equal_nan=*/true); };
  for (const DepthwiseLoops* loops : all_loops()) {
    for (const float odd : {kInfinity, -kInfinity, std::nanf("")}) {
      for (const auto& [row, column] : {std::pair{0, 0}, std::pair{4, 12}, std::pair{8, 6}}) {
        at::manual_seed(3);
        Tensor x = c.make_images(), k = c.make_kernels(), grad = at::randn_like(x);
        Tensor spoilt = x.clone();
        spoilt[0][1][row][column] = odd;
        const std::vector<Tensor> forward = c.convolve_by(*loops, spoilt, k, {});
        ASSERT_EQ(forward.size(), 1u);
        EXPECT_TRUE(same(forward[0], c.convolve(spoilt, k, {})));
        const std::vector<Tensor> wanted = c.gradients(grad, spoilt, k), got = c.gradients_by(*loops, grad, spoilt, k);
        ASSERT_EQ(got.size(), 3u);
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same(got[i], wanted[i])) << odd << ' ' << row << ' ' << i;

        Tensor spoilt_grad = grad.clone();
        spoilt_grad[0][1][row][column] = odd;
        EXPECT_TRUE(c.gradients_by(*loops, spoilt_grad, x, k).empty());
        Tensor spoilt_kernel = k.clone();
        spoilt_kernel[1][0][0][2] = odd;
        EXPECT_TRUE(c.convolve_by(*loops, x, spoilt_kernel, {}).empty());
        const std::vector<Tensor> by_torch = c.gradients(grad, x, spoilt_kernel),
                                  partly = c.gradients_by(*loops, grad, x, spoilt_kernel);
        ASSERT_EQ(partly.size(), 3u);
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same(partly[i], by_torch[i])) << odd << ' ' << row << ' ' << i;
      }
    }
  }
}

TEST(Depthwise, WhatItDoesNotTakeIsTorchs) {
  const Case c = kCases[2];
  const Tensor x = c.make_images(), k = c.make_kernels(), grad = at::randn_like(c.convolve(x, k, {}));
  for (const DepthwiseLoops* loops : all_loops()) {
    const auto is_taken = [&](const Case& other, const Tensor& images, const Tensor& kernels) {
      return !other.convolve_by(*loops, images, kernels, {}).empty();
    };
    EXPECT_TRUE(is_taken(c, x, k));
    EXPECT_FALSE(is_taken(c, x.contiguous(at::MemoryFormat::ChannelsLast), k));
    EXPECT_FALSE(is_taken(c, x.to(at::kDouble), k.to(at::kDouble)));
    EXPECT_FALSE(is_taken(c, x, at::randn({8, 1, 3, 3})));  // two outputs per channel
    EXPECT_FALSE(is_taken(c, x.narrow(2, 0, 0), k));
    EXPECT_FALSE(is_taken(c, x.narrow(2, 1, 5), k));
    for (const Case& other :
         {Case{c.images, c.kernel, {2, 2}, {1, 1}, {1, 1}}, Case{c.images, {3, 3}, {1, 1}, {20, 20}, {20, 20}},
          Case{c.images, {3, 3}, {1, 1}, {0, 0}, {6, 1}}}) {
      EXPECT_FALSE(is_taken(other, x, k));
    }
    EXPECT_TRUE(c.gradients_by(*loops, grad.narrow(3, 0, 5).contiguous(), x, k).empty());
    // Dilation times kernel size has more than 64 bits.
    const Case far{{1, 1, 16}, {4}, {1}, {0}, {int64_t{1} << 62}};
    EXPECT_FALSE(is_taken(far, far.make_images(), far.make_kernels()));
  }
}

TEST(Depthwise, ALittleIsTorchs) {
  const auto taken = [](const Case& c) {
    const Tensor x = c.make_images(), k = c.make_kernels();
    ir::Node node;
    node.opcode = ir::ops::aten_convolution;
    return !depthwise(*depthwise_loops(), node,
                      std::vector<c10::IValue>{x, k, c10::IValue(), c.stride, c.padding, c.dilation, false, Sizes{0, 0},
                                               c.channels()})
                .empty();
  };
  if (depthwise_loops() == nullptr) GTEST_SKIP() << "no loops for this processor";
  EXPECT_TRUE(taken(kCases[0]));
  EXPECT_FALSE(taken(kCases[2]));
}

TEST(Depthwise, ProgramsHaveIt) {
  if (depthwise_loops() == nullptr) GTEST_SKIP() << "no loops for this processor";
  at::manual_seed(4);
  const Case& c = kCases[0];
  const Tensor x = c.make_images(), k = c.make_kernels(), y = c.convolve(x, k, {}), grad = at::randn_like(y);
  const std::vector<Tensor> gradients = c.gradients(grad, x, k);
  TestRunner runner;
  TestGraph builder;
  builder.call("aten::convolution",
               {x, k, c10::IValue(), c.stride, c.padding, c.dilation, false, Sizes{0, 0}, c.channels()}, {y});
  builder.call("aten::convolution_backward",
               {grad, x, k, c10::IValue(), c.stride, c.padding, c.dilation, false, Sizes{0, 0}, c.channels(),
                c10::List<bool>({false, true, false})},
               {Tensor(), gradients[1], Tensor()});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  ASSERT_EQ(outcome.code, 0) << outcome.error.message;
  EXPECT_TRUE(
      at::equal(program.tensor(builder.graph.nodes[0].results[0].a), c.convolve_by(*depthwise_loops(), x, k, {})[0]));
  EXPECT_TRUE(at::equal(program.tensor(builder.graph.nodes[1].results[1].a),
                        c.gradients_by(*depthwise_loops(), grad, x, k)[1]));
}

}  // namespace
}  // namespace torch_remote::worker::aten

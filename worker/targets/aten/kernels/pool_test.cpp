#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "worker/targets/aten/testing.h"

// Max pooling with unused indices returns torch's values, bit for bit, and does not write the indices.
namespace torch_remote::worker::aten {
namespace {

using Sizes = std::vector<int64_t>;

struct Window {
  Sizes kernel, stride, padding, dilation;
  bool ceil = false;
};

// Whether the op computed the values alone. `turned`: the result has the other layout than the image (channels last or
// contiguous).
bool pooled_alone(const at::Tensor& input, const Window& w, bool turned = false) {
  auto [values, indices] = at::max_pool2d_with_indices(input, w.kernel, w.stride, w.padding, w.dilation, w.ceil);
  if (turned) {
    values = values.contiguous(values.is_contiguous() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  }
  TestRunner runner(/*inproc=*/false, uint64_t{1} << 30, /*threads=*/2);
  TestGraph builder;
  builder.call("aten::max_pool2d_with_indices", {input, w.kernel, w.stride, w.padding, w.dilation, w.ceil},
               {values, indices});
  const ir::Node& node = builder.graph.nodes[0];
  const uint32_t unread = builder.graph.views[node.results[1].a].buffer;
  builder.graph.buffers[unread].survives = false;
  TestRunner::Loaded program(runner, builder);
  std::memset(program.buffers[unread].data, 0x55, program.buffers[unread].nbytes);
  const auto outcome = program.run();
  EXPECT_EQ(outcome.code, 0) << outcome.error.message;
  const at::Tensor got = program.tensor(node.results[0].a), wanted = values.contiguous();
  // The bits of NaNs may differ.
  const auto bits = [](const at::Tensor& x) { return x.masked_fill(x.isnan(), 0).view(at::kByte); };
  EXPECT_TRUE(at::equal(got.isnan(), wanted.isnan()) && at::equal(bits(got), bits(wanted)))
      << input.sizes() << ' ' << input.scalar_type();
  uint8_t first;
  std::memcpy(&first, program.buffers[unread].data, 1);
  return first == 0x55;
}

at::Tensor images(at::IntArrayRef sizes) {
  at::Tensor x = at::randn(sizes);
  x.masked_fill_(x.gt(0.8), 0.0);  // zeros of both signs
  x.masked_fill_(x.lt(-0.8), -0.0);
  x.view(-1)[3] = NAN;
  x.view(-1)[20] = INFINITY;
  x.view(-1).narrow(0, 30, 12).fill_(-INFINITY);
  return x;
}

TEST(Pool, EqualsTorchForEveryWindow) {
  at::manual_seed(0);
  const Window windows[] = {
      {{3}, {2}, {1}, {1}},          {{2}, {}, {0}, {1}},           {{3, 2}, {1, 1}, {1, 0}, {1, 1}},
      {{2, 3}, {3, 2}, {1, 1}, {2}}, {{5, 4}, {2, 3}, {2}, {1, 2}}, {{3}, {2}, {1}, {1}, /*ceil=*/true},
      {{1}, {1}, {0}, {1}},          {{2}, {5}, {0}, {1}, true},
  };
  for (const Window& window : windows) {
    for (const Sizes& sizes : {Sizes{2, 3, 17, 23}, Sizes{1, 4, 12, 12}, Sizes{5, 11, 40}}) {
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
        const at::Tensor x = images(sizes).to(type);
        EXPECT_TRUE(pooled_alone(x, window));
        if (sizes.size() != 4) continue;
        const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
        EXPECT_TRUE(pooled_alone(last, window));
        EXPECT_TRUE(pooled_alone(x, window, /*turned=*/true));
        EXPECT_TRUE(pooled_alone(last, window, /*turned=*/true));
      }
    }
  }
}

TEST(Pool, WhatItDoesNotTakeIsTorchs) {
  at::manual_seed(0);
  const Window window{{3}, {2}, {1}, {1}};
  const at::Tensor x = at::randint(0, 9, {2, 3, 9, 9});
  EXPECT_FALSE(pooled_alone(x.to(at::kFloat).transpose(2, 3), window));
  EXPECT_FALSE(pooled_alone(x, window));
}

// Torch's kernel raises an error, or makes a result that is not the program's.
TEST(Pool, WindowsThatDoNotFitAreErrors) {
  const at::Tensor x = at::randn({1, 1, 4, 4});
  const auto pool = [&](const Sizes& result, const Window& w, at::ScalarType type = at::kFloat) {
    TestRunner runner;
    TestGraph builder;
    builder.call("aten::max_pool2d_with_indices", {x, w.kernel, w.stride, w.padding, w.dilation, w.ceil},
                 {at::zeros(result, type), at::zeros(result, at::kLong)});
    const ir::Node& node = builder.graph.nodes[0];
    builder.graph.buffers[builder.graph.views[node.results[1].a].buffer].survives = false;
    TestRunner::Loaded program(runner, builder);
    return program.run().code == 0;
  };
  const Window window{{2}, {2}, {0}, {1}};
  EXPECT_TRUE(pool({1, 1, 2, 2}, window));
  EXPECT_FALSE(pool({1, 3, 2, 2}, window));
  EXPECT_FALSE(pool({3, 1, 2, 2}, window));
  EXPECT_FALSE(pool({1, 1, 3, 3}, window));
  EXPECT_FALSE(pool({1, 2, 2}, window));
  EXPECT_FALSE(pool({1, 1, 2, 2}, window, at::kChar));
  EXPECT_FALSE(pool({1, 1, 2, 2}, {{2}, {0}, {0}, {1}}));
  EXPECT_FALSE(pool({1, 1, 2, 2}, {{2}, {-1}, {0}, {1}}));
  EXPECT_FALSE(pool({1, 1, 2, 2}, {{-2}, {2}, {0}, {1}}));
  EXPECT_FALSE(pool({1, 1, 2, 2}, {{2}, {2}, {-1}, {1}}));
  EXPECT_FALSE(pool({1, 1, 2, 2}, {{2}, {2}, {0}, {int64_t{1} << 62}}));
}

}  // namespace
}  // namespace torch_remote::worker::aten

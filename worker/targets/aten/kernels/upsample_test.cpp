#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest2d_backward.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "worker/targets/aten/testing.h"

// Nearest-neighbor upsampling and its gradient return torch's values, bit for bit.
namespace torch_remote::worker::aten {
namespace {

using Sizes = std::vector<int64_t>;

void expect_bits(const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor a = got.contiguous(), b = wanted.contiguous();
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_EQ(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()), 0) << a.sizes();
}

void compare(const at::Tensor& x, const Sizes& size, const at::Tensor& grad) {
  const at::Tensor y = at::upsample_nearest2d(x, size), back = at::upsample_nearest2d_backward(grad, size, x.sizes());
  TestRunner runner(/*inproc=*/false, uint64_t{1} << 30, /*threads=*/2);
  TestGraph builder;
  builder.call("aten::upsample_nearest2d", {x, size, c10::IValue(), c10::IValue()}, {y});
  builder.call("aten::upsample_nearest2d_backward", {grad, size, x.sizes().vec(), c10::IValue(), c10::IValue()},
               {back});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  ASSERT_EQ(outcome.code, 0) << outcome.error.message;
  expect_bits(program.tensor(builder.graph.nodes[0].results[0].a), y);
  expect_bits(program.tensor(builder.graph.nodes[1].results[0].a), back);
}

// Values that include signed zeros, large numbers and infinity; they also test what the loops leave to torch.
at::Tensor numbers(const Sizes& sizes) {
  at::Tensor x = at::randn(sizes);
  x.masked_fill_(x.gt(1.2), -0.0);
  x.masked_fill_(x.lt(-1.5), 1e38);
  x.view(-1)[1] = INFINITY;
  return x;
}

TEST(Upsample, EqualsTorch) {
  at::manual_seed(0);
  constexpr auto kLast = at::MemoryFormat::ChannelsLast;
  for (const Sizes& sizes : {Sizes{2, 3, 5, 7}, Sizes{1, 2, 64, 48}, Sizes{3, 8, 1, 33}, Sizes{2, 4, 16, 1}}) {
    for (const Sizes& by : {Sizes{2, 2}, Sizes{3, 2}, Sizes{1, 2}, Sizes{2, 5}}) {
      const Sizes size = {sizes[2] * by[0], sizes[3] * by[1]};
      const at::Tensor x = numbers(sizes), grad = numbers({sizes[0], sizes[1], size[0], size[1]});
      compare(x, size, grad);
      compare(x.contiguous(kLast), size, grad.contiguous(kLast));
    }
  }
  compare(numbers({2, 3, 6, 8}).transpose(2, 3), {16, 12}, numbers({2, 3, 12, 16}).transpose(2, 3));
  // A slice of the channels of a larger image.
  compare(numbers({2, 5, 6, 9}).narrow(1, 1, 3), {12, 18}, numbers({2, 7, 12, 18}).narrow(1, 3, 3));
  compare(at::full({1, 1, 4, 4}, -0.0), {8, 8}, at::full({1, 1, 8, 8}, -0.0));
  compare(numbers({1, 2, 4, 4}), {9, 7}, numbers({1, 2, 9, 7}));
}

}  // namespace
}  // namespace torch_remote::worker::aten

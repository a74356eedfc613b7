#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "worker/targets/aten/testing.h"

// Attention, recorded for any device, agrees with the formula, forward and backward.
namespace torch_remote::worker::aten {
namespace {

using c10::IValue;

struct Attention {
  at::Tensor output, logsumexp;
  at::Tensor grad_query, grad_key, grad_value;
};

// Runs forward and backward as they are recorded, in one program.
Attention attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias, bool causal,
                 const at::Tensor& gradient) {
  const IValue bias_value = bias.defined() ? IValue(bias) : IValue();
  TestRunner runner;
  TestGraph builder;
  std::vector<int64_t> rows(q.sizes().begin(), q.sizes().end() - 1);
  std::vector<int64_t> sizes = rows;
  sizes.push_back(v.size(-1));
  const at::Tensor out = at::empty(sizes), lse = at::empty(rows);
  builder.call("remote::attention", {q, k, v, bias_value, causal, IValue()}, {out, lse});
  builder.call("remote::attention_backward", {gradient, q, k, v, out, lse, bias_value, causal, IValue()},
               {at::empty_like(q), at::empty_like(k), at::empty_like(v)});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  EXPECT_EQ(outcome.code, 0) << outcome.error.exception_type << ": " << outcome.error.message;
  const auto& forward = builder.graph.nodes[0].results;
  const auto& backward = builder.graph.nodes[1].results;
  const auto get = [&](const ir::Arg& arg) { return program.tensor(arg.a); };
  return {get(forward[0]), get(forward[1]), get(backward[0]), get(backward[1]), get(backward[2])};
}

// Compares with the formula and its numerical derivative: f(t + h d) - f(t - h d) against the gradient along d.
void check_attention(at::Tensor q, at::Tensor k, at::Tensor v, at::Tensor bias, bool causal) {
  const at::Tensor gradient = at::randn({q.size(0), q.size(1), q.size(2), v.size(3)});
  const Attention a = attend(q, k, v, bias, causal, gradient);
  at::Tensor scores = at::matmul(q, k.repeat_interleave(q.size(1) / k.size(1), 1).transpose(-2, -1)) /
                      std::sqrt(static_cast<double>(q.size(3)));
  if (bias.defined()) scores = scores + bias;
  if (causal) {
    scores = scores.masked_fill(at::ones({q.size(2), k.size(2)}, at::kBool).tril().logical_not(), -INFINITY);
  }
  EXPECT_TRUE(at::allclose(a.output, at::matmul(scores.softmax(-1), v.repeat_interleave(q.size(1) / v.size(1), 1)),
                           1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(a.logsumexp, scores.logsumexp(-1), 1e-4, 1e-5));
  const auto along = [&](at::Tensor& input, const at::Tensor& grad) {
    const at::Tensor direction = at::randn_like(input), saved = input;
    const double h = 1e-2;
    const auto value = [&](double step) {
      input = saved + direction * step;
      const at::Tensor out = attend(q, k, v, bias, causal, gradient).output;
      return (out.to(at::kDouble) * gradient).sum().item<double>();
    };
    const double numeric = (value(h) - value(-h)) / (2 * h);
    input = saved;
    const double analytic = (grad.to(at::kDouble) * direction).sum().item<double>();
    EXPECT_NEAR(analytic, numeric, 0.02 * std::abs(numeric) + 0.05);
  };
  along(q, a.grad_query);
  along(k, a.grad_key);
  along(v, a.grad_value);
}

TEST(Attention, FlashKernel) {
  at::manual_seed(1);
  for (const bool causal : {false, true}) {
    check_attention(at::randn({2, 3, 6, 8}), at::randn({2, 3, 6, 8}), at::randn({2, 3, 6, 8}), {}, causal);
  }
}

TEST(Attention, Bias) {
  at::manual_seed(2);
  const at::Tensor bias = at::randn({1, 1, 4, 6});
  check_attention(at::randn({2, 3, 4, 8}), at::randn({2, 3, 6, 8}), at::randn({2, 3, 6, 8}), bias, false);
}

TEST(Attention, GroupedHeadsAndOtherValueSize) {
  at::manual_seed(3);
  check_attention(at::randn({2, 4, 5, 8}), at::randn({2, 2, 5, 8}), at::randn({2, 2, 5, 8}), {}, true);
  check_attention(at::randn({1, 2, 5, 8}), at::randn({1, 2, 5, 8}), at::randn({1, 2, 5, 4}), {}, false);
}

// Torch's flash kernel reads rows of the output as if their elements were adjacent.
TEST(Attention, TheOutputMayHaveAnyStrides) {
  at::manual_seed(4);
  const at::Tensor q = at::randn({2, 3, 6, 8}), k = at::randn({2, 3, 6, 8}), v = at::randn({2, 3, 6, 8});
  const at::Tensor gradient = at::randn({2, 3, 6, 8});
  const Attention wanted = attend(q, k, v, {}, false, gradient);
  TestRunner runner;
  TestGraph builder;
  const at::Tensor out = at::empty({2, 3, 8, 6}).transpose(-2, -1), lse = at::empty({2, 3, 6});
  builder.call("remote::attention", {q, k, v, IValue(), false, IValue()}, {out, lse});
  builder.call("remote::attention_backward", {gradient, q, k, v, out, lse, IValue(), false, IValue()},
               {at::empty_like(q), at::empty_like(k), at::empty_like(v)});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  ASSERT_EQ(outcome.code, 0) << outcome.error.message;
  const auto& results = builder.graph.nodes[1].results;
  EXPECT_TRUE(at::allclose(program.tensor(results[0].a), wanted.grad_query, 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(program.tensor(results[1].a), wanted.grad_key, 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(program.tensor(results[2].a), wanted.grad_value, 1e-4, 1e-5));
}

}  // namespace
}  // namespace torch_remote::worker::aten

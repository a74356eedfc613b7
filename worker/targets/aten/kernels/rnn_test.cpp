#include "ir/rnn.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "worker/targets/aten/kernels/rnn_fused.h"
#include "worker/targets/aten/kernels/rnn_onednn.h"
#include "worker/targets/aten/testing.h"
#include "worker/targets/cpu/loops/host.h"

// Compares recurrent layers by our own loops, of both instruction sets, with torch's in double precision. Checks for
// half-precision LSTMs that both passes agree on the reserve's contents: oneDNN's workspace where it fits, otherwise
// our own parts.
namespace torch_remote::worker::aten {
namespace {

using at::Tensor;
using c10::IValue;

using Sizes = std::vector<int64_t>;

constexpr auto kMode = static_cast<int64_t>(ir::RnnMode::kLstm);

struct Layer {
  int64_t steps, batch, inputs, units, directions = 1;
};

// Returns output, hy, cy, then the gradients of input, hx, cx and the weights; the last tensor is the reserve.
std::vector<Tensor> both_passes(const Layer& layer, int64_t reserve) {
  at::manual_seed(1);
  const auto [t, b, i, h, d] = layer;
  const auto half = at::TensorOptions().dtype(at::kBFloat16);
  const Tensor x = at::randn({t, b, i}, half), hx = at::randn({d, b, h}, half), cx = at::randn({d, b, h}, half);
  std::vector<Tensor> weights, weight_gradients;
  for (int64_t k = 0; k < d; ++k) {
    for (const Tensor& w : {at::randn({4 * h, i}, half), at::randn({4 * h, h}, half), at::randn({4 * h}, half),
                            at::randn({4 * h}, half)}) {
      weights.push_back(w / std::sqrt(static_cast<double>(h)));
      weight_gradients.push_back(at::empty_like(w));
    }
  }
  const Tensor output = at::empty({t, b, d * h}, half), hy = at::empty_like(hx), cy = at::empty_like(hx);
  const Tensor kept = at::empty({reserve}, half);
  TestRunner runner;
  TestGraph builder;
  builder.call("remote::rnn", {x, weights, hx, cx, kMode}, {output, hy, cy, kept});
  builder.call(
      "remote::rnn_backward",
      {x, weights, hx, cx, output, at::randn_like(output), at::randn_like(hy), at::randn_like(cy), kMode, kept},
      {at::empty_like(x), at::empty_like(hx), at::empty_like(cx), weight_gradients});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  EXPECT_EQ(outcome.code, 0) << outcome.error.exception_type << ": " << outcome.error.message;
  std::vector<Tensor> results;
  const auto add = [&](const ir::Arg& arg) { results.push_back(program.tensor(arg.a)); };
  for (size_t r = 0; r < 3; ++r) add(builder.graph.nodes[0].results[r]);
  for (size_t r = 0; r < 3; ++r) add(builder.graph.nodes[1].results[r]);
  for (const ir::Arg& item : builder.graph.nodes[1].results[3].items) add(item);
  add(builder.graph.nodes[0].results[3]);
  return results;
}

TEST(Lstm, WithoutRoomForOneDnnItIsComputedHere) {
  for (const Layer& layer : {Layer{5, 3, 4, 6}, Layer{7, 2, 9, 16, 2}}) {
    auto wide = both_passes(layer, layer.directions << 16);
    auto narrow = both_passes(layer, 5 * layer.directions * layer.steps * layer.batch * layer.units);
    EXPECT_TRUE(is_onednn(wide.back()));
    EXPECT_FALSE(is_onednn(narrow.back()));
    for (size_t i = 0; i + 1 < wide.size(); ++i) EXPECT_TRUE(at::allclose(wide[i], narrow[i], 0.05, 0.1)) << i;
  }
}

// What a program of one backward pass gives. Torch's kernels for oneDNN do not compare these sizes.
std::string backward_error(const std::vector<IValue>& args, const IValue& weight_gradients) {
  TestRunner runner;
  TestGraph builder;
  const auto like = [&](size_t i) { return IValue(at::empty_like(args[i].toTensor())); };
  builder.call("remote::rnn_backward", args, {like(0), like(2), like(3), weight_gradients});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  return outcome.code == 0 ? "" : outcome.error.message;
}

TEST(Lstm, AReserveThatIsNotTheLayersIsAnError) {
  const auto [t, b, i, h, d] = Layer{5, 3, 4, 6};
  const auto half = at::TensorOptions().dtype(at::kBFloat16);
  const Tensor filled = both_passes({t, b, i, h}, 1 << 16).back();
  ASSERT_TRUE(is_onednn(filled));
  const Tensor small = at::zeros({5 * t * b * h}, half);
  small.narrow(0, 0, 4).copy_(filled.narrow(0, 0, 4));  // it begins like a reserve of oneDNN
  ASSERT_TRUE(is_onednn(small));
  const std::vector<Tensor> weights = {at::randn({4 * h, i}, half), at::randn({4 * h, h}, half)};
  const Tensor x = at::randn({t, b, i}, half), hx = at::randn({d, b, h}, half), y = at::randn({t, b, h}, half);
  const auto run = [&](const Tensor& reserve, const Tensor& cx, const Tensor& grad, std::vector<Tensor> w) {
    const std::vector<Tensor> made = {at::empty_like(w[0]), at::empty_like(w[1])};
    return backward_error({x, std::move(w), hx, cx, y, grad, IValue(), IValue(), kMode, reserve}, made);
  };
  const Tensor cx = at::randn_like(hx), grad = at::randn_like(y);
  EXPECT_EQ(run(filled, cx, grad, weights), "");
  EXPECT_NE(run(small, cx, grad, weights).find("reserve"), std::string::npos);
  EXPECT_NE(run(filled, at::randn({d, b, 5000}, half), grad, weights), "");
  EXPECT_NE(run(filled, cx, at::randn({t, b, 2}, half), weights), "");
  EXPECT_NE(run(filled, cx, grad, {at::randn({2, i}, half), weights[1]}), "");
  EXPECT_FALSE(is_onednn(filled.narrow(0, 0, 1).expand({1 << 16})));
}

TEST(Rnn, WhatIsNoLayerIsAnError) {
  const Tensor x = at::randn({3, 2, 4}), hx = at::randn({1, 2, 8}), y = at::randn({3, 2, 8});
  const std::vector<Tensor> weights = {at::randn({8, 4}), at::randn({8, 8})};
  const auto forward = [&](int64_t mode) {
    TestRunner runner;
    TestGraph builder;
    builder.call("remote::rnn", {x, weights, hx, IValue(), mode}, {at::empty_like(y), at::empty_like(hx)});
    TestRunner::Loaded program(runner, builder);
    return program.run().code == 0;
  };
  EXPECT_TRUE(forward(static_cast<int64_t>(ir::RnnMode::kTanh)));
  for (const int64_t mode : {-1, 4, 7}) EXPECT_FALSE(forward(mode)) << mode;
  // The list of the weights' gradients is empty, or has one for each weight.
  const auto backward = [&](const IValue& gradients) {
    const std::vector<IValue> args = {x,
                                      weights,
                                      hx,
                                      hx.clone(),
                                      y,
                                      at::randn_like(y),
                                      IValue(),
                                      IValue(),
                                      static_cast<int64_t>(ir::RnnMode::kTanh),
                                      at::empty({0})};
    TestRunner runner;
    TestGraph builder;
    builder.call("remote::rnn_backward", args, {at::empty_like(x), at::empty_like(hx), Tensor(), gradients});
    TestRunner::Loaded program(runner, builder);
    return program.run().code == 0;
  };
  const Tensor first = at::empty_like(weights[0]), second = at::empty_like(weights[1]);
  EXPECT_TRUE(backward(std::vector<Tensor>{first, second}));
  EXPECT_FALSE(backward(std::vector<Tensor>{first}));
}

struct Fused {
  ir::RnnMode mode;
  int64_t steps, batch, inputs, units, directions = 1;
  bool biases = true, keeps = true;
};

// A layer's float32 tensors, run by the loops, and in double precision by torch.
class FusedCase {
 public:
  explicit FusedCase(const Fused& shape) : shape_(shape) {
    at::manual_seed(3);
    const auto [mode, t, b, i, h, d, biases, keeps] = shape;
    x_ = at::randn({t, b, i});
    hx_ = at::randn({d, b, h});
    if (lstm()) cx_ = at::randn({d, b, h});
    const int64_t g = ir::rnn_gates(mode);
    for (int64_t k = 0; k < d; ++k) {
      for (const Sizes& sizes : {Sizes{g * h, i}, Sizes{g * h, h}, Sizes{g * h}, Sizes{g * h}}) {
        if (sizes.size() == 2 || biases) weights_.push_back(at::randn(sizes) / std::sqrt(static_cast<double>(h)));
      }
    }
    grad_output_ = at::randn({t, b, d * h});
    grad_hy_ = at::randn({d, b, h});
    grad_cy_ = lstm() ? at::randn({d, b, h}) : Tensor();
  }

  // The GEMMs that a library computes in a forward pass: those of the input and, with few steps, those of the state.
  std::vector<Tensor> library_products() const {
    std::vector<Tensor> products;
    for (int64_t k = 0; k < shape_.directions; ++k) {
      const Tensor* w = &weights_[k * (shape_.biases ? 4 : 2)];
      products.push_back(at::mm(x_.view({shape_.steps * shape_.batch, shape_.inputs}), w[0].t()));
      if (shape_.steps <= 2) products.push_back(at::mm(hx_[k], w[1].t()));
    }
    return products;
  }

  // Returns output, hy, cy; then, if the layer has a reserve, the gradients of input, hx, cx and the weights.
  std::vector<Tensor> fused(const RnnLoops& loops) const {
    const auto [mode, t, b, i, h, d, biases, keeps] = shape_;
    const int64_t stride = biases ? 4 : 2, kept = ir::rnn_reserve(mode) * t * b * h;
    const Tensor output = at::empty({t, b, d * h}), none;
    std::vector<RnnDirection> directions;
    std::vector<RnnGradients> gradients;
    for (int64_t k = 0; k < d; ++k) {
      const Tensor* w = &weights_[k * stride];
      directions.push_back({mode, k == 1, x_, hx_[k], lstm() ? cx_[k] : none, w[0], w[1], biases ? w[2] : none,
                            biases ? w[3] : none, output.narrow(2, k * h, h), keeps ? at::empty({kept}) : none});
      gradients.push_back({grad_output_.narrow(2, k * h, h), grad_hy_[k], lstm() ? grad_cy_[k] : none});
    }
    std::vector<Tensor> hy, cy, results, hx, cx, weights;
    for (const RnnStates& states : fused_forward(loops, directions)) {
      hy.push_back(states.hy.clone());
      if (lstm()) cy.push_back(states.cy.clone());
    }
    results = {output, at::stack(hy)};
    if (lstm()) results.push_back(at::stack(cy));
    if (!keeps) return results;
    Tensor x = at::zeros_like(x_);
    const auto all = fused_backward(loops, directions, gradients);
    for (int64_t k = 0; k < d; ++k) {
      const RnnDirection& one = directions[k];
      x += at::mm(all[k].input_projections, one.w_ih).view(x.sizes());
      hx.push_back(all[k].hx);
      if (lstm()) cx.push_back(all[k].cx);
      weights.push_back(at::mm(all[k].input_projections.t(), x_.view({t * b, i})));
      weights.push_back(
          at::mm(all[k].hidden_projections.t(), one.states_before(one.hx, one.output).reshape({t * b, h})));
      if (!biases) continue;
      weights.push_back(all[k].input_projections.sum(0));
      weights.push_back(all[k].hidden_projections.sum(0));
    }
    results.push_back(x);
    results.push_back(at::stack(hx));
    if (lstm()) results.push_back(at::stack(cx));
    results.insert(results.end(), weights.begin(), weights.end());
    return results;
  }

  std::vector<Tensor> expected() const {
    const auto leaf = [](const Tensor& tensor) { return tensor.to(at::kDouble).requires_grad_(); };
    const Tensor x = leaf(x_), hx = leaf(hx_), cx = lstm() ? leaf(cx_) : Tensor();
    std::vector<Tensor> weights;
    weights.reserve(weights_.size());
    for (const Tensor& w : weights_) weights.push_back(leaf(w));
    const bool two = shape_.directions == 2;
    Tensor output, hy, cy;
    if (lstm()) {
      std::tie(output, hy, cy) = at::lstm(x, {hx, cx}, weights, shape_.biases, 1, 0, true, two, false);
    } else {
      const auto run = [&](auto&& layer) {
        std::tie(output, hy) = layer(x, hx, at::TensorList(weights), shape_.biases, 1, 0.0, true, two, false);
      };
      const auto named = [&](ir::RnnMode mode) { return shape_.mode == mode; };
      if (named(ir::RnnMode::kGru)) run([](auto&&... args) { return at::gru(args...); });
      if (named(ir::RnnMode::kTanh)) run([](auto&&... args) { return at::rnn_tanh(args...); });
      if (named(ir::RnnMode::kRelu)) run([](auto&&... args) { return at::rnn_relu(args...); });
    }
    std::vector<Tensor> results = {output, hy};
    if (lstm()) results.push_back(cy);
    if (!shape_.keeps) return results;
    Tensor loss = (output * grad_output_).sum() + (hy * grad_hy_).sum();
    if (lstm()) loss = loss + (cy * grad_cy_).sum();
    loss.backward();
    results.push_back(x.grad());
    results.push_back(hx.grad());
    if (lstm()) results.push_back(cx.grad());
    for (const Tensor& w : weights) results.push_back(w.grad());
    return results;
  }

 private:
  bool lstm() const { return shape_.mode == ir::RnnMode::kLstm; }

  Fused shape_;
  Tensor x_, hx_, cx_, grad_output_, grad_hy_, grad_cy_;
  std::vector<Tensor> weights_;
};

std::vector<const RnnLoops*> all_loops() {
  std::vector<const RnnLoops*> loops;
  for (const auto& level : loops_of_host(kRnnLevels)) loops.push_back(level.loops);
  return loops;
}

constexpr ir::RnnMode kModes[] = {ir::RnnMode::kLstm, ir::RnnMode::kGru, ir::RnnMode::kTanh, ir::RnnMode::kRelu};

// Units and rows that do not fill a block, few and more steps, one thread and several.
TEST(FusedRnn, IsTheFormula) {
  int64_t compared = 0;
  for (const RnnLoops* loops : all_loops()) {
    for (const ir::RnnMode mode : kModes) {
      for (const Fused& shape :
           {Fused{mode, 1, 3, 5, 7}, Fused{mode, 2, 1, 4, 16}, Fused{mode, 5, 1, 3, 33}, Fused{mode, 4, 13, 9, 64},
            Fused{mode, 6, 8, 20, 70, 2}, Fused{mode, 9, 24, 33, 100, 2}, Fused{mode, 5, 2, 7, 24, 2, false},
            Fused{mode, 3, 5, 6, 40, 1, true, false}, Fused{mode, 4, 11, 8, 600}}) {
        const FusedCase test(shape);
        const std::vector<Tensor> expected = test.expected();
        at::set_num_threads(3);
        const std::vector<Tensor> got = test.fused(*loops);
        const std::vector<Tensor> products = test.library_products();
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
          const double error = (got[i].to(at::kDouble) - expected[i]).abs().max().item<double>();
          EXPECT_LT(error, 4e-6 * std::max(1.0, expected[i].abs().max().item<double>()))
              << "mode " << static_cast<int>(mode) << ", " << shape.steps << " steps, " << shape.units << " units, "
              << shape.directions << " directions, result " << i << ", " << target_of(loops, kRnnLevels);
        }
        at::set_num_threads(1);
        const std::vector<Tensor> alone = test.fused(*loops);
        // A library computes these sums. On some processors its bits depend on the number of threads, also for the
        // input's small GEMMs. Where they do not, ours must not either.
        if (!std::ranges::equal(products, test.library_products(), at::equal)) continue;
        for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(got[i], alone[i])) << "result " << i;
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, static_cast<int64_t>(20 * all_loops().size()));  // of 36
}

}  // namespace
}  // namespace torch_remote::worker::aten

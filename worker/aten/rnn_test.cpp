#include "ir/rnn.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/aten/rnn_onednn.h"
#include "worker/aten/testing.h"

// An LSTM's two passes agree about what the reserve holds: oneDNN's workspace where that fits, its own parts where not.
namespace torch_remote::worker::aten {
namespace {

using at::Tensor;
using c10::IValue;

using Sizes = std::vector<int64_t>;

constexpr auto kMode = static_cast<int64_t>(ir::RnnMode::kLstm);

struct Layer {
  int64_t steps, batch, inputs, units, directions = 1;
};

// output, hy, cy, then the gradients of input, hx, cx and the weights; the last one is the reserve.
std::vector<Tensor> both_passes(const Layer& layer, int64_t reserve) {
  at::manual_seed(1);
  const auto [t, b, i, h, d] = layer;
  const Tensor x = at::randn({t, b, i}), hx = at::randn({d, b, h}), cx = at::randn({d, b, h});
  std::vector<Tensor> weights, weight_gradients;
  for (int64_t k = 0; k < d; ++k) {
    for (const Tensor& w : {at::randn({4 * h, i}), at::randn({4 * h, h}), at::randn({4 * h}), at::randn({4 * h})}) {
      weights.push_back(w / std::sqrt(static_cast<double>(h)));
      weight_gradients.push_back(at::empty_like(w));
    }
  }
  const Tensor output = at::empty({t, b, d * h}), hy = at::empty_like(hx), cy = at::empty_like(hx);
  const Tensor kept = at::empty({reserve});
  TestRunner runner;
  TestGraph builder;
  builder.call("remote::rnn", {x, weights, hx, cx, kMode}, {output, hy, cy, kept});
  builder.call(
      "remote::rnn_backward",
      {x, weights, hx, cx, output, at::randn_like(output), at::randn_like(hy), at::randn_like(cy), kMode, kept},
      {at::empty_like(x), at::empty_like(hx), at::empty_like(cx), weight_gradients});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  EXPECT_EQ(outcome.code, 0) << outcome.error.kind << ": " << outcome.error.message;
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
    for (size_t i = 0; i + 1 < wide.size(); ++i) EXPECT_TRUE(at::allclose(wide[i], narrow[i], 1e-4, 1e-5)) << i;
  }
}

}  // namespace
}  // namespace torch_remote::worker::aten

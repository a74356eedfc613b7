#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/real.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "ir/philox.h"
#include "worker/targets/aten/testing.h"

// Random ops: the numbers depend on (seed, offset) and the element's index alone, and have the right distribution.
namespace torch_remote::worker::aten {
namespace {

using c10::IValue;
using ir::Philox;

TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox(0, 0).block(0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~uint64_t{0}, ~uint64_t{0}).block(~uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox(0x299f31d0a4093822, 0x0370734413198a2e).block(0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Runs a random op. Returns its first result, or its first argument if it works in place.
at::Tensor draw(const std::string& op, const std::vector<IValue>& args, const std::vector<IValue>& results,
                int64_t seed = 7, int64_t offset = 3, int threads = 1) {
  TestRunner runner(/*inproc=*/false, uint64_t{8} << 30, threads);
  TestGraph builder;
  builder.call(op, args, results, seed, offset);
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  EXPECT_EQ(outcome.code, 0) << op << ": " << outcome.error.message;
  const ir::Node& node = builder.graph.nodes[0];
  return program.tensor(results.empty() ? node.args[0].a : node.results[0].a);
}

at::Tensor fill(const std::string& op, const std::vector<IValue>& rest, const at::Tensor& self, int64_t seed = 7,
                int64_t offset = 3, int threads = 1) {
  std::vector<IValue> args = {self};
  args.insert(args.end(), rest.begin(), rest.end());
  return draw(op, args, {}, seed, offset, threads);
}

TEST(Random, SameSeedAndOffsetSameNumbers) {
  const at::Tensor self = at::zeros({100, 7});
  for (const char* op : {"aten::uniform_", "aten::normal_", "aten::exponential_", "aten::random_", "aten::cauchy_"}) {
    const std::vector<IValue> rest = std::string(op) == "aten::uniform_"  ? std::vector<IValue>{0.0, 1.0}
                                     : std::string(op) == "aten::normal_" ? std::vector<IValue>{0.0, 1.0}
                                     : std::string(op) == "aten::cauchy_" ? std::vector<IValue>{0.0, 1.0}
                                     : std::string(op) == "aten::random_" ? std::vector<IValue>{}
                                                                          : std::vector<IValue>{1.0};
    const at::Tensor first = fill(op, rest, self);
    EXPECT_TRUE(at::equal(first, fill(op, rest, self))) << op;
    EXPECT_FALSE(at::equal(first, fill(op, rest, self, 8, 3))) << op;
    EXPECT_FALSE(at::equal(first, fill(op, rest, self, 7, 4))) << op;
    // The process's state does not matter: neither its default generator, nor earlier ops.
    at::manual_seed(99);
    EXPECT_TRUE(at::equal(first, fill(op, rest, self))) << op;
  }
}

TEST(Random, LayoutAndThreadsDoNotMatter) {
  for (const char* op : {"aten::uniform_", "aten::normal_"}) {
    const at::Tensor packed = fill(op, {0.0, 1.0}, at::zeros({300, 500}));
    const at::Tensor transposed = fill(op, {0.0, 1.0}, at::zeros({500, 300}).t());
    EXPECT_TRUE(at::equal(packed, transposed)) << op;
    EXPECT_TRUE(at::equal(packed, fill(op, {0.0, 1.0}, at::zeros({300, 500}), 7, 3, /*threads=*/4))) << op;
  }
}

void expect_near(const at::Tensor& values, double mean, double deviation) {
  const double n = static_cast<double>(values.numel());
  const at::Tensor v = values.to(at::kDouble);
  EXPECT_NEAR(v.mean().item<double>(), mean, 5 * deviation / std::sqrt(n) + 1e-12);
  EXPECT_NEAR(v.std().item<double>(), deviation, 0.03 * deviation);
}

TEST(Random, Distributions) {
  const int64_t n = 100000;
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor self = at::zeros({n}, type);
    expect_near(fill("aten::uniform_", {-1.0, 3.0}, self), 1, 4 / std::sqrt(12.0));
    expect_near(fill("aten::normal_", {2.0, 0.5}, self), 2, 0.5);
    expect_near(fill("aten::exponential_", {4.0}, self), 0.25, 0.25);
    expect_near(fill("aten::bernoulli_.float", {0.3}, self), 0.3, std::sqrt(0.21));
    expect_near(fill("aten::random_.from", {10, 20}, self), 14.5, std::sqrt(99.0 / 12));
  }
  const at::Tensor half = fill("aten::uniform_", {0.0, 1.0}, at::zeros({n}, at::kHalf));
  EXPECT_LT(half.max().item<float>(), 1.f);
  EXPECT_GE(half.min().item<float>(), 0.f);
  expect_near(half, 0.5, 1 / std::sqrt(12.0));
  const at::Tensor bfloat = fill("aten::uniform_", {0.0, 1.0}, at::zeros({n}, at::kBFloat16));
  EXPECT_LT(bfloat.max().item<float>(), 1.f);
  expect_near(fill("aten::normal_", {0.0, 1.0}, at::zeros({n}, at::kBFloat16)), 0, 1);
  const at::Tensor complex = fill("aten::normal_", {0.0, 1.0}, at::zeros({n}, at::kComplexFloat));
  expect_near(at::real(complex), 0, std::sqrt(0.5));
  // The tail of the normal distribution, and the independence of neighbors.
  const at::Tensor normal = fill("aten::normal_", {0.0, 1.0}, at::zeros({n}));
  EXPECT_NEAR(normal.abs().gt(2).sum().item<int64_t>() / static_cast<double>(n), 0.0455, 0.003);
  const at::Tensor a = normal.slice(0, 0, n - 1), b = normal.slice(0, 1, n);
  EXPECT_NEAR((a * b).mean().item<double>(), 0, 0.02);
}

TEST(Random, IntegersFillTheirRange) {
  const at::Tensor bytes = fill("aten::random_", {}, at::zeros({10000}, at::kByte));
  EXPECT_EQ(bytes.max().item<int64_t>(), 255);
  EXPECT_EQ(bytes.min().item<int64_t>(), 0);
  const at::Tensor signed_bytes = fill("aten::random_", {}, at::zeros({10000}, at::kChar));
  EXPECT_EQ(signed_bytes.max().item<int64_t>(), 127);
  EXPECT_EQ(signed_bytes.min().item<int64_t>(), 0);
  const at::Tensor longs = fill("aten::random_", {}, at::zeros({1000}, at::kLong));
  EXPECT_GT(longs.max().item<int64_t>(), int64_t{1} << 60);
  EXPECT_GE(longs.min().item<int64_t>(), 0);
  const at::Tensor all = fill("aten::random_.from", {INT64_MIN, IValue()}, at::zeros({1000}, at::kLong));
  EXPECT_LT(all.min().item<int64_t>(), -(int64_t{1} << 60));
  const at::Tensor wide = fill("aten::random_.from", {-3, int64_t{1} << 40}, at::zeros({1000}, at::kLong));
  EXPECT_GT(wide.max().item<int64_t>(), int64_t{1} << 38);
  const at::Tensor bools = fill("aten::random_", {}, at::zeros({1000}, at::kBool));
  EXPECT_TRUE(bools.any().item<bool>());
  EXPECT_FALSE(bools.all().item<bool>());
  const at::Tensor order = draw("aten::randperm", {1000}, {at::empty({1000}, at::kLong)});
  EXPECT_TRUE(at::equal(std::get<0>(order.sort()), at::arange(1000)));
  EXPECT_FALSE(at::equal(order, at::arange(1000)));
}

TEST(Random, BernoulliByTensorAndDropout) {
  const at::Tensor p = at::tensor({0.0, 1.0, 0.5}).expand({20000, 3});
  const at::Tensor drawn = fill("aten::bernoulli_.Tensor", {p}, at::zeros({20000, 3}));
  EXPECT_EQ(drawn.select(1, 0).sum().item<float>(), 0);
  EXPECT_EQ(drawn.select(1, 1).sum().item<float>(), 20000);
  expect_near(drawn.select(1, 2), 0.5, 0.5);

  TestRunner runner;
  TestGraph builder;
  const at::Tensor input = at::randn({200, 100});
  builder.call("aten::native_dropout", {input, 0.25, true}, {at::empty({200, 100}), at::empty({200, 100}, at::kBool)},
               5, 0);
  TestRunner::Loaded program(runner, builder);
  ASSERT_EQ(program.run().code, 0);
  const at::Tensor output = program.tensor(builder.graph.nodes[0].results[0].a);
  const at::Tensor mask = program.tensor(builder.graph.nodes[0].results[1].a);
  expect_near(mask, 0.75, std::sqrt(0.1875));
  EXPECT_TRUE(at::allclose(output, input * mask / 0.75));
}

// Torch's kernels draw from a generator that we seed with (seed, offset), with or without a Generator argument.
TEST(Random, OtherOpsAreReproducibleToo) {
  const at::Tensor weights = at::rand({50});
  const auto multinomial = [&](int64_t seed) {
    return draw("aten::multinomial", {weights, 20, false}, {at::empty({20}, at::kLong)}, seed, 0);
  };
  EXPECT_TRUE(at::equal(multinomial(1), multinomial(1)));
  EXPECT_FALSE(at::equal(multinomial(1), multinomial(2)));

  at::manual_seed(3);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(3);
  const auto rrelu = [&](int64_t seed) {
    return draw("aten::rrelu_with_noise", {at::full({50}, -1.f), at::zeros({50}), 0.1, 0.9, true}, {at::empty({50})},
                seed, 0);
  };
  EXPECT_TRUE(at::equal(rrelu(1), rrelu(1)));
  EXPECT_FALSE(at::equal(rrelu(1), rrelu(2)));
  EXPECT_TRUE(at::equal(at::rand({4}), expected)) << "the process's own generator was disturbed";
}

// Sessions in the user's process share torch's default generator, which an op without a Generator argument uses.
TEST(Random, SessionsOfOneProcessDoNotMixTheirSeeds) {
  const auto draw_often = [](int64_t seed, int times) {
    TestRunner runner(/*inproc=*/true);
    TestGraph builder;
    builder.call("aten::rand.out", {std::vector<int64_t>{2000}, at::empty({2000})}, {}, seed, 0);
    TestRunner::Loaded program(runner, builder);
    std::vector<at::Tensor> drawn;
    for (int i = 0; i < times; ++i) {
      const auto outcome = program.run();
      EXPECT_EQ(outcome.code, 0) << outcome.error.message;
      drawn.push_back(program.tensor(builder.graph.nodes[0].args[1].a));
    }
    return drawn;
  };
  const std::vector<at::Tensor> expected{draw_often(0, 1)[0], draw_often(1, 1)[0]};
  EXPECT_FALSE(at::equal(expected[0], expected[1]));
  at::manual_seed(3);
  const at::Tensor next = at::rand({4});
  at::manual_seed(3);
  std::vector<std::vector<at::Tensor>> drawn(2);
  std::vector<std::thread> threads;
  for (size_t seed = 0; seed < 2; ++seed) {
    threads.emplace_back([&, seed] { drawn[seed] = draw_often(static_cast<int64_t>(seed), 500); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t seed = 0; seed < 2; ++seed) {
    EXPECT_TRUE(std::ranges::all_of(drawn[seed], [&](const at::Tensor& t) { return at::equal(t, expected[seed]); }));
  }
  EXPECT_TRUE(at::equal(at::rand({4}), next)) << "the process's own generator was disturbed";
}

}  // namespace
}  // namespace torch_remote::worker::aten

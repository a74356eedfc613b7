#include "codegen/lower/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>

namespace torch_remote::codegen {
namespace {

// The text of the kernels of a graph whose nodes are one group. Missing parameters are 0.
std::string lowered(const std::string& text, std::vector<int64_t> params, std::vector<Launch>* launches = nullptr) {
  ir::Graph graph;
  Status status = ir::parse_graph(text, &graph);
  if (status.ok()) status = ir::verify(graph);
  std::vector<int64_t> values;
  params.resize(std::max<size_t>(params.size(), graph.params));
  if (status.ok()) status = ir::evaluate(graph, params.data(), &values);
  std::vector<Launch> made;
  if (status.ok()) status = lower_group(graph, graph.groups.at(0), values, &made);
  if (!status.ok()) return status.message();
  std::string all = "\n";
  for (const Launch& launch : made) all += print(launch.kernel);
  if (launches != nullptr) *launches = std::move(made);
  return all;
}

constexpr int64_t kBytes = 1 << 20;

TEST(Lower, AChainOverMergedDims) {
  std::vector<Launch> launches;
  EXPECT_EQ(lowered(R"(graph(s0..s5) {
  b0: input survives
  b1: fresh(s3) written_once group_local
  b2: fresh(s3) survives written_once
  b3: input survives
  %0: f32[s0, s1]{s1, s4} @b0
  group pointwise {
  %1: f32[s0, s1]{s1, s4} @b1 = aten::relu(%0)
  %2: bf16[s1]{s4} @b3
  %3: f32[s0, s1]{s1, s4} @b2 = aten::mul.Tensor(%1, %2)
  }
}
)",
                    {8, 100, 0, kBytes, 1, 0}, &launches),
            R"(
kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: bf16[j0]
  a2: f32[i0, j0]
  %0: f32 = constant 0.0
  %1: f32 = load a0
  %2: f32 = max %0, %1
  %3: f32 = load a1
  %4: f32 = mul %2, %3
  store a2, %4
}
)");
}

TEST(Lower, Softmax) {
  EXPECT_EQ(lowered(R"(graph(s0..s5) {
  s6 = 1
  b0: input survives
  b1: fresh(s3) written_once group_local
  b2: fresh(s3) survives written_once
  %0: f16[s0, s1, s2]{s4, s2, s6} @b0
  group pointwise {
  %1: f16[s0, s1, s2]{s4, s2, s6} @b1 = aten::_softmax(%0, -1, false)
  %2: f16[s0, s1, s2]{s4, s2, s6} @b2 = aten::mul.Scalar(%1, float(s5))
  }
}
)",
                    {8, 10, 100, kBytes, 1000, std::bit_cast<int64_t>(0.5)}),
            R"(
kernel(i0 | j0) {
  s0: f64
  a0: f16[i0, j0]
  a1: f16[i0, j0]
  %0: f32 = load a0
  %1: f32 = columns max %0
  %2: f32 = sub %0, %1
  %3: f32 = exp %2
  %4: f32 = columns sum %3
  %5: f32 = constant 1.0
  %6: f32 = div %5, %4
  %7: f32 = mul %3, %6
  %8: f64 = scalar s0
  %9: f32 = convert %8
  %10: f32 = mul %7, %9
  store a1, %10
}
)");
}

// If a group contains the log-softmax and its gradient, it computes the exponential once.
TEST(Lower, LogSoftmaxAndItsGradient) {
  EXPECT_EQ(lowered(R"(graph(s0..s3) {
  b0: input survives
  b1: fresh(s2) written_once group_local
  b2: input survives
  b3: fresh(s2) survives written_once
  %0: f32[s0, s1]{s1, 1} @b0
  %2: f32[s0, s1]{s1, 1} @b2
  group rowwise {
  %1: f32[s0, s1]{s1, 1} @b1 = aten::_log_softmax(%0, 1, false)
  %3: f32[s0, s1]{s1, 1} @b3 = aten::_log_softmax_backward_data(%2, %1, 1, f32)
  }
}
)",
                    {8, 10, kBytes, 0}),
            R"(
kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = columns max %0
  %2: f32 = sub %0, %1
  %3: f32 = exp %2
  %4: f32 = columns sum %3
  %5: f32 = log %4
  %6: f32 = sub %2, %5
  %7: f32 = load a1
  %8: f64 = convert %7
  %9: f64 = columns sum %8
  %10: f32 = convert %9
  %11: f32 = constant 1.0
  %12: f32 = div %11, %4
  %13: f32 = mul %3, %12
  %14: f32 = mul %13, %10
  %15: f32 = sub %7, %14
  store a2, %15
}
)");
}

TEST(Lower, LayerNormBackwardAfterAResidual) {
  EXPECT_EQ(lowered(R"(graph(s0..s5) {
  s6 = 1
  b0: input survives
  b1: input survives
  b2: fresh(s3) written_once group_local
  b3: input survives
  b4: input survives
  b5: input survives
  b6: fresh(s3) survives written_once
  b7: fresh(s3) survives written_once
  b8: fresh(s3) survives written_once
  %0: f32[s0, s1, s2]{s4, s2, s6} @b0
  %1: f32[s0, s1, s2]{s4, s2, s6} @b1
  group pointwise {
  %2: f32[s0, s1, s2]{s4, s2, s6} @b2 = aten::add.Tensor(%0, %1, alpha=float(s5))
  %3: f32[s0, s1, 1]{s1, s6, s6} @b3
  %4: f32[s0, s1, 1]{s1, s6, s6} @b4
  %5: f32[s2]{s6} @b5
  %6: f32[s0, s1, s2]{s4, s2, s6} @b6, %7: f32[s2]{s6} @b7, %8: f32[s2]{s6} @b8 = aten::native_layer_norm_backward(%2, %0, [s2], %3, %4, %5, %5, [true, true, true])
  }
}
)",
                    {8, 10, 100, kBytes, 1000, std::bit_cast<int64_t>(1.0)}),
            R"(
kernel(i0 | j0) {
  s0: f64
  s1: f64
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: f32[i0]
  a3: f32[i0]
  a4: f32[j0]
  a5: f32[i0, j0]
  a6: f32[j0]
  a7: f32[j0]
  %0: f32 = load a0
  %1: f64 = scalar s0
  %2: f32 = convert %1
  %3: f32 = load a1
  %4: f32 = mul %2, %3
  %5: f32 = fma %2, %3, %0
  %6: f32 = load a2
  %7: f32 = load a3
  %8: f32 = sub %0, %7
  %9: f32 = mul %8, %6
  %10: f32 = load a4
  %11: f32 = mul %5, %10
  %12: f64 = constant 1.0
  %13: f64 = scalar s1
  %14: f64 = columns sum %11
  %15: f64 = columns sum %9
  %16: f64 = mul %15, %13
  %17: f64 = mul %14, %16
  %18: f32 = mul %11, %9
  %19: f64 = columns sum %18
  %20: f64 = sub %19, %17
  %21: f64 = mul %12, %12
  %22: f64 = mul %20, %13
  %23: f64 = mul %22, %21
  %24: f64 = mul %16, %23
  %25: f64 = mul %14, %13
  %26: f64 = sub %25, %24
  %27: f32 = convert %23
  %28: f32 = mul %9, %27
  %29: f32 = convert %26
  %30: f32 = sub %11, %29
  %31: f32 = sub %30, %28
  %32: f32 = mul %31, %6
  %33: f32 = convert %16
  %34: f32 = sub %9, %33
  %35: f32 = mul %5, %34
  %36: f64 = convert %35
  %37: f64 = rows sum %36
  %38: f32 = convert %37
  %39: f64 = convert %5
  %40: f64 = rows sum %39
  %41: f32 = convert %40
  store a5, %32
  store a6, %38
  store a7, %41
}
)");
}

// Rows are the images, and the groups are dims around the kernel. So sums over the images and positions of a channel
// are `lines` sums.
TEST(Lower, GroupNormBackward) {
  std::vector<Launch> launches;
  const std::string text = lowered(R"(graph(s0..s3) {
  s4 = 1
  b0: input survives
  b1: input survives
  b2: input survives
  b3: input survives
  b4: input survives
  b5: fresh(s3) survives written_once
  b6: fresh(s3) survives written_once
  b7: fresh(s3) survives written_once
  group rowwise {
  %0: f32[s0, 6, s1]{s2, s1, s4} @b0
  %1: f32[s0, 6, s1]{s2, s1, s4} @b1
  %2: f32[s0, 2]{2, s4} @b2
  %3: f32[s0, 2]{2, s4} @b3
  %4: f32[6]{s4} @b4
  %5: f32[s0, 6, s1]{s2, s1, s4} @b5, %6: f32[6]{s4} @b6, %7: f32[6]{s4} @b7 = aten::native_group_norm_backward(%0, %1, %2, %3, %4, s0, 6, s1, 2, [true, true, true])
  }
}
)",
                                   {5, 100, 600, kBytes}, &launches);
  EXPECT_EQ(text, R"(
kernel(i0 | j0, j1) {
  s0: f64
  a0: f32[i0, j0, j1]
  a1: f32[i0]
  a2: f32[i0, j0, j1]
  a3: f32[i0]
  a4: f32[j0]
  a5: f32[i0, j0, j1]
  a6: f32[j0]
  a7: f32[j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = load a2
  %3: f32 = load a3
  %4: f32 = sub %2, %3
  %5: f32 = mul %4, %1
  %6: f32 = load a4
  %7: f32 = mul %0, %6
  %8: f64 = constant 1.0
  %9: f64 = scalar s0
  %10: f64 = columns sum %7
  %11: f64 = columns sum %5
  %12: f64 = mul %11, %9
  %13: f64 = mul %10, %12
  %14: f32 = mul %7, %5
  %15: f64 = columns sum %14
  %16: f64 = sub %15, %13
  %17: f64 = mul %8, %8
  %18: f64 = mul %16, %9
  %19: f64 = mul %18, %17
  %20: f64 = mul %12, %19
  %21: f64 = mul %10, %9
  %22: f64 = sub %21, %20
  %23: f32 = convert %19
  %24: f32 = mul %5, %23
  %25: f32 = convert %22
  %26: f32 = sub %7, %25
  %27: f32 = sub %26, %24
  %28: f32 = mul %27, %1
  %29: f32 = convert %12
  %30: f32 = sub %5, %29
  %31: f32 = mul %0, %30
  %32: f64 = lines sum %31
  %33: f32 = convert %32
  %34: f64 = lines sum %0
  %35: f32 = convert %34
  store a5, %28
  store a6, %33
  store a7, %35
}
)");
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].sizes, (std::vector<int64_t>{5, 3, 100}));
  EXPECT_EQ(launches[0].outer, std::vector<int64_t>{2});
  EXPECT_EQ(launches[0].operands[4].outer, std::vector<int64_t>{3});
}

TEST(Lower, ReshapedInBetween) {
  EXPECT_EQ(lowered(R"(graph(s0..s6) {
  s7 = 1
  b0: input survives
  b1: fresh(s3) written_once group_local
  b2: fresh(s3) survives written_once
  b3: fresh(s3) survives written_once
  %0: f32[s4, s2]{s2, s7} @b0
  group pointwise {
  %1: f32[s4, s2]{s2, s7} @b1 = aten::relu(%0)
  %2: f32[s0, s1, s2]{s5, s2, s7} @b1
  %3: f32[s0, s1, s2]{s2, s6, s7} @b2 = aten::neg(%2)
  %4: f32[s0, s2, s1]{s5, s7, s2} @b1
  %5: f32[s0, s2]{s2, s7} @b3 = aten::mean.dim(%4, [2], false)
  }
}
)",
                    {8, 10, 100, kBytes, 80, 1000, 800}),
            R"(
kernel(i0 | j0, j1) {
  s0: f64
  a0: f32[i0, j0, j1]
  a1: f32[i0, j0, j1]
  a2: f32[j0, j1]
  %0: f32 = constant 0.0
  %1: f32 = load a0
  %2: f32 = max %0, %1
  %3: f32 = neg %2
  %4: f64 = scalar s0
  %5: f64 = convert %2
  %6: f64 = rows sum %5
  %7: f64 = div %6, %4
  %8: f32 = convert %7
  store a1, %3
  store a2, %8
}
)");
}

TEST(Lower, SumOfAll) {
  std::vector<Launch> launches;
  EXPECT_EQ(lowered(R"(graph(s0..s2) {
  s3 = 1
  b0: input survives
  b1: fresh(s1) written_once group_local
  b2: fresh(s1) survives written_once
  b3: fresh(s1) survives written_once
  %0: f32[s0]{s3} @b0
  group pointwise {
  %1: f32[s0]{s3} @b1 = aten::abs(%0)
  %2: f32[] @b2 = aten::sum(%1)
  %3: f32[] @b3 = aten::sqrt(%2)
  }
}
)",
                    {100000, kBytes, 0}, &launches),
            R"(
kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[]
  a2: f32[]
  %0: f32 = load a0
  %1: f32 = abs %0
  %2: f64 = columns sum %1
  %3: f64 = rows sum %2
  %4: f32 = convert %3
  %5: f32 = sqrt %4
  store a1, %4
  store a2, %5
}
)");
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].sizes, (std::vector<int64_t>{24, 4096}));
  EXPECT_EQ(launches[0].remainder_columns, 100000 - 24 * 4096);
}

// A sum with a product is rounded once in torch's vector code. So infinity - 2.5 * (largest number) is infinity.
TEST(Lower, ASumWithAProductIsRoundedOnce) {
  EXPECT_EQ(lowered(R"(graph(s0..s4) {
  s5 = 1
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives written_once
  %0: f32[s0]{s5} @b0
  %1: f32[s0]{s5} @b1
  group pointwise {
  %2: f32[s0]{s5} @b2 = aten::sub.Tensor(%0, %1, alpha=float(s2))
  }
}
)",
                    {100, kBytes, std::bit_cast<int64_t>(2.5), 0}),
            R"(
kernel(| j0) {
  s0: f64
  a0: f32[j0]
  a1: f32[j0]
  a2: f32[j0]
  %0: f32 = load a0
  %1: f64 = scalar s0
  %2: f32 = convert %1
  %3: f32 = load a1
  %4: f32 = mul %2, %3
  %5: f32 = neg %2
  %6: f32 = fma %5, %3, %0
  store a2, %6
}
)");
}

// Rounding an integer returns it.
TEST(Lower, RoundingOfIntegers) {
  for (const char* op : {"_foreach_floor", "_foreach_ceil", "_foreach_round", "_foreach_trunc"}) {
    const std::string text = lowered(R"(graph(s0..s2) {
  s3 = 1
  b0: input survives
  b1: fresh(s1) survives written_once
  %0: i32[s0]{s3} @b0
  group multi_tensor {
  [%1: i32[s0]{s3} @b1] = aten::)" + std::string(op) +
                                         R"(([%0])
  }
}
)",
                                     {100, kBytes});
    EXPECT_NE(text.find("store a1, %0"), std::string::npos) << text;
  }
}

// Integer division by zero is an error that kernels cannot report. So only nonzero numbers are accepted as divisors.
TEST(Lower, DivisionOfIntegers) {
  const auto divided = [](const char* divisor, int64_t number) {
    return lowered(R"(graph(s0..s3) {
  s4 = 1
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives written_once
  %0: i32[s0]{s4} @b0
  %1: i32[s0]{s4} @b1
  group pointwise {
  %2: i32[s0]{s4} @b2 = aten::remainder.Tensor(%0, )" +
                       std::string(divisor) + R"()
  }
}
)",
                   {100, kBytes, number});
  };
  EXPECT_NE(divided("number(s2: i64)", 3).find("= remainder"), std::string::npos);
  EXPECT_EQ(divided("number(s2: i64)", 0), "there is no kernel for this form of aten::remainder.Tensor");
  // As int32, these numbers are 0 and 1.
  EXPECT_EQ(divided("number(s2: i64)", int64_t{3} << 32), "there is no kernel for this form of aten::remainder.Tensor");
  EXPECT_NE(divided("number(s2: i64)", (int64_t{1} << 32) + 1).find("= remainder"), std::string::npos);
  EXPECT_EQ(divided("%1", 3), "aten::remainder.Tensor does not have the elements of the other nodes");
}

// A conversion to a half type rounds even in the middle of a group. Other ops of half types are rounded at its end.
TEST(Lower, ConversionsRound) {
  const auto kernel = [](const char* first) {
    return lowered(R"(graph(s0..s3) {
  s4 = 1
  b0: input survives
  b1: fresh(s1) written_once group_local
  b2: fresh(s1) survives written_once
  %0: f32[s0]{s4} @b0
  %3: bf16[s0]{s4} @b0
  group pointwise {
  %1: bf16[s0]{s4} @b1
  )" + std::string(first) +
                       R"(
  %2: f32[s0]{s4} @b2
  aten::copy_(%2!, %1)
  }
}
)",
                   {100, kBytes, 0});
  };
  EXPECT_NE(kernel("aten::copy_(%1!, %0)").find("bits"), std::string::npos);
  EXPECT_EQ(kernel("aten::copy_(%1!, %3)").find("bits"), std::string::npos);
}

// 60000 * 2 is infinite as float16, and 1 + 2^-10 is 1 as bfloat16. So comparisons, integers and indices must not see
// the float32 numbers of a chain. Elements that come from memory need no rounding.
TEST(Lower, BoolsAndIndicesAreOfRoundedNumbers) {
  const auto rounds = [](const std::string& dtype, const std::string& reduction) {
    const std::string view = dtype + "[s0, s1]{s1, 1}";
    const std::string text = lowered("graph(s0..s2) {\n  b0: input survives\n  b1: fresh(s2) written_once group_local\n"
                                     "  b2: fresh(s2) survives written_once\n  %0: " +
                                         view + " @b0\n  group rowwise {\n  %1: " + view +
                                         " @b1 = aten::mul.Tensor(%0, %0)\n  %2: " + reduction + "\n  }\n}\n",
                                     {8, 100, kBytes});
    EXPECT_NE(text.find("store"), std::string::npos) << text;
    return text.find("bits") != std::string::npos;
  };
  for (const std::string dtype : {"f16", "bf16"}) {
    EXPECT_TRUE(rounds(dtype, "i64[s0]{1} @b2 = aten::argmax(%1, 1, false)")) << dtype;
    EXPECT_FALSE(rounds(dtype, "i64[s0]{1} @b2 = aten::argmax(%0, 1, false)")) << dtype;
    EXPECT_TRUE(rounds(dtype, "bool[s0]{1} @b2 = aten::any.dim(%1, 1, false)")) << dtype;
    EXPECT_FALSE(rounds(dtype, dtype + "[s0]{1} @b2 = aten::amax(%1, [1], false)")) << dtype;
  }
  EXPECT_FALSE(rounds("f32", "i64[s0]{1} @b2 = aten::argmax(%1, 1, false)"));
}

TEST(Lower, PredicatesAndConversionsAreOfRoundedNumbers) {
  const auto rounds = [](const std::string& first, const std::string& second) {
    const std::string text = lowered("graph(s0..s2) {\n  s3 = 1\n  b0: input survives\n"
                                     "  b1: fresh(s1) written_once group_local\n  b2: fresh(s1) survives written_once\n"
                                     "  %0: f16[s0]{s3} @b0\n  group pointwise {\n  %1: f16[s0]{s3} @b1 = " +
                                         first + "\n  " + second + "\n  }\n}\n",
                                     {100, kBytes});
    EXPECT_NE(text.find("store"), std::string::npos) << text;
    return text.find("bits") != std::string::npos;
  };
  const std::string chain = "aten::mul.Tensor(%0, %0)";
  for (const char* predicate : {"isinf(%1)", "eq.Tensor(%0, %1)", "logical_not(%1)"}) {
    EXPECT_TRUE(rounds(chain, std::string("%2: bool[s0]{s3} @b2 = aten::") + predicate)) << predicate;
  }
  EXPECT_TRUE(rounds(chain, "%2: i32[s0]{s3} @b2\n  aten::copy_(%2!, %1)"));
  EXPECT_FALSE(rounds(chain, "%2: f32[s0]{s3} @b2\n  aten::copy_(%2!, %1)"));
  EXPECT_FALSE(rounds(chain, "%2: f16[s0]{s3} @b2 = aten::neg(%1)"));
}

constexpr const char* kRotary = R"(graph(s0..s2) {
  b0: input survives
  b1: fresh(s2) written_once group_local
  b2: fresh(s2) written_once group_local
  b3: input survives
  b4: fresh(s2) survives written_once
  %0: f32[s0, s1]{s1, 1} @b0
  %1: f32[s0, 50]{s1, 1} @b0 + 50
  %2: f32[s0, 50]{s1, 1} @b0
  group pointwise {
  %3: f32[s0, 50]{50, 1} @b1 = aten::neg(%1)
  %4: f32[s0, s1]{s1, 1} @b2 = aten::cat([%3, %2], 1)
  %5: f32[s0, s1]{s1, 1} @b3
  %6: f32[s0, s1]{s1, 1} @b4 = aten::mul.Tensor(%4, %5)
  }
}
)";

TEST(Lower, AJoinIsAKernelForEachSection) {
  std::vector<Launch> launches;
  EXPECT_EQ(lowered(kRotary, {8, 100, kBytes}, &launches), R"(
kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = neg %0
  %2: f32 = load a1
  %3: f32 = mul %1, %2
  store a2, %3
}
kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = mul %0, %1
  store a2, %2
}
)");
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_FALSE(launches[0].alternates_with_previous);
  EXPECT_TRUE(launches[1].alternates_with_previous);
  const auto offsets = [&](const Launch& launch) {
    std::vector<int64_t> found;
    found.reserve(launch.operands.size());
    for (const Binding& binding : launch.operands) found.push_back(binding.offset);
    return found;
  };
  EXPECT_EQ(offsets(launches[0]), (std::vector<int64_t>{50, 0, 0}));
  EXPECT_EQ(offsets(launches[1]), (std::vector<int64_t>{0, 50, 50}));
  for (const Launch& launch : launches) {
    EXPECT_EQ(launch.sizes, (std::vector<int64_t>{8, 50}));
    EXPECT_EQ(launch.operands[1].buffer, 3u);
    EXPECT_EQ(launch.operands[2].buffer, 4u);
  }
}

TEST(Lower, GradientsOfEverySecondPlace) {
  // The operands go to columns 0, 2, 4, ... and to columns 3, 5, 7, ...
  std::vector<Launch> launches;
  const std::string text = lowered(R"(graph(s0..s2) {
  b0: input survives
  b1: input survives
  b2: fresh(s2) written_once group_local
  b3: fresh(s2) written_once group_local
  b4: fresh(s2) survives written_once
  %0: f32[s0, 50]{50, 1} @b0
  %1: f32[s0, 49]{49, 1} @b1
  group pointwise {
  %2: f32[s0, s1]{s1, 1} @b2 = aten::slice_backward(%0, [s0, s1], 1, 0, 100, 2)
  %3: f32[s0, s1]{s1, 1} @b3 = aten::slice_backward(%1, [s0, s1], 1, 3, 100, 2)
  %4: f32[s0, s1]{s1, 1} @b4 = aten::add.Tensor(%2, %3, alpha=1)
  }
}
)",
                                   {8, 100, kBytes}, &launches);
  ASSERT_EQ(launches.size(), 5u) << text;
  std::vector<int64_t> columns, first, steps;
  for (const Launch& launch : launches) {
    columns.push_back(launch.sizes.back());
    first.push_back(launch.operands.back().offset);
    steps.push_back(launch.operands.back().strides.back());
  }
  // The sections are columns 0 and 2; column 1 of each row; 3, 5, ... 97; column 99 of each row; 4, 6, ...
  EXPECT_EQ(columns, (std::vector<int64_t>{2, 8, 48, 8, 48}));
  EXPECT_EQ(first, (std::vector<int64_t>{0, 1, 3, 99, 4}));
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 100, 2, 100, 2}));
}

TEST(Lower, WhatIsJoinedNeedNotFit) {
  // An intermediate result is read at other positions than those where it is computed.
  EXPECT_EQ(lowered(R"(graph(s0..s2) {
  b0: input survives
  b1: fresh(s2) written_once group_local
  b2: fresh(s2) survives written_once
  %0: f32[s0, s1]{s1, 1} @b0
  group pointwise {
  %1: f32[s0, s1]{s1, 1} @b1 = aten::neg(%0)
  %2: f32[s0, 50]{s1, 1} @b1 + 50
  %3: f32[s0, 50]{s1, 1} @b1
  %4: f32[s0, s1]{s1, 1} @b2 = aten::cat([%2, %3], 1)
  }
}
)",
                    {8, 100, kBytes}),
            "aten::copy_ does not have the elements of the other nodes");
}

// Whether b1 may share the memory of b0, in a group that computes b1, and perhaps b2, from b0.
bool shares(const std::string& nodes, const std::string& b0 = "f32[s0, s1]{s1, 1}") {
  std::vector<Launch> launches;
  std::string graph = "graph(s0..s2) {\n  s3 = 1\n  s4 = 0\n  b0: input\n  b1: fresh(s2) survives written_once\n";
  if (nodes.find("@b2") != std::string::npos) graph += "  b2: fresh(s2) survives written_once\n";
  graph.append("  %0: ").append(b0).append(" @b0\n  group rowwise {\n").append(nodes).append("  }\n}\n");
  EXPECT_EQ(lowered(graph, {8, 100, kBytes}, &launches).substr(0, 8), "\nkernel(")
      << graph << lowered(graph, {8, 100, kBytes});
  return launches.size() == 1 && may_share(launches, 1, 0);
}

TEST(Lower, WhatIsStoredMayTakeAPlaceAfterItsLastLoad) {
  EXPECT_TRUE(shares("  %1: f32[s0, s1]{s1, 1} @b1 = aten::relu(%0)\n"));
  EXPECT_TRUE(shares("  %1: f32[s0, s1]{s1, 1} @b1 = aten::_softmax(%0, 1, false)\n"));
  // The loop that finds the maximum comes first. What it stores would be loaded again by the other loops.
  EXPECT_FALSE(shares(R"(  %1: f32[s0, s1]{s1, 1} @b1 = aten::relu(%0)
  %2: f32[s0, s1]{s1, 1} @b2 = aten::_softmax(%0, 1, false)
)"));
  // Elements have other sizes, and then other positions.
  EXPECT_FALSE(shares("  %1: bool[s0, s1]{s1, 1} @b1 = aten::logical_not(%0)\n"));
  EXPECT_FALSE(shares("  %1: f32[s0, s1]{s1, 1} @b1 = aten::relu(%0)\n", "f32[s0, s1]{0, 1}"));
}

TEST(Lower, IndicesBelowZeroCountFromTheEnd) {
  std::vector<Launch> launches;
  EXPECT_EQ(lowered(R"(graph(s0..s4) {
  b0: input survives
  b1: input survives
  b2: input survives
  b3: fresh(s3) survives written_once
  %0: f32[s0, s1, s2]{900, s2, 1} @b0
  %1: i64[s4]{1} @b1
  %2: i32[s4]{1} @b2 + 3
  group pointwise {
  %3: f32[s0, s4]{s4, 1} @b3 = aten::index.Tensor(%0, [none, %1, %2])
  }
}
)",
                    {8, 30, 20, kBytes, 11}, &launches),
            R"(
kernel(i0 | j0) {
  s0: i64
  s1: i64
  a0: i64[j0]
  a1: i32[j0]
  a2: f32[_, _, i0]
  a3: f32[i0, j0]
  %0: i64 = load a0
  %1: i64 = constant 0
  %2: bool = lt %0, %1
  %3: i64 = scalar s0
  %4: i64 = add %0, %3
  %5: i64 = where %2, %4, %0
  %6: i32 = load a1
  %7: i64 = convert %6
  %8: bool = lt %7, %1
  %9: i64 = scalar s1
  %10: i64 = add %7, %9
  %11: i64 = where %8, %10, %7
  %12: f32 = load a2[%5, %11]
  store a3, %12
}
)");
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].sizes, (std::vector<int64_t>{8, 11}));
  EXPECT_FALSE(launches[0].check_indices_first);
  ASSERT_EQ(launches[0].checks.size(), 2u);
  EXPECT_EQ(launches[0].checks[1].offset, 3);
  EXPECT_EQ(launches[0].checks[1].bound, 20);
  EXPECT_TRUE(launches[0].checks[1].wraps);
}

constexpr const char* kTake = R"(graph(s0..s5) {
  b0: input survives
  b1: input survives
  b2: fresh(s3) survives written_once
  %0: f32[s0, s1, s2]{s4, s2, 1} @b0
  %1: i64[s5]{1} @b1
  group pointwise {
  %2: f32[s5]{1} @b2 = aten::take(%0, %1)
  }
}
)";

// If dims are contiguous, an element's number is one index.
TEST(Lower, ElementsByTheirNumber) {
  std::vector<Launch> launches;
  EXPECT_EQ(lowered(kTake, {8, 30, 20, kBytes, 600, 11}, &launches), R"(
kernel(| j0) {
  s0: i64
  a0: i64[j0]
  a1: f32[_]
  a2: f32[j0]
  %0: i64 = load a0
  %1: i64 = constant 0
  %2: bool = lt %0, %1
  %3: i64 = scalar s0
  %4: i64 = add %0, %3
  %5: i64 = where %2, %4, %0
  %6: f32 = load a1[%5]
  store a2, %6
}
)");
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_FALSE(launches[0].splits_linear_indices);
  EXPECT_EQ(launches[0].operands[1].bounds, std::vector<int64_t>{4800});
  ASSERT_EQ(launches[0].checks.size(), 1u);
  EXPECT_EQ(launches[0].checks[0].bound, 4800);
  EXPECT_TRUE(launches[0].checks[0].wraps);
}

TEST(Lower, ElementsByTheirNumberOfASlice) {
  std::vector<Launch> launches;
  EXPECT_EQ(lowered(kTake, {8, 30, 20, kBytes, 700, 11}, &launches), R"(
kernel(| j0) {
  s0: i64
  s1: i64
  a0: i64[j0]
  a1: f32[_, _]
  a2: f32[j0]
  %0: i64 = load a0
  %1: i64 = constant 0
  %2: bool = lt %0, %1
  %3: i64 = scalar s0
  %4: i64 = add %0, %3
  %5: i64 = where %2, %4, %0
  %6: i64 = scalar s1
  %7: i64 = div %5, %6
  %8: i64 = mul %7, %6
  %9: i64 = sub %5, %8
  %10: f32 = load a1[%7, %9]
  store a2, %10
}
)");
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_TRUE(launches[0].splits_linear_indices);
  EXPECT_EQ(launches[0].operands[1].bounds, (std::vector<int64_t>{8, 600}));
  EXPECT_EQ(launches[0].checks[0].bound, 4800);
}

TEST(Lower, RunningLogarithmsOfSums) {
  EXPECT_EQ(lowered(R"(graph(s0..s2) {
  b0: input survives
  b1: fresh(s2) survives written_once
  %0: bf16[s0, s1]{s1, 1} @b0
  group rowwise {
  %1: bf16[s0, s1]{s1, 1} @b1 = aten::_logcumsumexp(%0, -1)
  }
}
)",
                    {8, 100, kBytes}),
            R"(
kernel(i0 | j0) {
  a0: bf16[i0, j0]
  a1: bf16[i0, j0]
  %0: f32 = load a0
  %1: f32 = running logsumexp %0
  store a1, %1
}
)");
}

TEST(Lower, RowsAreAddedWhereAnIndexSays) {
  std::vector<Launch> launches;
  EXPECT_EQ(lowered(R"(graph(s0..s4) {
  b0: input survives
  b1: input survives
  b2: input survives
  %0: f32[s0, s1]{s1, 1} @b0
  %1: i64[s2]{1} @b1
  %2: f32[s2, s1]{s1, 1} @b2
  group pointwise {
  aten::index_add_(%0!, 0, %1, %2, alpha=s3)
  }
}
)",
                    {50, 16, 7, 1, 0}, &launches),
            R"(
kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: i64[i0]
  a2: f32[_, j0]
  %0: f32 = load a0
  %1: i64 = load a1
  store a2[%1], %0 adds
}
)");
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_TRUE(launches[0].check_indices_first);
  EXPECT_FALSE(launches[0].operands[2].needs_zero_fill);
}

// If two results have different strides, the transposed one is stored to packed memory.
TEST(Lower, WhatLiesAcrossIsPacked) {
  std::vector<Launch> launches;
  EXPECT_EQ(lowered(R"(graph(s0..s3) {
  s4 = 1
  b0: input survives
  b1: fresh(s2) survives written_once
  b2: fresh(s2) survives written_once
  %0: f32[s0, s1]{s4, s0} @b0
  group pointwise {
  %1: f32[s0, s1]{s1, s4} @b1 = aten::relu(%0)
  %2: f32[s0, s1]{s4, s0} @b2 = aten::neg(%1)
  }
}
)",
                    {40, 30, kBytes}, &launches),
            R"(
kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: f32[i0, j0]
  %0: f32 = constant 0.0
  %1: f32 = load a0
  %2: f32 = max %0, %1
  %3: f32 = neg %2
  store a1, %2
  store a2, %3
}
)");
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_TRUE(launches[0].operands[0].packed);
  EXPECT_FALSE(launches[0].operands[1].packed);
  EXPECT_TRUE(launches[0].operands[2].packed);
  // The memory that it is unpacked to must not be that of operands which are loaded later.
  EXPECT_FALSE(may_share(launches, 2, 0));
}

// If one loop nest cannot compute a group, the error says so, and there is no kernel.
TEST(Lower, WhatDoesNotFit) {
  EXPECT_EQ(lowered(R"(graph(s0..s3) {
  s4 = 1
  b0: input survives
  b1: fresh(s1) written_once group_local
  b2: fresh(s1) survives written_once
  b3: input survives
  %0: f32[s0, s2]{s2, s4} @b0
  group pointwise {
  %1: f32[s0, s2]{s2, s4} @b1 = aten::neg(%0)
  %2: f32[s2, s0]{s2, s4} @b1
  %3: f32[s2, s0]{s2, s4} @b3
  %4: f32[s2, s0]{s0, s4} @b2 = aten::mul.Tensor(%2, %3)
  }
}
)",
                    {4, kBytes, 5, 0}),
            "aten::mul.Tensor does not have the elements of the other nodes");
}

}  // namespace
}  // namespace torch_remote::codegen

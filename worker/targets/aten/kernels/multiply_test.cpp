#include "worker/targets/aten/kernels/multiply.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "worker/targets/aten/testing.h"

// GEMMs outside of programs, with both libraries, compared with double precision: matrices and batches in all layouts.
namespace torch_remote::worker::aten {
namespace {

// Returns a column-major copy.
at::Tensor across(const at::Tensor& matrix) { return matrix.transpose(-1, -2).contiguous().transpose(-1, -2); }
// Returns a copy with gaps between its rows.
at::Tensor with_gaps(const at::Tensor& matrix) { return at::constant_pad_nd(matrix, {1, 2}).slice(-1, 1, -2); }

tr_matrix matrix(const at::Tensor& tensor) {
  const int64_t d = tensor.dim();
  return {tensor.data_ptr(), d == 3 ? tensor.stride(0) : 0, tensor.stride(d - 2), tensor.stride(d - 1)};
}

class Multiply : public ::testing::TestWithParam<tr_matmul_algorithm> {
 protected:
  // oneDNN has such kernels for processors with AVX-512 or AVX-NE-CONVERT.
  static bool is_there() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw")) return true;
#endif
    return GetParam() == TR_MATMUL_AS_OP;
  }

  int call(const at::Tensor& left, const at::Tensor& right, const at::Tensor& addend, const at::Tensor& result) {
    tr_matmul matmul{};
    matmul.struct_size = sizeof(matmul);
    matmul.dtype = static_cast<int>(left.scalar_type());
    matmul.algorithm = GetParam();
    matmul.batches = left.dim() == 3 ? left.size(0) : 0;
    matmul.rows = left.size(-2);
    matmul.depth = left.size(-1);
    matmul.columns = right.size(-1);
    matmul.left = matrix(left);
    matmul.right = matrix(right);
    matmul.result = matrix(result);
    if (addend.defined()) matmul.addend = matrix(addend.expand(result.sizes()));
    return runner_.api->matmul(runner_.runner, &matmul);
  }

  // Returns an empty string, or what is wrong.
  std::string check(const at::Tensor& left, const at::Tensor& right, const at::Tensor& addend) {
    at::Tensor expected = at::matmul(left.to(at::kDouble), right.to(at::kDouble));
    if (addend.defined()) expected = expected + addend.to(at::kDouble);
    const at::Tensor result = at::full(expected.sizes(), std::numeric_limits<float>::quiet_NaN());
    if (call(left, right, addend, result) != 0) return "it is not done";
    // The bound on the error of a float32 sum with this many terms.
    const at::Tensor size = at::matmul(left.abs().to(at::kDouble), right.abs().to(at::kDouble)) + expected.abs();
    const at::Tensor error = (result.to(at::kDouble) - expected).abs() / size;
    const double most = error.max().item<double>();
    return most <= 0x1p-22 ? "" : "an error of " + std::to_string(most * 0x1p24) + " units";
  }

  TestRunner runner_{false, uint64_t{8} << 30, 2};
};

TEST_P(Multiply, EqualsTheSumHoweverMatricesLie) {
  if (!is_there()) GTEST_SKIP();
  at::manual_seed(0);
  using Layout = at::Tensor (*)(const at::Tensor&);
  const std::vector<Layout> layouts = {[](const at::Tensor& t) { return t; }, across, with_gaps};
  for (const std::vector<int64_t>& batch : std::vector<std::vector<int64_t>>{{}, {5}}) {
    const auto sizes = [&](int64_t rows, int64_t columns) {
      std::vector<int64_t> all = batch;
      all.insert(all.end(), {rows, columns});
      return all;
    };
    for (const auto& [rows, depth, columns] :
         {std::array<int64_t, 3>{70, 33, 50}, {1, 64, 40}, {96, 128, 1}, {9, 1, 8}}) {
      for (const Layout left : layouts) {
        for (const Layout right : layouts) {
          const at::Tensor a = left(at::randn(sizes(rows, depth))), b = right(at::randn(sizes(depth, columns)));
          for (const at::Tensor& addend : {at::Tensor(), at::randn({columns}), at::randn(sizes(rows, columns))}) {
            EXPECT_EQ(check(a, b, addend), "") << rows << " " << depth << " " << columns << " of " << batch.size();
          }
        }
      }
    }
  }
}

TEST_P(Multiply, KeepsNanAndInfinity) {
  if (!is_there()) GTEST_SKIP();
  const at::Tensor left = at::ones({20, 40}), right = at::ones({40, 30}), result = at::empty({20, 30});
  left[3][39] = std::numeric_limits<float>::infinity();
  right[39][7] = 0;
  right[0][9] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_EQ(call(left, right, at::Tensor(), result), 0);
  EXPECT_TRUE(at::equal(result.isnan(), at::matmul(left, right).isnan()));
  EXPECT_TRUE(at::equal(result.isinf(), at::matmul(left, right).isinf()));
}

TEST_P(Multiply, OneDnnIsForFloatAlone) {
  const at::Tensor left = at::ones({20, 40}, at::kDouble), right = at::ones({40, 30}, at::kDouble);
  const at::Tensor result = at::zeros({20, 30}, at::kDouble);
  const bool done = call(left, right, at::Tensor(), result) == 0;
  EXPECT_EQ(done, GetParam() == TR_MATMUL_AS_OP);
  EXPECT_EQ(result[0][0].item<double>(), done ? 40 : 0);
}

// The host is asked about GEMMs that are possible; torch reports what is wrong with others.
TEST(GemmInto, ChecksItsSizes) {
  static int asked;
  asked = 0;
  tr_host host{};
  host.struct_size = sizeof(host);
  host.matmul_algorithm = [](void*, const tr_matmul*) -> int {
    ++asked;
    return TR_MATMUL_AS_OP;
  };
  set_gemm_host(&host);
  const auto multiply = [](const at::Tensor& result, const at::Tensor& left, const at::Tensor& right) {
    gemm_into(result, left, right);
  };
  const at::Tensor result = at::zeros({4, 4});
  multiply(result, at::ones({4, 3}), at::ones({3, 4}));
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(at::equal(result, at::full({4, 4}, 3.0f)));
  EXPECT_THROW(multiply(result, at::ones({4, 3}), at::ones({2, 4})), c10::Error);
  EXPECT_THROW(multiply(result, at::ones({4, 3}), at::ones({3, 4}, at::kDouble)), c10::Error);
  EXPECT_THROW(multiply(result, at::ones({4, 3}), at::ones({3})), c10::Error);
  multiply(at::zeros({2, 2}), at::ones({4, 3}), at::ones({3, 4}));
  EXPECT_EQ(asked, 1);
  set_gemm_host(nullptr);
}

INSTANTIATE_TEST_SUITE_P(Ways, Multiply, ::testing::Values(TR_MATMUL_AS_OP, TR_MATMUL_ONEDNN),
                         [](const auto& way) { return way.param == TR_MATMUL_ONEDNN ? "OneDnn" : "AsOp"; });

}  // namespace
}  // namespace torch_remote::worker::aten

// Plans decline nodes whose sizes, dims, dtypes or numbers do not match, because their kernels would access other
// memory. Each case has one word in two variants: with the first one, the node has a plan.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "worker/targets/cuda/ops/plan_table.h"

namespace torch_remote::worker::cuda {
namespace {

struct Case {
  const char *good, *bad;  // Stand for "?" in `lines`.
  const char* lines;
};

// Plans the first node of a graph with these lines. Buffers b0 to b3 are inputs, and b4 to b7 are results.
Status plan_of(std::string lines, const std::string& word, OpPlan* plan) {
  const size_t at = lines.find('?');
  if (at != std::string::npos) lines.replace(at, 1, word);
  std::string text = "graph() {\n";
  for (int b = 0; b < 8; ++b) text += "  b" + std::to_string(b) + (b < 4 ? ": input\n" : ": fresh(64) survives\n");
  ir::Graph graph;
  std::vector<int64_t> values;
  Status status = ir::parse_graph(text + lines + "}", &graph);
  if (status.ok()) status = ir::evaluate(graph, nullptr, &values);
  if (!status.ok()) return status;
  const NamedPlan* const named = find_op_plan(graph.nodes[0].opcode);
  if (named == nullptr) return Status::internal("the op has no plan");
  std::vector<ir::Sym> symbols;
  OpNode node(graph, 0, values, &symbols);
  return plan_node(*named, node, plan);
}

constexpr Case kCases[] = {
    // op_index
    {"4, 5", "9, 5", R"(  %0: f32[4, 5] @b0
  %1: i64[?] @b1
  %2: f32[4, 5] @b4
  %2 = aten::gather(%0, 1, %1, sparse_grad=false)
)"},
    {"6", "7", R"(  %0: f32[3] @b0
  %1: i64[?] @b1
  %2: f32[6] @b4
  %2 = aten::take(%0, %1)
)"},
    {"2, 5", "3, 5", R"(  %0: f32[4, 5] @b0
  %1: i64[2] @b1
  %2: f32[?] @b4
  %2 = aten::index_select(%0, 0, %1)
)"},
    {"0", "7", R"(  %0: f32[4, 5] @b0
  %1: i64[2] @b1
  %2: f32[2, 5] @b4
  %2 = aten::index_select(%0, ?, %1)
)"},
    {"2", "3", R"(  %0: f32[4, 5] @b0
  %1: i64[?] @b1
  %2: f32[2, 5] @b4
  %2 = aten::index.Tensor(%0, [%1])
)"},
    {"2, 5", "2, 4", R"(  %0: f32[4, 5] @b0
  %1: i64[2] @b1
  %2: f32[?] @b2
  %3: f32[4, 5] @b4
  %3 = aten::index_put(%0, [%1], %2, false)
)"},
    {"4", "3", R"(  %0: f32[4, 5] @b0
  %1: bool[?] @b1
  %2: f32[5] @b2
  %3: f32[4, 5] @b4
  %3 = aten::index_put(%0, [%1], %2, false)
)"},
    {"5", "4", R"(  %0: f32[5, 3] @b0
  %1: i64[?] @b1
  %2: f32[5] @b4
  %3: f32[1] @b5
  %2, %3 = aten::nll_loss_forward(%0, %1, none, 0, 100)
)"},
    {"3", "2", R"(  %0: f32[5, 3] @b0
  %1: i64[5] @b1
  %2: f32[?] @b2
  %3: f32[5] @b4
  %4: f32[1] @b5
  %3, %4 = aten::nll_loss_forward(%0, %1, %2, 0, 100)
)"},
    // op_bag
    {"2, 3", "1, 3", R"(  %0: f32[?] @b0
  %1: i64[2] @b1
  %2: f32[4, 3] @b4
  %2 = aten::embedding_dense_backward(%0, %1, 4, 7, false)
)"},
    {"2", "1", R"(  %0: f32[4, 3] @b0
  %1: i64[6] @b1
  %2: i64[?] @b2
  %3: f32[2, 3] @b4
  %4: i64[6] @b5
  %5: i64[2] @b6
  %6: i64[2] @b7
  %3, %4, %5, %6 = aten::_embedding_bag(%0, %1, %2, false, 0, false, none, false, 7)
)"},
    // op_grid, op_image
    {"1, 3, 3, 2", "1, 2, 3, 2", R"(  %0: f32[1, 2, 4, 4] @b0
  %1: f32[?] @b1
  %2: f32[1, 2, 3, 3] @b4
  %2 = aten::grid_sampler_2d(%0, %1, 0, 0, false)
)"},
    {"2, 2", "0, 2", R"(  %0: f32[1, 2, 4, 4] @b0
  %1: f32[1, 2, 2, 2] @b4
  %1 = aten::avg_pool2d(%0, [2, 2], [?], [0, 0], false, true, none)
)"},
    {"1, 2, 2, 2", "1, 3, 2, 2", R"(  %0: f32[1, 2, 4, 4] @b0
  %1: f32[?] @b4
  %1 = aten::avg_pool2d(%0, [2, 2], [2, 2], [0, 0], false, true, none)
)"},
    {"1, 2, 2, 2", "1, 2, 2, 1", R"(  %0: f32[1, 2, 4, 4] @b0
  %1: f32[1, 2, 2, 2] @b4
  %2: i64[?] @b5
  %1, %2 = aten::max_pool2d_with_indices(%0, [2, 2], [2, 2], [0, 0], [1, 1], false)
)"},
    {"2, 2", "0, 2", R"(  %0: f32[1, 2, 4, 4] @b0
  %1: f32[1, 8, 4] @b4
  %1 = aten::im2col(%0, [2, 2], [1, 1], [0, 0], [?])
)"},
    // op_margin, op_pair
    {"5", "4", R"(  %0: f32[5, 3] @b0
  %1: i64[?] @b1
  %2: f32[5] @b4
  %2 = aten::multi_margin_loss(%0, %1, 1, 1, none, 0)
)"},
    {"2, 3, 5", "2, 3, 6", R"(  %0: i64[2, 3, 4] @b0
  %1: i64[2, 4, 5] @b1
  %2: i64[?] @b4
  %2 = aten::bmm(%0, %1)
)"},
    {"3, 5", "3, 4", R"(  %0: f32[3, 4] @b0
  %1: f32[5, 4] @b1
  %2: f32[?] @b4
  %2 = aten::_cdist_forward(%0, %1, 2.0, none)
)"},
    // op_scan, op_sort, op_search
    {"3, 4", "3, 5", R"(  %0: f32[3, 4] @b0
  %1: f32[?] @b4
  %1 = aten::cumsum(%0, 1, dtype=none)
)"},
    {"f32", "f64", R"(  %0: f32[3, 4] @b0
  %1: ?[3, 2] @b4
  %2: i64[3, 2] @b5
  %1, %2 = aten::topk(%0, 2, 1, true, true)
)"},
    {"3, 2", "3, 1", R"(  %0: f32[3, 4] @b0
  %1: f32[3, 2] @b4
  %2: i64[?] @b5
  %1, %2 = aten::topk(%0, 2, 1, true, true)
)"},
    {"2, 3", "2, 4", R"(  %0: f32[2, 6] @b0
  %1: f32[?] @b1
  %2: i64[2, 3] @b4
  %2 = aten::searchsorted.Tensor(%0, %1)
)"},
    // op_view, op_fill
    {"1", "8", R"(  %0: f32[12] @b0
  %1: f32[3] @b4
  %1 = aten::as_strided_copy(%0, [3], [2], ?)
)"},
    {"3", "4", R"(  %0: f32[4, 5] @b0
  %1: f32[5] @b4
  %1 = aten::select_copy.int(%0, 0, ?)
)"},
    {"1", "0", R"(  %0: f32[5] @b0
  %1: f32[4, 2] @b4
  %1 = aten::unfold_copy(%0, 0, 2, ?)
)"},
    {"1", "0", R"(  %0: f32[6] @b0
  %1: f32[3] @b1
  %2: f32[6] @b4
  %2 = aten::slice_scatter(%0, %1, 0, 0, 3, ?)
)"},
    {"2, 3", "3, 3", R"(  %0: f32[2, 3] @b0
  %1: f32[?] @b1
  %2: f32[4, 3] @b4
  %2 = aten::cat([%0, %1], 0)
)"},
    {"0", "9", R"(  %0: f32[2, 3] @b0
  %1: f32[2, 3] @b1
  %2: f32[4, 3] @b4
  %2 = aten::cat([%0, %1], ?)
)"},
    {"1", "2", R"(  %0: f32[3, 4] @b0
  %1: f32[3, 4] @b4
  %1 = aten::flip(%0, [?])
)"},
    {"4, 2", "4, 3", R"(  %0: f32[?] @b0
  %1: f32[5] @b4
  %1 = aten::unfold_backward(%0, [5], 0, 2, 1)
)"},
    // op_ctc, op_attention, op_rnn
    {"7, 7", "7", R"(  %0: f32[7, 2, 5] @b0
  %1: i64[2, 3] @b1
  %2: f32[2] @b4
  %3: f32[2, 7, 7] @b5
  %2, %3 = aten::_ctc_loss(%0, %1, [?], [3, 3], 0, false)
)"},
    {"0", "5", R"(  %0: f32[7, 2, 5] @b0
  %1: i64[2, 3] @b1
  %2: f32[2] @b4
  %3: f32[2, 7, 7] @b5
  %2, %3 = aten::_ctc_loss(%0, %1, [7, 7], [3, 3], ?, false)
)"},
    {"1, 2, 3, 8", "1, 2, 4, 8", R"(  %0: f32[1, 2, 3, 8] @b0
  %1: f32[1, 2, 5, 8] @b1
  %2: f32[?] @b4
  %2, none = remote::attention(%0, %1, %1, none, false, none)
)"},
    {"3, 5", "3, 4", R"(  %0: f32[1, 2, 3, 8] @b0
  %1: f32[1, 2, 5, 8] @b1
  %2: f32[?] @b2
  %3: f32[1, 2, 3, 8] @b4
  %3, none = remote::attention(%0, %1, %1, %2, false, none)
)"},
    {"4, 5", "4, 6", R"(  %0: f32[3, 2, 5] @b0
  %1: f32[?] @b1
  %2: f32[4, 4] @b2
  %3: f32[1, 2, 4] @b3
  %4: f32[3, 2, 4] @b4
  %5: f32[1, 2, 4] @b5
  %4, %5, none, none = remote::rnn(%0, [%1, %2], %3, none, 1)
)"},
    // op_lowered
    {"3, 4", "3, 5", R"(  %0: f32[3, 4] @b0
  %1: f32[?] @b4
  %1 = aten::relu(%0)
)"},
};

TEST(PlanNode, DeclinesSizesThatDoNotMatch) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.lines);
    OpPlan good, bad;
    const Status planned = plan_of(each.lines, each.good, &good);
    EXPECT_TRUE(planned.ok()) << planned.message();
    const Status declined = plan_of(each.lines, each.bad, &bad);
    EXPECT_EQ(declined.code(), ErrorCode::kUnsupported) << declined.message();
  }
}

// No kernel has as many blocks.
TEST(PlanNode, DeclinesLaunchesWithTooManyBlocks) {
  OpPlan plan;
  const Status status = plan_of(R"(  %0: f32[1, 3000000000, 2]{0, 0, 0} @b0
  %1: i64[3000000000, 1]{0, 0} @b1
  %2: i64[3000000000]{0} @b2
  %3: f32[3000000000]{0} @b4
  %4: f32[3000000000, 1, 3]{0, 0, 0} @b5
  %3, %4 = aten::_ctc_loss.Tensor(%0, %1, %2, %2, 0, false)
)",
                                "", &plan);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << status.message();
}

TEST(CountOf, SaturatesAndKnowsEmptyTensors) {
  const int64_t big = int64_t{1} << 40, largest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(count_of(std::vector<int64_t>{}), 1);
  EXPECT_EQ(count_of(std::vector<int64_t>{3, 4}), 12);
  EXPECT_EQ(count_of(std::vector<int64_t>{big, big}), largest);
  EXPECT_EQ(count_of(std::vector<int64_t>{big, big, 0}), 0);
}

// A dim of ten elements: 2, 5 and 8 exist, 11 does not.
TEST(Slice, MarksElementsThatAreAbsent) {
  const OpTensor whole{.location = {0, 0}, .sizes = {10}, .strides = {1}};
  EXPECT_EQ(slice(whole, 0, 2, 3, 3).sizes[0], 3);
  EXPECT_EQ(slice(whole, 0, 2, 3, 3).location.offset, 8u);
  EXPECT_EQ(slice(whole, 0, 2, 4, 3).sizes[0], -1);
  EXPECT_EQ(slice(whole, 0, 10, 0).sizes[0], 0);
  EXPECT_EQ(slice(whole, 0, -1, 1).sizes[0], -1);
  EXPECT_EQ(slice(whole, 0, 0, 2, std::numeric_limits<int64_t>::max()).sizes[0], -1);
}

TEST(FloatBits, Float8AsInTorch) {
  using ir::DType;
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  struct Row {
    double x;
    uint64_t e5m2, e4m3fn, e5m2fnuz, e4m3fnuz, e8m0fnu;
  };
  // Computed by torch.full((1,), x).to(dtype).view(torch.uint8).
  const Row rows[] = {
      {0, 0x00, 0x00, 0x00, 0x00, 0x00},    {-0.0, 0x80, 0x80, 0x00, 0x00, 0x00},
      {1, 0x3C, 0x38, 0x40, 0x40, 0x7F},    {-1.5, 0xBE, 0xBC, 0xC2, 0xC4, 0x80},
      {0.3, 0x35, 0x2A, 0x39, 0x32, 0x7D},  {0.001, 0x14, 0x01, 0x18, 0x01, 0x75},
      {1e-8, 0x00, 0x00, 0x00, 0x00, 0x64}, {248, 0x5C, 0x78, 0x60, 0x80, 0x87},
      {464, 0x5F, 0x7E, 0x63, 0x80, 0x88},  {61440, 0x7C, 0x7E, 0x80, 0x80, 0x8F},
      {1e30, 0x7C, 0x7E, 0x80, 0x80, 0xE3}, {-infinity, 0xFC, 0xFE, 0x80, 0x80, 0xFF},
      {nan, 0x7F, 0x7F, 0x80, 0x80, 0xFF},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(float_bits(row.x, DType::kFloat8E5M2), row.e5m2) << row.x;
    EXPECT_EQ(float_bits(row.x, DType::kFloat8E4M3FN), row.e4m3fn) << row.x;
    EXPECT_EQ(float_bits(row.x, DType::kFloat8E5M2FNUZ), row.e5m2fnuz) << row.x;
    EXPECT_EQ(float_bits(row.x, DType::kFloat8E4M3FNUZ), row.e4m3fnuz) << row.x;
    EXPECT_EQ(float_bits(row.x, DType::kFloat8E8M0FNU), row.e8m0fnu) << row.x;
  }
}

}  // namespace
}  // namespace torch_remote::worker::cuda

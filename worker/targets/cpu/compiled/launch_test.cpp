#include "worker/targets/cpu/compiled/launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

// Which rows and columns each call of a kernel's code gets.
namespace torch_remote::worker::kernels {
namespace {

constexpr int64_t kRows = 1000, kColumns = 64, kTargets = 50;

constexpr std::string_view kAdd = R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: i64[i0]
  a2: f32[_, j0]
  %0: f32 = load a0
  %1: i64 = load a1
  store a2[%1], %0 adds
}
)";

// The calls' data; the code of a kernel is a plain function.
std::vector<void*> calls;
void note(const codegen::cpu::Call* call, int64_t, int64_t) { calls.push_back(call->data[0]); }

// Runs a kernel that adds rows of 64 columns where an index says, in the smallest parts. Returns the first column of
// each call.
std::vector<int64_t> first_columns(int64_t fixed_columns) {
  codegen::Launch launch;
  const Status parsed = codegen::parse_kernel(kAdd, &launch.kernel);
  EXPECT_TRUE(parsed.ok()) << parsed.message();
  launch.sizes = {kRows, kColumns};
  launch.operands.resize(3);
  launch.operands[0] = {.buffer = 0, .strides = {kColumns, 1}, .outer = {}};
  launch.operands[1] = {.buffer = 1, .strides = {1, 0}, .outer = {}};
  launch.operands[2] = {.buffer = 2, .strides = {0, 1, kColumns}, .outer = {}, .bounds = {kTargets}};
  CompiledKernel kernel;
  kernel.has_rows = kernel.needs_row_order = kernel.splits_columns = true;
  kernel.variant.columns = fixed_columns;
  kernel.rows = note;
  std::vector<float> source(kRows * kColumns), target(kTargets * kColumns);
  std::vector<int64_t> indices(kRows);
  std::array<tr_buffer, 3> buffers{};
  buffers[0].data = source.data();
  buffers[1].data = indices.data();
  buffers[2].data = target.data();
  const ParallelFor parallel = [](int64_t count, int64_t, const auto& body) {
    constexpr int64_t kPart = 16000;
    for (int64_t begin = 0; begin < count; begin += kPart) body(begin, std::min(count, begin + kPart));
  };
  Launches launches;
  launches.add(launch, kernel);
  codegen::cpu::IndexRecord failure;
  calls.clear();
  launches.run(buffers, parallel, &failure);
  std::vector<int64_t> columns;
  for (void* const call : calls) columns.push_back(static_cast<float*>(call) - source.data());
  return columns;
}

// Several threads add to different columns. Code for a fixed number of columns would add to all of them in each thread,
// and to memory after the row.
TEST(Launches, CodeForAFixedNumberOfColumnsGetsAllOfThem) {
  EXPECT_EQ(first_columns(0), (std::vector<int64_t>{0, 16, 32, 48}));
  EXPECT_EQ(first_columns(kColumns), std::vector<int64_t>{0});
}

}  // namespace
}  // namespace torch_remote::worker::kernels

#include "codegen/lower/loops.h"

#include <gtest/gtest.h>

namespace torch_remote::codegen {
namespace {

Launch launch_of(const char* text, std::vector<int64_t> sizes, std::vector<int64_t> outer,
                 std::vector<Binding> operands) {
  Launch launch;
  const Status status = parse_kernel(text, &launch.kernel);
  EXPECT_TRUE(status.ok()) << status.message();
  launch.sizes = std::move(sizes);
  launch.outer = std::move(outer);
  launch.operands = std::move(operands);
  return launch;
}

constexpr const char* kIndices = R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: i64[i0]
  a2: f32[i0, j0]
  %0: f32 = load a0
  %1: i64 = index i0
  store a1, %1
  store a2, %0
})";

// Two loops around the kernel. The first operand does not depend on one of them, and would be packed.
TEST(TakeInLoops, MakesThemDimsOfTheKernel) {
  Launch launch = launch_of(kIndices, {5, 6}, {3, 4},
                            {{.strides = {1, 5}, .outer = {0, 30}, .packed = true},
                             {.strides = {1, 0}, .outer = {20, 5}},
                             {.strides = {6, 1}, .outer = {120, 30}}});
  ASSERT_TRUE(take_in_loops(&launch).ok());
  EXPECT_TRUE(launch.outer.empty());
  EXPECT_EQ(launch.sizes, (std::vector<int64_t>{3, 4, 5, 6}));
  EXPECT_EQ(launch.operands[0].strides, (std::vector<int64_t>{0, 30, 1, 5}));
  EXPECT_FALSE(launch.operands[0].packed);
  EXPECT_EQ(print(launch.kernel), R"(kernel(i0, i1, i2 | j0) {
  a0: f32[i1, i2, j0*]
  a1: i64[i0, i1, i2]
  a2: f32[i0, i1, i2, j0]
  %0: f32 = load a0
  %1: i64 = index i2
  store a1, %1
  store a2, %0
}
)");
}

TEST(TakeInLoops, LeavesThoseThatAKernelHasNoRoomFor) {
  Launch launch = launch_of(R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  %0: f32 = load a0
  store a0, %0
})",
                            {1, 1}, {2, 3, 4, 5, 6, 7}, {{.strides = {1, 1}, .outer = {6, 5, 4, 3, 2, 1}}});
  ASSERT_TRUE(take_in_loops(&launch).ok());
  EXPECT_EQ(launch.kernel.rows, kMaxRows);
  EXPECT_EQ(launch.outer, std::vector<int64_t>{2});
  EXPECT_EQ(launch.operands[0].outer, std::vector<int64_t>{6});
  EXPECT_EQ(launch.operands[0].strides, (std::vector<int64_t>{5, 4, 3, 2, 1, 1, 1}));
}

// Each iteration of the outer loops reduces its own rows.
TEST(TakeInLoops, LeavesThoseAroundASumOverRows) {
  Launch launch = launch_of(R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[j0]
  %0: f32 = load a0
  %1: f32 = rows sum %0
  store a1, %1
})",
                            {5, 6}, {3}, {{.strides = {6, 1}, .outer = {30}}, {.strides = {0, 1}, .outer = {6}}});
  const Kernel before = launch.kernel;
  ASSERT_TRUE(take_in_loops(&launch).ok());
  EXPECT_EQ(launch.kernel, before);
  EXPECT_EQ(launch.outer, std::vector<int64_t>{3});
}

TEST(Loops, AreWalkedInRowMajorOrder) {
  const Binding binding{.offset = 100, .strides = {}, .outer = {10, 1}};
  const std::vector<int64_t> sizes = {2, 3};
  std::vector<int64_t> place(2), offsets;
  do {
    offsets.push_back(offset_at(binding, place));
  } while (next_index(sizes, place));
  EXPECT_EQ(offsets, (std::vector<int64_t>{100, 101, 102, 110, 111, 112}));
  EXPECT_FALSE(next_index({}, {}));
}

}  // namespace
}  // namespace torch_remote::codegen

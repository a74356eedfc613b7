#include "codegen/gpu/launch.h"

#include <gtest/gtest.h>

namespace torch_remote::codegen::gpu {
namespace {

using ir::DType;

constexpr uint32_t kProcessors = 132;

// A recipe with two f32 operands [i0, j0].
Recipe rows_recipe() {
  Recipe recipe;
  recipe.shape = Shape::kRows;
  recipe.rows = recipe.columns = 1;
  recipe.vector = 4;
  recipe.slots = 4;
  recipe.operands = {{.dtype = DType::kFloat32, .dims = 3}, {.dtype = DType::kFloat32, .dims = 3}};
  recipe.parameters = {{ParameterKind::kData, 0}, {ParameterKind::kData, 1},      {ParameterKind::kSize, 0},
                       {ParameterKind::kSize, 1}, {ParameterKind::kStride, 0, 0}, {ParameterKind::kStride, 1, 0},
                       {ParameterKind::kAligned}};
  return recipe;
}

std::vector<Launch> launches(const Recipe& recipe, std::vector<int64_t> sizes, std::vector<uint64_t> data,
                             std::vector<int64_t> strides, int64_t rest = 0, uint64_t scratch = 0) {
  std::vector<Launch> result;
  const Status status = make_launches(recipe,
                                      {.sizes = sizes,
                                       .data = data,
                                       .strides = strides,
                                       .bounds = {},
                                       .scalars = {},
                                       .remainder_columns = rest,
                                       .scratch = scratch,
                                       .failure = 0,
                                       .processors = kProcessors},
                                      &result);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

TEST(Launch, PointsFillBlocksOf256) {
  Recipe recipe = rows_recipe();
  recipe.shape = Shape::kPoints;
  const auto one = launches(recipe, {3, 1000}, {0x1000, 0x2000}, {1000, 1, 1000, 1});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].function, Function::kPoints);
  EXPECT_EQ(one[0].grid, (3u * 250 + 255) / 256);
  EXPECT_EQ(one[0].parameters, (std::vector<uint64_t>{0x1000, 0x2000, 3, 1000, 1000, 1000, 3}));
  EXPECT_EQ(launches(recipe, {1 << 20, 1000}, {0x1000, 0x2000}, {1000, 1, 1000, 1})[0].grid, kProcessors * 32);
  EXPECT_TRUE(launches(recipe, {0, 1000}, {0x1000, 0x2000}, {1000, 1, 1000, 1}).empty());
}

TEST(Launch, VectorsOnlyWhereAllOfThemAreAligned) {
  const auto bits = [](std::vector<uint64_t> data, std::vector<int64_t> strides) {
    return launches(rows_recipe(), {3, 1000}, std::move(data), std::move(strides))[0].parameters.back();
  };
  EXPECT_EQ(bits({0x1000, 0x2000}, {1000, 1, 1000, 1}), 3u);
  EXPECT_EQ(bits({0x1004, 0x2000}, {1000, 1, 1000, 1}), 2u);
  EXPECT_EQ(bits({0x1000, 0x2000}, {1000, 1, 1002, 1}), 1u);
}

TEST(Launch, TeamsAreAsSmallAsHoldsARow) {
  const auto shape = [](int64_t columns) {
    const Launch launch = launches(rows_recipe(), {20, columns}, {0x1000, 0x2000}, {columns, 1, columns, 1})[0];
    return std::tuple(launch.function, launch.block[0], launch.block[1], launch.grid);
  };
  EXPECT_EQ(shape(1), std::tuple(Function::kRowsInRegisters, 32u, 8u, 3u));
  EXPECT_EQ(shape(512), std::tuple(Function::kRowsInRegisters, 32u, 8u, 3u));
  EXPECT_EQ(shape(513), std::tuple(Function::kRowsInRegisters, 64u, 1u, 20u));
  EXPECT_EQ(shape(8192), std::tuple(Function::kRowsInRegisters, 512u, 1u, 20u));
  EXPECT_EQ(shape(8193), std::tuple(Function::kRowsReloaded, 256u, 1u, 20u));
}

TEST(Launch, NoMoreTeamsThanRows) {
  EXPECT_EQ(launches(rows_recipe(), {1, 9}, {0x1000, 0x2000}, {9, 1, 9, 1})[0].block[1], 1u);
  EXPECT_EQ(launches(rows_recipe(), {3, 9}, {0x1000, 0x2000}, {9, 1, 9, 1})[0].block[1], 3u);
}

TEST(Launch, OrderFollowsFromSizesAlone) {
  const Recipe recipe = rows_recipe();
  const Order order = gpu::order(recipe, std::vector<int64_t>{20, 1000});
  EXPECT_EQ(order.lanes, 64u * 4);
  EXPECT_EQ(order.groups, (std::array<uint32_t, 2>{4, 128}));
  EXPECT_EQ(order.chunk_lanes, 1u);
}

Recipe sum_recipe() {
  Recipe recipe = rows_recipe();
  recipe.operands.resize(1);
  recipe.finish_columns = 1;
  recipe.totals = {{.item_size = 4, .dims = 0}};
  recipe.parameters = {{ParameterKind::kData, 0},   {ParameterKind::kSize, 0}, {ParameterKind::kSize, 1},
                       {ParameterKind::kLines, 0},  {ParameterKind::kChunk},   {ParameterKind::kChunks},
                       {ParameterKind::kFirstChunk}};
  return recipe;
}

TEST(Launch, ChunksOfRowsThenFinish) {
  const auto all = launches(sum_recipe(), {10000, 512}, {0x1000}, {512, 1}, 0, 0x100);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].parameters, (std::vector<uint64_t>{0x1000, 10000, 512, 0x100, 10, 1000, 0}));
  EXPECT_EQ(all[0].grid, 125u);  // eight chunks per block
  EXPECT_EQ(all[1].function, Function::kFinish);
  EXPECT_EQ(all[1].block, (std::array<uint32_t, 2>{1, 512}));
  EXPECT_EQ(all[1].grid, 1u);
  EXPECT_EQ(scratch_bytes(sum_recipe(), std::vector<int64_t>{10000, 512}), 4000u);
}

TEST(Launch, ARowOfAnotherLengthIsAChunkOfItsOwn) {
  const auto all = launches(sum_recipe(), {10, 512}, {0x1000}, {512, 1}, 7, 0x100);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].parameters, (std::vector<uint64_t>{0x1000, 10, 512, 0x100, 4, 4, 0}));
  EXPECT_EQ(all[1].parameters, (std::vector<uint64_t>{0x1000 + 10 * 512 * 4, 1, 7, 0x100, 4, 4, 3}));
  EXPECT_EQ(all[2].parameters, (std::vector<uint64_t>{0x1000, 10, 512, 0x100, 4, 4, 0}));
}

TEST(Launch, WithoutRowsOnlyTheFinishIsThere) {
  const auto all = launches(sum_recipe(), {0, 512}, {0x1000}, {512, 1}, 0, 0x100);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].function, Function::kFinish);
}

TEST(Launch, ScalarsFollowTheirAddress) {
  Recipe recipe = rows_recipe();
  recipe.parameters = {{ParameterKind::kScalarsAddress}, {ParameterKind::kScalar, 0}, {ParameterKind::kScalar, 1}};
  const std::vector<int64_t> sizes = {3, 4}, strides = {4, 1, 4, 1};
  const std::vector<uint64_t> data = {0x1000, 0x2000}, scalars = {7, 8};
  Call call{.sizes = sizes, .data = data, .strides = strides, .bounds = {}, .scalars = scalars};
  std::vector<Launch> made;
  ASSERT_TRUE(make_launches(recipe, call, &made).ok());
  EXPECT_EQ(made[0].parameters, (std::vector<uint64_t>{0, 7, 8}));
  call.scalars_address = 0x3000;
  ASSERT_TRUE(make_launches(recipe, call, &made).ok());
  EXPECT_EQ(made[0].parameters, (std::vector<uint64_t>{0x3000, 7, 8}));
}

TEST(Launch, CallsThatDoNotFit) {
  std::vector<Launch> none;
  const std::vector<int64_t> sizes = {3, 4}, strides = {4, 1};
  const std::vector<uint64_t> data = {0x1000};
  Call call{.sizes = sizes, .data = data, .strides = strides, .bounds = {}, .scalars = {}};
  EXPECT_EQ(make_launches(sum_recipe(), call, &none).message(),
            "gpu: a kernel with reductions over rows needs scratch memory at a multiple of 16");
  EXPECT_EQ(make_launches(rows_recipe(), call, &none).message(),
            "gpu: the number of sizes, data, strides, bounds or scalars differs from the kernel's");
}

TEST(RecipeBytes, LoseNothing) {
  Recipe recipe;
  recipe.shape = Shape::kRows;
  recipe.rows = 2;
  recipe.columns = 1;
  recipe.vector = 8;
  recipe.slots = 4;
  recipe.finish_columns = 32;
  recipe.finish_in_one_block = true;
  recipe.operands = {{.dtype = ir::DType::kBFloat16, .dims = 5, .strided = true, .indexed = 0},
                     {.dtype = ir::DType::kInt64, .dims = 1, .strided = false, .indexed = 2}};
  recipe.totals = {{.item_size = 8, .dims = 4}};
  recipe.parameters = {
      {ParameterKind::kData, 0, 0}, {ParameterKind::kStride, 1, 2}, {ParameterKind::kScalarsAddress, 0, 0}};
  const std::vector<uint8_t> bytes = encode(recipe);
  Recipe back;
  ASSERT_TRUE(decode(bytes, &back).ok());
  EXPECT_EQ(back, recipe);
  ASSERT_TRUE(decode(encode(Recipe{}), &back).ok());
  EXPECT_EQ(back, Recipe{});
}

TEST(RecipeBytes, ThatAreDamagedAreRefused) {
  Recipe recipe;
  recipe.operands = {{.dtype = ir::DType::kFloat32, .dims = 1}};
  recipe.parameters = {{ParameterKind::kData, 0, 0}};
  const std::vector<uint8_t> bytes = encode(recipe);
  Recipe back;
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode({bytes.data(), size}, &back).ok()) << size;
  }
  std::vector<uint8_t> longer = bytes;
  longer.resize(bytes.size() + 4);
  EXPECT_FALSE(decode(longer, &back).ok());
  for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    std::vector<uint8_t> damaged = bytes;
    damaged[at + 3] = 0x7F;
    EXPECT_TRUE(!decode(damaged, &back).ok() || !(back == recipe)) << at;
  }
}

}  // namespace
}  // namespace torch_remote::codegen::gpu

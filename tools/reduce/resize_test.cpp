#include "tools/reduce/resize.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <variant>

#include "ir/math_modes.h"
#include "remote/capture/capture.h"
#include "tools/reduce/subset.h"
#include "tools/runs/case.h"

namespace torch_remote::tools::reduce {
namespace {

// A transposed input of 4 x 6 plus an expanded row.
RunCase example() {
  RunCase run;
  const Status status = ir::parse_graph(R"(graph(rows, columns, row_stride, bytes) {
  b0: input
  b1: input
  b2: fresh(bytes) survives
  %0: f32[rows, columns]{1, row_stride} @b0
  %1: f32[rows, columns]{0, 1} @b1
  %2: f32[rows, columns]{columns, 1} @b2 = aten::add.Tensor(%0, %1, alpha=1)
})",
                                        &run.graph);
  EXPECT_TRUE(status.ok()) << status.message();
  run.params = {4, 6, 4, 96};
  for (const size_t count : {24, 6}) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
    const auto bytes = std::as_bytes(std::span(values));
    run.inputs.emplace_back(bytes.begin(), bytes.end());
  }
  return run;
}

std::vector<float> floats(const Bytes& bytes) {
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(Resize, TheLargestSizeComesFirst) { EXPECT_EQ(sizes_of(example()), (std::vector<int64_t>{6, 4})); }

TEST(Resize, StridesBytesAndElementsFollow) {
  const RunCase run = example();
  ASSERT_TRUE(is_sound(run));
  RunCase columns, both;
  ASSERT_TRUE(with_size(run, 6, 2, &columns));
  EXPECT_TRUE(is_sound(columns));
  EXPECT_EQ(columns.params, (std::vector<int64_t>{4, 2, 4, 32}));
  EXPECT_EQ(floats(columns.inputs[0]), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(floats(columns.inputs[1]), (std::vector<float>{0, 1}));
  ASSERT_TRUE(with_size(columns, 4, 3, &both));
  EXPECT_TRUE(is_sound(both));
  EXPECT_EQ(both.params, (std::vector<int64_t>{3, 2, 3, 24}));
  EXPECT_EQ(floats(both.inputs[0]), (std::vector<float>{0, 1, 2, 4, 5, 6}));
}

TEST(Resize, AnInputWithGapsBecomesDense) {
  RunCase run = example();
  run.params[2] = 5;  // gaps between the columns
  run.inputs[0].resize(120);
  for (int i = 0; i < 30; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(run.inputs[0].data() + 4 * i, &value, 4);
  }
  ASSERT_TRUE(is_sound(run));
  RunCase changed;
  ASSERT_TRUE(with_size(run, 6, 2, &changed));
  EXPECT_TRUE(is_sound(changed));
  EXPECT_EQ(changed.params, (std::vector<int64_t>{4, 2, 4, 32}));
  EXPECT_EQ(floats(changed.inputs[0]), (std::vector<float>{0, 1, 2, 3, 5, 6, 7, 8}));
}

// A part of a temporary of 8 x 10: every second column from the fourth on, in the last rows.
TEST(Resize, PartsOfADenseViewStayPartsOfIt) {
  RunCase run;
  const Status status = ir::parse_graph(R"(graph(rows, columns, bytes, taken, some, column_step, offset, out_bytes) {
  b0: input
  b1: fresh(bytes)
  b2: fresh(out_bytes) survives
  %0: f32[rows, columns] @b0
  %1: f32[rows, columns] @b1 = aten::exp(%0)
  %2: f32[taken, some]{columns, column_step} @b1 + offset
  %3: f32[taken, some] @b2 = aten::neg(%2)
})",
                                        &run.graph);
  ASSERT_TRUE(status.ok()) << status.message();
  run.params = {8, 10, 320, 3, 4, 2, 53, 48};
  run.inputs.emplace_back(320);
  ASSERT_TRUE(is_sound(run));
  RunCase rows, columns, taken;
  ASSERT_TRUE(with_size(run, 8, 4, &rows));
  EXPECT_TRUE(is_sound(rows));
  EXPECT_EQ(rows.params, (std::vector<int64_t>{4, 10, 160, 3, 4, 2, 13, 48}));
  EXPECT_FALSE(with_size(run, 8, 2, &rows));  // three rows do not fit
  EXPECT_FALSE(with_size(run, 10, 5, &columns));
  ASSERT_TRUE(with_size(run, 4, 2, &taken));
  EXPECT_TRUE(is_sound(taken));
  ASSERT_TRUE(with_size(taken, 10, 3, &columns));
  EXPECT_TRUE(is_sound(columns));
  EXPECT_EQ(columns.params, (std::vector<int64_t>{8, 3, 96, 3, 2, 2, 15, 24}));
}

TEST(Cases, KeepTheMathModesOfTheRun) {
  RunCase run = example(), resized;
  run.math_modes = ir::kDeterministic | ir::kTf32Matmuls;
  ASSERT_TRUE(with_size(run, 6, 2, &resized));
  const std::string path = testing::TempDir() + "math_modes.rreplay";
  Status status = save_case(compacted(resized), path);
  ASSERT_TRUE(status.ok()) << status.message();
  std::unique_ptr<remote::CaptureReader> reader;
  status = remote::CaptureReader::open(path, &reader);
  ASSERT_TRUE(status.ok()) << status.message();
  std::optional<ir::MathModes> found;
  for (std::optional<remote::CaptureEvent> event;;) {
    status = reader->next(&event);
    ASSERT_TRUE(status.ok()) << status.message();
    if (!event) break;
    if (const auto* sent = std::get_if<remote::RunEvent>(&event->what)) found = sent->math_modes;
  }
  EXPECT_EQ(found, run.math_modes);
}

}  // namespace
}  // namespace torch_remote::tools::reduce

#include "frontend/shapes/metas/structured_metas.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace torch_remote::frontend {
namespace {

using Stack = torch::jit::Stack;

at::Tensor meta(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(dtype));
}

// Runs the op's meta function on `stack`, which then holds the results.
void run(const char* name, const char* overload, Stack& stack) {
  const c10::OperatorName operator_name(name, overload);
  const c10::KernelFunction* kernel = find_structured_meta(operator_name);
  ASSERT_NE(kernel, nullptr) << operator_name;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
}

TEST(StructuredMetas, AddBroadcastsAndPromotes) {
  Stack stack{meta({4, 1}, at::kInt), meta({3}), 1};
  run("aten::add", "Tensor", stack);
  ASSERT_EQ(stack.size(), 1u);
  const at::Tensor result = stack[0].toTensor();
  EXPECT_EQ(result.sizes(), at::IntArrayRef({4, 3}));
  EXPECT_EQ(result.scalar_type(), at::kFloat);
  EXPECT_TRUE(result.is_meta());
}

TEST(StructuredMetas, StridesAreTorchs) {
  const at::Tensor channels_last = meta({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  Stack stack{channels_last, channels_last, 1};
  run("aten::add", "Tensor", stack);
  EXPECT_EQ(stack[0].toTensor().strides(), channels_last.strides());
}

TEST(StructuredMetas, ListsOptionalsAndSeveralResults) {
  Stack cat{c10::List<at::Tensor>({meta({2, 3}), meta({5, 3})}), 0};
  run("aten::cat", "", cat);
  EXPECT_EQ(cat[0].toTensor().sizes(), at::IntArrayRef({7, 3}));

  Stack sum{meta({2, 3, 4}, at::kInt), c10::List<int64_t>({0, 2}), true, c10::IValue()};
  run("aten::sum", "dim_IntList", sum);
  EXPECT_EQ(sum[0].toTensor().sizes(), at::IntArrayRef({1, 3, 1}));
  EXPECT_EQ(sum[0].toTensor().scalar_type(), at::kLong);

  Stack topk{meta({6, 9}), 4, -1, true, true};
  run("aten::topk", "", topk);
  ASSERT_EQ(topk.size(), 2u);
  EXPECT_EQ(topk[1].toTensor().sizes(), at::IntArrayRef({6, 4}));
  EXPECT_EQ(topk[1].toTensor().scalar_type(), at::kLong);

  Stack upsample{meta({1, 2, 3, 3}), c10::List<int64_t>({6, 9}), c10::IValue(), c10::IValue()};
  run("aten::upsample_nearest2d", "", upsample);
  EXPECT_EQ(upsample[0].toTensor().sizes(), at::IntArrayRef({1, 2, 6, 9}));
}

TEST(StructuredMetas, ErrorsAreTorchs) {
  Stack stack{meta({2, 3}), meta({4, 5})};
  try {
    run("aten::mm", "", stack);
    FAIL() << "2x3 times 4x5 must not work";
  } catch (const c10::Error& error) {
    EXPECT_NE(
        std::string(error.what_without_backtrace()).find("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        std::string::npos)
        << error.what_without_backtrace();
  }
}

TEST(StructuredMetas, OutOverloadsResizeAndInPlaceOnesRefuse) {
  const auto meta = [](c10::IntArrayRef sizes) { return at::empty(sizes, at::TensorOptions().device(at::kMeta)); };
  const at::Tensor out = meta({0});
  Stack stack{meta({2, 3}), meta({3}), 1, out};
  run("aten::add", "out", stack);
  EXPECT_EQ(out.sizes(), (c10::IntArrayRef{2, 3}));

  Stack in_place{meta({3}), meta({2, 3}), 1};
  EXPECT_THROW(run("aten::add_", "Tensor", in_place), c10::Error);
}

TEST(StructuredMetas, OtherOpsHaveNone) {
  EXPECT_EQ(find_structured_meta({"aten::nonzero", ""}), nullptr);
  EXPECT_EQ(find_structured_meta({"aten::no_such_op", ""}), nullptr);
}

}  // namespace
}  // namespace torch_remote::frontend

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/select_backward.h>
#include <ATen/ops/slice_backward.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bicubic2d_backward.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "worker/targets/aten/checks/guard.h"
#include "worker/targets/aten/checks/relations.h"
#include "worker/targets/aten/checks/schema.h"
#include "worker/targets/aten/testing.h"

// Ops that run through the plugin give the same results as direct calls of torch.
namespace torch_remote::worker::aten {
namespace {

using c10::IValue;

at::Tensor wrapped(double value) {
  at::Tensor tensor = at::scalar_tensor(value, at::kDouble);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Returns a copy with the same strides.
at::Tensor copy_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  at::Tensor copy = at::empty({static_cast<int64_t>(tensor.storage().nbytes())}, at::kByte);
  std::memcpy(copy.data_ptr(), tensor.storage().data(), tensor.storage().nbytes());
  at::Tensor view = at::empty({0}, tensor.options());
  return view.set_(copy.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

IValue copy_of(const IValue& value) {
  if (value.isTensor()) return copy_of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(copy_of(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(copy_of(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

std::vector<at::Tensor> tensors_of(const std::vector<IValue>& values) {
  std::vector<at::Tensor> all;
  for (const IValue& value : values) {
    if (value.isTensor()) all.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) all.push_back(tensor);
    }
    if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        if (tensor) all.push_back(*tensor);
      }
    }
  }
  return all;
}

void expect_same(const at::Tensor& got, const at::Tensor& wanted, const std::string& what) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  ASSERT_EQ(got.scalar_type(), wanted.scalar_type()) << what;
  EXPECT_TRUE(wanted.is_floating_point() ? at::allclose(got, wanted, 1e-5, 1e-6, true) : at::equal(got, wanted))
      << what << "\ngot " << got << "\nwanted " << wanted;
}

// Runs the op through the plugin and directly, twice: first as is, then after the memory has moved.
void check(const std::string& op, const std::vector<IValue>& args) {
  SCOPED_TRACE(op);
  TestRunner runner;
  std::vector<IValue> reference;
  reference.reserve(args.size());
  for (const IValue& arg : args) reference.push_back(copy_of(arg));
  c10::Stack stack(reference.begin(), reference.end());
  const auto handle = find_operator(op);
  for (size_t i = stack.size(); i < handle.schema().arguments().size(); ++i) {
    const auto& argument = handle.schema().arguments()[i];
    stack.push_back(argument.default_value() ? *argument.default_value() : IValue());
  }
  std::vector<IValue> all_args(stack.begin(), stack.end());
  for (size_t i = 0; i < args.size(); ++i) all_args[i] = args[i];
  handle.callBoxed(&stack);
  const std::vector<IValue> wanted(stack.begin(), stack.end());

  TestGraph builder;
  builder.call(op, all_args, wanted);
  TestRunner::Loaded program(runner, builder);
  const auto moved = runner.memory.get();
  for (int round = 0; round < 2; ++round) {
    if (round == 1) {
      tr_buffer gap{};
      ASSERT_TRUE(moved->allocate(64, &gap));
      program.fill_inputs();
      gap.release(gap.owner);
    }
    const auto outcome = program.run(round == 0);
    ASSERT_EQ(outcome.code, 0) << outcome.error.exception_type << ": " << outcome.error.message;
    const auto& node = builder.graph.nodes[0];
    const auto wanted_tensors = tensors_of(wanted);
    size_t next = 0;
    for (const ir::Arg& result : node.results) {
      if (result.tag == ir::ArgTag::kView) expect_same(program.tensor(result.a), wanted_tensors[next], "result");
      for (const ir::Arg& item : result.items) {
        if (item.tag == ir::ArgTag::kView) expect_same(program.tensor(item.a), wanted_tensors[next], "list item");
        ++next;
      }
      if (result.tag != ir::ArgTag::kList) ++next;
    }
    // Compare the arguments that the op wrote.
    const auto after = tensors_of(reference);
    size_t seen = 0;
    for (const ir::Arg& arg : node.args) {
      if (arg.tag == ir::ArgTag::kView) expect_same(program.tensor(arg.a), after[seen], "argument");
      for (const ir::Arg& item : arg.items) {
        if (item.tag == ir::ArgTag::kView) expect_same(program.tensor(item.a), after[seen], "argument's item");
        if (item.tag == ir::ArgTag::kView) ++seen;
      }
      if (arg.tag == ir::ArgTag::kView || arg.tag == ir::ArgTag::kScalarTensor) ++seen;
    }
  }
}

TEST(Plugin, Pointwise) {
  const at::Tensor a = at::randn({5, 7}), b = at::randn({7}), c = at::randn({7, 5}).t();
  check("aten::add.Tensor", {a, b, 2.5});
  check("aten::add.Tensor", {a, c, 1});
  check("aten::mul.Tensor", {a, wrapped(3.0)});
  check("aten::mul_.Tensor", {a, wrapped(3.0)});
  check("aten::div.Tensor", {at::randint(1, 9, {4}), at::randint(1, 9, {4})});
  check("aten::relu", {a});
  check("aten::relu_", {a});
  check("aten::gelu", {a, "tanh"});
  check("aten::addcmul_", {a, at::randn({5, 7}), c, 0.5});
  check("aten::where.self", {a.gt(0), a, b});
  check("aten::gt.Scalar", {a, 0.25});
  check("aten::clamp", {a, -0.5, IValue()});
  check("aten::lerp_.Scalar", {a, at::randn({5, 7}), 0.1});
  check("aten::add.out", {a, c, 1, at::empty({5, 7})});
  check("aten::pow.Tensor_Scalar", {a, 2});
  check("aten::bitwise_and.Tensor", {a.gt(0), c.gt(0)});
}

TEST(Plugin, ReductionsAndNorms) {
  const at::Tensor a = at::randn({3, 4, 8});
  check("aten::sum.dim_IntList", {a, c10::List<int64_t>({1}), true, IValue()});
  check("aten::sum", {a, IValue(static_cast<int64_t>(at::kDouble))});
  check("aten::mean.dim", {a, c10::List<int64_t>({0, 2}), false, IValue()});
  check("aten::max.dim", {a, 1, false});
  check("aten::argmax", {a, 2, true});
  check("aten::_softmax", {a, -1, false});
  check("aten::_log_softmax_backward_data", {a, at::_log_softmax(a, 2, false), 2, static_cast<int64_t>(at::kFloat)});
  check("aten::native_layer_norm", {a, c10::List<int64_t>({8}), at::randn({8}), at::randn({8}), 1e-5});
  check("aten::native_batch_norm",
        {at::randn({4, 3, 5}), at::randn({3}), at::randn({3}), at::zeros({3}), at::ones({3}), true, 0.1, 1e-5});
  check("aten::native_batch_norm",
        {at::randn({4, 3, 5}), at::randn({3}), at::randn({3}), at::zeros({3}), at::ones({3}), false, 0.1, 1e-5});
  check("aten::native_group_norm", {at::randn({2, 4, 5}), IValue(), IValue(), 2, 4, 5, 2, 1e-5});
  check("aten::linalg_vector_norm", {a, 2, IValue(), false, IValue()});
  check("aten::cumsum", {a, 1, IValue()});
}

TEST(Plugin, Products) {
  const at::Tensor a = at::randn({4, 6}), b = at::randn({6, 3});
  check("aten::mm", {a, b});
  check("aten::mm", {at::randn({6, 4}).t(), b});
  check("aten::addmm", {at::randn({3}), a, b, 1, 1});
  check("aten::bmm", {at::randn({2, 4, 6}), at::randn({2, 6, 3})});
  const c10::List<int64_t> one({1, 1}), zero({0, 0});
  check("aten::convolution",
        {at::randn({2, 3, 8, 8}), at::randn({4, 3, 3, 3}), at::randn({4}), one, one, one, false, zero, 1});
  check("aten::convolution_backward",
        {at::randn({2, 4, 8, 8}), at::randn({2, 3, 8, 8}), at::randn({4, 3, 3, 3}), c10::List<int64_t>({4}), one, one,
         one, false, zero, 1, c10::List<bool>({false, true, true})});
}

TEST(Plugin, IndexingAndLists) {
  const at::Tensor a = at::randn({6, 5}), rows = at::tensor({4, 0, 1}, at::kLong);
  check("aten::embedding", {a, rows, -1, false, false});
  check("aten::embedding_dense_backward", {at::randn({3, 5}), rows, 6, -1, false});
  check("aten::index_select", {a, 0, rows});
  check("aten::gather", {a, 0, at::randint(0, 6, {2, 5})});
  check("aten::scatter_add_", {a, 0, at::randint(0, 6, {2, 5}), at::randn({2, 5})});
  c10::List<std::optional<at::Tensor>> indices;
  indices.push_back(std::nullopt);
  indices.push_back(at::tensor({1, 3}, at::kLong));
  check("aten::index.Tensor", {a, indices});
  check("aten::index_put_", {a, indices, at::randn({6, 2}), true});
  check("aten::cat", {c10::List<at::Tensor>({a, at::randn({2, 5})}), 0});
  check("aten::stack", {c10::List<at::Tensor>({a, a + 1}), 1});
  check("aten::split_with_sizes_copy", {a, c10::List<int64_t>({2, 4}), 0});
  check("aten::_foreach_add_.List", {c10::List<at::Tensor>({a, a + 1}), c10::List<at::Tensor>({a * 2, a * 3}), 0.5});
  check("aten::_foreach_mul.Scalar", {c10::List<at::Tensor>({a, a + 1}), 0.5});
  c10::impl::GenericList scalars(c10::NumberType::get());
  scalars.push_back(0.5);
  scalars.push_back(2);
  check("aten::_foreach_mul.ScalarList", {c10::List<at::Tensor>({a, a + 1}), scalars});
  check("aten::topk", {a, 2, 1, true, true});
  check("aten::sort", {a, 1, false});
  check("aten::max_pool2d_with_indices", {at::randn({1, 2, 6, 6}), c10::List<int64_t>({2, 2})});
  check("aten::nll_loss_forward", {at::randn({3, 5}), rows, IValue(), 1, -100});
}

TEST(Plugin, FactoriesAndCopies) {
  check("aten::arange.start_step", {0, 10, 2});
  check("aten::full", {c10::List<int64_t>({2, 3}), 7});
  check("aten::zeros_like", {at::randn({2, 3})});
  check("aten::clone", {at::randn({4, 5}).t(), IValue()});
  check("aten::_to_copy", {at::randn({4, 5}), static_cast<int64_t>(at::kHalf)});
  check("aten::copy_", {at::randn({4, 5}), at::randn({5}), false});
  check("aten::fill_.Scalar", {at::randn({4}), 3});
  check("aten::constant_pad_nd", {at::randn({2, 3}), c10::List<int64_t>({1, 2}), 0.5});
  // It returns its argument, but here the result is a buffer of its own.
  check("aten::contiguous", {at::randn({4, 5}), static_cast<int64_t>(at::MemoryFormat::Contiguous)});
}

TEST(Plugin, TheProgramsStridesCount) {
  const at::Tensor a = at::randn({4, 5});
  // The program says that the result is transposed, so it must be, whatever layout the kernel chooses.
  const at::Tensor transposed = at::empty({5, 4}).t();
  for (const char* op : {"aten::relu", "aten::clone", "aten::cumsum"}) {
    SCOPED_TRACE(op);
    TestRunner runner;
    TestGraph builder;
    std::vector<IValue> args = {a};
    if (std::string(op) == "aten::cumsum") args.push_back(1);
    builder.call(op, args, {transposed});
    TestRunner::Loaded program(runner, builder);
    const auto outcome = program.run();
    ASSERT_EQ(outcome.code, 0) << outcome.error.message;
    const at::Tensor wanted = std::string(op) == "aten::relu" ? a.relu() : args.size() > 1 ? a.cumsum(1) : a;
    const uint32_t view = builder.graph.nodes[0].results[0].a;
    expect_same(program.tensor(view), wanted, op);
    const auto* data = static_cast<const float*>(program.buffers[builder.graph.views[view].buffer].data);
    EXPECT_FLOAT_EQ(data[1], wanted[1][0].item<float>());
  }
}

TEST(Plugin, OutVariantsThatIgnoreStridesAreNotTrusted) {
  // The op's out variant writes as if the result were contiguous.
  const at::Tensor gradient = at::randn({1, 3, 6, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor wanted = at::upsample_bicubic2d_backward(gradient, {6, 5}, {1, 3, 4, 4}, false);
  TestRunner runner;
  TestGraph builder;
  builder.call("aten::upsample_bicubic2d_backward",
               {gradient, c10::List<int64_t>({6, 5}), c10::List<int64_t>({1, 3, 4, 4}), false, IValue(), IValue()},
               {at::empty({1, 3, 4, 4}, at::MemoryFormat::ChannelsLast)});
  TestRunner::Loaded program(runner, builder);
  for (int round = 0; round < 3; ++round) {
    const auto outcome = program.run();
    ASSERT_EQ(outcome.code, 0) << outcome.error.message;
    expect_same(program.tensor(builder.graph.nodes[0].results[0].a), wanted, "result");
  }
}

TEST(Plugin, SaysWhenEachNodeRanIfAsked) {
  TestRunner runner;
  TestGraph builder;
  const at::Tensor a = at::randn({3}), negative = at::empty({3}), bad = at::empty({1});
  builder.call("aten::neg", {a}, {negative});
  builder.call("aten::index_select", {a, 0, at::tensor({7}, at::kLong)}, {bad});
  TestRunner::Loaded loaded(runner, builder);
  loaded.fill_inputs();
  const TestRunner::Outcome good = loaded.run(0, 1, true, true);
  ASSERT_EQ(good.code, 0) << good.error.message;
  EXPECT_GT(good.times[0], 0u);
  EXPECT_LE(good.times[0], good.times[1]);
  loaded.fill_inputs();
  const TestRunner::Outcome failed = loaded.run(0, 2, true, true);
  EXPECT_NE(failed.code, 0);
  EXPECT_EQ(failed.error.node, 1u);
  EXPECT_LE(failed.times[0], failed.times[1]);
  EXPECT_EQ(failed.times[2], 0u);
  loaded.release();
}

TEST(Plugin, NewSizesAndScalarsWithoutANewProgram) {
  TestRunner runner;
  const at::Tensor a = at::arange(6, at::kFloat).reshape({2, 3});
  TestGraph builder;
  const at::Tensor scaled = a * 2, sum = scaled + 1;
  builder.call("aten::mul.Tensor", {a, wrapped(2)}, {scaled});
  builder.call("aten::add.Tensor", {scaled, wrapped(1), 1}, {sum});
  TestRunner::Loaded program(runner, builder);
  ASSERT_EQ(program.run().code, 0);
  expect_same(program.tensor(3), a * 2 + 1, "first");
  // The program now has half as many rows (3 x 2), and the factor is 10.
  for (int64_t& value : builder.params) {
    if (value == std::bit_cast<int64_t>(2.0)) {
      value = std::bit_cast<int64_t>(10.0);
    } else if (value == 2) {
      value = 3;
    } else if (value == 3) {
      value = 2;
    }
  }
  program.fill_inputs();
  ASSERT_EQ(program.run().code, 0);
  expect_same(program.tensor(3), a.reshape({3, 2}) * 10 + 1, "second");
}

TEST(Plugin, SizesWhoseElementsShareMemoryAreRefusedInEveryRun) {
  TestRunner runner;
  TestGraph builder;
  builder.call("aten::addmm_", {at::ones({4, 8}).narrow(1, 0, 3), at::ones({4, 5}), at::ones({5, 3}), 1, 1}, {});
  TestRunner::Loaded program(runner, builder);
  ASSERT_EQ(program.run().code, 0);
  for (int64_t& value : builder.params) {
    if (value == 8) value = 0;  // the stride of rows
  }
  for (const bool changed : {true, false}) {
    const auto outcome = program.run(changed);
    EXPECT_NE(outcome.code, 0);
    EXPECT_NE(std::string(outcome.error.message).find("elements share memory"), std::string::npos)
        << outcome.error.message;
  }
}

TEST(Plugin, ANumberThatTheDtypeLacksIsRefusedInEveryRun) {
  TestRunner runner;
  TestGraph builder;
  at::Tensor number = at::scalar_tensor(77, at::kChar);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  builder.call("aten::mul.Tensor", {at::ones({3}, at::kChar), number}, {at::empty({3}, at::kChar)});
  TestRunner::Loaded program(runner, builder);
  ASSERT_EQ(program.run().code, 0);
  for (int64_t& value : builder.params) {
    if (value == 77) value = 1000;
  }
  for (const bool changed : {true, false}) EXPECT_NE(program.run(changed).code, 0);
}

// Torch gives an `out` with other sizes the result's sizes, whether its memory suffices or not.
TEST(Plugin, AnOutThatTorchResizedHasTheProgramsSizesInTheNextRun) {
  const at::Tensor a = at::ones({4});
  {
    TestRunner runner;
    TestGraph builder;
    builder.call("aten::add.out", {a, a, 1, at::empty({2})}, {});
    TestRunner::Loaded program(runner, builder);
    for (const bool changed : {true, false}) EXPECT_NE(program.run(changed).code, 0);
  }
  TestRunner runner;
  TestGraph builder;
  builder.call("aten::add.out", {a, a, 1, at::empty({64}).narrow(0, 0, 2)}, {});
  TestRunner::Loaded program(runner, builder);
  EXPECT_EQ(program.run().code, 0);
  tr_buffer& buffer = program.buffers[builder.graph.views[builder.graph.nodes[0].args[3].a].buffer];
  buffer.release(buffer.owner);
  ASSERT_TRUE(runner.memory->allocate(8, &buffer));
  EXPECT_NE(program.run(/*changed=*/false).code, 0);
}

// Special kernels write results of known sizes, so torch computes this one.
TEST(Plugin, AnyOpMayHaveADynamicResult) {
  TestRunner runner;
  TestGraph builder;
  builder.call("aten::rand_like", {at::ones({3})}, {at::empty({3})});
  ir::View& view = builder.graph.views[builder.graph.nodes[0].results[0].a];
  view.dynamic = true;
  view.sizes.clear();
  view.strides.clear();
  view.offset = ir::kNoSym;
  builder.graph.buffers[view.buffer].nbytes = ir::kNoSym;
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  ASSERT_EQ(outcome.code, 0) << outcome.error.message;
  EXPECT_EQ(outcome.result_words, (std::vector<int64_t>{static_cast<int64_t>(at::kFloat), 1, 3, 1}));
}

TEST(Plugin, SpecialKernelsMayHaveUnusedResults) {
  struct Call {
    const char* op;
    std::vector<IValue> args;
  };
  const auto dtype = static_cast<int64_t>(at::kFloat);
  const std::vector<Call> calls{
      {"aten::nansum", {at::ones({3}, at::kComplexFloat), IValue(), false, IValue()}},
      {"aten::mm.dtype", {at::ones({2, 3}, at::kBFloat16), at::ones({3, 2}, at::kBFloat16), dtype}},
  };
  TestRunner runner;
  for (const Call& call : calls) {
    TestGraph builder;
    builder.call(call.op, call.args, {});
    TestRunner::Loaded program(runner, builder);
    const auto outcome = program.run();
    EXPECT_EQ(outcome.code, 0) << call.op << ": " << outcome.error.message;
  }
}

TEST(Plugin, BatchNormOverProcessesNeedsChannels) {
  TestRunner runner;
  TestGraph builder;
  const at::Tensor one = at::ones({1});
  builder.call("aten::batch_norm_elemt", {at::ones({3}), IValue(), IValue(), one, one.clone(), 1e-5}, {at::empty({3})});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(std::string(outcome.error.message).find("two or more dims"), std::string::npos) << outcome.error.message;
}

TEST(Plugin, NoIndexIsInARangeOfNegativeSize) {
  const at::Tensor index = at::ones({2}, at::kLong);
  EXPECT_TRUE(relations::in_range(index, 2));
  EXPECT_FALSE(relations::in_range(index, 1));
  EXPECT_FALSE(relations::in_range(index, -1));
  EXPECT_TRUE(relations::in_range(at::empty({0}, at::kLong), -1));
}

TEST(Plugin, TemporariesThatItMadeAreGivenBack) {
  TestRunner runner;
  const at::Tensor a = at::randn({1000});
  TestGraph builder;
  const at::Tensor copy = a.clone(), result = copy + copy;
  builder.call("aten::clone", {a, IValue()}, {copy});
  builder.call("aten::add.Tensor", {copy, copy, 1}, {result});
  builder.graph.buffers[1].survives = false;
  const uint64_t before = runner.memory->stats().allocated.current;  // the tensors above come from the same allocator
  TestRunner::Loaded program(runner, builder);
  ASSERT_EQ(runner.api->allocates_buffer(program.program, 1), 1);
  ASSERT_EQ(runner.api->allocates_buffer(program.program, 2), 0);
  ASSERT_EQ(program.run().code, 0);
  EXPECT_EQ(program.buffers[1].data, nullptr);
  expect_same(program.tensor(builder.graph.nodes[1].results[0].a), a + a, "sum");
  program.release();
  EXPECT_EQ(runner.memory->stats().allocated.current, before);
}

TEST(Plugin, GradientsOfSlicesLieInMemoryOfTheProgram) {
  TestRunner runner;
  const std::vector<int64_t> sizes = {4, 7, 3};
  const at::Tensor of_row = at::randn({4, 3}), of_rows = at::randn({4, 2, 3});
  TestGraph builder;
  const at::Tensor row = at::select_backward(of_row, sizes, 1, -2),
                   rows = at::slice_backward(of_rows, sizes, 1, 1, 6, 3);
  builder.call("aten::select_backward", {of_row, sizes, 1, -2}, {row});
  builder.call("aten::slice_backward", {of_rows, sizes, 1, 1, 6, 3}, {rows});
  TestRunner::Loaded program(runner, builder);
  for (const ir::Node& node : builder.graph.nodes) {
    EXPECT_EQ(runner.api->allocates_buffer(program.program, builder.graph.views[node.results[0].a].buffer), 0);
  }
  ASSERT_EQ(program.run().code, 0);
  expect_same(program.tensor(builder.graph.nodes[0].results[0].a), row, "row");
  expect_same(program.tensor(builder.graph.nodes[1].results[0].a), rows, "rows");
}

// The host's memory may be shared with a client that can read all of it.
TEST(Plugin, NoPointersLieInTheHostsMemory) {
  static CachingAllocator* memory;
  static std::vector<tr_buffer> given;
  const CachingAllocator::Pointer allocator = CachingAllocator::create(make_anonymous_source(), uint64_t{1} << 30);
  memory = allocator.get();
  given.clear();
  const tr_host host = {sizeof(tr_host),
                        TR_RUNNER_ABI,
                        nullptr,
                        [](void*, uint64_t nbytes, tr_buffer* buffer) {
                          if (!memory->allocate(nbytes, buffer)) return 1;
                          std::memset(buffer->data, 0, nbytes);
                          given.push_back(*buffer);
                          return 0;
                        },
                        nullptr,
                        nullptr,
                        0,
                        0,
                        nullptr,
                        nullptr};
  const tr_runner_api* api = TestRunner().api;
  tr_runner* runner = nullptr;
  tr_error error{};
  ASSERT_EQ(api->create(&host, 1, 0, &runner, &error), 0) << error.message;
  {
    const std::vector<at::Tensor> tensors = {at::ones({3}), at::ones({4096}), at::ones({1 << 20})};
    ASSERT_GE(given.size(), tensors.size());
    for (const tr_buffer& buffer : given) {
      const auto* words = static_cast<const uintptr_t*>(buffer.data);
      for (uint64_t i = 0; i < buffer.nbytes / sizeof(uintptr_t); ++i) {
        ASSERT_NE(words[i], reinterpret_cast<uintptr_t>(buffer.owner)) << "at byte " << 8 * i;
        ASSERT_NE(words[i], reinterpret_cast<uintptr_t>(buffer.release)) << "at byte " << 8 * i;
      }
    }
  }
  api->destroy(runner);
}

TEST(Plugin, DynamicResultsReportTypeAndSizes) {
  TestRunner runner;
  const at::Tensor a = at::tensor({0, 3, 0, 5}, at::kLong).reshape({2, 2});
  TestGraph builder;
  builder.call("aten::nonzero", {a}, {at::nonzero(a)});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  ASSERT_EQ(outcome.code, 0) << outcome.error.message;
  EXPECT_EQ(outcome.result_words, (std::vector<int64_t>{static_cast<int64_t>(at::kLong), 2, 2, 2, 1, 2}));
  ASSERT_EQ(program.buffers[1].nbytes, 32u);
  const auto* data = static_cast<const int64_t*>(program.buffers[1].data);
  EXPECT_EQ(std::vector<int64_t>(data, data + 4), (std::vector<int64_t>{0, 1, 1, 1}));
}

TEST(Plugin, HostResults) {
  TestRunner runner;
  const at::Tensor a = at::scalar_tensor(2.5);
  TestGraph builder;
  builder.call("aten::_local_scalar_dense", {a}, {});
  TestRunner::Loaded program(runner, builder);
  auto outcome = program.run();
  ASSERT_EQ(outcome.code, 0) << outcome.error.message;
  EXPECT_EQ(outcome.result_words,
            (std::vector<int64_t>{static_cast<int64_t>(ir::ScalarTag::kFloat), std::bit_cast<int64_t>(2.5)}));
  TestGraph other;
  other.call("aten::equal", {a, a + 0}, {});
  TestRunner::Loaded equal(runner, other);
  outcome = equal.run();
  EXPECT_EQ(outcome.result_words, (std::vector<int64_t>{1}));
}

TEST(Plugin, AFailedNodeIsNamedAndThoseBeforeItRan) {
  TestRunner runner;
  const at::Tensor weight = at::randn({10, 4}), rows = at::tensor({1, 99, 2}, at::kLong);
  const at::Tensor doubled = weight * 2, found = at::randn({3, 4});
  TestGraph builder;
  builder.call("aten::mul.Tensor", {weight, wrapped(2)}, {doubled});
  builder.call("aten::embedding", {doubled, rows, -1, false, false}, {found});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  EXPECT_NE(outcome.code, 0);
  EXPECT_EQ(outcome.error.node, 1u);
  EXPECT_STREQ(outcome.error.exception_type, "IndexError");
  EXPECT_STREQ(outcome.error.message, "index out of range in self");
  expect_same(program.tensor(builder.graph.nodes[0].results[0].a), doubled, "before");
}

TEST(Plugin, OutOfMemoryIsItsOwnKind) {
  TestRunner runner(/*inproc=*/false, 64 << 20);
  TestGraph builder;
  const at::Tensor points = at::zeros({5000, 2});
  builder.call("aten::cdist", {points, points, 2.0, IValue()}, {at::empty({1, 1}).expand({5000, 5000})});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  EXPECT_NE(outcome.code, 0);
  EXPECT_STREQ(outcome.error.exception_type, "OutOfMemoryError");
}

TEST(Plugin, WrongSizesAreAnError) {
  TestRunner runner;
  TestGraph builder;
  builder.call("aten::mm", {at::randn({2, 3}), at::randn({3, 4})}, {at::empty({5, 4})});
  TestRunner::Loaded program(runner, builder);
  const auto outcome = program.run();
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(std::string(outcome.error.message).find("[2, 4]"), std::string::npos) << outcome.error.message;
}

TEST(Plugin, ProgramsThatDoNotFitTheSchemaAreRefused) {
  TestRunner runner;
  TestGraph builder;
  builder.call("aten::relu", {at::randn({2})}, {at::randn({2})});
  // Registers another signature for an op that the table does not list.
  const ir::OpaqueArg args[] = {{"self", ir::ArgKind::kTensor}, {"n", ir::ArgKind::kString}};
  const ir::ResultDesc results[] = {{ir::ResultKind::kTensor, -1}};
  ir::register_opaque("aten::logit_backward.grad_input_", args, results, 0);
  ir::register_opaque("aten::_nonsense", args, results, 0);
  builder.graph.nodes[0].opcode = ir::find_op("aten::_nonsense");
  ir::Arg text;
  text.tag = ir::ArgTag::kString;
  text.text = "x";
  builder.graph.nodes[0].args.push_back(text);
  TestRunner::Loaded program(runner, builder);
  EXPECT_EQ(program.program, nullptr);
  EXPECT_STREQ(program.error.exception_type, "NotImplementedError");
}

TEST(Plugin, OpsThatChangeTensorsThemselvesAreRefused) {
  TestRunner runner;
  for (const char* op : {"aten::set_", "aten::t_", "aten::squeeze_"}) {
    TestGraph builder;
    builder.call(op, {at::randn({2, 3})}, {});
    TestRunner::Loaded program(runner, builder);
    EXPECT_EQ(program.program, nullptr) << op;
    EXPECT_STREQ(program.error.exception_type, "NotImplementedError") << op;
  }
}

std::vector<std::string> namespaces_of_torch() {
  std::vector<std::string> all;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    all.push_back(op.name.substr(0, op.name.find("::")));
  }
  std::ranges::sort(all);
  const auto same = std::ranges::unique(all);
  all.erase(same.begin(), same.end());
  return all;
}

TEST(Plugin, OfTorchsOpsOnlyThoseOfAtenRun) {
  TestRunner runner;
  for (const std::string& space : namespaces_of_torch()) {
    EXPECT_EQ(refusal_reason(space + "::something") == nullptr, space == "remote") << space;
  }
  EXPECT_EQ(refusal_reason("mylib::add"), nullptr);
  EXPECT_EQ(refusal_reason("aten::add.Tensor"), nullptr);
  const at::Tensor a = at::randn({3});
  for (const char* op : {"inductor::_reinterpret_tensor", "aten::_sparse_coo_tensor_unsafe"}) {
    TestGraph builder;
    std::vector<IValue> args = {a, std::vector<int64_t>{1000}, std::vector<int64_t>{1000}, 0};
    if (std::string_view(op) == "aten::_sparse_coo_tensor_unsafe") {
      const at::Tensor index = at::full({1, 1}, 1000, at::kLong);
      args = {index, at::ones({1}), std::vector<int64_t>{3}, IValue(), IValue(), IValue(), IValue(), IValue()};
    }
    builder.call(op, args, {at::randn({1000})});
    TestRunner::Loaded program(runner, builder);
    EXPECT_EQ(program.program, nullptr) << op;
    EXPECT_STREQ(program.error.exception_type, "NotImplementedError") << op;
    EXPECT_NE(std::string(program.error.message).find(op), std::string::npos) << program.error.message;
    EXPECT_EQ(runner.api->has_op(runner.runner, op), 0) << op;
  }
  EXPECT_EQ(runner.api->has_op(runner.runner, "aten::relu"), 1);
}

at::Tensor longs(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

// Torch's kernels use these tensors' elements as indices without a check. Called directly, each of these calls ends the
// process.
TEST(Plugin, IndicesThatTorchTrustsAreLookedAt) {
  struct Call {
    const char* op;
    std::vector<IValue> args;
    std::vector<IValue> results;
  };
  constexpr int64_t kFar = int64_t{1} << 40;
  const auto ones = [](const std::vector<int64_t>& sizes) { return at::ones(sizes); };
  const auto calls = [&](int64_t i) {
    const std::vector<int64_t> two = {2, 2}, none = {0, 0}, one = {1, 1}, two3 = {2, 2, 2}, none3 = {0, 0, 0},
                               one3 = {1, 1, 1};
    const at::Tensor plane = at::full({1, 1, 2, 2}, i, at::kLong), space = at::full({1, 1, 2, 2, 2}, i, at::kLong);
    const at::Tensor x2 = ones({1, 1, 4, 4}), x3 = ones({1, 1, 4, 4, 4});
    const at::Tensor probabilities = at::randn({5, 1, 4}).log_softmax(2);
    const std::vector<int64_t> five = {5}, length = {2};
    const at::Tensor labels = at::full({1, 2}, i, at::kLong);
    return std::vector<Call>{
        {"aten::max_pool2d_with_indices_backward",
         {ones({1, 1, 2, 2}), x2, two, two, none, one, false, plane},
         {at::ones_like(x2)}},
        {"aten::max_pool3d_with_indices_backward",
         {ones({1, 1, 2, 2, 2}), x3, two3, two3, none3, one3, false, space},
         {at::ones_like(x3)}},
        {"aten::adaptive_max_pool2d_backward", {ones({1, 1, 2, 2}), x2, plane}, {at::ones_like(x2)}},
        {"aten::adaptive_max_pool3d_backward", {ones({1, 1, 2, 2, 2}), x3, space}, {at::ones_like(x3)}},
        {"aten::embedding_dense_backward", {ones({2, 3}), longs({i, 0}), 4, -1, true}, {ones({4, 3})}},
        {"aten::_embedding_bag_dense_backward",
         {ones({2, 3}), longs({i, 0}), longs({0, 1}), longs({1, 1}), longs({0, 0}), 4, false, 0, IValue(), -1},
         {ones({4, 3})}},
        {"aten::_embedding_bag_dense_backward",
         {ones({2, 3}), longs({1, 0}), longs({0, i}), longs({1, 1}), longs({0, 0}), 4, false, 0, IValue(), -1},
         {ones({4, 3})}},
        {"aten::_embedding_bag_per_sample_weights_backward",
         {ones({2, 3}), ones({4, 3}), longs({i, 0}), longs({0, 1}), longs({0, 1}), 0, -1},
         {ones({2})}},
        {"aten::segment_reduce",
         {ones({4}), "sum", IValue(), IValue(), longs({0, i, 4}), 0, false, IValue()},
         {ones({2})}},
        {"aten::segment_reduce", {ones({4}), "sum", longs({i, 3}), IValue(), IValue(), 0, true, IValue()}, {ones({2})}},
        {"aten::_segment_reduce_backward",
         {ones({2}), ones({2}), ones({4}), "sum", longs({i, 3}), IValue(), 0, IValue()},
         {ones({4})}},
        {"aten::_ctc_loss", {probabilities, labels, five, length, 0, false}, {ones({1}), ones({1, 5, 5})}},
        {"aten::_ctc_loss_backward",
         {ones({1}), probabilities, labels, five, length, ones({1}), ones({1, 5, 5}), 0, false},
         {ones({5, 1, 4})}},
    };
  };
  TestRunner runner;
  for (const int64_t index : {int64_t{1}, kFar, -kFar}) {
    for (const Call& call : calls(index)) {
      TestGraph builder;
      register_if_unknown(call.op);
      builder.call(call.op, call.args, call.results);
      TestRunner::Loaded program(runner, builder);
      const auto outcome = program.run();
      if (index == 1) {
        EXPECT_EQ(outcome.code, 0) << call.op << ": " << outcome.error.message;
      } else {
        EXPECT_NE(outcome.code, 0) << call.op;
        EXPECT_STREQ(outcome.error.exception_type, "IndexError") << call.op << ": " << outcome.error.message;
      }
    }
  }
}

// Called directly, the first two calls end the process, and the third reads outside of its input.
TEST(Plugin, GradientsOfPoolingHaveThePlanesOfTheirInput) {
  struct Call {
    const char* op;
    std::vector<IValue> args;
    at::Tensor result;
  };
  const at::Tensor x2 = at::ones({1, 1, 8, 8}), x3 = at::ones({1, 1, 8, 8, 8});
  const std::vector<int64_t> two = {2, 2, 2}, four = {4, 4, 4};
  const auto indices = [](at::IntArrayRef sizes) { return at::zeros(sizes, at::kLong); };
  const std::vector<Call> calls{
      {"aten::adaptive_max_pool2d_backward", {at::ones({1, 64, 4, 4}), x2, indices({1, 64, 4, 4})}, x2},
      {"aten::adaptive_max_pool3d_backward", {at::ones({1, 64, 4, 4, 4}), x3, indices({1, 64, 4, 4, 4})}, x3},
      {"aten::fractional_max_pool3d_backward",
       {at::ones({1, 1, 4, 4, 4}), x3, two, four, indices({1, 1, 2, 2, 2})},
       x3},
  };
  TestRunner runner;
  for (const Call& call : calls) {
    TestGraph builder;
    register_if_unknown(call.op);
    builder.call(call.op, call.args, {at::empty_like(call.result)});
    TestRunner::Loaded program(runner, builder);
    const auto outcome = program.run();
    EXPECT_NE(outcome.code, 0) << call.op;
    EXPECT_STREQ(outcome.error.exception_type, "RuntimeError") << call.op << ": " << outcome.error.message;
  }
}

TEST(Plugin, OffersItsThreads) {
  TestRunner runner(/*inproc=*/false, uint64_t{8} << 30, /*threads=*/2);
  std::vector<int> times(1000);
  const auto body = [](void* context, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++(*static_cast<std::vector<int>*>(context))[i];
  };
  for (const int64_t grain : {1, 100, 600, 5000}) runner.api->parallel_for(runner.runner, 1000, grain, body, &times);
  EXPECT_EQ(times, std::vector<int>(1000, 4));
  runner.api->parallel_for(runner.runner, 0, 1, body, &times);
  EXPECT_EQ(times, std::vector<int>(1000, 4));

  // Two parts on two threads wait for each other.
  std::atomic<int> there{0};
  const auto meet = [](void* context, int64_t, int64_t) {
    auto& count = *static_cast<std::atomic<int>*>(context);
    ++count;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (count < 2 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_GE(count, 2) << "the other part has not begun";
  };
  runner.api->parallel_for(runner.runner, 2, 1, meet, &there);
}

// For channels-last images with few channels, oneDNN's gradient of strided 1x1 weights writes outside of its memory.
TEST(Plugin, GradientsOfOnePlaceInStepsAreOfPlainImages) {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast;
  const Guard guard = find_guard("aten::convolution_backward");
  ASSERT_NE(guard.check, nullptr);
  const auto layouts = [&](int64_t channels, int64_t kernel, int64_t step) {
    const at::Tensor image = at::randn({2, channels, 9, 9}).contiguous(kLast);
    const at::Tensor weight = at::randn({8, channels, kernel, kernel}).to(at::kFloat, false, true, kLast);
    std::vector<c10::IValue> args{at::randn({2, 8, 5, 5}).contiguous(kLast), image, weight, c10::IValue(),
                                  std::vector<int64_t>{step, step}};
    guard.check("convolution_backward", args.data(), nullptr);
    EXPECT_TRUE(at::equal(args[1].toTensor(), image) && at::equal(args[2].toTensor(), weight));
    std::string text;
    for (int i = 0; i < 3; ++i) text += args[i].toTensor().suggest_memory_format() == kLast ? 'L' : 'P';
    return text;
  };
  EXPECT_EQ(layouts(8, 1, 2), "PPP");
  EXPECT_EQ(layouts(15, 1, 3), "PPP");
  EXPECT_EQ(layouts(16, 1, 2), "LLL");
  EXPECT_EQ(layouts(8, 1, 1), "LLL");
  EXPECT_EQ(layouts(8, 3, 2), "LLL");
}

TEST(Plugin, LoadsOnlyTheNodesThatItIsAskedFor) {
  TestRunner runner;
  TestGraph builder;
  const at::Tensor a = at::randn({4}), b = at::exp(a);
  builder.call("aten::exp", {a}, {b});
  builder.call("aten::neg", {b}, {at::neg(b)});
  const ir::OpaqueArg args[] = {{"self", ir::ArgKind::kTensor}};
  const ir::ResultDesc results[] = {{ir::ResultKind::kTensor, -1}};
  ir::register_opaque("aten::_absent", args, results, 0);
  builder.graph.nodes[1].opcode = ir::find_op("aten::_absent");
  const std::vector<uint8_t> bytes = ir::encode_program(builder.graph);
  const auto load = [&](std::vector<uint8_t> nodes) {
    const tr_load_options options{sizeof(options), 0, nodes.data()};
    tr_program* program = nullptr;
    tr_error error{};
    error.struct_size = sizeof(error);
    if (runner.api->load(runner.runner, bytes.data(), bytes.size(), &options, &program, &error) != 0) return false;
    runner.api->unload(runner.runner, program);
    return true;
  };
  EXPECT_FALSE(load({1, 1}));
  EXPECT_TRUE(load({1, 0}));
}

// oneDNN allocates its scratch memory without a DataPtr.
TEST(HostMemory, TorchComputesWhenARunnerIsGone) {
  {
    const TestRunner runner;
  }
  constexpr auto kLast = at::MemoryFormat::ChannelsLast;
  const at::Tensor x = at::ones({2, 16, 20, 20}).contiguous(kLast), w = at::ones({8, 16, 3, 3});
  EXPECT_EQ(at::conv2d(x, w, {}, 1, 1).amax().item<float>(), 144);
}

}  // namespace
}  // namespace torch_remote::worker::aten

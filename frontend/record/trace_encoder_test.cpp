#include "frontend/record/trace_encoder.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "frontend/device/current_device.h"

namespace torch_remote::frontend {
namespace detail {
constinit thread_local c10::DeviceIndex current_device = 0;  // defined in device_state.cpp
}

namespace {

using c10::IValue;
using ir::ViewOrigin;

constexpr uint32_t kFloat = static_cast<uint32_t>(c10::ScalarType::Float);

uint32_t new_view_word(ViewOrigin origin, uint32_t rank) {
  return ir::kNewView | kFloat << 16 | static_cast<uint32_t>(origin) << 14 | rank << 6;
}

at::Tensor tensor(c10::IntArrayRef sizes) { return make_contiguous_tensor(sizes, c10::ScalarType::Float, 0); }

class TraceEncoderTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Device tensors have no memory here, but torch asks for their allocator.
    c10::SetAllocator(c10::DeviceType::PrivateUse1, c10::GetAllocator(c10::DeviceType::CPU));
    on_storage_destroyed = [](RemoteStorage*) noexcept {};
  }

  // Appends a record of the op `name`.
  void append(const char* name, const std::vector<IValue>& args, const std::vector<at::Tensor>& results,
              bool joins = false) {
    encoder.append(ir::op_desc(ir::find_op(name)), args.data(), results, {}, {}, std::nullopt, joins);
  }

  // A tensor whose contents are on the worker.
  at::Tensor uploaded(c10::IntArrayRef sizes, uint64_t id) const {
    at::Tensor made = tensor(sizes);
    storage_of(made)->id = id;
    storage_of(made)->session = shared.session;
    return made;
  }

  // The words of the record with this number.
  std::vector<uint32_t> words(size_t record) const {
    const ir::Trace& trace = encoder.trace();
    const auto from = trace.code.begin() + trace.records[record].code;
    const auto to =
        record + 1 < trace.records.size() ? trace.code.begin() + trace.records[record + 1].code : trace.code.end();
    return {from, to};
  }

  TraceEncoderGroup shared;
  TraceEncoder encoder{shared};
};

const ir::Opcode kAdd = ir::find_op("aten::add.Tensor");

TEST_F(TraceEncoderTest, AViewIsDescribedOnceAndThenNamedByItsSlot) {
  const at::Tensor x = uploaded({2, 1}, 7), y = tensor({2, 1}), z = tensor({2, 1});
  append("aten::add.Tensor", {x, x, 1}, {y});
  append("aten::add.Tensor", {y, x, 1}, {z});
  EXPECT_EQ(words(0), (std::vector<uint32_t>{kAdd, new_view_word(ViewOrigin::kInputBuffer, 2), 0b0110, 0,
                                             static_cast<uint32_t>(ir::ScalarTag::kInt),
                                             new_view_word(ViewOrigin::kFreshBuffer, 2), 0b0110}));
  EXPECT_EQ(words(1), (std::vector<uint32_t>{kAdd, 1, 0, static_cast<uint32_t>(ir::ScalarTag::kInt),
                                             new_view_word(ViewOrigin::kFreshBuffer, 2), 0b0110}));
  ASSERT_EQ(encoder.trace().buffers.size(), 3u);
  EXPECT_EQ(encoder.trace().buffers[0].id, 7u);
  EXPECT_FALSE(encoder.trace().buffers[0].fresh);
  EXPECT_TRUE(encoder.trace().buffers[2].fresh);
}

TEST_F(TraceEncoderTest, AnotherViewOfAKnownBufferNamesIt) {
  const at::Tensor x = uploaded({2, 3}, 7), y = tensor({3, 2}), z = tensor({3, 2});
  const at::Tensor across = make_view(x, {3, 2}, {1, 3}, 0);
  append("aten::neg", {x}, {tensor({2, 3})});
  append("aten::neg", {across}, {y});
  EXPECT_EQ(words(1)[1], new_view_word(ViewOrigin::kKnownBuffer, 2));
  EXPECT_EQ(words(1)[2], 0u);  // index of x's buffer
  // A tensor whose sizes were changed in place is a new view, although its slot has an index.
  x.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef({3, 2}), c10::IntArrayRef({2, 1}));
  append("aten::neg", {x}, {z});
  EXPECT_EQ(words(2)[1], new_view_word(ViewOrigin::kKnownBuffer, 2));
  EXPECT_EQ(encoder.trace().buffers.size(), 4u);
}

TEST_F(TraceEncoderTest, NumbersAreParametersAndTheirKindsAreStructure) {
  const at::Tensor x = uploaded({4}, 7);
  const at::Tensor scalar = at::scalar_tensor(2.5, c10::ScalarType::Double);
  append("aten::add.Tensor", {x, x, 1}, {tensor({4})});
  const size_t before = encoder.trace().params.size();
  append("aten::add.Tensor", {x, scalar, 0.5}, {tensor({4})});
  EXPECT_EQ(words(1)[2], ir::kScalarOperand | static_cast<uint32_t>(c10::ScalarType::Double) << 8);
  EXPECT_EQ(words(1)[3], static_cast<uint32_t>(ir::ScalarTag::kFloat));
  double operand, alpha;
  std::memcpy(&operand, &encoder.trace().params[before], 8);
  std::memcpy(&alpha, &encoder.trace().params[before + 1], 8);
  EXPECT_EQ(operand, 2.5);
  EXPECT_EQ(alpha, 0.5);
}

TEST_F(TraceEncoderTest, ListsHaveACountAndWhatIsNotGivenIsAbsent) {
  const at::Tensor x = uploaded({2}, 7), y = uploaded({2}, 8);
  append("aten::cat", {c10::List<at::Tensor>({x, y, x}), 0}, {tensor({6})});
  const std::vector<uint32_t> cat = words(0);
  EXPECT_EQ(cat[1], 3u);
  EXPECT_EQ(cat[cat.size() - 4], 0u);  // x again, before the dim and the result's two words
  append("aten::clamp.Tensor", {x, IValue(), y}, {tensor({2})});
  EXPECT_EQ(words(1)[2], ir::kAbsent);
}

TEST_F(TraceEncoderTest, TheKeyDependsOnWhichDimsAreOneAndNotOnSizes) {
  const auto key = [&](c10::IntArrayRef sizes) {
    encoder.clear();
    const at::Tensor x = uploaded(sizes, 7), y = tensor(sizes);
    append("aten::neg", {x}, {y});
    return encoder.trace().key();
  };
  EXPECT_EQ(key({5, 6}), key({7, 8}));
  EXPECT_FALSE(key({5, 6}) == key({5, 1}));
}

TEST_F(TraceEncoderTest, ARecordThatFailsLeavesTheTraceAsItWas) {
  const at::Tensor x = uploaded({2}, 7), y = tensor({2}), lost = uploaded({2}, RemoteStorage::kLost);
  append("aten::neg", {x}, {y});
  const std::vector<uint32_t> code = encoder.trace().code;
  EXPECT_THROW(append("aten::add.Tensor", {uploaded({2}, 9), lost, 1}, {tensor({2})}), c10::Error);
  EXPECT_EQ(encoder.trace().code, code);
  EXPECT_EQ(encoder.trace().buffers.size(), 2u);
  // The next record finds the buffers, and encodes their views again.
  append("aten::add.Tensor", {x, y, 1}, {tensor({2})});
  EXPECT_EQ(words(1)[1], new_view_word(ViewOrigin::kKnownBuffer, 1));
  EXPECT_EQ(words(1)[2], 0u);
  EXPECT_EQ(encoder.trace().buffers.size(), 3u);
}

TEST_F(TraceEncoderTest, ALostTensorThatIsOverwrittenWholeIsFresh) {
  const at::Tensor x = uploaded({2}, 7), lost = uploaded({2}, RemoteStorage::kLost);
  append("aten::copy_", {lost, x, false}, {});
  EXPECT_EQ(words(0)[1], new_view_word(ViewOrigin::kFreshBuffer, 1));
  // It stays lost if the op also reads it, or writes only a part of it.
  const at::Tensor read = uploaded({2}, RemoteStorage::kLost);
  EXPECT_THROW(append("aten::copy_", {read, read, false}, {}), c10::Error);
  const at::Tensor part = make_view(uploaded({4}, RemoteStorage::kLost), {2}, {1}, 0);
  EXPECT_THROW(append("aten::copy_", {part, x, false}, {}), c10::Error);
}

TEST_F(TraceEncoderTest, TensorsOfAnotherSessionAreLost) {
  const at::Tensor x = uploaded({2}, 7), never = tensor({2});
  EXPECT_FALSE(shared.is_lost(storage_of(x)));
  ++shared.session;
  EXPECT_TRUE(shared.is_lost(storage_of(x)));
  EXPECT_FALSE(shared.is_lost(storage_of(never)));
}

TEST_F(TraceEncoderTest, WhatDiesIsNoSurvivor) {
  const at::Tensor x = uploaded({2}, 7);
  at::Tensor y = tensor({2});
  append("aten::neg", {x}, {y});
  EXPECT_EQ(encoder.trace().survivors(), (std::vector<uint64_t>{0b11}));
  EXPECT_TRUE(encoder.forget_storage(storage_of(y)));
  EXPECT_EQ(encoder.trace().survivors(), (std::vector<uint64_t>{0b01}));
  EXPECT_EQ(encoder.trace().buffers[1].died_at_record, 1u);
  encoder.clear();
  EXPECT_FALSE(encoder.forget_storage(storage_of(y)));
}

TEST_F(TraceEncoderTest, SwappedStoragesHaveEachOthersBuffers) {
  const at::Tensor x = uploaded({2}, 7), y = tensor({2});
  append("aten::neg", {x}, {y});
  encoder.swap_buffers(storage_of(x), storage_of(y));
  EXPECT_EQ(storage_of(y)->id, 7u);
  EXPECT_EQ(encoder.trace().buffers[0].owner, storage_of(y));
  EXPECT_EQ(encoder.trace().buffers[1].owner, storage_of(x));
  append("aten::neg", {y}, {tensor({2})});
  EXPECT_EQ(words(1)[1], new_view_word(ViewOrigin::kKnownBuffer, 1));
  EXPECT_EQ(words(1)[2], 0u);
}

TEST_F(TraceEncoderTest, TwoThreadsTracesMayReadTheSame) {
  TraceEncoder other{shared};
  const auto append_to_other = [&](const at::Tensor& input, const at::Tensor& result) {
    other.append(ir::op_desc(ir::find_op("aten::neg")), std::vector<IValue>{input}.data(), {result}, {}, {},
                 std::nullopt, false);
  };
  const at::Tensor x = uploaded({2}, 7), y = tensor({2}), z = tensor({2});
  append("aten::neg", {x}, {y});
  append_to_other(x, z);
  append("aten::neg", {x}, {tensor({2})});
  append_to_other(x, tensor({2}));
  // Each trace has encoded the view of x only once.
  for (const ir::Trace* trace : {&encoder.trace(), &other.trace()}) {
    EXPECT_EQ(trace->buffers.size(), 3u);
    EXPECT_EQ(trace->views.size(), 3u);
    EXPECT_EQ(trace->buffers[0].id, 7u);
    EXPECT_EQ(trace->code[trace->records[1].code + 1], 0u);
  }
  EXPECT_EQ(encoder.trace().key(), other.trace().key());
  // A read of x may run before or after these traces. A write of x, and a read of their results, may not.
  const RemoteStorage* read = storage_of(x);
  EXPECT_FALSE(encoder.must_precede(read, false));
  EXPECT_FALSE(other.must_precede(read, false));
  EXPECT_TRUE(encoder.must_precede(read, true));
  EXPECT_TRUE(other.must_precede(read, true));
  EXPECT_TRUE(encoder.must_precede(storage_of(y), false));
  EXPECT_FALSE(other.must_precede(storage_of(y), true));
  EXPECT_TRUE(other.must_precede(storage_of(z), false));
  other.note_written(read);
  EXPECT_TRUE(other.must_precede(read, false));
  // Clearing one trace does not affect the other one.
  encoder.clear();
  EXPECT_FALSE(encoder.contains(read));
  EXPECT_TRUE(other.contains(read));
  append("aten::neg", {x}, {tensor({2})});
  append_to_other(x, tensor({2}));
  EXPECT_EQ(encoder.trace().buffers.size(), 2u);
  EXPECT_EQ(other.trace().buffers.size(), 4u);
  EXPECT_TRUE(encoder.forget_storage(storage_of(x)));
  EXPECT_TRUE(other.forget_storage(storage_of(x)));
  EXPECT_EQ(other.trace().buffers[0].owner, nullptr);
}

TEST_F(TraceEncoderTest, SwappedStoragesThatAnotherTraceHad) {
  TraceEncoder other{shared};
  const at::Tensor x = uploaded({2}, 7), y = tensor({2});
  other.append(ir::op_desc(ir::find_op("aten::neg")), std::vector<IValue>{x}.data(), {tensor({2})}, {}, {},
               std::nullopt, false);
  append("aten::neg", {x}, {y});
  other.clear();
  encoder.swap_buffers(storage_of(x), storage_of(y));
  EXPECT_EQ(encoder.trace().buffers[0].owner, storage_of(y));
  EXPECT_EQ(encoder.trace().buffers[1].owner, storage_of(x));
  append("aten::neg", {y}, {tensor({2})});
  EXPECT_EQ(words(1)[1], new_view_word(ViewOrigin::kKnownBuffer, 1));
  EXPECT_EQ(words(1)[2], 0u);
}

TEST_F(TraceEncoderTest, ManyInputsThatAreJoinedAreInputsOfTheirOwn) {
  const ir::OpDesc& cat = ir::op_desc(ir::find_op("aten::cat"));
  const at::Tensor base = uploaded({8}, 7);
  c10::List<at::Tensor> rows;
  for (int64_t i = 0; i < 4; ++i) rows.push_back(make_view(base, {2}, {1}, 2 * i));
  const std::vector<IValue> args = {rows, 0};
  ASSERT_TRUE(encoder.concatenates_many_inputs(cat, args.data()));
  append("aten::cat", args, {tensor({8})}, /*joins=*/true);
  // Shared memory is not part of the key: each tensor is an input with its own buffer.
  EXPECT_EQ(encoder.trace().buffers.size(), 5u);
  // A tensor that this trace has created is not an input.
  encoder.clear();
  const at::Tensor made = tensor({2});
  append("aten::neg", {uploaded({2}, 9)}, {made});
  rows.set(0, made);
  const std::vector<IValue> others = {rows, 0};
  EXPECT_FALSE(encoder.concatenates_many_inputs(cat, others.data()));
}

}  // namespace
}  // namespace torch_remote::frontend

// Tests what the emulated cuBLASLt refuses, and that it executes in stream order.
#include "worker/targets/cuda/gemm/cublaslt.h"

#include <bit>

#include "tests/emulated_gpu/emulated_cublaslt.h"
#include "tests/emulated_gpu/fixture.h"

namespace torch_remote::worker::cuda::lt {

inline void PrintTo(Result result, std::ostream* stream) { *stream << "cublasStatus_t " << static_cast<int>(result); }

}  // namespace torch_remote::worker::cuda::lt

namespace torch_remote::worker::cuda::emulated {
namespace {

using Status = lt::Result;
using lt::Type;

class CublasLtTest : public EmulatedDriverTest {
 protected:
  void SetUp() override {
    EmulatedDriverTest::SetUp();
    ASSERT_EQ(table.create(&handle), Status::kSuccess);
    describe(lt::Compute::kFloat32, Type::kFloat32);
    a = layout(Type::kFloat32, 4, 3, 4);
    b = layout(Type::kFloat32, 3, 2, 4);
    c = layout(Type::kFloat32, 4, 2, 4);
    d = layout(Type::kFloat32, 4, 2, 4);
  }
  void TearDown() override {
    clear();
    EXPECT_EQ(table.destroy(handle), Status::kSuccess);
    EXPECT_EQ(cublaslt_leaks(), "");
    EmulatedDriverTest::TearDown();
  }
  void clear() {
    for (const lt::Layout made : layouts) EXPECT_EQ(table.layout_destroy(made), Status::kSuccess);
    layouts.clear();
    if (desc != nullptr) {
      EXPECT_EQ(table.desc_destroy(desc), Status::kSuccess);
    }
    desc = nullptr;
  }
  void describe(lt::Compute compute, Type scale) {
    if (desc != nullptr) {
      EXPECT_EQ(table.desc_destroy(desc), Status::kSuccess);
    }
    EXPECT_EQ(table.desc_create(&desc, compute, scale), Status::kSuccess);
  }
  lt::Layout layout(Type type, uint64_t rows, uint64_t columns, int64_t ld, int32_t batch = 1, int64_t stride = 0) {
    lt::Layout made = nullptr;
    EXPECT_EQ(table.layout_create(&made, type, rows, columns, ld), Status::kSuccess);
    EXPECT_EQ(table.layout_set_attribute(made, lt::LayoutAttribute::kBatchCount, &batch, 4), Status::kSuccess);
    EXPECT_EQ(table.layout_set_attribute(made, lt::LayoutAttribute::kBatchStride, &stride, 8), Status::kSuccess);
    layouts.push_back(made);
    return made;
  }
  template <typename T>
  void set(lt::DescAttribute attribute, T value) {
    EXPECT_EQ(table.desc_set_attribute(desc, attribute, &value, sizeof(value)), Status::kSuccess);
  }
  Status ask(uint32_t alignment = 16, uint64_t workspace = 1 << 20) {
    lt::Preference preference = nullptr;
    EXPECT_EQ(table.preference_create(&preference), Status::kSuccess);
    using Attribute = lt::PreferenceAttribute;
    for (const auto attribute :
         {Attribute::kAlignmentA, Attribute::kAlignmentB, Attribute::kAlignmentC, Attribute::kAlignmentD}) {
      EXPECT_EQ(table.preference_set_attribute(preference, attribute, &alignment, 4), Status::kSuccess);
    }
    EXPECT_EQ(table.preference_set_attribute(preference, Attribute::kWorkspaceBytes, &workspace, 8), Status::kSuccess);
    candidates.resize(8);
    int count = 0;
    const Status status = table.find_algorithms(handle, desc, a, b, c, d, preference, 8, candidates.data(), &count);
    candidates.resize(static_cast<size_t>(count));
    EXPECT_EQ(table.preference_destroy(preference), Status::kSuccess);
    return status;
  }
  Status multiply(DevicePointer x, DevicePointer y, DevicePointer z, const lt::HeuristicResult& candidate,
                  DevicePointer workspace = 0, size_t workspace_bytes = 0) {
    const float alpha = 1, beta = 0;
    return table.matmul(handle, desc, &alpha, x, a, y, b, &beta, z, c, z, d, &candidate.algorithm, workspace,
                        workspace_bytes, first);
  }
  DevicePointer floats(const std::vector<float>& values) {
    Ints bits;
    for (const float value : values) bits.push_back(std::bit_cast<int32_t>(value));
    return upload(bits, first);
  }

  const lt::Table table = cublaslt();
  lt::Handle handle = nullptr;
  lt::Desc desc = nullptr;
  lt::Layout a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  std::vector<lt::Layout> layouts;
  std::vector<lt::HeuristicResult> candidates;
};

TEST_F(CublasLtTest, MultipliesInTheOrderOfTheStream) {
  a = layout(Type::kFloat32, 2, 2, 2);
  b = c = d = a;
  ASSERT_EQ(ask(), Status::kSuccess);
  const DevicePointer x = floats({1, 2, 3, 4}), y = floats({1, 0, 1, 1}), z = allocate(16, first);
  emulated->slow_down(std::chrono::microseconds(300));
  ASSERT_EQ(multiply(x, y, z, candidates.back()), Status::kSuccess);  // z = x y
  EXPECT_OK(EmulatedDriverTest::d.memset_d32_async(x, 0, 4, first));  // must come after the read of x
  const Ints result = download(z, 4, first);
  EXPECT_EQ(std::bit_cast<float>(result[0]), 1);
  EXPECT_EQ(std::bit_cast<float>(result[1]), 2);
  EXPECT_EQ(std::bit_cast<float>(result[2]), 4);
  EXPECT_EQ(std::bit_cast<float>(result[3]), 6);
}

TEST_F(CublasLtTest, RefusesSizesThatDoNotFit) {
  EXPECT_EQ(ask(), Status::kSuccess);
  for (lt::Layout* which : {&a, &b, &c, &d}) {
    const lt::Layout good = *which;
    *which = layout(Type::kFloat32, 5, 5, 5);
    EXPECT_EQ(ask(), Status::kInvalidValue);
    *which = good;
  }
  set(lt::DescAttribute::kTransposeA, lt::Operation::kTranspose);
  EXPECT_EQ(ask(), Status::kInvalidValue);
  a = layout(Type::kFloat32, 3, 4, 3);
  EXPECT_EQ(ask(), Status::kSuccess);
}

TEST_F(CublasLtTest, RefusesColumnsAndBatchesThatOverlap) {
  a = layout(Type::kFloat32, 4, 3, 3);
  EXPECT_EQ(ask(), Status::kInvalidValue);
  a = layout(Type::kFloat32, 4, 3, 4, 3, 0);  // one matrix for all batches
  b = layout(Type::kFloat32, 3, 2, 4, 3, 8);
  c = d = layout(Type::kFloat32, 4, 2, 4, 3, 8);
  EXPECT_EQ(ask(), Status::kSuccess);
  d = layout(Type::kFloat32, 4, 2, 4, 3, 7);
  EXPECT_EQ(ask(), Status::kInvalidValue);
  d = layout(Type::kFloat32, 4, 2, 4, 2, 8);
  EXPECT_EQ(ask(), Status::kInvalidValue);
}

TEST_F(CublasLtTest, RefusesTypesThatAreNotThere) {
  const auto types = [&](Type left, Type right, Type result) {
    a = layout(left, 16, 16, 16);
    b = layout(right, 16, 16, 16);
    c = d = layout(result, 16, 16, 16);
    return ask();
  };
  EXPECT_EQ(types(Type::kFloat16, Type::kFloat16, Type::kFloat16), Status::kSuccess);
  EXPECT_EQ(types(Type::kFloat16, Type::kFloat16, Type::kFloat32), Status::kSuccess);
  EXPECT_EQ(types(Type::kFloat16, Type::kBFloat16, Type::kFloat32), Status::kNotSupported);
  EXPECT_EQ(types(Type::kFloat32, Type::kFloat32, Type::kFloat16), Status::kNotSupported);
  EXPECT_EQ(types(Type::kFloat64, Type::kFloat64, Type::kFloat64), Status::kNotSupported);
  describe(lt::Compute::kFloat64, Type::kFloat64);
  EXPECT_EQ(types(Type::kFloat64, Type::kFloat64, Type::kFloat64), Status::kSuccess);
  describe(lt::Compute::kInt32, Type::kInt32);
  EXPECT_EQ(types(Type::kInt8, Type::kInt8, Type::kInt32), Status::kNotSupported);  // not "TN"
  set(lt::DescAttribute::kTransposeA, lt::Operation::kTranspose);
  EXPECT_EQ(types(Type::kInt8, Type::kInt8, Type::kInt32), Status::kSuccess);
  a = layout(Type::kInt8, 16, 14, 16);
  c = d = layout(Type::kInt32, 14, 16, 16);
  EXPECT_EQ(ask(), Status::kNotSupported);
}

TEST_F(CublasLtTest, RefusesEpiloguesThatAreNotThere) {
  set(lt::DescAttribute::kEpilogue, uint32_t{lt::kBias});
  EXPECT_EQ(ask(), Status::kNotSupported);  // without a bias vector
  set(lt::DescAttribute::kBiasPointer, DevicePointer{256});
  EXPECT_EQ(ask(), Status::kSuccess);
  set(lt::DescAttribute::kBiasType, static_cast<int32_t>(Type::kFloat16));
  EXPECT_EQ(ask(), Status::kNotSupported);
  set(lt::DescAttribute::kEpilogue, uint32_t{lt::kRelu | lt::kGelu});
  EXPECT_EQ(ask(), Status::kNotSupported);
  set(lt::DescAttribute::kAScalePointer, DevicePointer{256});  // without float8 operands
  set(lt::DescAttribute::kEpilogue, uint32_t{lt::kRelu});
  EXPECT_EQ(ask(), Status::kInvalidValue);
}

TEST_F(CublasLtTest, RefusesValuesOfOtherSizes) {
  const int64_t value = 1;
  EXPECT_EQ(table.desc_set_attribute(desc, lt::DescAttribute::kEpilogue, &value, 8), Status::kInvalidValue);
  EXPECT_EQ(table.desc_set_attribute(desc, lt::DescAttribute::kEpilogue, nullptr, 4), Status::kInvalidValue);
  EXPECT_EQ(table.layout_set_attribute(a, lt::LayoutAttribute::kBatchCount, &value, 8), Status::kInvalidValue);
}

TEST_F(CublasLtTest, RefusesAddressesThatItsWayCannotDo) {
  a = b = c = d = layout(Type::kFloat32, 8, 8, 8);
  ASSERT_EQ(ask(4), Status::kSuccess);
  ASSERT_EQ(candidates.size(), 1u);  // the heuristic leaves out algorithms that need more alignment
  ASSERT_EQ(ask(16), Status::kSuccess);
  ASSERT_EQ(candidates.size(), 2u);
  const std::vector<float> values(72, 1);
  const DevicePointer x = floats(values), y = floats(values), z = floats(values);
  EXPECT_EQ(multiply(x + 4, y, z, candidates[0]), Status::kInvalidValue);
  EXPECT_EQ(multiply(x + 4, y, z, candidates[1]), Status::kSuccess);
  EXPECT_EQ(multiply(x + 2, y, z, candidates[1]), Status::kInvalidValue);
  EXPECT_EQ(multiply(x + 288, y, z, candidates[1]), Status::kInvalidValue);  // out of bounds
  EXPECT_EQ(multiply(x, y, x, candidates[1]), Status::kInvalidValue);        // overlaps an input
  EXPECT_EQ(emulated->findings().size(), 1u);
  lt::HeuristicResult damaged = candidates[0];
  damaged.algorithm.data[0] ^= 1;
  EXPECT_EQ(multiply(x, y, z, damaged), Status::kInvalidValue);
}

TEST_F(CublasLtTest, WantsItsWorkspace) {
  a = layout(Type::kFloat32, 4, 64, 4);
  b = layout(Type::kFloat32, 64, 2, 64);
  ASSERT_EQ(ask(16, 0), Status::kSuccess);
  EXPECT_EQ(candidates.size(), 2u);
  ASSERT_EQ(ask(), Status::kSuccess);
  ASSERT_EQ(candidates.size(), 3u);
  const lt::HeuristicResult& parts = candidates[1];
  ASSERT_GT(parts.workspace, 0u);
  const DevicePointer x = floats(std::vector<float>(256, 1)), y = floats(std::vector<float>(128, 1)),
                      z = allocate(32, first), workspace = allocate(parts.workspace, first);
  EXPECT_EQ(multiply(x, y, z, parts), Status::kInvalidValue);
  EXPECT_EQ(multiply(x, y, z, parts, workspace, parts.workspace - 1), Status::kInvalidValue);
  EXPECT_EQ(multiply(x, y, z, parts, workspace, parts.workspace), Status::kSuccess);
  EXPECT_EQ(std::bit_cast<float>(download(z, 1, first)[0]), 64);
}

}  // namespace
}  // namespace torch_remote::worker::cuda::emulated

#include "worker/targets/cuda/ops/interpreter/loop_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "codegen/cpu/testing/harness.h"
#include "codegen/gpu/launch.h"
#include "codegen/gpu/testing/kernels.h"
#include "codegen/loop/scalar_math.h"
#include "codegen/loop/scalar_ops.h"
#include "tests/emulated_gpu/emulator/emulator.h"
#include "tests/emulated_gpu/hand_written_kernels.h"

// Runs LoopIR kernels with the GPU's interpreter, on the GPU emulator, and compares the results with those of the
// reference interpreter. The two add elements in different orders.
namespace torch_remote::worker::cuda {
namespace {

using codegen::cpu::testing::Case;
namespace emulator = codegen::emulator;

class Machine {
 public:
  Machine() {
    const KernelArchive image = find_images(emulated::hand_written_kernels(), KernelFile::kInterpret, 90).code;
    const std::string_view bitcode(reinterpret_cast<const char*>(image.data()), image.size());
    const Status status = emulator::Module::load(device_, bitcode, &module_);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  // Interprets the kernel; changes the case's data. `record`: the first index out of bounds.
  Status run(const codegen::Launch& launch, Case* values, codegen::IndexFailure* record) {
    EncodedKernel encoded;
    if (Status status = encode(launch, 0, &encoded); !status.ok()) return status;
    emulator::DeviceMemory& memory = device_.memory();
    std::vector<void*> all;
    const auto allocate = [&](size_t bytes, const std::string& name) {
      void* address = nullptr;
      EXPECT_TRUE(memory.allocate(std::max<size_t>(bytes, 8), &address, name).ok());
      all.push_back(address);
      return address;
    };
    std::vector<void*> data;
    for (size_t i = 0; i < values->data.size(); ++i) {
      data.push_back(allocate(values->data[i].size(), "operand " + std::to_string(i)));
      EXPECT_TRUE(memory.write(data[i], values->data[i].data(), values->data[i].size()).ok());
    }
    void* const totals = allocate(encoded.scratch_bytes, "totals");
    void* const failure = allocate(sizeof(codegen::gpu::IndexRecord), "failure");
    codegen::gpu::IndexRecord found;
    EXPECT_TRUE(memory.write(failure, &found, sizeof(found)).ok());
    Status status;
    const auto launch_one = [&](InterpretArguments arguments) {
      for (size_t i = 0; i < data.size(); ++i) arguments.data[i] = reinterpret_cast<u64>(data[i]);
      arguments.totals = reinterpret_cast<u64>(totals);
      arguments.failure = reinterpret_cast<u64>(failure);
      for (size_t i = 0; i < encoded.symbols.size(); ++i) arguments.scalars[i] = launch.scalars[encoded.symbols[i]];
      const auto [grid, block] = EncodedKernel::size_of(arguments);
      void* parameters[] = {&arguments};
      if (grid == 0 || !status.ok()) return;
      status = module_->launch("interpret", {.x = static_cast<unsigned>(grid)}, {.x = block}, 0, parameters,
                               {.checked = true});
    };
    launch_one(encoded.main);
    if (encoded.finish) launch_one(*encoded.finish);
    EXPECT_TRUE(memory.read(&found, failure, sizeof(found)).ok());
    *record = {found.operand, found.index, found.bound};
    for (size_t i = 0; i < data.size(); ++i) {
      EXPECT_TRUE(memory.read(values->data[i].data(), data[i], values->data[i].size()).ok());
    }
    for (void* const address : all) EXPECT_TRUE(memory.free(address).ok());
    return status;
  }

 private:
  emulator::Device device_{size_t{1} << 30};
  std::unique_ptr<emulator::Module> module_;
};

codegen::Launch launch_of(const codegen::Kernel& kernel, const Case& values) {
  codegen::Launch launch;
  launch.kernel = kernel;
  launch.sizes = values.sizes;
  size_t stride = 0, bound = 0;
  for (const codegen::Operand& operand : kernel.operands) {
    codegen::Binding& binding = launch.operands.emplace_back();
    for (uint32_t d = 0; d < kernel.dims() + operand.indexed; ++d) binding.strides.push_back(values.strides[stride++]);
    for (uint32_t d = 0; d < operand.indexed; ++d) binding.bounds.push_back(values.bounds[bound++]);
  }
  launch.scalars = values.scalars;
  // Half of the scalars are constants of the code.
  for (uint32_t i = 0; i < launch.scalars.size(); ++i) launch.scalar_symbols.push_back(i % 2 == 0 ? i : ir::kNoSym);
  return launch;
}

// Describes an element that differs by more than the rounding of sums in another order, or returns "".
std::string mismatch(const codegen::Kernel& kernel, const Case& expected, const Case& got) {
  for (size_t i = 0; i < kernel.operands.size(); ++i) {
    const ir::DType dtype = kernel.operands[i].dtype;
    const size_t item = ir::item_size(dtype);
    for (size_t at = 0; at + item <= expected.data[i].size(); at += item) {
      const auto number = [&](const Case& from) {
        const codegen::Cell cell = codegen::load_element(dtype, &from.data[i][at]);
        return codegen::from_cell<double>(codegen::convert(codegen::loaded_type(dtype), ir::DType::kFloat64, cell));
      };
      const double a = number(expected), b = number(got);
      const double unit = item == 2 ? 0x1p-7 : item == 4 ? 1e-5 : 1e-12;
      const bool is_near = ir::is_float(dtype) && std::abs(a - b) <= unit * (1 + std::abs(a));
      if (a == b || (a != a && b != b) || is_near) continue;
      return "operand " + std::to_string(i) + ", element " + std::to_string(at / item) + ": " + std::to_string(b) +
             ", expected " + std::to_string(a);
    }
  }
  return "";
}

TEST(Interpret, ComputesWhatTheReferenceDoes) {
  Machine machine;
  int encoded = 0, with_totals = 0, failures = 0;
  for (const codegen::gpu::testing::NamedKernel& named : codegen::gpu::testing::named_kernels()) {
    codegen::Kernel kernel;
    ASSERT_TRUE(codegen::parse_kernel(named.text, &kernel).ok());
    for (const std::vector<int64_t>& sizes : named.sizes) {
      int64_t points = 1;
      for (const int64_t size : sizes) points *= size;
      if (points > 20000) continue;
      const Case before = codegen::cpu::testing::make_case(kernel, sizes, named.bounds, 5);
      Case expected = before, got = before;
      codegen::IndexFailure failure, record;
      ASSERT_TRUE(codegen::cpu::testing::run_interpreter(kernel, &expected, &failure).ok());
      const Status status = machine.run(launch_of(kernel, before), &got, &record);
      if (status.code() == ErrorCode::kUnsupported) continue;
      ASSERT_TRUE(status.ok()) << named.name << ": " << status.message();
      EXPECT_EQ(record.operand == codegen::kNone, failure.operand == codegen::kNone) << named.name;
      EXPECT_EQ(mismatch(kernel, expected, got), "") << named.name << " " << ::testing::PrintToString(sizes);
      ++encoded;
      failures += record.operand != codegen::kNone;
      with_totals += !codegen::schedule(kernel).totals.empty();
    }
  }
  std::printf("%d cases, %d with reductions over rows, %d with an index out of bounds\n", encoded, with_totals,
              failures);
  EXPECT_GT(encoded, 40);
  EXPECT_GT(with_totals, 4);
}

TEST(Interpret, ReportsAnIntegerDivisionByZero) {
  Machine machine;
  codegen::Kernel kernel;
  ASSERT_TRUE(codegen::parse_kernel(R"(kernel( | j0) {
        a0: i64[j0]
        a1: i64[j0]
        a2: i64[j0]
        %0: i64 = load a0
        %1: i64 = load a1
        %2: i64 = fmod %0, %1
        store a2, %2
      })",
                                    &kernel)
                  .ok());
  Case values = codegen::cpu::testing::make_case(kernel, {2}, {}, 5);
  const auto set = [&](size_t operand, std::array<int64_t, 2> numbers) {
    std::memcpy(values.data[operand].data(), numbers.data(), sizeof(numbers));
  };
  set(0, {7, -7});
  set(1, {4, 4});
  codegen::IndexFailure record;
  ASSERT_TRUE(machine.run(launch_of(kernel, values), &values, &record).ok());
  EXPECT_EQ(record.operand, codegen::kNone);
  std::array<int64_t, 2> rest{};
  std::memcpy(rest.data(), values.data[2].data(), sizeof(rest));
  EXPECT_EQ(rest, (std::array<int64_t, 2>{3, -3}));
  set(1, {4, 0});
  ASSERT_TRUE(machine.run(launch_of(kernel, values), &values, &record).ok());
  EXPECT_EQ(record.operand, 3u);  // after those of the operands
}

TEST(Interpret, KernelsThatAreTooLargeAreRefused) {
  codegen::Kernel kernel;
  ASSERT_TRUE(codegen::parse_kernel(codegen::gpu::testing::named_kernel("sum").text, &kernel).ok());
  const std::vector<int64_t> sizes = codegen::gpu::testing::named_kernel("sum").sizes[0];
  const Case values = codegen::cpu::testing::make_case(kernel, sizes, {}, 5);
  codegen::Launch launch = launch_of(kernel, values);
  EncodedKernel encoded;
  EXPECT_TRUE(encode(launch, 0, &encoded).ok());
  launch.kernel.values.resize(300, launch.kernel.values[0]);
  EXPECT_EQ(encode(launch, 0, &encoded).code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace torch_remote::worker::cuda

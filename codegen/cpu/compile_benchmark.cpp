#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cpu/testing/harness.h"

// Measures how long kernels take to compile, and to run on one thread:
//   ./bazelw run //codegen/cpu:compile_benchmark
namespace torch_remote::codegen::cpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The best of several runs, because other processes use the machine, too.
double best(const std::function<void()>& work, int runs) {
  double least = seconds(work);
  for (int i = 1; i < runs; ++i) least = std::min(least, seconds(work));
  return least;
}

struct Named {
  const char* name;
  const char* text;
};

constexpr Named kKernels[] = {
    {"add", R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = add %0, %1
  store a2, %2
})"},
    {"gelu", R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[j0]
  a2: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = add %0, %1
  %3: f32 = constant 0.70710678118654752
  %4: f32 = mul %2, %3
  %5: f32 = erf %4
  %6: f32 = constant 1.0
  %7: f32 = add %5, %6
  %8: f32 = constant 0.5
  %9: f32 = mul %2, %8
  %10: f32 = mul %9, %7
  store a2, %10
})"},
    {"gelu tanh", R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = mul %0, %0
  %2: f32 = mul %1, %0
  %3: f32 = constant 0.044715
  %4: f32 = fma %2, %3, %0
  %5: f32 = constant 0.79788456080286536
  %6: f32 = mul %4, %5
  %7: f32 = tanh %6
  %8: f32 = constant 0.5
  %9: f32 = mul %0, %8
  %10: f32 = fma %9, %7, %9
  store a1, %10
})"},
    {"softmax", R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = columns max %0
  %2: f32 = sub %0, %1
  %3: f32 = exp %2
  %4: f32 = columns sum %3
  %5: f32 = div %3, %4
  store a1, %5
})"},
    {"layer norm", R"(kernel(i0 | j0) {
  s0: i64
  a0: f32[i0, j0]
  a1: f32[j0]
  a2: f32[j0]
  a3: f32[i0, j0]
  %0: f32 = load a0
  %1: i64 = scalar s0
  %2: f32 = convert %1
  %3: f32 = columns sum %0
  %4: f32 = div %3, %2
  %5: f32 = sub %0, %4
  %6: f32 = mul %5, %5
  %7: f32 = columns sum %6
  %8: f32 = div %7, %2
  %9: f32 = constant 0.00001
  %10: f32 = add %8, %9
  %11: f32 = sqrt %10
  %12: f32 = constant 1.0
  %13: f32 = div %12, %11
  %14: f32 = mul %5, %13
  %15: f32 = load a1
  %16: f32 = load a2
  %17: f32 = fma %14, %15, %16
  store a3, %17
})"},
    {"bf16 chain", R"(kernel(i0 | j0) {
  a0: bf16[i0, j0]
  a1: bf16[i0, j0]
  a2: bf16[j0]
  a3: bf16[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = load a2
  %3: f32 = mul %0, %1
  %4: f32 = sigmoid %3
  %5: f32 = mul %3, %4
  %6: f32 = add %5, %2
  store a3, %6
})"},
    {"chain", R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = sigmoid %0
  %3: f32 = tanh %1
  %4: f32 = mul %2, %3
  %5: f32 = constant 0.70710678118654752
  %6: f32 = mul %4, %5
  %7: f32 = erf %6
  %8: f32 = constant 1.0
  %9: f32 = add %7, %8
  %10: f32 = constant 0.5
  %11: f32 = mul %4, %10
  %12: f32 = mul %11, %9
  store a2, %12
})"},
    {"running sum", R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = running sum %0
  store a1, %1
})"},
    {"random", R"(kernel(i0 | j0) {
  s0: i64
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  %0: f32 = load a0
  %1: i64 = scalar s0
  %2: i64 = index i0
  %3: i64 = mul %2, %1
  %4: i64 = index j0
  %5: i64 = add %3, %4
  %6: i64 = constant 42
  %7: i32 = random %6, %1, %5
  %8: i32 = constant 0
  %9: bool = ge %7, %8
  %10: f32 = constant 0.0
  %11: f32 = where %9, %0, %10
  store a1, %11
})"},
    {"sum of rows", R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[j0]
  %0: f32 = load a0
  %1: f32 = rows sum %0
  store a1, %1
})"},
};

Kernel parsed(const Named& named) {
  Kernel kernel;
  Status status = parse_kernel(named.text, &kernel);
  if (status.ok()) status = verify(kernel);
  if (!status) std::printf("%s: %s\n", named.name, status.message().c_str());
  return kernel;
}

testing::Compiled compiled(const Kernel& kernel, std::string_view target, CompileTimes* times) {
  testing::Compiled result;
  const Status status = testing::compile_and_place(kernel, {.target = target, .times = times}, &result);
  if (!status) std::printf("%s\n", status.message().c_str());
  return result;
}

void compile_times(std::string_view target) {
  std::printf("\ncompile, %s (ms: best of 9, mean)\n", std::string(target).c_str());
  std::printf("%-12s %6s %6s %7s %6s %6s %6s %6s %6s %6s\n", "", "best", "mean", "expand", "emit", "transl", "opt",
              "gen", "link", "bytes");
  for (const Named& named : kKernels) {
    const Kernel kernel = parsed(named);
    compiled(kernel, target, nullptr);
    CompileTimes least, times;
    double sum = 0;
    size_t bytes = 0;
    for (int i = 0; i < 9; ++i) {
      bytes = compiled(kernel, target, &times).code.bytes.size();
      sum += times.total();
      if (i == 0 || times.total() < least.total()) least = times;
    }
    std::printf("%-12s %6.2f %6.2f %7.2f %6.2f %6.2f %6.2f %6.2f %6.2f %6zu\n", named.name, least.total(), sum / 9,
                least.expand, least.emit, least.translate, least.optimize, least.generate, least.link, bytes);
  }
}

// Bytes that a call reads or writes, each counted once.
double traffic(const testing::Case& arguments) {
  double bytes = 0;
  for (const testing::Bytes& operand : arguments.data) bytes += static_cast<double>(operand.size());
  return bytes;
}

// Fills all float operands with numbers around 0, without denormals: these are slow, and need a benchmark of their own.
void fill(const Kernel& kernel, testing::Case* arguments) {
  for (size_t o = 0; o < kernel.operands.size(); ++o) {
    testing::Bytes& bytes = arguments->data[o];
    const size_t size = ir::item_size(kernel.operands[o].dtype);
    for (size_t i = 0; i < bytes.size() / size; ++i) {
      const float x = static_cast<float>(i * 7919 % 4001) / 1000.f - 2.f;
      const char* const number = reinterpret_cast<const char*>(&x);
      std::memcpy(bytes.data() + i * size, number + (sizeof(x) - size), size);
    }
  }
}

double copy_seconds(size_t bytes) {
  std::vector<char> from(bytes / 2, 1), to(bytes / 2, 2);
  return best([&] { std::memcpy(to.data(), from.data(), from.size()); }, 15);
}

void run_times(std::string_view target, int64_t rows, int64_t columns) {
  std::printf("\nrun, %s, %ld x %ld\n%-12s %10s %8s %14s\n", std::string(target).c_str(), static_cast<long>(rows),
              static_cast<long>(columns), "", "ns/element", "GB/s", "of a copy");
  for (const Named& named : kKernels) {
    const Kernel kernel = parsed(named);
    const testing::Compiled code = compiled(kernel, target, nullptr);
    testing::Case arguments = testing::make_case(kernel, {rows, columns}, {}, 1);
    fill(kernel, &arguments);
    if (!arguments.scalars.empty()) arguments.scalars[0] = static_cast<uint64_t>(columns);
    std::vector<void*> data;
    for (testing::Bytes& bytes : arguments.data) data.push_back(bytes.data());
    const Arguments view{.sizes = arguments.sizes,
                         .data = data,
                         .strides = arguments.strides,
                         .bounds = arguments.bounds,
                         .scalars = arguments.scalars};
    IndexRecord failure;
    const double elements = static_cast<double>(rows * columns);
    const int runs = elements < 1e6 ? 200 : 7;
    const double time = best([&] { testing::run_compiled(code, view, &failure, 64); }, runs);
    const double copy = copy_seconds(static_cast<size_t>(traffic(arguments)));
    std::printf("%-12s %10.3f %8.1f %13.0f%%\n", named.name, time * 1e9 / elements, traffic(arguments) / time / 1e9,
                100 * copy / time);
  }
}

}  // namespace
}  // namespace torch_remote::codegen::cpu

int main() {
  using namespace torch_remote::codegen::cpu;
  for (const std::string_view target : testing::targets()) {
    compile_times(target);
    run_times(target, 64, 1024);
    run_times(target, 4096, 4096);
  }
}

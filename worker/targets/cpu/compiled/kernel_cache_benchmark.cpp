#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "worker/targets/cpu/compiled/compiler.h"
#include "worker/targets/cpu/compiled/kernel_cache.h"
#include "worker/targets/cpu/compiled/kernel_runner.h"

// Measures how long a kernel takes until it is ready: read from disk, and compiled with the compiler that ships.
//   ./bazelw run //worker/targets/cpu/compiled:kernel_cache_benchmark
namespace torch_remote::worker::kernels {
namespace {

constexpr int kKernels = 100;

// Layer norm, with a different epsilon for each kernel.
std::string text_of(int i) {
  return R"(kernel(i0 | j0) {
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
  %9: f32 = constant )" +
         std::to_string(i + 1) + R"(.0
  %10: f32 = add %8, %9
  %11: f32 = sqrt %10
  %12: f32 = constant 1.0
  %13: f32 = div %12, %11
  %14: f32 = mul %5, %13
  %15: f32 = load a1
  %16: f32 = load a2
  %17: f32 = fma %14, %15, %16
  store a3, %17
}
)";
}

// Prints how many milliseconds the kernels take until they are ready.
bool measure(const char* what, const CacheOptions& options) {
  KernelCache cache(options);
  std::vector<double> times;
  for (int i = 0; i < kKernels; ++i) {
    const std::string text = text_of(i);
    codegen::Kernel kernel;
    if (const Status status = codegen::parse_kernel(text, &kernel); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return false;
    }
    const auto begin = std::chrono::steady_clock::now();
    const std::shared_ptr<CompiledKernel> compiled = cache.get(text, kernel);
    cache.wait(*compiled);
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    if (!compiled->ready()) {
      std::fprintf(stderr, "%s\n", compiled->status.message().c_str());
      return false;
    }
  }
  double sum = 0;
  for (const double time : times) sum += time;
  std::sort(times.begin(), times.end());
  std::printf("%-14s mean %7.3f ms, median %7.3f, longest %7.3f, of %d; %d compiled\n", what, sum / kKernels,
              times[kKernels / 2], times.back(), kKernels, static_cast<int>(cache.compiled()));
  return true;
}

int run(const char* compiler) {
  std::string folder = std::filesystem::temp_directory_path() / "kernels_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  CacheOptions options;
  options.folder = folder;
  options.urgent = true;
  options.target = host_target();
  if (const Status status = open_compiler(compiler, options.target, &options); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  const bool done = measure("compiled", options) && measure("from the disk", options);
  std::filesystem::remove_all(folder);
  return done ? 0 : 1;
}

}  // namespace
}  // namespace torch_remote::worker::kernels

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "kernel_cache_benchmark PATH_OF_THE_COMPILER\n");
    return 2;
  }
  return torch_remote::worker::kernels::run(arguments[1]);
}

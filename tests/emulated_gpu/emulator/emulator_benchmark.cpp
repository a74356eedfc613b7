#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "tests/emulated_gpu/emulator/emulator.h"
#include "tests/emulated_gpu/emulator/testing/harness.h"

// Measures the emulator's cost: the best of five, in milliseconds of CPU time of all host threads, so that other load
// on the machine matters little.
namespace torch_remote::codegen::emulator {
namespace {

using testing::Buffer;
using testing::must;

double processor_time() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

template <typename F>
double best_of_five(F function) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double begin = processor_time();
    function();
    best = std::min(best, processor_time() - begin);
  }
  return best;
}

// A module with a single kernel.
constexpr const char* kOneKernel = R"(
  target triple = "nvptx64-nvidia-cuda"
  declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  declare void @llvm.nvvm.barrier0()
  declare float @llvm.nvvm.shfl.sync.bfly.f32(i32, float, i32, i32)
  define ptx_kernel void @k(ptr %x, ptr %out, i64 %n) {
    %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
    %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
    %s = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
    %o = mul i32 %b, %s
    %i = add i32 %o, %t
    %j = zext i32 %i to i64
    %p = getelementptr <4 x float>, ptr %x, i64 %j
    %v = load <4 x float>, ptr %p
    %e = extractelement <4 x float> %v, i32 0
    %f = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %e, i32 1, i32 31)
    call void @llvm.nvvm.barrier0()
    %w = insertelement <4 x float> %v, float %f, i32 1
    %q = getelementptr <4 x float>, ptr %out, i64 %j
    store <4 x float> %w, ptr %q
    ret void
  })";

void run() {
  Device device;
  std::printf("load a module of one kernel: %.1f\n", best_of_five([&] {
                std::unique_ptr<Module> module;
                must(Module::load(device, kOneKernel, &module));
              }));
  const auto module = testing::load_file(device, "tests/emulated_gpu/emulator/testing/right.bc");
  constexpr int64_t kCount = 1 << 20;
  int columns = 1000, rounds = 1000, count = kCount;
  int64_t wide_count = kCount;
  float bias = 0.5;
  const std::vector<float> ones(kCount, 1);
  Buffer<float> x(device, ones, "x"), w(device, ones, "w"), out(device, ones, "out");

  struct Launch {
    const char* kernel;
    uint32_t blocks;
    std::vector<void*> arguments;
  };
  const Launch launches[] = {
      {"pointwise", 264, {x.argument(), w.argument(), out.argument(), &bias, &wide_count}},
      {"reduce", 264, {x.argument(), out.argument(), &count}},
      {"softmax", 1000, {x.argument(), out.argument(), &columns}},
      {"barriers", 1, {&rounds}},
  };
  const LaunchOptions ways[] = {{}, {.seed = 1}, {.host_threads = 2}, {.checked = true}};
  std::printf("%-12s %10s %10s %10s %10s\n", "256 threads", "in order", "seeded", "two hosts", "checked");
  for (const Launch& launch : launches) {
    std::printf("%-12s", launch.kernel);
    for (const LaunchOptions& way : ways) {
      must(module->launch(launch.kernel, {launch.blocks}, {256}, 0, launch.arguments.data(), way));
      std::printf(" %10.2f", best_of_five([&] {
                    must(module->launch(launch.kernel, {launch.blocks}, {256}, 0, launch.arguments.data(), way));
                  }));
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace torch_remote::codegen::emulator

int main() { torch_remote::codegen::emulator::run(); }

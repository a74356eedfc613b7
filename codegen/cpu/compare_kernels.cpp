#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "codegen/cpu/testing/harness.h"

// Times several kernels alternately, each on the same operands:
//   ./bazelw run //codegen/cpu:compare_kernels -- ROWS COLUMNS CALLS THREADS FILE...
// Each FILE contains a kernel in LoopIR. A round runs each kernel on CALLS sets of operands per thread. The tool prints
// the median time per element. It also prints the median and quartiles of the time relative to the first kernel's time
// in the same round.
namespace torch_remote::codegen::cpu {
namespace {

constexpr int kRounds = 41;
constexpr int64_t kMinElements = 1 << 22;  // least number of timed elements per thread

struct Call {
  testing::Case arguments;
  std::vector<void*> data;
};

struct Timed {
  std::string file;
  testing::Compiled code;
  std::vector<std::vector<std::shared_ptr<Call>>> calls;  // per thread
  std::vector<double> seconds, ratios;                    // per round
};

void fill(const Kernel& kernel, testing::Case* arguments) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (size_t o = 0; o < kernel.operands.size(); ++o) {
    if (kernel.operands[o].dtype != ir::DType::kFloat32) continue;
    for (size_t i = 0; i < arguments->data[o].size() / sizeof(float); ++i) {
      const float x = normal(random);
      std::memcpy(arguments->data[o].data() + i * sizeof x, &x, sizeof x);
    }
  }
}

// Compiles the kernel. It uses the operands of `first`, if `first` is prepared already.
bool prepare(int64_t rows, int64_t columns, int calls, int threads, const Timed& first, Timed* timed) {
  std::ifstream in(timed->file);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  Kernel kernel;
  Status status = parse_kernel(text, &kernel);
  if (status.ok()) status = verify(kernel);
  if (status.ok()) {
    status = testing::compile_and_place(kernel, {.target = testing::targets().front()}, &timed->code);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", timed->file.c_str(), status.message().c_str());
    return false;
  }
  if (!first.calls.empty()) {
    timed->calls = first.calls;
    return kernel.operands == first.code.kernel.operands && kernel.scalars == first.code.kernel.scalars;
  }
  for (int thread = 0; thread < threads; ++thread) {
    std::vector<std::shared_ptr<Call>>& made = timed->calls.emplace_back();
    for (int i = 0; i < calls; ++i) {
      Call& call = *made.emplace_back(std::make_shared<Call>());
      call.arguments = testing::make_case(kernel, {rows, columns}, {}, 1);
      fill(kernel, &call.arguments);
      for (testing::Bytes& bytes : call.arguments.data) call.data.push_back(bytes.data());
    }
  }
  return true;
}

void run(const Timed& timed, const std::vector<std::shared_ptr<Call>>& calls) {
  for (const std::shared_ptr<Call>& shared : calls) {
    const Call& call = *shared;
    const Arguments view{.sizes = call.arguments.sizes,
                         .data = call.data,
                         .strides = call.arguments.strides,
                         .bounds = call.arguments.bounds,
                         .scalars = call.arguments.scalars};
    IndexRecord failure;
    testing::run_compiled(timed.code, view, &failure, 64);
  }
}

// Seconds that `repeats` repetitions of all calls take.
double seconds(const Timed& timed, int repeats) {
  const auto work = [&](size_t thread) {
    for (int i = 0; i < repeats; ++i) run(timed, timed.calls[thread]);
  };
  std::barrier start(static_cast<std::ptrdiff_t>(timed.calls.size()));
  std::vector<std::jthread> threads;
  for (size_t thread = 1; thread < timed.calls.size(); ++thread) {
    threads.emplace_back([&, thread] {
      start.arrive_and_wait();
      work(thread);
    });
  }
  start.arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  work(0);
  threads.clear();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double at(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

int main_of(int argc, char** argv) {
  if (argc < 6) return 2;
  const int64_t rows = std::atol(argv[1]), columns = std::atol(argv[2]);
  const int calls = std::atoi(argv[3]), threads = std::atoi(argv[4]);
  // Calls with small operands are repeated; these stay in the cache.
  const int repeats = static_cast<int>(std::max<int64_t>(1, kMinElements / (rows * columns * calls)));
  std::vector<Timed> all(static_cast<size_t>(argc) - 5);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].file = argv[i + 5];
    if (!prepare(rows, columns, calls, threads, all[0], &all[i])) return 1;
    seconds(all[i], repeats);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Timed& timed : all) {
      timed.seconds.push_back(seconds(timed, repeats));
      timed.ratios.push_back(timed.seconds.back() / all[0].seconds.back());
    }
  }
  const double elements = static_cast<double>(rows * columns) * calls * threads * repeats;
  for (const Timed& timed : all) {
    std::printf("%-40s %8.4f ns/element, %6.3f of the first (%.3f to %.3f)\n", timed.file.c_str(),
                at(timed.seconds, 0.5) * 1e9 / elements, at(timed.ratios, 0.5), at(timed.ratios, 0.25),
                at(timed.ratios, 0.75));
  }
  return 0;
}

}  // namespace
}  // namespace torch_remote::codegen::cpu

int main(int argc, char** argv) { return torch_remote::codegen::cpu::main_of(argc, argv); }

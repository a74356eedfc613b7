#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "passes/pass.h"
#include "passes/testing/random_program.h"

// Measures the cost of building a program that the worker does not know:
//   bazel run //passes:build_cost_benchmark
// The budget is 10 us per op for import, passes and encoding together. Verifying 10k ops may take 1 ms.
namespace torch_remote::passes {
namespace {

double best_us(int repeats, const std::function<void()>& setup, const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    setup();
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count());
  }
  return best;
}

int run(const char* name, const ir::Trace& trace) {
  const double ops = static_cast<double>(trace.records.size());
  const std::vector<uint64_t> survivors = trace.survivors();
  ir::Graph graph;
  bool good = true;
  double total = best_us(20, [] {}, [&] { good &= ir::import_trace(trace, survivors, &graph).ok(); });
  std::printf("%s, %zu ops (us an op)\n  %-13s %6.3f\n", name, trace.records.size(), "import", total / ops);
  for (const Pass& pass : pipeline()) {
    ir::Graph work;
    const double us = best_us(20, [&] { work = graph; }, [&] { good &= pass.run(work, {}).ok(); });
    graph = std::move(work);
    total += us;
    std::printf("  %-13s %6.3f\n", pass.name.data(), us / ops);
  }
  std::vector<uint8_t> bytes;
  const double encode = best_us(20, [] {}, [&] { bytes = ir::encode_program(graph); });
  total += encode;
  std::printf("  %-13s %6.3f   (%zu bytes)\n  %-13s %6.3f\n", "encode", encode / ops, bytes.size(), "together",
              total / ops);

  ir::Graph back;
  const double decode = best_us(20, [] {}, [&] { good &= ir::decode_program(bytes.data(), bytes.size(), &back).ok(); });
  const double verify = best_us(20, [] {}, [&] { good &= ir::verify(back).ok(); });
  std::vector<int64_t> values;
  const double evaluate = best_us(20, [] {}, [&] { good &= ir::evaluate(back, trace.params.data(), &values).ok(); });
  std::vector<uint64_t> nbytes;
  size_t input = 0;
  std::vector<uint64_t> inputs;
  for (const ir::TraceBuffer& buffer : trace.buffers) {
    if (!buffer.fresh) inputs.push_back(buffer.nbytes);
  }
  for (const ir::Buffer& buffer : back.buffers) {
    nbytes.push_back(buffer.kind == ir::BufferKind::kInput ? inputs[input++]
                                                           : static_cast<uint64_t>(values[buffer.nbytes]));
  }
  const double extents = best_us(20, [] {}, [&] { good &= ir::check_extents(back, values, nbytes).ok(); });
  std::printf("  worker: decode %.3f, verify %.3f, evaluate %.3f, check_extents %.3f\n", decode / ops, verify / ops,
              evaluate / ops, extents / ops);
  std::printf("verified %zu ops in %.3f ms\n", back.nodes.size(), verify / 1000);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace torch_remote::passes

int main() {
  using namespace torch_remote::passes;
  testing::Rng rng(1);
  int failed = run("perceptron", testing::perceptron_program(3000));
  failed |= run("perceptron", testing::perceptron_program(10000));
  failed |= run("random", testing::random_program(rng, 3000));
  return failed;
}

#include "worker/aten/threads.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

// Of GNU's OpenMP, which torch is built with, and of LLVM's: begins a parallel region in which `function` runs on the
// other threads, and ends it.
extern "C" {
__attribute__((weak)) void GOMP_parallel_start(void (*function)(void*), void* data, unsigned threads);
__attribute__((weak)) void GOMP_parallel_end();
}

namespace torch_remote::worker::aten {
namespace {

std::atomic<uint32_t> asleep{0};  // 1: threads at rest stay there

const ir::Opcode kRnn = ir::find_op("aten::_cudnn_rnn");
const ir::Opcode kRnnBackward = ir::find_op("aten::_cudnn_rnn_backward");

double numel(const ir::Graph& graph, const int64_t* symbols, uint32_t view) {
  double product = 1;
  for (const ir::Sym size : graph.views[view].sizes) product *= static_cast<double>(symbols[size]);
  return product;
}

double work_of(const ir::Graph& graph, const int64_t* symbols, const ir::Node& node) {
  std::array<double, 3> largest{};  // ascending
  double sum = 0;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    const double size = numel(graph, symbols, view);
    sum += size;
    if (size <= largest[0]) return;
    largest[0] = size;
    std::sort(largest.begin(), largest.end());
  });
  switch (ir::op_desc(node.opcode).family) {
    // (m*k) * (k*n) * (m*n) is (m*k*n)^2. A convolution is such a matmul but for its kernel's area, and a factorisation
    // of an n*n matrix takes n^3.
    case ir::Family::kMatmul:
    case ir::Family::kConv:
    case ir::Family::kAttention:
    case ir::Family::kComposite:
      // Step after step, so what counts is a step's work. The input is [steps, batch, inputs].
      if (node.opcode == kRnn || node.opcode == kRnnBackward) {
        return std::sqrt(largest[0] * largest[1] * largest[2]) /
               std::max(1.0, static_cast<double>(symbols[graph.views[node.args[0].a].sizes[0]]));
      }
      [[fallthrough]];
    case ir::Family::kOpaque:
      return std::max(kWorkPerElement * largest[2], std::sqrt(largest[0] * largest[1] * largest[2]));
    case ir::Family::kMultiTensor:
      return kWorkPerElement * sum;
    default:
      return kWorkPerElement * largest[2];
  }
}

}  // namespace

void estimate_work(const ir::Graph& graph, const int64_t* symbols, std::vector<double>* work) {
  work->resize(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) (*work)[n] = work_of(graph, symbols, graph.nodes[n]);
}

Threads::Threads(int count, bool fixed) {
  if (fixed) return;
  if (count > 0) at::set_num_threads(count);
  all_ = count_ = at::get_num_threads();
  cpu_set_t cores;
  const int core_count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : all_;
  but_one_ = std::clamp(core_count - 1, 1, all_);
}

void Threads::change(int count) {
  count_ = count;
  used_ |= count > 1;
  at::set_num_threads(count);
}

// A parallel region whose other threads wait for the end of the rest, and which this thread leaves when it wakes them.
void Threads::rest() {
  if (resting_ || !used_ || all_ <= 1 || !GOMP_parallel_start || !GOMP_parallel_end) return;
  used_ = false;
  resting_ = true;
  asleep.store(1, std::memory_order_relaxed);
  GOMP_parallel_start([](void*) { asleep.wait(1); }, nullptr, static_cast<unsigned>(all_));
}

void Threads::expect() {
  if (!resting_ || !asleep.exchange(0, std::memory_order_release)) return;
  asleep.notify_all();
}

void Threads::wake() {
  if (!resting_) return;
  expect();
  GOMP_parallel_end();
  resting_ = false;
  used_ = true;
  at::set_num_threads(count_);  // what was set inside of the region ended with it
}

}  // namespace torch_remote::worker::aten

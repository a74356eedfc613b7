#include "worker/aten/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace torch_remote::worker::aten {
namespace {

// What an element of anything but a matmul is worth in multiply-adds.
constexpr double kPerElement = 16;

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
      return std::max(kPerElement * largest[2], std::sqrt(largest[0] * largest[1] * largest[2]));
    case ir::Family::kMultiTensor:
      return kPerElement * sum;
    default:
      return kPerElement * largest[2];
  }
}

}  // namespace

void estimate_work(const ir::Graph& graph, const int64_t* symbols, std::vector<double>* work) {
  work->resize(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) (*work)[n] = work_of(graph, symbols, graph.nodes[n]);
}

ThreadCount::ThreadCount(int count, bool fixed) {
  if (fixed) return;
  if (count > 0) at::set_num_threads(count);
  all_ = at::get_num_threads();
}

void ThreadCount::change(bool parallel) {
  parallel_ = parallel;
  at::set_num_threads(parallel ? all_ : 1);
}

}  // namespace torch_remote::worker::aten

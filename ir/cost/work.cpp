#include "ir/cost/work.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ir/ops/op_table_generated.h"

namespace torch_remote::ir {
namespace {

bool is_rnn(Opcode opcode) { return opcode == ops::remote_rnn || opcode == ops::remote_rnn_backward; }

double numel(const Graph& graph, const int64_t* symbols, uint32_t view) {
  double product = 1;
  for (const Sym size : graph.views[view].sizes) product *= static_cast<double>(symbols[size]);
  return product;
}

double work_of(const Graph& graph, const int64_t* symbols, const Node& node) {
  std::array<double, 3> largest{};  // ascending
  double sum = 0;
  for_each_view(node, [&](uint32_t view, bool) {
    const double size = numel(graph, symbols, view);
    sum += size;
    if (size <= largest[0]) return;
    largest[0] = size;
    std::sort(largest.begin(), largest.end());
  });
  switch (op_desc(node.opcode).family) {
    // For an [m, k] x [k, n] matmul, the element counts (m*k) * (k*n) * (m*n) multiply to (m*k*n)^2. A convolution is
    // like a matmul, except for the area of its filter. A factorization of an n*n matrix takes n^3.
    case Family::kMatmul:
    case Family::kConv:
    case Family::kAttention:
    case Family::kComposite:
      if (is_rnn(node.opcode)) return std::sqrt(largest[0] * largest[1] * largest[2]);
      [[fallthrough]];
    case Family::kOpaque:
      return std::max(kWorkPerElement * largest[2], std::sqrt(largest[0] * largest[1] * largest[2]));
    case Family::kMultiTensor:
      return kWorkPerElement * sum;
    default:
      return kWorkPerElement * largest[2];
  }
}

}  // namespace

void estimate_work(const Graph& graph, const int64_t* symbols, std::vector<double>* work) {
  work->resize(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) (*work)[n] = work_of(graph, symbols, graph.nodes[n]);
}

}  // namespace torch_remote::ir

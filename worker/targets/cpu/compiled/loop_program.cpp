#include "worker/targets/cpu/compiled/loop_program.h"

#include <algorithm>

#include "worker/device/monotonic_clock.h"

namespace torch_remote::worker::kernels {
namespace {

// The symbols of the node's views (sizes, strides, offsets) and numbers.
std::vector<ir::Sym> symbols_of(const ir::Graph& graph, const ir::Node& node) {
  std::vector<ir::Sym> symbols;
  ir::for_each_view(node, [&](uint32_t index, bool) {
    const ir::View& view = graph.views[index];
    symbols.insert(symbols.end(), view.sizes.begin(), view.sizes.end());
    symbols.insert(symbols.end(), view.strides.begin(), view.strides.end());
    symbols.push_back(view.offset);
  });
  for (const ir::Arg& arg : node.args) {
    const bool number = arg.tag == ir::ArgTag::kBool || arg.tag == ir::ArgTag::kInt || arg.tag == ir::ArgTag::kFloat;
    if (number) symbols.push_back(arg.a);
  }
  std::ranges::sort(symbols);
  const auto twice = std::ranges::unique(symbols);
  symbols.erase(twice.begin(), twice.end());
  return symbols;
}

}  // namespace

LoopProgram::LoopProgram(const ir::Graph& graph, ir::GroupKind kind) : graph_(graph) {
  for (const ir::Group& group : graph.groups) {
    if (group.kind != kind || group.first != group.last) continue;
    groups_.emplace_back(graph, group);
    groups_.back().symbols = symbols_of(graph, graph.nodes[group.first]);
  }
}

size_t LoopProgram::index_of(uint32_t first) const {
  const auto found = std::ranges::lower_bound(groups_, first, {}, [](const Bound& bound) { return bound.group.first; });
  return static_cast<size_t>(found - groups_.begin());
}

bool LoopProgram::takes(uint32_t first, uint32_t, std::span<const int64_t> values) {
  const size_t index = index_of(first);
  Bound& bound = groups_[index];
  bool same = bound.is_bound;
  for (size_t i = 0; same && i < bound.symbols.size(); ++i) same = bound.values[i] == values[bound.symbols[i]];
  if (!same) {
    bound.is_bound = true;
    bound.values.clear();
    for (const ir::Sym symbol : bound.symbols) bound.values.push_back(values[symbol]);
    bound.fits = bind(index, graph_.nodes[first], values);
  }
  // The op with the bad number reports it.
  bound.taken = bound.fits && bound.numbers.check(values).ok() && wants(index);
  return bound.taken;
}

std::string LoopProgram::why_not_group(uint32_t first) const {
  const size_t index = index_of(first);
  return groups_[index].taken ? "" : reason(index);
}

double LoopProgram::work(uint32_t first, uint32_t last) const {
  double sum = 0;
  for (size_t i = index_of(first); i < groups_.size() && groups_[i].group.first < last; ++i) sum += points(i);
  return sum;
}

bool LoopProgram::run(tr_run& run, tr_error* error) {
  const std::span<const tr_buffer> buffers(run.buffers, run.buffer_count);
  for (uint32_t n = run.first; n < run.last; ++n) {
    if (run.times != nullptr) run.times[n - run.first] = monotonic_ns();
    if (!execute(index_of(n), buffers, error)) {
      error->node = n;
      return false;
    }
  }
  if (run.times != nullptr) run.times[run.last - run.first] = monotonic_ns();
  return true;
}

}  // namespace torch_remote::worker::kernels

#include "worker/targets/cpu/compiled/loop_program.h"

#include <algorithm>

#include "worker/device/monotonic_clock.h"

namespace torch_remote::worker::kernels {

LoopProgram::LoopProgram(const ir::Graph& graph, ir::GroupKind kind) : graph_(graph) {
  for (const ir::Group& group : graph.groups) {
    if (group.kind != kind || group.first != group.last) continue;
    groups_.emplace_back(graph, group);
    std::vector<ir::Sym>& symbols = groups_.back().symbols;
    for (const ir::Arg& arg : graph.nodes[group.first].args) {
      const bool number = arg.tag == ir::ArgTag::kBool || arg.tag == ir::ArgTag::kInt || arg.tag == ir::ArgTag::kFloat;
      if (number) symbols.push_back(arg.a);
    }
    ir::add_view_symbols(graph, group, &symbols);
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

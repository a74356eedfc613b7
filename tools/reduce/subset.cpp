#include "tools/reduce/subset.h"

#include <algorithm>

#include "ir/checking/compact.h"
#include "ir/ops/op_table_generated.h"
#include "tools/runs/execute.h"

namespace torch_remote::tools::reduce {
namespace {

constexpr uint32_t kNever = ir::kNoNode;

std::vector<uint64_t> buffer_sizes(const RunCase& run, const std::vector<int64_t>& values) {
  std::vector<uint64_t> sizes;
  size_t input = 0;
  for (const ir::Buffer& buffer : run.graph.buffers) {
    if (buffer.kind == ir::BufferKind::kInput) {
      sizes.push_back(run.inputs[input++].size());
    } else {
      sizes.push_back(buffer.nbytes == ir::kNoSym ? 0 : static_cast<uint64_t>(values[buffer.nbytes]));
    }
  }
  return sizes;
}

// How the kept and the dropped nodes use a buffer.
struct Use {
  uint32_t first_kept = kNever;  // the first kept node that uses it
  uint32_t first_kept_write = kNever;
  bool written_before = false;  // a dropped node writes it before first_kept
  bool read_later = false;      // a dropped node reads it after a kept one wrote it
};

std::vector<Use> uses_of(const ir::Graph& graph, const std::vector<bool>& keep) {
  std::vector<Use> uses(graph.buffers.size());
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool writes) {
      Use& use = uses[graph.views[view].buffer];
      if (keep[n]) {
        if (use.first_kept == kNever) use.first_kept = n;
        if (writes && use.first_kept_write == kNever) use.first_kept_write = n;
      } else {
        if (writes && use.first_kept == kNever) use.written_before = true;
        if (use.first_kept_write != kNever) use.read_later = true;
      }
    });
  }
  return uses;
}

// Returns the contents of buffers just before nodes, in the whole run.
Status contents_before(Device& device, const RunCase& run, const std::vector<uint64_t>& sizes,
                       const std::vector<std::pair<uint32_t, uint32_t>>& wanted, std::vector<Bytes>* contents) {
  ir::Graph graph = run.graph;
  graph.drop_plan();
  graph.drop_groups();
  graph.nodes.clear();
  constexpr ir::Opcode copy = ir::ops::aten_copy_;
  std::vector<OutputView> views;
  const auto first = static_cast<uint32_t>(surviving_buffers(run.graph).size());
  const ir::Sym zero = graph.constant(0), one = graph.constant(1);
  size_t next = 0;
  for (uint32_t n = 0; n < run.graph.nodes.size(); ++n) {
    for (; next < wanted.size() && wanted[next].first == n; ++next) {
      const uint32_t b = wanted[next].second;
      const ir::Sym size = graph.constant(static_cast<int64_t>(sizes[b]));
      const auto view = static_cast<uint32_t>(graph.views.size());
      const auto made = static_cast<uint32_t>(graph.buffers.size());
      graph.buffers.push_back({ir::BufferKind::kFresh, true, false, size});
      graph.views.push_back({b, ir::DType::kUInt8, {size}, {one}, zero, false});
      graph.views.push_back({made, ir::DType::kUInt8, {size}, {one}, zero, false});
      ir::Node node;
      node.opcode = copy;
      node.args = {{ir::ArgTag::kView, view + 1, 0, {}, {}},
                   {ir::ArgTag::kView, view, 0, {}, {}},
                   {}};  // non_blocking has no effect here
      node.results.resize(1);
      graph.nodes.push_back(std::move(node));
      OutputView output;
      output.index = first + static_cast<uint32_t>(views.size());
      output.sizes = {static_cast<int64_t>(sizes[b])};
      output.strides = {1};
      views.push_back(std::move(output));
    }
    if (next == wanted.size()) break;
    graph.nodes.push_back(run.graph.nodes[n]);
  }
  LoadedGraph loaded;
  if (Status status = device.load(std::make_shared<const ir::Graph>(std::move(graph)), &loaded); !status) return status;
  Inputs inputs;
  if (Status status = upload(device, run.inputs, &inputs); !status) return status;
  Outcome outcome;
  device.set_math_modes(run.math_modes);
  if (Status status = execute(device, loaded, run.params, inputs, views, &outcome); !status) return status;
  free(device, inputs);
  if (outcome.error) return Status::invalid("the run fails: " + *outcome.error);
  *contents = std::move(outcome.outputs);
  return {};
}

}  // namespace

Status subset(Device& device, const RunCase& run, const std::vector<bool>& keep, RunCase* part) {
  std::vector<int64_t> values;
  if (Status status = ir::evaluate(run.graph, run.params.data(), &values); !status) return status;
  const std::vector<uint64_t> sizes = buffer_sizes(run, values);
  const std::vector<Use> uses = uses_of(run.graph, keep);
  std::vector<std::pair<uint32_t, uint32_t>> wanted;  // pairs: before this node, that buffer
  for (uint32_t b = 0; b < uses.size(); ++b) {
    if (uses[b].first_kept != kNever && uses[b].written_before) wanted.emplace_back(uses[b].first_kept, b);
  }
  std::ranges::sort(wanted);
  std::vector<Bytes> contents;
  if (!wanted.empty()) {
    if (Status status = contents_before(device, run, sizes, wanted, &contents); !status) return status;
  }
  std::vector<Bytes> by_buffer(uses.size());
  for (size_t i = 0; i < wanted.size(); ++i) by_buffer[wanted[i].second] = std::move(contents[i]);

  RunCase made;
  made.graph = run.graph;
  made.params = run.params;
  made.math_modes = run.math_modes;
  made.graph.nodes.clear();
  for (uint32_t n = 0; n < keep.size(); ++n) {
    if (keep[n]) made.graph.nodes.push_back(run.graph.nodes[n]);
  }
  size_t input = 0;
  for (uint32_t b = 0; b < uses.size(); ++b) {
    ir::Buffer& buffer = made.graph.buffers[b];
    const bool was_input = buffer.kind == ir::BufferKind::kInput;
    if (uses[b].read_later) buffer.survives = true;
    if (uses[b].first_kept == kNever) {
      if (was_input) made.inputs.push_back({});
    } else if (uses[b].written_before) {
      buffer.kind = ir::BufferKind::kInput;
      buffer.nbytes = ir::kNoSym;
      made.inputs.push_back(std::move(by_buffer[b]));
    } else if (was_input) {
      made.inputs.push_back(run.inputs[input]);
    }
    input += was_input;
  }
  *part = compacted(made);
  return {};
}

std::vector<bool> needed_nodes(const ir::Graph& graph) {
  std::vector<bool> needed(graph.nodes.size()), live(graph.buffers.size());
  for (size_t b = 0; b < live.size(); ++b) live[b] = graph.buffers[b].survives;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool writes) {
      if (writes && live[graph.views[view].buffer]) needed[n] = true;
    });
    if (!needed[n]) continue;
    ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool) { live[graph.views[view].buffer] = true; });
  }
  return needed;
}

RunCase compacted(const RunCase& run) {
  RunCase result;
  result.math_modes = run.math_modes;
  ir::Remaining remaining;
  result.graph = ir::compact(run.graph, &remaining);
  for (ir::Buffer& buffer : result.graph.buffers) buffer.written_once = false;
  for (const uint32_t param : remaining.params) result.params.push_back(run.params[param]);
  for (const uint32_t input : remaining.inputs) result.inputs.push_back(run.inputs[input]);
  return result;
}

bool is_sound(const RunCase& run) {
  std::vector<int64_t> values;
  if (!ir::verify(run.graph) || !ir::evaluate(run.graph, run.params.data(), &values)) return false;
  const auto negative = [&](const ir::Buffer& buffer) {
    return buffer.nbytes != ir::kNoSym && values[buffer.nbytes] < 0;
  };
  if (std::ranges::any_of(run.graph.buffers, negative)) return false;
  return ir::check_extents(run.graph, values, buffer_sizes(run, values)).ok();
}

}  // namespace torch_remote::tools::reduce

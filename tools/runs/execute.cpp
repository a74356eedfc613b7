#include "tools/runs/execute.h"

#include <algorithm>
#include <map>
#include <set>

#include "ir/analysis.h"
#include "tools/runs/snapshots.h"

namespace torch_remote::tools {
namespace {

// Each buffer's index among the inputs or among the surviving buffers.
std::vector<uint32_t> ranks(const ir::Graph& graph) {
  std::vector<uint32_t> ranks(graph.buffers.size());
  uint32_t inputs = 0, survivors = 0;
  for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].kind == ir::BufferKind::kInput) {
      ranks[b] = inputs++;
    } else if (graph.buffers[b].survives) {
      ranks[b] = survivors++;
    }
  }
  return ranks;
}

std::vector<int64_t> evaluated(std::span<const ir::Sym> symbols, std::span<const int64_t> values) {
  std::vector<int64_t> result;
  for (const ir::Sym symbol : symbols) result.push_back(values[symbol]);
  return result;
}

uint64_t elements(const OutputView& view) {
  uint64_t count = 1;
  for (const int64_t size : view.sizes) count *= static_cast<uint64_t>(size);
  return count;
}

bool is_packed(const OutputView& view) {
  int64_t expected = 1;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    if (view.sizes[d] != 1 && view.strides[d] != expected) return false;
    expected *= view.sizes[d];
  }
  return true;
}

// If one of the written views is the whole buffer, only that one is compared.
void drop_covered(std::set<OutputView>& views, uint64_t nbytes) {
  for (const OutputView& view : views) {
    if (!is_packed(view) || elements(view) * ir::item_size(view.dtype) != nbytes) continue;
    views = std::set<OutputView>{view};
    return;
  }
}

// Copies the inputs that the graph would change or free.
Status private_inputs(Device& device, const ir::Graph& graph, const Inputs& inputs, std::vector<uint64_t>* ids,
                      std::vector<uint64_t>* copies, WorkerError* error) {
  const std::vector<bool> written = ir::written_buffers(graph);
  const std::vector<uint32_t> buffers = input_buffers(graph);
  *ids = inputs.ids;
  for (size_t i = 0; i < buffers.size() && !*error; ++i) {
    if (!written[buffers[i]] && graph.buffers[buffers[i]].survives) continue;
    if (Status status = device.copy(inputs.ids[i], inputs.nbytes[i], &(*ids)[i], error); !status) return status;
    copies->push_back((*ids)[i]);
  }
  return {};
}

}  // namespace

Status upload(Device& device, std::span<const Bytes> bytes, Inputs* inputs) {
  *inputs = {};
  for (const Bytes& input : bytes) {
    uint64_t id;
    if (Status status = device.upload(input, &id); !status) return status;
    inputs->ids.push_back(id);
    inputs->nbytes.push_back(input.size());
  }
  return {};
}

void free(Device& device, const Inputs& inputs) {
  for (const uint64_t id : inputs.ids) device.free(id);
}

std::vector<OutputView> output_views(const ir::Graph& graph, std::span<const int64_t> values) {
  const std::vector<uint32_t> rank = ranks(graph);
  std::map<uint32_t, std::set<OutputView>> by_buffer;
  for (const ir::Node& node : graph.nodes) {
    for (const uint32_t v : written_views(graph, node)) {
      const ir::View& view = graph.views[v];
      const ir::Buffer& buffer = graph.buffers[view.buffer];
      if (!buffer.survives) continue;
      by_buffer[view.buffer].insert({buffer.kind == ir::BufferKind::kInput, rank[view.buffer], view.dtype,
                                     evaluated(view.sizes, values), evaluated(view.strides, values),
                                     values[view.offset]});
    }
  }
  std::vector<OutputView> views;
  for (auto& [b, found] : by_buffer) {
    const ir::Sym nbytes = graph.buffers[b].nbytes;
    if (nbytes != ir::kNoSym) drop_covered(found, static_cast<uint64_t>(values[nbytes]));
    views.insert(views.end(), found.begin(), found.end());
  }
  return views;
}

std::vector<OutputView> dynamic_results(const ir::Graph& graph, std::span<const int64_t> result_words) {
  std::vector<OutputView> views;
  if (graph.nodes.empty()) return views;
  const ir::Node& last = graph.nodes.back();
  const std::vector<uint32_t> rank = ranks(graph);
  size_t at = 0;
  const auto take = [&](uint32_t v) {
    const ir::View& view = graph.views[v];
    if (!view.dynamic || at >= result_words.size()) return;
    const int64_t dtype = result_words[at++];
    if (dtype < 0 || at >= result_words.size()) return;
    const auto dims = static_cast<size_t>(result_words[at++]);
    if (dims > ir::kMaxRank || at + 2 * dims > result_words.size()) return;
    const auto numbers = result_words.subspan(at);
    at += 2 * dims;
    if (!graph.buffers[view.buffer].survives) return;
    views.push_back(
        {false,
         rank[view.buffer],
         static_cast<ir::DType>(dtype),
         {numbers.begin(), numbers.begin() + static_cast<ptrdiff_t>(dims)},
         {numbers.begin() + static_cast<ptrdiff_t>(dims), numbers.begin() + static_cast<ptrdiff_t>(2 * dims)},
         0});
  };
  // A node with host results has no dynamic results.
  for (const ir::Arg& result : last.results) {
    if (result.tag == ir::ArgTag::kView) take(result.a);
    for (const ir::Arg& item : result.items) {
      if (item.tag == ir::ArgTag::kView) take(item.a);
    }
  }
  return views;
}

Status execute(Device& device, const LoadedGraph& loaded, std::span<const int64_t> params, const Inputs& inputs,
               std::span<const OutputView> views, Outcome* outcome) {
  *outcome = {};
  std::vector<uint64_t> ids, temporary;
  WorkerError error;
  Status status = private_inputs(device, *loaded.graph, inputs, &ids, &temporary, &error);
  uint64_t first_result_id = 0;
  if (status.ok() && !error) status = device.run(loaded, params, ids, &first_result_id, &outcome->result_words, &error);
  if (status.ok() && !error) status = device.synchronize(&error);
  if (status.ok() && !error) {
    std::vector<OutputView> all(views.begin(), views.end());
    for (OutputView& view : dynamic_results(*loaded.graph, outcome->result_words)) {
      outcome->dynamic_dtypes.push_back(view.dtype);
      all.push_back(std::move(view));
    }
    outcome->outputs.resize(all.size());
    for (size_t i = 0; i < all.size() && status.ok() && !error; ++i) {
      const OutputView& view = all[i];
      status = device.read(view.input ? ids[view.index] : first_result_id + view.index, ir::item_size(view.dtype),
                           view.sizes, view.strides, view.offset, &outcome->outputs[i], &error);
    }
  }
  if (error) *outcome = {to_string(*error, *loaded.graph), {}, {}, {}};
  for (const uint64_t id : temporary) device.free(id);
  for (uint64_t k = 0; first_result_id != 0 && k < loaded.survivor_count; ++k) device.free(first_result_id + k);
  return status;
}

std::optional<std::string> compare(std::span<const OutputView> views, const Outcome& a, const Outcome& b,
                                   const ir::Tolerance& tolerance) {
  if (a.error && b.error) return std::nullopt;
  if (a.error || b.error) {
    return std::string("only the ") + (a.error ? "first" : "second") +
           " run failed: " + (a.error ? *a.error : *b.error);
  }
  if (a.result_words != b.result_words || a.outputs.size() != b.outputs.size())
    return "the sizes or numbers of the results differ";
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    const bool dynamic = i >= views.size();
    const ir::DType dtype = dynamic ? a.dynamic_dtypes[i - views.size()] : views[i].dtype;
    const auto difference = compare(dtype, a.outputs[i], b.outputs[i], tolerance);
    if (!difference) continue;
    const std::string what = dynamic ? "dynamic result" : views[i].input ? "input" : "output";
    return what + " " + std::to_string(dynamic ? i - views.size() : views[i].index) + ": " + to_string(*difference);
  }
  return std::nullopt;
}

}  // namespace torch_remote::tools

#include "tools/runs/culprit.h"

#include <algorithm>
#include <map>

#include "tools/runs/snapshots.h"

namespace torch_remote::tools {
namespace {

using Contents = std::map<uint32_t, std::vector<Bytes>>;  // by node: the contents of the views that it writes

// Runs one side's graph, which has these snapshots, and reads them.
Status read_snapshots(const Side& side, std::shared_ptr<const ir::Graph> graph, const std::vector<Snapshot>& snapshots,
                      std::span<const int64_t> params, std::span<const int64_t> values, Contents* contents) {
  LoadedGraph loaded;
  if (Status status = side.device->load(graph, &loaded); !status) return status;
  std::vector<OutputView> views;
  const auto first = static_cast<uint32_t>(surviving_buffers(*side.graph).size());
  for (const Snapshot& snapshot : snapshots) {
    OutputView view;
    view.index = first + static_cast<uint32_t>(views.size());
    view.sizes = {static_cast<int64_t>(view_bytes(side.graph->views[snapshot.view], values))};
    view.strides = {1};
    views.push_back(view);
  }
  Outcome outcome;
  if (Status status = execute(*side.device, loaded, params, side.inputs, views, &outcome); !status) return status;
  if (outcome.error) return Status::invalid("the run fails when each op's results are kept: " + *outcome.error);
  for (size_t i = 0; i < snapshots.size(); ++i) {
    (*contents)[snapshots[i].node].push_back(std::move(outcome.outputs[i]));
  }
  return {};
}

// Reads what these nodes write.
Status take(const Side& side, std::vector<uint32_t> nodes, std::span<const int64_t> params,
            std::span<const int64_t> values, Contents* contents) {
  std::ranges::sort(nodes);
  std::vector<Snapshot> snapshots;
  auto graph = std::make_shared<const ir::Graph>(with_snapshots(*side.graph, nodes, &snapshots));
  return read_snapshots(side, std::move(graph), snapshots, params, values, contents);
}

// The record of the first node before `node` that writes exactly this view.
std::optional<uint32_t> maker_of(const ir::Graph& graph, uint32_t node, uint32_t view) {
  for (uint32_t n = 0; n < node; ++n) {
    const std::vector<uint32_t> written = written_views(graph, graph.nodes[n]);
    if (std::ranges::find(written, view) != written.end()) return graph.nodes[n].record;
  }
  return std::nullopt;
}

// Finds the first operand that differs just before the two nodes, which come from the same record, run.
Status differing_operand(const Side& a, const Side& b, const NodePair& pair, std::span<const int64_t> params,
                         std::span<const int64_t> values_a, std::span<const int64_t> values_b,
                         const ir::Tolerance& tolerance, std::optional<uint32_t>* operand) {
  std::vector<Snapshot> snapshots_a, snapshots_b;
  auto graph_a = std::make_shared<const ir::Graph>(with_operand_snapshots(*a.graph, pair.a, &snapshots_a));
  auto graph_b = std::make_shared<const ir::Graph>(with_operand_snapshots(*b.graph, pair.b, &snapshots_b));
  if (snapshots_a.size() != snapshots_b.size() || snapshots_a.empty()) return {};  // the nodes are different ops
  Contents contents_a, contents_b;
  if (Status status = read_snapshots(a, std::move(graph_a), snapshots_a, params, values_a, &contents_a); !status) {
    return status;
  }
  if (Status status = read_snapshots(b, std::move(graph_b), snapshots_b, params, values_b, &contents_b); !status) {
    return status;
  }
  for (uint32_t i = 0; i < snapshots_a.size(); ++i) {
    const ir::View& x = a.graph->views[snapshots_a[i].view];
    const ir::View& y = b.graph->views[snapshots_b[i].view];
    const Bytes& bytes_a = contents_a[pair.a][i];
    const Bytes& bytes_b = contents_b[pair.b][i];
    const auto maker = maker_of(*a.graph, pair.a, snapshots_a[i].view);
    if (!maker || maker != maker_of(*b.graph, pair.b, snapshots_b[i].view)) continue;
    if (x.dtype != y.dtype || bytes_a.size() != bytes_b.size()) return {};
    if (!compare(x.dtype, bytes_a, bytes_b, tolerance)) continue;
    *operand = i;
    return {};
  }
  return {};
}

// Whether the two nodes' results can be compared; *bytes is their size.
bool comparable(const ir::Graph& a, const ir::Graph& b, const NodePair& pair, std::span<const int64_t> values_a,
                std::span<const int64_t> values_b, uint64_t* bytes) {
  const auto written_a = written_views(a, a.nodes[pair.a]);
  const auto written_b = written_views(b, b.nodes[pair.b]);
  if (written_a.size() != written_b.size() || written_a.empty()) return false;
  *bytes = 0;
  for (size_t i = 0; i < written_a.size(); ++i) {
    const ir::View& x = a.views[written_a[i]];
    const ir::View& y = b.views[written_b[i]];
    const auto same_size = [&](ir::Sym s, ir::Sym t) { return values_a[s] == values_b[t]; };
    if (x.dtype != y.dtype || !std::ranges::equal(x.sizes, y.sizes, same_size)) return false;
    *bytes += view_bytes(x, values_a);
  }
  return true;
}

}  // namespace

std::vector<NodePair> pair_by_record(const ir::Graph& a, const ir::Graph& b) {
  std::map<uint32_t, uint32_t> last_a, last_b;
  for (uint32_t n = 0; n < a.nodes.size(); ++n) last_a[a.nodes[n].record] = n;
  for (uint32_t n = 0; n < b.nodes.size(); ++n) last_b[b.nodes[n].record] = n;
  std::vector<NodePair> pairs;
  for (uint32_t n = 0; n < b.nodes.size(); ++n) {
    const auto found = last_a.find(b.nodes[n].record);
    if (found != last_a.end() && last_b[b.nodes[n].record] == n) pairs.push_back({found->second, n});
  }
  return pairs;
}

std::vector<NodePair> pair_with_itself(const ir::Graph& graph) {
  std::vector<NodePair> pairs(graph.nodes.size());
  for (uint32_t n = 0; n < pairs.size(); ++n) pairs[n] = {n, n};
  return pairs;
}

Status find_culprit(const Side& a, const Side& b, const std::vector<NodePair>& pairs, std::span<const int64_t> params,
                    const ir::Tolerance& tolerance, uint64_t memory, std::optional<Culprit>* culprit) {
  culprit->reset();
  std::vector<int64_t> values_a, values_b;
  if (Status status = ir::evaluate(*a.graph, params.data(), &values_a); !status) return status;
  if (Status status = ir::evaluate(*b.graph, params.data(), &values_b); !status) return status;
  for (size_t next = 0; next < pairs.size();) {
    std::vector<NodePair> chunk;
    std::vector<uint32_t> nodes_a, nodes_b;
    for (uint64_t total = 0, bytes = 0; next < pairs.size(); ++next) {
      if (!comparable(*a.graph, *b.graph, pairs[next], values_a, values_b, &bytes)) continue;
      if (!chunk.empty() && total + bytes > memory) break;
      total += bytes;
      chunk.push_back(pairs[next]);
      nodes_a.push_back(pairs[next].a);
      nodes_b.push_back(pairs[next].b);
    }
    Contents contents_a, contents_b;
    if (Status status = take(a, nodes_a, params, values_a, &contents_a); !status) return status;
    if (Status status = take(b, nodes_b, params, values_b, &contents_b); !status) return status;
    for (const NodePair& pair : chunk) {
      const ir::Node& node_b = b.graph->nodes[pair.b];
      const std::vector<uint32_t> written = written_views(*b.graph, node_b);
      for (uint32_t i = 0; i < written.size(); ++i) {
        const ir::DType dtype = b.graph->views[written[i]].dtype;
        const auto difference = compare(dtype, contents_a[pair.a][i], contents_b[pair.b][i], tolerance);
        if (!difference) continue;
        const ir::Node& node_a = a.graph->nodes[pair.a];
        std::string line = line_of(*b.graph, node_b);
        if (line.empty()) line = line_of(*a.graph, node_a);
        *culprit = Culprit{pair,
                           describe(*a.graph, node_a, values_a),
                           describe(*b.graph, node_b, values_b),
                           line,
                           i,
                           dtype,
                           *difference,
                           {}};
        return differing_operand(a, b, pair, params, values_a, values_b, tolerance, &(*culprit)->operand);
      }
    }
  }
  return {};
}

}  // namespace torch_remote::tools

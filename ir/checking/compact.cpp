#include "ir/checking/compact.h"

#include <algorithm>
#include <map>

#include "ir/analysis.h"

namespace torch_remote::ir {
namespace {

constexpr uint32_t kUnused = 0xFFFFFFFF;

class Compactor {
 public:
  Compactor(const Graph& graph, std::span<const Node> nodes)
      : in_(graph),
        symbols_(graph.symbols(), kUnused),
        buffers_(graph.buffers.size(), kUnused),
        views_(graph.views.size(), kUnused) {
    out_.nodes.assign(nodes.begin(), nodes.end());
  }

  Graph run(Remaining* remaining) {
    mark();
    number(remaining);
    for (Node& node : out_.nodes) rewrite(node);
    source_lines();
    return std::move(out_);
  }

 private:
  void use(Sym symbol) {
    if (symbol != kNoSym) symbols_[symbol] = 0;
  }
  void use_all(std::vector<Arg>& args) {
    for (Arg& arg : args) {
      for_each_symbol(arg, [&](Sym symbol, uint32_t count) {
        for (uint32_t i = 0; i < count; ++i) use(symbol + i);
      });
    }
  }

  void mark() {
    for (Node& node : out_.nodes) {
      for_each_view(node, [&](uint32_t view, bool) { views_[view] = 0; });
      use_all(node.args);
      use_all(node.results);
    }
    for (size_t v = 0; v < views_.size(); ++v) {
      if (views_[v] == kUnused) continue;
      const View& view = in_.views[v];
      buffers_[view.buffer] = 0;
      for (const Sym symbol : view.sizes) use(symbol);
      for (const Sym symbol : view.strides) use(symbol);
      use(view.offset);
    }
    for (size_t b = 0; b < buffers_.size(); ++b) {
      if (buffers_[b] != kUnused) use(in_.buffers[b].nbytes);
    }
    for (size_t i = in_.exprs.size(); i-- > 0;) {
      if (symbols_[in_.params + i] == kUnused || in_.exprs[i].kind == ExprKind::kConst) continue;
      use(in_.exprs[i].a);
      use(in_.exprs[i].b);
    }
  }

  void number(Remaining* remaining) {
    *remaining = {};
    uint32_t next = 0;
    for (uint32_t s = 0; s < symbols_.size(); ++s) {
      if (symbols_[s] == kUnused) continue;
      symbols_[s] = next++;
      if (s < in_.params) {
        remaining->params.push_back(s);
        continue;
      }
      Expr expr = in_.exprs[s - in_.params];
      if (expr.kind != ExprKind::kConst) {
        expr.a = symbols_[expr.a];
        expr.b = symbols_[expr.b];
      }
      out_.exprs.push_back(expr);
    }
    out_.params = static_cast<uint32_t>(remaining->params.size());
    uint32_t input = 0;
    for (size_t b = 0; b < buffers_.size(); ++b) {
      const bool is_input = in_.buffers[b].kind == BufferKind::kInput;
      if (buffers_[b] != kUnused) {
        remaining->buffers.push_back(static_cast<uint32_t>(b));
        buffers_[b] = static_cast<uint32_t>(out_.buffers.size());
        out_.buffers.push_back(in_.buffers[b]);
        out_.buffers.back().group_local = false;
        if (out_.buffers.back().nbytes != kNoSym) {
          out_.buffers.back().nbytes = symbols_[out_.buffers.back().nbytes];
        }
        if (is_input) remaining->inputs.push_back(input);
      }
      input += is_input;
    }
    for (size_t v = 0; v < views_.size(); ++v) {
      if (views_[v] == kUnused) continue;
      views_[v] = static_cast<uint32_t>(out_.views.size());
      View view = in_.views[v];
      view.buffer = buffers_[view.buffer];
      for (Sym& symbol : view.sizes) symbol = symbols_[symbol];
      for (Sym& symbol : view.strides) symbol = symbols_[symbol];
      if (view.offset != kNoSym) view.offset = symbols_[view.offset];
      out_.views.push_back(std::move(view));
    }
  }

  void rewrite(Arg& arg) {
    if (arg.tag == ArgTag::kView) arg.a = views_[arg.a];
    if (arg.tag == ArgTag::kList) {
      for (Arg& item : arg.items) rewrite(item);
    } else {
      for_each_symbol(arg, [&](Sym& symbol, uint32_t) { symbol = symbols_[symbol]; });
    }
  }
  void rewrite(Node& node) {
    for (Arg& arg : node.args) rewrite(arg);
    for (Arg& result : node.results) rewrite(result);
  }

  // Renumbers the records without gaps, so that source lines of removed records go.
  void source_lines() {
    std::map<uint32_t, uint32_t> records;
    for (const Node& node : out_.nodes) records[node.record] = 0;
    uint32_t next = 0;
    for (auto& [record, number] : records) {
      number = next++;
      if (!in_.source_lines.empty())
        out_.source_lines.push_back(record < in_.source_lines.size() ? in_.source_lines[record] : "");
    }
    for (Node& node : out_.nodes) node.record = records[node.record];
  }

  const Graph& in_;
  Graph out_;
  std::vector<uint32_t> symbols_, buffers_, views_;  // the new index, or kUnused
};

}  // namespace

Graph compact(const Graph& graph, Remaining* remaining) { return compact(graph, graph.nodes, remaining); }

Graph compact(const Graph& graph, std::span<const Node> nodes, Remaining* remaining) {
  return Compactor(graph, nodes).run(remaining);
}

}  // namespace torch_remote::ir

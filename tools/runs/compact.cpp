#include "tools/runs/compact.h"

#include <algorithm>
#include <map>

#include "ir/text.h"
#include "passes/rewrite.h"

namespace torch_remote::tools {
namespace {

constexpr uint32_t kUnused = 0xFFFFFFFF;

class Compactor {
 public:
  Compactor(const ir::Graph& graph, std::span<const ir::Node> nodes)
      : in_(graph),
        symbols_(graph.symbols(), kUnused),
        buffers_(graph.buffers.size(), kUnused),
        views_(graph.views.size(), kUnused) {
    out_.nodes.assign(nodes.begin(), nodes.end());
  }

  ir::Graph run(Remaining* remaining) {
    mark();
    number(remaining);
    for (ir::Node& node : out_.nodes) rewrite(node);
    source_lines();
    return std::move(out_);
  }

 private:
  void use(ir::Sym symbol) {
    if (symbol != ir::kNoSym) symbols_[symbol] = 0;
  }
  void use_all(std::vector<ir::Arg>& args) {
    for (ir::Arg& arg : args) {
      passes::for_each_symbol_slot(arg, [&](ir::Sym symbol, uint32_t count) {
        for (uint32_t i = 0; i < count; ++i) use(symbol + i);
      });
    }
  }

  void mark() {
    for (ir::Node& node : out_.nodes) {
      ir::for_each_view(node, [&](uint32_t view, bool) { views_[view] = 0; });
      use_all(node.args);
      use_all(node.results);
    }
    for (size_t v = 0; v < views_.size(); ++v) {
      if (views_[v] == kUnused) continue;
      const ir::View& view = in_.views[v];
      buffers_[view.buffer] = 0;
      for (const ir::Sym symbol : view.sizes) use(symbol);
      for (const ir::Sym symbol : view.strides) use(symbol);
      use(view.offset);
    }
    for (size_t b = 0; b < buffers_.size(); ++b) {
      if (buffers_[b] != kUnused) use(in_.buffers[b].nbytes);
    }
    for (size_t i = in_.exprs.size(); i-- > 0;) {
      if (symbols_[in_.params + i] == kUnused || in_.exprs[i].kind == ir::ExprKind::kConst) continue;
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
      ir::Expr expr = in_.exprs[s - in_.params];
      if (expr.kind != ir::ExprKind::kConst) {
        expr.a = symbols_[expr.a];
        expr.b = symbols_[expr.b];
      }
      out_.exprs.push_back(expr);
    }
    out_.params = static_cast<uint32_t>(remaining->params.size());
    uint32_t input = 0;
    for (size_t b = 0; b < buffers_.size(); ++b) {
      const bool is_input = in_.buffers[b].kind == ir::BufferKind::kInput;
      if (buffers_[b] != kUnused) {
        remaining->buffers.push_back(static_cast<uint32_t>(b));
        buffers_[b] = static_cast<uint32_t>(out_.buffers.size());
        out_.buffers.push_back(in_.buffers[b]);
        out_.buffers.back().group_local = false;
        if (out_.buffers.back().nbytes != ir::kNoSym) {
          out_.buffers.back().nbytes = symbols_[out_.buffers.back().nbytes];
        }
        if (is_input) remaining->inputs.push_back(input);
      }
      input += is_input;
    }
    for (size_t v = 0; v < views_.size(); ++v) {
      if (views_[v] == kUnused) continue;
      views_[v] = static_cast<uint32_t>(out_.views.size());
      ir::View view = in_.views[v];
      view.buffer = buffers_[view.buffer];
      for (ir::Sym& symbol : view.sizes) symbol = symbols_[symbol];
      for (ir::Sym& symbol : view.strides) symbol = symbols_[symbol];
      if (view.offset != ir::kNoSym) view.offset = symbols_[view.offset];
      out_.views.push_back(std::move(view));
    }
  }

  void rewrite(ir::Node& node) {
    passes::for_each_view_slot(node, [&](uint32_t& view, bool) { view = views_[view]; });
    for (std::vector<ir::Arg>* const args : {&node.args, &node.results}) {
      for (ir::Arg& arg : *args) {
        passes::for_each_symbol_slot(arg, [&](ir::Sym& symbol, uint32_t) { symbol = symbols_[symbol]; });
      }
    }
  }

  // Renumbers the records without gaps, so that source lines of removed records go.
  void source_lines() {
    std::map<uint32_t, uint32_t> records;
    for (const ir::Node& node : out_.nodes) records[node.record] = 0;
    uint32_t next = 0;
    for (auto& [record, number] : records) {
      number = next++;
      if (!in_.source_lines.empty())
        out_.source_lines.push_back(record < in_.source_lines.size() ? in_.source_lines[record] : "");
    }
    for (ir::Node& node : out_.nodes) node.record = records[node.record];
  }

  const ir::Graph& in_;
  ir::Graph out_;
  std::vector<uint32_t> symbols_, buffers_, views_;  // the new index, or kUnused
};

}  // namespace

ir::Graph compact(const ir::Graph& graph, Remaining* remaining) { return compact(graph, graph.nodes, remaining); }

ir::Graph compact(const ir::Graph& graph, std::span<const ir::Node> nodes, Remaining* remaining) {
  return Compactor(graph, nodes).run(remaining);
}

}  // namespace torch_remote::tools

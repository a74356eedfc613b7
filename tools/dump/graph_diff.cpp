#include "tools/dump/graph_diff.h"

#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/text.h"
#include "tools/dump/sequence_diff.h"

namespace torch_remote::tools {
namespace {

// A hash of a node without the names of its operands. Nodes that may correspond have the same key.
class NodeKey {
 public:
  explicit NodeKey(const ir::Graph& graph) : graph_(graph) {}

  uint64_t of(const ir::Node& node) {
    key_ = std::to_string(node.opcode);
    for (const ir::Arg& arg : node.args) add(arg);
    key_ += '=';
    for (const ir::Arg& result : node.results) add(result);
    return std::hash<std::string>()(key_);
  }

 private:
  void add(const ir::Arg& arg) {
    key_ += ',' + std::to_string(static_cast<int>(arg.tag));
    switch (arg.tag) {
      case ir::ArgTag::kView:
        return add(graph_.views[arg.a]);
      case ir::ArgTag::kList:
        key_ += '[';
        for (const ir::Arg& item : arg.items) add(item);
        key_ += ']';
        return;
      case ir::ArgTag::kString:
        key_ += arg.text;
        return;
      case ir::ArgTag::kDType:
      case ir::ArgTag::kMemoryFormat:
        key_ += std::to_string(arg.a);
        return;
      case ir::ArgTag::kScalarTensor:
        key_ += std::to_string(arg.b);
        return add(arg.a);
      case ir::ArgTag::kInt:
      case ir::ArgTag::kFloat:
      case ir::ArgTag::kBool:
        return add(arg.a);
      case ir::ArgTag::kNone:
      case ir::ArgTag::kComplex:
      case ir::ArgTag::kGenerator:
        return;
    }
  }

  void add(const ir::View& view) {
    key_ += view.dynamic ? "?" : ir::name(view.dtype);
    for (const ir::Sym size : view.sizes) {
      key_ += 'x';
      add(size);
    }
  }

  void add(ir::Sym symbol) {
    int64_t value = 0;
    key_ += graph_.is_constant(symbol, &value) ? std::to_string(value) : "s";
  }

  const ir::Graph& graph_;
  std::string key_;
};

// Maps views, buffers and symbols of b to those of a. Two of them correspond if they have the same position in
// corresponding nodes and neither has another partner.
class Correspondence {
 public:
  Correspondence(const ir::Graph& a, const ir::Graph& b)
      : a_(a),
        b_(b),
        views_(a.views.size(), b.views.size()),
        buffers_(a.buffers.size(), b.buffers.size()),
        symbols_(a.symbols(), b.symbols()) {}

  struct Partners {
    Partners(size_t a, size_t b) : of_a(a, kNone), of_b(b, kNone) {}
    static constexpr uint32_t kNone = 0xFFFFFFFF;
    std::vector<uint32_t> of_a, of_b;

    bool known(uint32_t x, uint32_t y) const { return of_a[x] != kNone || of_b[y] != kNone; }
    bool are(uint32_t x, uint32_t y) const { return of_a[x] == y && of_b[y] == x; }
    bool make(uint32_t x, uint32_t y) {
      of_a[x] = y;
      of_b[y] = x;
      return true;
    }
  };

  // Whether x and y correspond; if neither has a partner and they match, makes them partners.
  bool symbols(ir::Sym x, ir::Sym y) {
    if (x == ir::kNoSym || y == ir::kNoSym) return x == y;
    if (symbols_.known(x, y)) return symbols_.are(x, y);
    const bool param = x < a_.params;
    if (param != (y < b_.params)) return false;
    if (param) return symbols_.make(x, y);
    const ir::Expr& f = a_.exprs[x - a_.params];
    const ir::Expr& g = b_.exprs[y - b_.params];
    if (f.kind != g.kind || f.value != g.value) return false;
    if (f.kind != ir::ExprKind::kConst && !(symbols(f.a, g.a) && symbols(f.b, g.b))) return false;
    return symbols_.make(x, y);
  }

  bool views(uint32_t x, uint32_t y) {
    if (views_.known(x, y)) return views_.are(x, y);
    const ir::View& v = a_.views[x];
    const ir::View& w = b_.views[y];
    bool same = v.dynamic == w.dynamic && (v.dynamic || v.dtype == w.dtype) && v.sizes.size() == w.sizes.size();
    same = same && buffers(v.buffer, w.buffer);
    for (size_t d = 0; same && d < v.sizes.size(); ++d) {
      same = symbols(v.sizes[d], w.sizes[d]) && symbols(v.strides[d], w.strides[d]);
    }
    return same && symbols(v.offset, w.offset) && views_.make(x, y);
  }

  bool args(const ir::Arg& x, const ir::Arg& y) {
    if (x.tag != y.tag || x.text != y.text || x.items.size() != y.items.size()) return false;
    switch (x.tag) {
      case ir::ArgTag::kView:
        return views(x.a, y.a);
      case ir::ArgTag::kList:
        for (size_t i = 0; i < x.items.size(); ++i) {
          if (!args(x.items[i], y.items[i])) return false;
        }
        return true;
      case ir::ArgTag::kScalarTensor:
        return x.b == y.b && symbols(x.a, y.a) &&
               (!ir::is_complex(static_cast<ir::DType>(x.b & 0xFF)) || symbols(x.a + 1, y.a + 1));
      case ir::ArgTag::kComplex:
      case ir::ArgTag::kGenerator:
        return symbols(x.a, y.a) && symbols(x.a + 1, y.a + 1);
      case ir::ArgTag::kInt:
      case ir::ArgTag::kFloat:
      case ir::ArgTag::kBool:
        return symbols(x.a, y.a);
      case ir::ArgTag::kNone:
      case ir::ArgTag::kString:
      case ir::ArgTag::kDType:
      case ir::ArgTag::kMemoryFormat:
        return x.a == y.a;
    }
    return false;
  }

  // Matches what no node uses: constants and expressions that are equal, and otherwise equal numbers.
  void match_rest() {
    match_numbers(symbols_, std::min(a_.params, b_.params));
    match_expressions();
    match_numbers(buffers_, std::min(a_.buffers.size(), b_.buffers.size()));
    match_numbers(views_, std::min(a_.views.size(), b_.views.size()));
  }

  // The names of b's entities: the partner's name in a, or a new one if there is no partner.
  std::string view_name(uint32_t view) const { return "%" + named(views_, view); }
  std::string buffer_name(uint32_t buffer) const { return "b" + named(buffers_, buffer); }
  std::string symbol_name(uint32_t symbol) const { return "s" + named(symbols_, symbol); }

 private:
  static void match_numbers(Partners& partners, size_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      if (!partners.known(i, i)) partners.make(i, i);
    }
  }

  void match_expressions() {
    const auto text = [](const ir::Expr& expr, uint32_t x, uint32_t y) {
      if (expr.kind == ir::ExprKind::kConst) return std::to_string(expr.value);
      return std::to_string(static_cast<int>(expr.kind)) + ':' + std::to_string(x) + ':' + std::to_string(y);
    };
    // of a: expressions without a partner, the last one first
    std::unordered_map<std::string, std::vector<ir::Sym>> alone;
    for (size_t i = a_.exprs.size(); i-- > 0;) {
      const ir::Expr& expr = a_.exprs[i];
      const ir::Sym symbol = a_.params + static_cast<ir::Sym>(i);
      if (symbols_.of_a[symbol] == Partners::kNone) alone[text(expr, expr.a, expr.b)].push_back(symbol);
    }
    const auto partner = [this](ir::Sym symbol) { return symbol == ir::kNoSym ? symbol : symbols_.of_b[symbol]; };
    for (size_t i = 0; i < b_.exprs.size(); ++i) {
      const ir::Expr& expr = b_.exprs[i];
      const ir::Sym symbol = b_.params + static_cast<ir::Sym>(i);
      if (symbols_.of_b[symbol] != Partners::kNone) continue;
      const auto found = alone.find(text(expr, partner(expr.a), partner(expr.b)));
      if (found == alone.end() || found->second.empty()) continue;
      symbols_.make(found->second.back(), symbol);
      found->second.pop_back();
    }
  }

  bool buffers(uint32_t x, uint32_t y) {
    if (buffers_.known(x, y)) return buffers_.are(x, y);
    return a_.buffers[x].kind == b_.buffers[y].kind && buffers_.make(x, y);
  }

  static std::string named(const Partners& partners, uint32_t index) {
    if (index >= partners.of_b.size()) return std::to_string(index);
    const uint32_t partner = partners.of_b[index];
    if (partner != Partners::kNone) return std::to_string(partner);
    return std::to_string(partners.of_a.size() + index);
  }

  const ir::Graph& a_;
  const ir::Graph& b_;
  Partners views_, buffers_, symbols_;
};

// Renames %1, b1 and s1 in the text of b to the names of a, outside of strings. The first line keeps its range of
// parameters.
std::string renamed(std::string_view text, const Correspondence& names) {
  std::string out;
  bool quoted = false;
  size_t i = std::min(text.find('\n'), text.size());
  out += text.substr(0, i);
  while (i < text.size()) {
    const char c = text[i];
    const bool begins = i == 0 || !(ir::text::is_name_char(text[i - 1]) || text[i - 1] == '.' || text[i - 1] == ':');
    size_t end = i + 1;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    const bool number = end > i + 1 && end - i < 11 && (end == text.size() || !ir::text::is_name_char(text[end]));
    if (quoted && c == '\\') {
      out += text.substr(i, 2);
      i += 2;
      continue;
    }
    quoted ^= c == '"';
    if (quoted || !number || !(c == '%' || (begins && (c == 'b' || c == 's')))) {
      out += c;
      ++i;
      continue;
    }
    const auto index = static_cast<uint32_t>(std::stoull(std::string(text.substr(i + 1, end - i - 1))));
    out += c == '%' ? names.view_name(index) : c == 'b' ? names.buffer_name(index) : names.symbol_name(index);
    i = end;
  }
  return out;
}

class Comparison {
 public:
  Comparison(const ir::Graph& a, const ir::Graph& b, const std::string& name_a, const std::string& name_b)
      : a_(a), b_(b), name_a_(name_a), name_b_(name_b), names_(a, b) {}

  GraphDifference run() {
    GraphDifference out;
    out.first = first_difference();
    names_.match_rest();
    // Plans refer to nodes by number, so they are compared only if the nodes are the same.
    ir::PrintOptions options{.source_lines = false, .plan = false, .groups = false};
    const auto diff = [&] {
      return unified_diff(ir::print(a_, options), renamed(ir::print(b_, options), names_), name_a_, name_b_);
    };
    out.diff = diff();
    if (out.first.empty() && !out.diff.empty()) out.first = "the ops are the same, but not their operands";
    if (out.first.empty()) {
      options.plan = true;
      out.diff = diff();
      if (!out.diff.empty()) out.first = "only the memory plans differ";
    }
    if (out.first.empty()) {
      options.groups = true;
      out.diff = diff();
      if (!out.diff.empty()) out.first = "only the groups differ";
    }
    out.same = out.first.empty();
    return out;
  }

 private:
  // Compares all corresponding nodes, even after the first difference, so that all names become known.
  std::string first_difference() {
    std::string first;
    size_t i = 0;
    size_t j = 0;
    Pairs pairs = common_elements(keys(a_), keys(b_));
    // A key is a hash, so two different ops may have the same one.
    std::erase_if(pairs, [&](const auto& pair) { return a_.nodes[pair.first].opcode != b_.nodes[pair.second].opcode; });
    pairs.emplace_back(a_.nodes.size(), b_.nodes.size());
    for (const auto& [next_i, next_j] : pairs) {
      if (i < next_i || j < next_j) {
        std::string wrong = unmatched(i, next_i, j, next_j);
        if (first.empty()) first = std::move(wrong);
      }
      i = next_i + 1;
      j = next_j + 1;
      if (next_i == a_.nodes.size()) break;
      std::string wrong = compare(next_i, next_j);
      if (first.empty()) first = std::move(wrong);
    }
    return first;
  }

  static std::vector<uint64_t> keys(const ir::Graph& graph) {
    std::vector<uint64_t> out;
    out.reserve(graph.nodes.size());
    NodeKey key(graph);
    for (const ir::Node& node : graph.nodes) out.push_back(key.of(node));
    return out;
  }

  // For example "op 12 (aten::mul.Tensor, train.py:7 in forward)".
  static std::string describe(const ir::Graph& graph, size_t index) {
    const ir::Node& node = graph.nodes[index];
    std::string out = "op " + std::to_string(index) + " (" + std::string(ir::op_desc(node.opcode).name);
    if (node.record < graph.source_lines.size() && !graph.source_lines[node.record].empty()) {
      out += ", " + graph.source_lines[node.record];
    }
    return out + ")";
  }

  // Describes nodes of a and b between two pairs that correspond. Nodes with the same op and position were changed.
  std::string unmatched(size_t i, size_t end_i, size_t j, size_t end_j) {
    if (i == end_i) return describe(b_, j) + " is only in " + name_b_;
    if (j == end_j) return describe(a_, i) + " is only in " + name_a_;
    std::string first;
    for (size_t k = 0; end_i - i == end_j - j && k < end_i - i; ++k) {
      std::string wrong = a_.nodes[i + k].opcode == b_.nodes[j + k].opcode ? compare(i + k, j + k) : "";
      if (k == 0) first = std::move(wrong);
    }
    return first.empty() ? name_a_ + " has " + describe(a_, i) + ", " + name_b_ + " has " + describe(b_, j) : first;
  }

  // Compares two nodes with the same op.
  std::string compare(size_t i, size_t j) {
    const ir::Node& x = a_.nodes[i];
    const ir::Node& y = b_.nodes[j];
    std::string wrong;
    for (size_t k = 0; k < x.args.size(); ++k) {
      const std::string_view name = ir::op_desc(x.opcode).args[k].name;
      if (!names_.args(x.args[k], y.args[k]) && wrong.empty()) wrong = "argument '" + std::string(name) + "'";
    }
    for (size_t k = 0; k < x.results.size(); ++k) {
      if (!names_.args(x.results[k], y.results[k]) && wrong.empty()) wrong = "result " + std::to_string(k);
    }
    if (wrong.empty()) return {};
    return wrong + " of " + describe(a_, i) + " in " + name_a_ + " differs from " + name_b_ +
           (i == j ? "" : ", there op " + std::to_string(j));
  }

  const ir::Graph& a_;
  const ir::Graph& b_;
  const std::string& name_a_;
  const std::string& name_b_;
  Correspondence names_;
};

}  // namespace

GraphDifference diff_graphs(const ir::Graph& a, const ir::Graph& b, const std::string& name_a,
                            const std::string& name_b) {
  return Comparison(a, b, name_a, name_b).run();
}

}  // namespace torch_remote::tools

#include "tools/common/graph_json.h"

#include <bit>
#include <cmath>
#include <iterator>

#include "ir/analysis.h"
#include "ir/text.h"

namespace torch_remote::tools {
namespace {

// Indexed by ir::Family.
constexpr const char* kFamilies[] = {"pointwise",    "reduction", "view",      "matmul",    "conv",
                                     "index",        "scatter",   "rng",       "factory",   "copy",
                                     "multi_tensor", "norm",      "attention", "composite", "opaque"};
static_assert(std::size(kFamilies) == static_cast<size_t>(ir::Family::kOpaque) + 1);

// Indexed by ir::ExprKind.
constexpr const char* kExprs[] = {"const", "add", "sub", "mul", "floordiv", "mod", "max", "min"};
static_assert(std::size(kExprs) == static_cast<size_t>(ir::ExprKind::kMin) + 1);

class Writer {
 public:
  explicit Writer(const ir::Graph& graph)
      : graph_(graph), lifetimes_(ir::find_lifetimes(graph)), group_of_(graph.nodes.size()) {
    size_t next = 0;  // index of the next group of the graph
    for (uint32_t i = 0; i < graph.nodes.size(); ++i) {
      const bool grouped = next < graph.groups.size() && i >= graph.groups[next].first;
      const uint32_t last = grouped ? graph.groups[next].last : i;
      for (uint32_t node = i; node <= last; ++node) group_of_[node] = groups_.size();
      groups_.push_back({i, last, grouped ? &graph.groups[next++] : nullptr});
      i = last;
    }
  }

  Json run() const {
    Json out;
    out["schema"] = kGraphSchema;
    out["params"] = graph_.params;
    out["symbols"] = list(graph_.exprs.size(), [this](size_t i) { return symbol_definition(i); });
    out["buffers"] = list(graph_.buffers.size(), [this](size_t i) { return buffer(i); });
    out["nodes"] = list(graph_.nodes.size(), [this](size_t i) { return node(i); });
    out["groups"] = list(groups_.size(), [this](size_t i) { return group(i); });
    return out;
  }

 private:
  template <typename F>
  static Json list(size_t count, F&& f) {
    Json out = Json::array();
    for (size_t i = 0; i < count; ++i) out.push_back(f(i));
    return out;
  }

  // A node without a group becomes a group of its own, without a kind.
  Json group(size_t index) const {
    const auto& [first, last, group] = groups_[index];
    Json nodes = Json::array();
    for (uint32_t node = first; node <= last; ++node) nodes.push_back(node);
    Json out{{"index", index}, {"nodes", nodes}};
    if (group == nullptr) return out;
    out["kind"] = ir::text::kGroups[static_cast<size_t>(group->kind)];
    out["properties"] = Json::array();
    for (size_t bit = 0; bit < std::size(ir::text::kProperties); ++bit) {
      if (group->properties >> bit & 1) out["properties"].push_back(ir::text::kProperties[bit]);
    }
    return out;
  }

  static std::string symbol_name(ir::Sym symbol) { return "s" + std::to_string(symbol); }
  static std::string buffer_name(uint32_t buffer) { return "b" + std::to_string(buffer); }

  // A constant becomes a number, any other symbol its name.
  Json integer(ir::Sym symbol) const {
    int64_t value = 0;
    if (symbol == ir::kNoSym) return nullptr;
    if (graph_.is_constant(symbol, &value)) return value;
    return symbol_name(symbol);
  }

  // JSON has no infinities and NaNs, so they become strings.
  Json real(ir::Sym symbol) const {
    int64_t bits = 0;
    if (!graph_.is_constant(symbol, &bits)) return symbol_name(symbol);
    const double value = std::bit_cast<double>(bits);
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    return value;
  }

  Json integers(const std::vector<ir::Sym>& symbols) const {
    return list(symbols.size(), [&](size_t i) { return integer(symbols[i]); });
  }

  Json symbol_definition(size_t index) const {
    const ir::Expr& expr = graph_.exprs[index];
    Json out{{"name", symbol_name(graph_.params + static_cast<uint32_t>(index))},
             {"op", kExprs[static_cast<size_t>(expr.kind)]}};
    if (expr.kind == ir::ExprKind::kConst) {
      out["value"] = expr.value;
    } else {
      out["a"] = integer(expr.a);
      out["b"] = integer(expr.b);
    }
    return out;
  }

  Json buffer(size_t index) const {
    const ir::Buffer& buffer = graph_.buffers[index];
    Json out{{"name", buffer_name(static_cast<uint32_t>(index))},
             {"kind", buffer.kind == ir::BufferKind::kInput ? "input" : "fresh"},
             {"survives", buffer.survives},
             {"written_once", buffer.written_once},
             {"group_local", buffer.group_local},
             {"nbytes", integer(buffer.nbytes)}};
    const ir::Lifetime& life = lifetimes_[index];
    out["live"] = life.first == ir::kNoNode ? Json(nullptr) : Json{life.first, life.last};
    out["may_reuse"] = buffer.may_reuse == ir::kNoBuffer ? Json(nullptr) : Json(buffer_name(buffer.may_reuse));
    return out;
  }

  Json node(size_t index) const {
    const ir::Node& node = graph_.nodes[index];
    const ir::OpDesc& desc = ir::op_desc(node.opcode);
    Json out{{"index", index},
             {"op", desc.name},
             {"family", kFamilies[static_cast<size_t>(desc.family)]},
             {"group", group_of_[index]}};
    out["args"] = list(node.args.size(), [&](size_t i) {
      Json arg{{"name", desc.args[i].name}};
      describe(node.args[i], desc.args[i].writes, arg);
      return arg;
    });
    out["results"] = list(node.results.size(), [&](size_t i) {
      Json result = Json::object();
      if (desc.results[i].alias >= 0) {
        result["kind"] = "alias";
        result["arg"] = desc.results[i].alias;
      } else {
        describe(node.results[i], true, result);
      }
      return result;
    });
    out["record"] = node.record;
    const bool known = node.record < graph_.source_lines.size() && !graph_.source_lines[node.record].empty();
    out["source"] = known ? Json(graph_.source_lines[node.record]) : Json(nullptr);
    return out;
  }

  void describe(const ir::Arg& arg, bool writes, Json& out) const {
    switch (arg.tag) {
      case ir::ArgTag::kNone:
        out["kind"] = "none";
        return;
      case ir::ArgTag::kView:
        return describe_view(arg.a, writes, out);
      case ir::ArgTag::kScalarTensor:
        return describe_scalar(arg, out);
      case ir::ArgTag::kList:
        out["kind"] = "list";
        out["items"] = list(arg.items.size(), [&](size_t i) {
          Json item = Json::object();
          describe(arg.items[i], writes, item);
          return item;
        });
        return;
      case ir::ArgTag::kInt:
        out["kind"] = "int";
        out["value"] = integer(arg.a);
        return;
      case ir::ArgTag::kFloat:
        out["kind"] = "float";
        out["value"] = real(arg.a);
        return;
      case ir::ArgTag::kBool: {
        int64_t value = 0;
        out["kind"] = "bool";
        out["value"] = graph_.is_constant(arg.a, &value) ? Json(value != 0) : Json(symbol_name(arg.a));
        return;
      }
      case ir::ArgTag::kComplex:
        out["kind"] = "complex";
        out["value"] = {real(arg.a), real(arg.a + 1)};
        return;
      case ir::ArgTag::kString:
        out["kind"] = "string";
        out["value"] = arg.text;
        return;
      case ir::ArgTag::kDType:
        out["kind"] = "dtype";
        out["value"] = ir::name(static_cast<ir::DType>(arg.a));
        return;
      case ir::ArgTag::kMemoryFormat:
        out["kind"] = "memory_format";
        out["value"] = arg.a < std::size(ir::text::kMemoryFormats) ? ir::text::kMemoryFormats[arg.a] : "?";
        return;
      case ir::ArgTag::kGenerator:
        out["kind"] = "philox";
        out["seed"] = integer(arg.a);
        out["offset"] = integer(arg.a + 1);
        return;
    }
  }

  void describe_view(uint32_t index, bool writes, Json& out) const {
    const ir::View& view = graph_.views[index];
    out["kind"] = "tensor";
    out["view"] = index;
    out["buffer"] = buffer_name(view.buffer);
    out["writes"] = writes;
    if (view.dynamic) {  // known only after the run
      out["dtype"] = out["shape"] = out["strides"] = out["offset"] = nullptr;
      return;
    }
    out["dtype"] = ir::name(view.dtype);
    out["shape"] = integers(view.sizes);
    out["strides"] = integers(view.strides);
    out["offset"] = integer(view.offset);
  }

  void describe_scalar(const ir::Arg& arg, Json& out) const {
    const auto dtype = static_cast<ir::DType>(arg.b & 0xFF);
    out["kind"] = (arg.b >> 8) != 0 ? "number" : "scalar_tensor";
    out["dtype"] = ir::name(dtype);
    if (ir::is_complex(dtype)) {
      out["value"] = {real(arg.a), real(arg.a + 1)};
    } else {
      out["value"] = ir::is_float(dtype) ? real(arg.a) : integer(arg.a);
    }
  }

  struct Span {
    uint32_t first, last;
    const ir::Group* group;  // null: a single node without a group
  };
  const ir::Graph& graph_;
  const std::vector<ir::Lifetime> lifetimes_;
  std::vector<size_t> group_of_;  // per node: index in groups_
  std::vector<Span> groups_;
};

}  // namespace

Json graph_json(const ir::Graph& graph) { return Writer(graph).run(); }

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace torch_remote::tools

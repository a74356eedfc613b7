#include <bit>
#include <charconv>
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "ir/text.h"

// Prints the text form of a graph; docs/ir.md has the grammar and an example.
namespace torch_remote::ir {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\x";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  return out += '"';
}

bool is_plain_name(std::string_view name) {
  if (name.empty() || !text::is_name_start(name[0])) return false;
  for (const char c : name) {
    if (!text::is_name_char(c)) return false;
  }
  return true;
}

// Matches "ns::name" and "ns::name.overload", which the lexer reads as one word.
bool is_op_name(std::string_view name) {
  const size_t colons = name.find("::");
  if (colons == std::string_view::npos || !is_plain_name(name.substr(0, colons))) return false;
  std::string_view rest = name.substr(colons + 2);
  if (const size_t dot = rest.find('.'); dot != std::string_view::npos) {
    if (!is_plain_name(rest.substr(dot + 1))) return false;
    rest = rest.substr(0, dot);
  }
  return is_plain_name(rest);
}

std::string op_name(std::string_view name) { return is_op_name(name) ? std::string(name) : quoted(name); }
std::string plain_name(std::string_view name) { return is_plain_name(name) ? std::string(name) : quoted(name); }

// The shortest decimal that reads back as the same double, with a point or an exponent; empty for infinities and NaNs.
std::string float_literal(int64_t bits) {
  const double value = std::bit_cast<double>(bits);
  if (!std::isfinite(value)) return {};
  char digits[40];
  std::string out(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

class Printer {
 public:
  Printer(const Graph& graph, const PrintOptions& options) : graph_(graph), options_(options) {}

  std::string run() {
    for (uint32_t i = 0; i < graph_.exprs.size(); ++i) {
      if (graph_.exprs[i].kind == ExprKind::kConst) constants_.try_emplace(graph_.exprs[i].value, graph_.params + i);
    }
    out_ = "graph(";
    if (graph_.params == 1) out_ += "s0";
    if (graph_.params > 1) out_ += "s0..s" + std::to_string(graph_.params - 1);
    out_ += ") {\n";
    opaque_ops();
    for (uint32_t i = 0; i < graph_.exprs.size(); ++i) expression(i);
    for (uint32_t i = 0; i < graph_.buffers.size(); ++i) buffer(i);
    declared_.resize(graph_.views.size());
    source_line_printed_.resize(graph_.source_lines.size());
    size_t group = 0;
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!options_.groups || group == graph_.groups.size()) {
        node(i);
        continue;
      }
      const Group& g = graph_.groups[group];
      if (i == g.first) group_begins(g);
      indent_ = i >= g.first && i <= g.last ? "    " : "  ";
      node(i);
      if (i != g.last) continue;
      indent_ = "  ";
      out_ += "  }\n";
      ++group;
    }
    for (uint32_t i = 0; i < graph_.views.size(); ++i) declare(i);
    if (options_.source_lines) other_source_lines();
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  void opaque_ops() {
    std::unordered_map<Opcode, bool> seen;
    for (const Node& node : graph_.nodes) {
      if (node.opcode < kFirstOpaque || !seen.emplace(node.opcode, true).second) continue;
      const OpDesc& desc = op_desc(node.opcode);
      out_ += "  op " + op_name(desc.name) + "(";
      bool keyword = false;
      for (size_t i = 0; i < desc.args.size(); ++i) {
        const ArgDesc& arg = desc.args[i];
        if (i != 0) out_ += ", ";
        if (arg.keyword_only != keyword) {  // "*" toggles, so that any order of arguments can be written
          out_ += "*, ";
          keyword = arg.keyword_only;
        }
        out_ += text::kArgKinds[static_cast<size_t>(arg.kind)];
        if (arg.writes) out_ += '!';
        out_ += ' ' + plain_name(arg.name);
      }
      out_ += ") -> (";
      for (size_t i = 0; i < desc.results.size(); ++i) {
        if (i != 0) out_ += ", ";
        out_ += text::kResultKinds[static_cast<size_t>(desc.results[i].kind)];
        if (desc.results[i].alias >= 0) out_ += '@' + std::to_string(desc.results[i].alias);
      }
      out_ += ')';
      for (size_t bit = 0; bit < 32; ++bit) {
        if ((desc.flags >> bit & 1) == 0) continue;
        out_ += ' ';
        out_ += bit < std::size(text::kFlags) ? std::string(text::kFlags[bit]) : "flag" + std::to_string(bit);
      }
      out_ += '\n';
    }
  }

  // -- symbols -------------------------------------------------------------------------------------------------------

  // The value of a constant that is the first with that value; otherwise the symbol's name.
  std::string symbol(Sym symbol) const {
    int64_t value = 0;
    return shown(symbol, &value) ? std::to_string(value) : "s" + std::to_string(symbol);
  }

  bool shown(Sym symbol, int64_t* value) const {
    if (!graph_.is_constant(symbol, value)) return false;
    return constants_.at(*value) == symbol;
  }

  void expression(uint32_t index) {
    const Expr& expr = graph_.exprs[index];
    const std::string name(text::kExprs[static_cast<size_t>(expr.kind)]);
    out_ += "  s" + std::to_string(graph_.params + index) + " = ";
    if (expr.kind == ExprKind::kConst) {
      out_ += constant(expr.value);
    } else if (expr.kind <= ExprKind::kMul) {
      out_ += symbol(expr.a) + ' ' + name + ' ' + symbol(expr.b);
    } else {
      out_ += name + '(' + symbol(expr.a) + ", " + symbol(expr.b) + ')';
    }
    out_ += '\n';
  }

  // A word that can only be the bits of a double is printed as a double.
  static std::string constant(int64_t value) {
    const double magnitude = std::fabs(std::bit_cast<double>(value));
    if (magnitude > 1e-30 && magnitude < 1e30) return float_literal(value);
    return std::to_string(value);
  }

  // -- buffers and views ---------------------------------------------------------------------------------------------

  void buffer(uint32_t index) {
    const Buffer& buffer = graph_.buffers[index];
    out_ += "  b" + std::to_string(index) + ": ";
    out_ += buffer.kind == BufferKind::kInput ? "input" : "fresh";
    if (buffer.nbytes != kNoSym) out_ += '(' + symbol(buffer.nbytes) + ')';
    if (buffer.survives) out_ += " survives";
    if (buffer.written_once) out_ += " written_once";
    if (options_.groups && buffer.group_local) out_ += " group_local";
    if (options_.plan && buffer.may_reuse != kNoBuffer) out_ += " may_reuse b" + std::to_string(buffer.may_reuse);
    out_ += '\n';
  }

  std::string symbols(const std::vector<Sym>& list) const {
    std::string out;
    for (size_t i = 0; i < list.size(); ++i) {
      if (i != 0) out += ", ";
      out += symbol(list[i]);
    }
    return out;
  }

  std::string declaration(uint32_t index) {
    declared_[index] = true;
    const View& view = graph_.views[index];
    std::string out = "%" + std::to_string(index) + ": ";
    out += name(view.dtype);
    if (view.dynamic) {
      out += "[?] @b" + std::to_string(view.buffer);
      return out;
    }
    out += '[' + symbols(view.sizes) + ']';
    if (!view.sizes.empty()) out += '{' + symbols(view.strides) + '}';
    out += " @b" + std::to_string(view.buffer);
    int64_t offset = -1;
    if (!shown(view.offset, &offset) || offset != 0) out += " + " + symbol(view.offset);
    return out;
  }

  // Prints a line for a view that no result declares.
  void declare(uint32_t index) {
    if (index < declared_.size() && !declared_[index]) out_ += indent_ + declaration(index) + '\n';
  }

  void declare_operands(const Arg& arg) {
    if (arg.tag == ArgTag::kView) declare(arg.a);
    for (const Arg& item : arg.items) declare_operands(item);
  }

  // -- nodes ---------------------------------------------------------------------------------------------------------

  void node(uint32_t index) {
    const Node& node = graph_.nodes[index];
    const OpDesc& desc = op_desc(node.opcode);
    for (const Arg& arg : node.args) declare_operands(arg);
    out_ += indent_;
    bool any = false;
    for (size_t i = 0; i < node.results.size(); ++i) {
      const ResultDesc& result = desc.results[i];
      if (result.alias >= 0 || (result.kind != ResultKind::kTensor && result.kind != ResultKind::kTensorList)) continue;
      if (any) out_ += ", ";
      any = true;
      out_ += created(node.results[i]);
    }
    if (any) out_ += " = ";
    out_ += op_name(desc.name) + '(';
    arguments(node, desc);
    out_ += ')';
    if (node.in_place) out_ += " in_place";
    if (options_.source_lines) location(node.record, index);
    out_ += '\n';
  }

  void group_begins(const Group& group) {
    out_ += "  group " + std::string(text::kGroups[static_cast<size_t>(group.kind)]);
    for (size_t bit = 0; bit < std::size(text::kProperties); ++bit) {
      if (group.properties >> bit & 1) out_ += " " + std::string(text::kProperties[bit]);
    }
    out_ += " {\n";
  }

  std::string created(const Arg& arg) {
    if (arg.tag == ArgTag::kView && arg.a < declared_.size() && !declared_[arg.a]) return declaration(arg.a);
    if (arg.tag != ArgTag::kList) return argument(arg, false);
    std::string out = "[";
    for (size_t i = 0; i < arg.items.size(); ++i) {
      if (i != 0) out += ", ";
      out += created(arg.items[i]);
    }
    return out += ']';
  }

  // Prints positional arguments up to the last one that is given, then keyword arguments.
  void arguments(const Node& node, const OpDesc& desc) {
    size_t given = 0;
    size_t positional = 0;
    while (positional < node.args.size() && !desc.args[positional].keyword_only) {
      ++positional;
      if (node.args[positional - 1].tag != ArgTag::kNone) given = positional;
    }
    for (size_t i = 0; i < given; ++i) {
      if (i != 0) out_ += ", ";
      out_ += argument(node.args[i], desc.args[i].writes);
    }
    for (size_t i = positional; i < node.args.size(); ++i) {
      if (node.args[i].tag == ArgTag::kNone) continue;
      if (out_.back() != '(') out_ += ", ";
      out_ += plain_name(desc.args[i].name) + '=' + argument(node.args[i], desc.args[i].writes);
    }
  }

  std::string argument(const Arg& arg, bool writes) const {
    int64_t value = 0;
    switch (arg.tag) {
      case ArgTag::kNone:
        return "none";
      case ArgTag::kView:
        return "%" + std::to_string(arg.a) + (writes ? "!" : "");
      case ArgTag::kScalarTensor:
        return scalar_tensor(arg);
      case ArgTag::kList: {
        std::string out = "[";
        for (size_t i = 0; i < arg.items.size(); ++i) {
          if (i != 0) out += ", ";
          out += argument(arg.items[i], writes);
        }
        return out += ']';
      }
      case ArgTag::kInt:
        return symbol(arg.a);
      case ArgTag::kFloat:
        return float_symbol(arg.a);
      case ArgTag::kBool:
        if (shown(arg.a, &value) && (value == 0 || value == 1)) return value == 1 ? "true" : "false";
        return "bool(" + symbol(arg.a) + ')';
      case ArgTag::kComplex:
        return "complex(s" + std::to_string(arg.a) + ", s" + std::to_string(arg.a + 1) + ')';
      case ArgTag::kString:
        return quoted(arg.text);
      case ArgTag::kDType:
        return std::string(name(static_cast<DType>(arg.a)));
      case ArgTag::kMemoryFormat:
        return arg.a < std::size(text::kMemoryFormats) ? std::string(text::kMemoryFormats[arg.a]) : "?";
      case ArgTag::kGenerator:
        return "philox(s" + std::to_string(arg.a) + ", s" + std::to_string(arg.a + 1) + ')';
    }
    return "?";
  }

  std::string float_symbol(Sym symbol_of_bits) const {
    int64_t value = 0;
    if (shown(symbol_of_bits, &value)) {
      if (std::string literal = float_literal(value); !literal.empty()) return literal;
    }
    return "float(s" + std::to_string(symbol_of_bits) + ')';
  }

  // tensor(value: dtype), or number(value: dtype) if it was a Python number ("wrapped").
  std::string scalar_tensor(const Arg& arg) const {
    const DType dtype = static_cast<DType>(arg.b & 0xFF);
    std::string out = (arg.b >> 8) != 0 ? "number(" : "tensor(";
    int64_t value = 0;
    if (is_complex(dtype)) {
      out += 's' + std::to_string(arg.a) + ", s" + std::to_string(arg.a + 1);
    } else if (is_float(dtype)) {
      std::string literal = shown(arg.a, &value) ? float_literal(value) : std::string();
      out += literal.empty() ? 's' + std::to_string(arg.a) : literal;
    } else {
      out += symbol(arg.a);
    }
    out += ": ";
    out += name(dtype);
    return out + ')';
  }

  // -- source lines --------------------------------------------------------------------------------------------------

  // The record of a node is the node's own index unless loc(...) gives another.
  void location(uint32_t record, uint32_t index) {
    const bool line =
        record < graph_.source_lines.size() && !source_line_printed_[record] && !graph_.source_lines[record].empty();
    if (record == index && !line) return;
    out_ += " loc(";
    if (record != index) out_ += std::to_string(record);
    if (record != index && line) out_ += ", ";
    if (line) {
      out_ += quoted(graph_.source_lines[record]);
      source_line_printed_[record] = true;
    }
    out_ += ')';
  }

  // Prints source lines of records that no node has any more. The last line is always printed, because it gives the
  // count.
  void other_source_lines() {
    for (size_t i = 0; i < graph_.source_lines.size(); ++i) {
      if (source_line_printed_[i] || (graph_.source_lines[i].empty() && i + 1 != graph_.source_lines.size())) continue;
      out_ += "  loc(" + std::to_string(i) + ", " + quoted(graph_.source_lines[i]) + ")\n";
    }
  }

  const Graph& graph_;
  const PrintOptions& options_;
  std::unordered_map<int64_t, Sym> constants_;  // value to the first constant that has it
  std::vector<bool> declared_;
  std::vector<bool> source_line_printed_;
  std::string indent_ = "  ";
  std::string out_;
};

}  // namespace

std::string print(const Graph& graph, const PrintOptions& options) { return Printer(graph, options).run(); }

}  // namespace torch_remote::ir

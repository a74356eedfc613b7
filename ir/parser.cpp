#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "ir/lexer.h"
#include "ir/opaque.h"
#include "ir/text.h"

// Reads the text form; docs/ir.md has the grammar and an example.
namespace torch_remote::ir {
namespace {

using text::Token;
using text::TokenKind;

constexpr int64_t kMaxSymbols = 1 << 24;
constexpr int64_t kMaxSourceLines = 1 << 20;

// Words that have another meaning where a symbol can stand.
bool reserved(std::string_view word) {
  static constexpr std::string_view kWords[] = {"none", "true", "false", "op", "loc", "graph"};
  return std::ranges::find(kWords, word) != std::end(kWords) || dtype_from_name(word).has_value() ||
         std::ranges::find(text::kMemoryFormats, word) != std::end(text::kMemoryFormats);
}

// The number of a canonical name like "s12"; -1 for other names.
int64_t numbered(std::string_view word, char letter) {
  if (word.size() < 2 || word.size() > 10 || word[0] != letter || (word[1] == '0' && word.size() > 2)) return -1;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data() + 1, word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() && number >= 0 ? number : -1;
}

class Parser {
 public:
  Parser(std::string_view text, Graph* graph, TextLines* lines)
      : text_size_(text.size()), lexer_(text), graph_(*graph), where_(*lines) {
    graph_ = Graph{};
    where_ = TextLines{};
    token_ = lexer_.next();
    ahead_ = lexer_.next();
  }

  Status run() {
    if (header() && lines()) return {};
    return Status::invalid(error_);
  }

 private:
  bool fail_at(const Token& token, const std::string& what) {
    if (error_.empty()) {
      error_ = std::to_string(token.line) + ":" + std::to_string(token.column) + ": " +
               (token.kind == TokenKind::kError ? token.text : what);
    }
    return false;
  }
  bool fail(const std::string& what) { return fail_at(token_, what); }

  void advance() {
    token_ = std::move(ahead_);
    ahead_ = lexer_.next();
  }
  bool accept(char c) {
    if (!token_.is(c)) return false;
    advance();
    return true;
  }
  bool expect(char c) { return accept(c) || fail(std::string("expected '") + c + "'"); }
  // Accepts a word on the current line.
  bool accept_word(std::string_view word) {
    if (!token_.is(word) || token_.first_on_line) return false;
    advance();
    return true;
  }
  bool integer(int64_t low, int64_t high, int64_t* out) {
    if (token_.kind != TokenKind::kInt) return fail("expected a number");
    if (token_.integer < low || token_.integer > high) return fail("number out of range");
    *out = token_.integer;
    advance();
    return true;
  }

  // -- header and lines ----------------------------------------------------------------------------------------------

  bool header() {
    if (!token_.is("graph")) return fail("expected 'graph'");
    advance();
    if (!expect('(')) return false;
    while (!token_.is(')')) {
      if (graph_.params != 0 && !expect(',')) return false;
      if (token_.kind != TokenKind::kName) return fail("expected the name of a parameter");
      if (ahead_.kind == TokenKind::kRange) {
        if (!parameter_range()) return false;
      } else {
        if (!define(token_, graph_.params++)) return false;
        advance();
      }
    }
    advance();
    return expect('{');
  }

  // "s0..s11"
  bool parameter_range() {
    const int64_t first = numbered(token_.text, 's');
    if (first != graph_.params) return fail("the range must begin with s" + std::to_string(graph_.params));
    advance();
    advance();
    const int64_t last = token_.kind == TokenKind::kName ? numbered(token_.text, 's') : -1;
    if (last < first || last >= kMaxSymbols) return fail("the range must end with a later name, like s9");
    graph_.params = static_cast<uint32_t>(last) + 1;
    advance();
    return true;
  }

  bool lines() {
    while (!token_.is('}') || in_group_) {
      if (token_.kind == TokenKind::kEnd) return fail("expected '}'");
      if (!token_.first_on_line) return fail("expected the end of the line");
      if (!(token_.is('}') ? group_ends() : line())) return false;
    }
    advance();
    if (token_.kind != TokenKind::kEnd) return fail("expected nothing after '}'");
    return finish();
  }

  bool line() {
    if (token_.kind == TokenKind::kName) {
      if (token_.text == "op") return op_declaration();
      if (token_.text == "loc") return source_line();
      if (token_.text == "group" && ahead_.kind == TokenKind::kName) return group_begins();
      if (ahead_.is('=') && token_.text != "none") return expression();
      if (ahead_.is(':')) return buffer();
    }
    if (token_.kind == TokenKind::kView && ahead_.is(':')) {
      Arg view;
      if (!view_declaration(view)) return false;
      return token_.first_on_line || token_.is('}') || node(std::move(view));
    }
    return node({});
  }

  bool finish() {
    for (size_t i = 0; i < declared_.size(); ++i) {
      if (!declared_[i])
        return fail("view %" + std::to_string(i) + " is missing: views are numbered from 0 without holes");
    }
    return true;
  }

  // -- ops outside the table -----------------------------------------------------------------------------------------

  bool op_name(std::string* out) {
    if (token_.kind != TokenKind::kName && token_.kind != TokenKind::kString) return fail("expected the name of an op");
    *out = token_.text;
    advance();
    return true;
  }

  // Reads a kind, like "Tensor[]?", and gives its index in `names`.
  bool kind_name(std::span<const std::string_view> names, size_t* out) {
    if (token_.kind != TokenKind::kName) return fail("expected a kind like Tensor or int[]");
    const Token at = token_;
    std::string kind = token_.text;
    advance();
    for (;;) {
      if (token_.is('[') && ahead_.is(']')) {
        advance();
        kind += "[]";
      } else if (token_.is('?')) {
        kind += '?';
      } else {
        break;
      }
      advance();
    }
    const auto found = std::ranges::find(names, kind);
    if (found == names.end()) return fail_at(at, "there is no kind '" + kind + "'");
    *out = static_cast<size_t>(found - names.begin());
    return true;
  }

  bool op_declaration() {
    advance();
    const Token at = token_;
    std::string name;
    std::vector<OpaqueArg> args;
    std::vector<ResultDesc> results;
    uint32_t flags = 0;
    if (!op_name(&name) || !expect('(')) return false;
    bool keyword = false;
    while (!token_.is(')')) {
      if (!args.empty() && !expect(',')) return false;
      if (accept('*')) {
        keyword = !keyword;
        if (!expect(',')) return false;
      }
      if (!signature_arg(keyword, args.emplace_back())) return false;
    }
    advance();
    if (token_.kind != TokenKind::kArrow) return fail("expected '->'");
    advance();
    if (!expect('(')) return false;
    while (!token_.is(')')) {
      if (!results.empty() && !expect(',')) return false;
      if (!signature_result(args.size(), results.emplace_back())) return false;
    }
    advance();
    while (token_.kind == TokenKind::kName && !token_.first_on_line) {
      if (!flag(&flags)) return false;
    }
    Opcode opcode = kInvalidOpcode;
    if (Status status = declare_opaque(name, args, results, flags, &opcode); !status)
      return fail_at(at, status.message());
    return true;
  }

  bool signature_arg(bool keyword, OpaqueArg& arg) {
    size_t kind = 0;
    if (!kind_name(text::kArgKinds, &kind)) return false;
    arg.kind = static_cast<ArgKind>(kind);
    arg.keyword_only = keyword;
    arg.writes = accept('!');
    if (token_.kind != TokenKind::kName && token_.kind != TokenKind::kString)
      return fail("expected the argument's name");
    arg.name = token_.text;
    advance();
    return true;
  }

  bool signature_result(size_t args, ResultDesc& result) {
    size_t kind = 0;
    if (!kind_name(text::kResultKinds, &kind)) return false;
    result.kind = static_cast<ResultKind>(kind);
    result.alias = -1;
    if (!accept('@')) return true;
    int64_t alias = 0;
    if (!integer(0, std::min<int64_t>(127, static_cast<int64_t>(args) - 1), &alias)) return false;
    result.alias = static_cast<int8_t>(alias);
    return true;
  }

  bool flag(uint32_t* flags) {
    const auto found = std::ranges::find(text::kFlags, token_.text);
    size_t bit = static_cast<size_t>(found - std::begin(text::kFlags));
    if (found == std::end(text::kFlags)) {
      const bool is_numbered = token_.text.starts_with("flag");
      const int64_t number = is_numbered ? numbered("f" + token_.text.substr(4), 'f') : -1;
      if (number < 0 || number > 31) return fail("there is no flag '" + token_.text + "'");
      bit = static_cast<size_t>(number);
    }
    *flags |= 1u << bit;
    advance();
    return true;
  }

  // -- symbols -------------------------------------------------------------------------------------------------------

  bool define(const Token& name, Sym symbol) {
    const std::string& word = name.text;
    if (const int64_t number = numbered(word, 's'); number >= 0) {
      if (number == symbol) return true;
      return fail_at(name,
                     "'" + word + "' would be symbol " + std::to_string(symbol) + ": use that number or another name");
    }
    if (reserved(word) || numbered(word, 'b') >= 0 || word.find_first_of(":.") != std::string::npos) {
      return fail_at(name, "'" + word + "' cannot name a symbol");
    }
    return names_.try_emplace(word, symbol).second || fail_at(name, "'" + word + "' is named twice");
  }

  bool lookup(const std::string& word, Sym* out) const {
    if (const int64_t number = numbered(word, 's'); number >= 0) {
      *out = static_cast<Sym>(number);
      return number < graph_.symbols();
    }
    const auto found = names_.find(word);
    if (found != names_.end()) *out = found->second;
    return found != names_.end();
  }

  Sym add(const Expr& expr) {
    const Sym symbol = graph_.symbols();
    graph_.exprs.push_back(expr);
    return symbol;
  }

  // A number or a name. A number stands for the first constant with that value.
  bool symbol(Sym* out) {
    if (token_.kind == TokenKind::kInt || token_.kind == TokenKind::kFloat) {
      *out = graph_.constant(token_.integer);
    } else if (token_.kind != TokenKind::kName) {
      return fail("expected a number or a symbol");
    } else if (!lookup(token_.text, out)) {
      return fail("unknown symbol '" + token_.text + "'");
    }
    advance();
    return true;
  }

  // name = number | a + b | a - b | a * b | function(a, b)
  bool expression() {
    const Token name = token_;
    advance();
    advance();
    if ((token_.kind == TokenKind::kInt || token_.kind == TokenKind::kFloat) &&
        (ahead_.first_on_line || ahead_.is('}'))) {
      const int64_t value = token_.integer;
      advance();
      return define(name, add({ExprKind::kConst, kNoSym, kNoSym, value}));
    }
    Expr expr;
    const bool call = token_.kind == TokenKind::kName && ahead_.is('(');
    if (!(call ? function(expr) : infix(expr))) return false;
    return define(name, add(expr));
  }

  bool infix(Expr& expr) {
    if (!symbol(&expr.a)) return false;
    if (token_.kind != TokenKind::kPunct || !expr_kind(ExprKind::kAdd, ExprKind::kMul, expr)) {
      return fail("expected +, - or *");
    }
    advance();
    return symbol(&expr.b);
  }

  bool function(Expr& expr) {
    if (!expr_kind(ExprKind::kFloorDiv, ExprKind::kMin, expr)) {
      return fail("there is no function '" + token_.text + "'; there are floordiv, mod, max and min");
    }
    advance();
    advance();
    return symbol(&expr.a) && expect(',') && symbol(&expr.b) && expect(')');
  }

  // Sets the kind, from `first` to `last`, that the token names.
  bool expr_kind(ExprKind first, ExprKind last, Expr& expr) const {
    const auto begin = std::begin(text::kExprs), end = begin + static_cast<size_t>(last) + 1;
    const auto found = std::find(begin + static_cast<size_t>(first), end, token_.text);
    expr.kind = static_cast<ExprKind>(found - begin);
    return found != end;
  }

  // -- buffers and views ---------------------------------------------------------------------------------------------

  // b0: input | fresh [(bytes)] [survives] [written_once] [group_local] [may_reuse b1]
  bool buffer() {
    if (numbered(token_.text, 'b') != static_cast<int64_t>(graph_.buffers.size())) {
      return fail("expected b" + std::to_string(graph_.buffers.size()) + ": buffers are numbered in order");
    }
    where_.buffers.push_back(token_.line);
    advance();
    advance();
    Buffer& buffer = graph_.buffers.emplace_back();
    if (accept_word("input")) {
      buffer.kind = BufferKind::kInput;
    } else if (!accept_word("fresh")) {
      return fail("expected 'input' or 'fresh'");
    }
    if (accept('(') && !(symbol(&buffer.nbytes) && expect(')'))) return false;
    buffer.survives = accept_word("survives");
    buffer.written_once = accept_word("written_once");
    buffer.group_local = accept_word("group_local");
    if (!accept_word("may_reuse")) return true;
    const int64_t source = token_.kind == TokenKind::kName ? numbered(token_.text, 'b') : -1;
    if (source < 0 || source >= kNoBuffer) return fail("expected a buffer");
    buffer.may_reuse = static_cast<uint32_t>(source);
    advance();
    return true;
  }

  bool symbols(char open, char close, std::vector<Sym>& out) {
    if (!expect(open)) return false;
    while (!token_.is(close)) {
      if (!out.empty() && !expect(',')) return false;
      if (!symbol(&out.emplace_back())) return false;
    }
    advance();
    return true;
  }

  // %0: f32[sizes]{strides} @b0 + offset, or %0: f32[?] @b0
  bool view_declaration(Arg& out) {
    const Token at = token_;
    // Each view declaration takes more than one character, so that a short text cannot make a large table.
    if (at.integer >= static_cast<int64_t>(text_size_)) return fail("a view number that large leaves holes");
    const uint32_t index = static_cast<uint32_t>(at.integer);
    advance();
    if (!expect(':')) return false;
    View view;
    const auto dtype = token_.kind == TokenKind::kName ? dtype_from_name(token_.text) : std::nullopt;
    if (!dtype.has_value()) return fail("expected a dtype, like f32");
    view.dtype = *dtype;
    advance();
    if (token_.is('[') && ahead_.is('?')) {
      view.dynamic = true;
      advance();
      advance();
      if (!expect(']')) return false;
    } else if (!symbols('[', ']', view.sizes)) {
      return false;
    }
    if (!view.dynamic && !strides(view)) return false;
    if (!expect('@')) return false;
    const int64_t buffer = token_.kind == TokenKind::kName ? numbered(token_.text, 'b') : -1;
    if (buffer < 0 || buffer >= static_cast<int64_t>(graph_.buffers.size()))
      return fail("expected a buffer declared before");
    view.buffer = static_cast<uint32_t>(buffer);
    advance();
    if (!view.dynamic && !offset(view)) return false;
    if (index >= declared_.size()) {
      declared_.resize(index + 1);
      graph_.views.resize(index + 1);
      where_.views.resize(index + 1);
    }
    if (declared_[index]) return fail_at(at, "view %" + std::to_string(index) + " is declared twice");
    declared_[index] = true;
    where_.views[index] = at.line;
    graph_.views[index] = std::move(view);
    out.tag = ArgTag::kView;
    out.a = index;
    return true;
  }

  // A view without strides is contiguous.
  bool strides(View& view) {
    if (token_.is('{')) {
      const Token at = token_;
      if (!symbols('{', '}', view.strides)) return false;
      return view.strides.size() == view.sizes.size() || fail_at(at, "as many strides as sizes are needed");
    }
    view.strides.resize(view.sizes.size());
    Sym stride = kNoSym;
    for (size_t d = view.sizes.size(); d-- > 0;) {
      stride = d + 1 == view.sizes.size() ? graph_.constant(1) : graph_.expr(ExprKind::kMul, view.sizes[d + 1], stride);
      view.strides[d] = stride;
    }
    return true;
  }

  bool offset(View& view) {
    if (accept('+')) return symbol(&view.offset);
    view.offset = graph_.constant(0);
    return true;
  }

  bool view_use(Arg& out) {
    const auto index = static_cast<uint64_t>(token_.integer);
    if (index >= declared_.size() || !declared_[index])
      return fail("view %" + std::to_string(index) + " is not declared");
    out.tag = ArgTag::kView;
    out.a = static_cast<uint32_t>(index);
    advance();
    return true;
  }

  // -- nodes ---------------------------------------------------------------------------------------------------------

  // [result, ... =] op(arg, ..., name=arg) [in_place] [loc(...)]. `first` is the first result, if the caller already
  // read one.
  bool node(Arg first) {
    Node node;
    std::vector<Arg> results;
    const bool begun = first.tag == ArgTag::kView;
    if (begun) results.push_back(std::move(first));
    if (begun || token_.kind == TokenKind::kView || token_.is('[') || token_.is("none")) {
      if (!begun && !result(results.emplace_back())) return false;
      while (accept(',')) {
        if (!result(results.emplace_back())) return false;
      }
      if (!expect('=')) return false;
    }
    const Token at = token_;
    std::string name;
    if (!op_name(&name)) return false;
    node.opcode = find_op(name);
    if (node.opcode == kInvalidOpcode)
      return fail_at(at, "there is no op '" + name + "'; declare it with an 'op' line");
    const OpDesc& desc = op_desc(node.opcode);
    if (!assign_results(at, desc, results, node.results) || !arguments(desc, node.args)) return false;
    node.record = static_cast<uint32_t>(graph_.nodes.size());
    if (token_.is("in_place") && !token_.first_on_line) {
      node.in_place = true;
      advance();
    }
    if (token_.is("loc") && !token_.first_on_line && !location(node.record)) return false;
    graph_.nodes.push_back(std::move(node));
    where_.nodes.push_back(at.line);
    return true;
  }

  bool result(Arg& out) {
    if (token_.kind == TokenKind::kView) return ahead_.is(':') ? view_declaration(out) : view_use(out);
    if (token_.is("none")) {
      advance();
      return true;
    }
    if (!accept('[')) return fail("expected a result: a view, a list of views, or none");
    out.tag = ArgTag::kList;
    while (!token_.is(']')) {
      if (!out.items.empty() && !expect(',')) return false;
      if (token_.is('[')) return fail("a list cannot hold lists");
      if (!result(out.items.emplace_back())) return false;
    }
    advance();
    return true;
  }

  // Assigns the results of the text to the op's results. Aliases and numbers are results too, but the text leaves them
  // out.
  bool assign_results(const Token& at, const OpDesc& desc, std::vector<Arg>& written, std::vector<Arg>& out) {
    out.resize(desc.results.size());
    size_t next = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const ResultDesc& result = desc.results[i];
      if (result.alias >= 0 || (result.kind != ResultKind::kTensor && result.kind != ResultKind::kTensorList)) continue;
      if (next < written.size()) out[i] = std::move(written[next]);
      ++next;
    }
    if (next == written.size()) return true;
    return fail_at(at, std::string(desc.name) + " makes " + std::to_string(next) + " new results, not " +
                           std::to_string(written.size()));
  }

  bool arguments(const OpDesc& desc, std::vector<Arg>& args) {
    args.resize(desc.args.size());
    std::vector<bool> given(args.size());
    size_t positional = 0;
    if (!expect('(')) return false;
    for (bool first = true; !token_.is(')'); first = false) {
      if (!first && !expect(',')) return false;
      size_t index = positional;
      const Token at = token_;
      if ((token_.kind == TokenKind::kName || token_.kind == TokenKind::kString) && ahead_.is('=')) {
        index = argument_named(desc, at.text);
        if (index == args.size()) return fail(std::string(desc.name) + " has no argument '" + at.text + "'");
        advance();
        advance();
      } else {
        if (index >= args.size() || desc.args[index].keyword_only) return fail("too many positional arguments");
        ++positional;
      }
      if (given[index]) return fail_at(at, "argument '" + std::string(desc.args[index].name) + "' is given twice");
      given[index] = true;
      if (!argument(desc.args[index].writes, true, args[index])) return false;
    }
    advance();
    return true;
  }

  static size_t argument_named(const OpDesc& desc, std::string_view name) {
    size_t index = 0;
    while (index < desc.args.size() && desc.args[index].name != name) ++index;
    return index;
  }

  bool argument(bool writes, bool lists, Arg& out) {
    switch (token_.kind) {
      case TokenKind::kView:
        if (!view_use(out)) return false;
        if (token_.is('!') && !writes) return fail("the op does not write this argument");
        accept('!');
        return true;
      case TokenKind::kInt:
      case TokenKind::kFloat:
        out.tag = token_.kind == TokenKind::kInt ? ArgTag::kInt : ArgTag::kFloat;
        return symbol(&out.a);
      case TokenKind::kString:
        out.tag = ArgTag::kString;
        out.text = token_.text;
        advance();
        return true;
      case TokenKind::kName:
        return ahead_.is('(') ? constructed(out) : word(out);
      default:
        break;
    }
    if (!lists || !accept('[')) return fail("expected an argument");
    out.tag = ArgTag::kList;
    while (!token_.is(']')) {
      if (!out.items.empty() && !expect(',')) return false;
      if (!argument(writes, false, out.items.emplace_back())) return false;
    }
    advance();
    return true;
  }

  bool word(Arg& out) {
    const std::string& text = token_.text;
    const auto format = std::ranges::find(text::kMemoryFormats, text);
    if (text == "none") {
      out.tag = ArgTag::kNone;
    } else if (text == "true" || text == "false") {
      out.tag = ArgTag::kBool;
      out.a = graph_.constant(text == "true");
    } else if (const auto dtype = dtype_from_name(text); dtype.has_value()) {
      out.tag = ArgTag::kDType;
      out.a = static_cast<uint32_t>(*dtype);
    } else if (format != std::end(text::kMemoryFormats)) {
      out.tag = ArgTag::kMemoryFormat;
      out.a = static_cast<uint32_t>(format - std::begin(text::kMemoryFormats));
    } else {
      out.tag = ArgTag::kInt;
      return symbol(&out.a);
    }
    advance();
    return true;
  }

  // float(s) | bool(s) | complex(s, s) | philox(s, s) | tensor(s[, s]: dtype) | number(s[, s]: dtype)
  bool constructed(Arg& out) {
    const Token name = token_;
    advance();
    advance();
    if (name.text == "float" || name.text == "bool") {
      out.tag = name.text == "float" ? ArgTag::kFloat : ArgTag::kBool;
      return symbol(&out.a) && expect(')');
    }
    if (name.text == "complex" || name.text == "philox") {
      out.tag = name.text == "complex" ? ArgTag::kComplex : ArgTag::kGenerator;
      return symbol(&out.a) && expect(',') && second(out.a) && expect(')');
    }
    if (name.text != "tensor" && name.text != "number") return fail_at(name, "'" + name.text + "' has no meaning here");
    out.tag = ArgTag::kScalarTensor;
    if (!symbol(&out.a)) return false;
    const bool pair = accept(',');
    if ((pair && !second(out.a)) || !expect(':')) return false;
    const auto dtype = token_.kind == TokenKind::kName ? dtype_from_name(token_.text) : std::nullopt;
    if (!dtype.has_value() || is_complex(*dtype) != pair) {
      return fail("expected a dtype: a complex one for two symbols, another for one");
    }
    out.b = static_cast<uint32_t>(*dtype) | (name.text == "number" ? 0x100u : 0u);
    advance();
    return expect(')');
  }

  // Reads the symbol after `first`: the two symbols of a pair are adjacent.
  bool second(Sym first) {
    const Token at = token_;
    Sym next = kNoSym;
    if (!symbol(&next)) return false;
    return next == first + 1 ||
           fail_at(at, "expected s" + std::to_string(first + 1) + ": the two symbols must be adjacent");
  }

  // -- groups --------------------------------------------------------------------------------------------------------

  // group pointwise [contiguous] [aligned] {
  bool group_begins() {
    if (in_group_) return fail("a group cannot hold groups");
    advance();
    const auto kind = std::ranges::find(text::kGroups, token_.text);
    if (kind == std::end(text::kGroups)) return fail("there is no kind of group '" + token_.text + "'");
    Group& group = graph_.groups.emplace_back();
    group.first = static_cast<uint32_t>(graph_.nodes.size());
    group.kind = static_cast<GroupKind>(kind - std::begin(text::kGroups));
    advance();
    while (token_.kind == TokenKind::kName && !token_.first_on_line) {
      const auto property = std::ranges::find(text::kProperties, token_.text);
      if (property == std::end(text::kProperties)) return fail("there is no property '" + token_.text + "'");
      group.properties |= static_cast<uint8_t>(1u << (property - std::begin(text::kProperties)));
      advance();
    }
    in_group_ = true;
    return expect('{');
  }

  bool group_ends() {
    Group& group = graph_.groups.back();
    if (graph_.nodes.size() == group.first) return fail("a group has at least one node");
    group.last = static_cast<uint32_t>(graph_.nodes.size()) - 1;
    in_group_ = false;
    advance();
    return true;
  }

  // -- source lines --------------------------------------------------------------------------------------------------

  bool set_source_line(int64_t index) {
    if (index >= kMaxSourceLines) return fail("more source lines than a graph can have");
    if (graph_.source_lines.size() <= static_cast<size_t>(index))
      graph_.source_lines.resize(static_cast<size_t>(index) + 1);
    graph_.source_lines[static_cast<size_t>(index)] = token_.text;
    advance();
    return true;
  }

  // loc(3), loc("line") or loc(3, "line")
  bool location(uint32_t& record) {
    advance();
    if (!expect('(')) return false;
    bool line = token_.kind == TokenKind::kString;
    if (!line) {
      int64_t number = 0;
      if (!integer(0, std::numeric_limits<uint32_t>::max(), &number)) return false;
      record = static_cast<uint32_t>(number);
      line = accept(',');
    }
    if (line && token_.kind != TokenKind::kString) return fail("expected the source line as a string");
    if (line && !set_source_line(record)) return false;
    return expect(')');
  }

  bool source_line() {
    advance();
    int64_t number = 0;
    if (!expect('(') || !integer(0, kMaxSourceLines - 1, &number) || !expect(',')) return false;
    if (token_.kind != TokenKind::kString) return fail("expected the source line as a string");
    return set_source_line(number) && expect(')');
  }

  const size_t text_size_;
  text::Lexer lexer_;
  Graph& graph_;
  TextLines& where_;
  Token token_;
  Token ahead_;
  std::unordered_map<std::string, Sym> names_;
  std::vector<bool> declared_;
  bool in_group_ = false;
  std::string error_;
};

}  // namespace

Status parse_graph(std::string_view text, Graph* graph, TextLines* lines) {
  TextLines unwanted;
  return Parser(text, graph, lines == nullptr ? &unwanted : lines).run();
}

}  // namespace torch_remote::ir

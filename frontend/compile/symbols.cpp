#include "frontend/compile/symbols.h"

#include <torch/csrc/utils/python_symnode.h>

#include <string>

namespace torch_remote::frontend {
namespace {

namespace py = pybind11;
using ir::ExprKind;
using ir::Sym;

struct ExprNames {
  py::str raw_expr{"_expr"}, expr{"expr"}, args{"args"}, shape_env{"shape_env"}, var_to_range{"var_to_range"},
      lower{"lower"}, is_integer{"is_Integer"}, is_symbol{"is_Symbol"}, name{"__name__"};
};

const ExprNames& expr_names() {
  static const auto* instance = new ExprNames;
  return *instance;
}

bool is_true(py::handle object, const py::str& attribute) { return object.attr(attribute).ptr() == Py_True; }

}  // namespace

void Symbols::define(py::handle node, Sym symbol) {
  const py::object expr = node.attr(expr_names().expr);
  by_value_[expr] = py::int_(symbol);
  if (may_be_zero_or_one_.size() <= symbol) may_be_zero_or_one_.resize(symbol + 1, true);
  if (!trust_ranges_ || !is_true(expr, expr_names().is_symbol)) return;
  const py::object ranges = node.attr(expr_names().shape_env).attr(expr_names().var_to_range);
  PyObject* range = PyDict_GetItemWithError(ranges.ptr(), expr.ptr());
  if (range == nullptr) {
    PyErr_Clear();
    return;
  }
  const py::object enough = py::handle(range).attr(expr_names().lower).attr("__ge__")(2);
  may_be_zero_or_one_[symbol] = !py::bool_(enough);
}

std::optional<Sym> Symbols::defined(py::handle expr) const {
  PyObject* found = PyDict_GetItemWithError(by_value_.ptr(), expr.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return found == nullptr ? std::nullopt : std::optional(py::handle(found).cast<Sym>());
}

py::handle Symbols::node_of(const c10::SymInt& value) {
  if (!value.is_heap_allocated()) return {};  // maybe_as_int would call sympy, which is slow
  auto* node = dynamic_cast<torch::impl::PythonSymNodeImpl*>(value.toSymNodeImplUnowned());
  return node == nullptr ? py::handle() : node->getPyObj();
}

std::optional<Sym> Symbols::find(const c10::SymInt& value) {
  if (!value.is_heap_allocated()) return constant(value.as_int_unchecked());
  const py::handle node = node_of(value);
  return node ? find_node(node) : std::nullopt;
}

std::optional<Sym> Symbols::find_node(py::handle node) {
  // The original expression is cheap to get. The one with what the ShapeEnv has learned since is expensive.
  if (const auto found = find_expr(node.attr(expr_names().raw_expr))) return found;
  return find_expr(node.attr(expr_names().expr));
}

std::optional<Sym> Symbols::find_size(const c10::SymInt& value) {
  const auto found = find(value);
  if (found && *found < params_ && (*found >= may_be_zero_or_one_.size() || may_be_zero_or_one_[*found])) {
    return expr(ExprKind::kMax, *found, constant(0));
  }
  return found;
}

std::optional<Sym> Symbols::find_expr(py::handle expr) {
  const auto known = by_object_.find(expr.ptr());
  if (known != by_object_.end()) return known->second;
  std::optional<Sym> symbol = defined(expr);
  if (!symbol) {
    symbol = convert(expr);
    if (!symbol && on_unknown) symbol = on_unknown(expr);
    if (symbol) by_value_[expr] = py::int_(*symbol);
  }
  if (symbol) {
    by_object_.emplace(expr.ptr(), *symbol);
    owned_exprs_.push_back(py::reinterpret_borrow<py::object>(expr));
  }
  return symbol;
}

std::optional<Sym> Symbols::fold(ExprKind kind, const py::tuple& args) {
  std::optional<Sym> all;
  for (const py::handle arg : args) {
    const auto one = find_expr(arg);
    if (!one) return std::nullopt;
    all = all ? expr(kind, *all, *one) : *one;
  }
  return all;
}

// Converts the functions in torch's sizes (torch.utils._sympy.functions). Operands are never negative where that
// matters.
std::optional<Sym> Symbols::convert(py::handle expr) {
  if (is_true(expr, expr_names().is_integer)) return constant(py::int_(py::reinterpret_borrow<py::object>(expr)));
  if (is_true(expr, expr_names().is_symbol)) return std::nullopt;
  const std::string function = py::cast<std::string>(py::type::handle_of(expr).attr(expr_names().name));
  const py::tuple args = expr.attr(expr_names().args);
  if (function == "Add") return fold(ExprKind::kAdd, args);
  if (function == "Mul") return fold(ExprKind::kMul, args);
  if (function == "Max") return fold(ExprKind::kMax, args);
  if (function == "Min") return fold(ExprKind::kMin, args);
  if (function == "Identity" && args.size() == 1) return find_expr(args[0]);
  if (args.size() == 3 && function == "ModularIndexing") {
    const auto base = find_expr(args[0]), divisor = find_expr(args[1]), modulus = find_expr(args[2]);
    if (!base || !divisor || !modulus) return std::nullopt;
    return this->expr(ExprKind::kMod, this->expr(ExprKind::kFloorDiv, *base, *divisor), *modulus);
  }
  if (args.size() != 2) return std::nullopt;
  if (function == "FloorDiv" || function == "CleanDiv") return fold(ExprKind::kFloorDiv, args);
  if (function == "Mod" || function == "PythonMod") return fold(ExprKind::kMod, args);
  if (function == "CeilDiv") {
    const auto a = find_expr(args[0]), b = find_expr(args[1]);
    if (!a || !b) return std::nullopt;
    const Sym up = this->expr(ExprKind::kSub, *b, constant(1));
    return this->expr(ExprKind::kFloorDiv, this->expr(ExprKind::kAdd, *a, up), *b);
  }
  if (function == "Pow" || function == "PowByNatural") {
    const auto base = find_expr(args[0]), exponent = find_expr(args[1]);
    int64_t times = 0;
    if (!base || !exponent || !graph_.is_constant(*exponent, &times) || times < 1 || times > 8) return std::nullopt;
    Sym power = *base;
    for (; times > 1; --times) power = this->expr(ExprKind::kMul, power, *base);
    return power;
  }
  return std::nullopt;
}

void Symbols::forget_since(const Mark& mark) {
  for (; owned_exprs_.size() > mark.objects; owned_exprs_.pop_back()) by_object_.erase(owned_exprs_.back().ptr());
  while (by_value_.size() > mark.values) by_value_.attr("popitem")();
}

void Symbols::close() {
  graph_.params = params_;
  for (ir::Expr& expr : graph_.exprs) {
    if (expr.a != ir::kNoSym) expr.a = closed(expr.a);
    if (expr.b != ir::kNoSym) expr.b = closed(expr.b);
  }
  graph_.index_ = {};
}

}  // namespace torch_remote::frontend

#pragma once

#include <c10/core/SymInt.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace torch_remote::frontend {

// Maps torch's symbolic sizes (sympy expressions over the symbols of a ShapeEnv) to symbols of an ir::Graph. Requires
// the GIL.
class Symbols {
 public:
  // Parameters are numbered from 0 and expressions from kFirstExpr, so that both can grow. `close` renumbers the
  // expressions to follow the parameters.
  static constexpr ir::Sym kFirstExpr = 1u << 22;

  // `graph` must outlive this object. `trust_ranges`: sizes are at least the lower bound in the ShapeEnv. Dynamo's
  // guards ensure this. torch.export's checks do not: they accept 0 and 1 where the lower bound is 2.
  Symbols(ir::Graph& graph, bool trust_ranges) : graph_(graph), trust_ranges_(trust_ranges) {
    graph_.params = kFirstExpr;
  }

  bool trusts_ranges() const { return trust_ranges_; }
  ir::Sym new_param() { return params_++; }
  ir::Sym constant(int64_t value) { return graph_.constant(value); }
  ir::Sym expr(ir::ExprKind kind, ir::Sym a, ir::Sym b) { return graph_.expr(kind, a, b); }

  // Binds an expression to a symbol. `node` is a torch SymNode with the expression; its ShapeEnv knows the range.
  void define(pybind11::handle node, ir::Sym symbol);
  // Looks up an expression that was defined or found before, without converting it.
  std::optional<ir::Sym> defined(pybind11::handle expr) const;
  // The SymNode of a symbolic size, a borrowed reference; null for a plain integer.
  static pybind11::handle node_of(const c10::SymInt& value);
  // The symbol of a size; a new expression if needed. Nothing if it uses undefined symbols that `on_unknown` does not
  // provide, or functions that a graph lacks.
  std::optional<ir::Sym> find(const c10::SymInt& value);
  // The same for the `.node` of a Python SymInt.
  std::optional<ir::Sym> find_node(pybind11::handle node);
  // As find, for a tensor's size. For a parameter that may be 0 or 1 it returns an expression with the same value,
  // because a parameter among ir::View::sizes must be neither.
  std::optional<ir::Sym> find_size(const c10::SymInt& value);

  // Forgets the expressions that became known after `mark` was taken. Their symbols stay valid.
  struct Mark {
    size_t values = 0, objects = 0;
  };
  Mark mark() const { return {by_value_.size(), owned_exprs_.size()}; }
  void forget_since(const Mark& mark);

  // Called for an expression, or a part of one, that cannot be computed from defined ones; returns its symbol, if any.
  std::function<std::optional<ir::Sym>(pybind11::handle expr)> on_unknown;

  // Ends the numbering: sets the graph's number of parameters, and renumbers the symbols in its expressions. The caller
  // replaces all other symbols, as those of views and nodes, by closed(symbol).
  void close();
  // The final number of a symbol. Call it only after close().
  ir::Sym closed(ir::Sym symbol) const { return symbol < kFirstExpr ? symbol : symbol - kFirstExpr + params_; }

 private:
  std::optional<ir::Sym> find_expr(pybind11::handle expr);
  std::optional<ir::Sym> convert(pybind11::handle expr);
  std::optional<ir::Sym> fold(ir::ExprKind kind, const pybind11::tuple& args);

  ir::Graph& graph_;
  const bool trust_ranges_;
  ir::Sym params_ = 0;
  std::vector<bool> may_be_zero_or_one_;              // by parameter: it may be 0 or 1
  std::unordered_map<PyObject*, ir::Sym> by_object_;  // keys are expressions in `owned_exprs_`
  std::vector<pybind11::object> owned_exprs_;         // keeps the keys of `by_object_` alive
  pybind11::dict by_value_;  // from an expression to its symbol's number; sympy compares expressions by value
};

}  // namespace torch_remote::frontend

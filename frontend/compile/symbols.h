#pragma once

#include <c10/core/SymInt.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace torch_remote::frontend {

// torch's symbolic sizes (sympy expressions over the symbols of a ShapeEnv) as symbols of an ir::Graph. With the GIL.
class Symbols {
 public:
  // Parameters are numbered from 0 and expressions from kFirstExpr on, so that both can grow; `close` makes them
  // neighbours.
  static constexpr ir::Sym kFirstExpr = 1u << 22;

  // `trust_ranges`: sizes are as large as the ShapeEnv says they are at least. Dynamo's guards see to it;
  // torch.export's checks let 0 and 1 pass where it says 2.
  Symbols(ir::Graph& graph, bool trust_ranges) : graph_(graph), trust_ranges_(trust_ranges) {
    graph_.params = kFirstExpr;
  }

  bool trusts_ranges() const { return trust_ranges_; }
  ir::Sym new_param() { return params_++; }
  ir::Sym constant(int64_t value) { return graph_.constant(value); }
  ir::Sym expr(ir::ExprKind kind, ir::Sym a, ir::Sym b) { return graph_.expr(kind, a, b); }

  // This expression has this value. `node`: a torch SymNode with it, for what the ShapeEnv knows of its range.
  void define(pybind11::handle node, ir::Sym symbol);
  // What was defined, nothing more.
  std::optional<ir::Sym> defined(pybind11::handle expr) const;
  // The SymNode of a symbolic size; null of a plain one.
  static pybind11::handle node_of(const c10::SymInt& value);
  // The symbol of a size; none if it is made of symbols that nothing defines or by functions that a graph lacks.
  std::optional<ir::Sym> find(const c10::SymInt& value);
  // Likewise of a Python SymInt's `.node`.
  std::optional<ir::Sym> find_node(pybind11::handle node);
  // As find, for a tensor's size: one that may be 0 or 1 is told from those that may not (see ir::View).
  std::optional<ir::Sym> find_size(const c10::SymInt& value);

  // Asked for the value of an expression that is not made of what is defined.
  std::function<std::optional<ir::Sym>(pybind11::handle expr)> on_unknown;

  // Ends the numbering: what `symbol` is from now on.
  void close();
  ir::Sym closed(ir::Sym symbol) const { return symbol < kFirstExpr ? symbol : symbol - kFirstExpr + params_; }

 private:
  std::optional<ir::Sym> find_expr(pybind11::handle expr);
  std::optional<ir::Sym> convert(pybind11::handle expr);
  std::optional<ir::Sym> fold(ir::ExprKind kind, const pybind11::tuple& args);

  ir::Graph& graph_;
  const bool trust_ranges_;
  ir::Sym params_ = 0;
  std::vector<bool> may_be_small_;                    // by parameter: 0 or 1 is possible
  std::unordered_map<PyObject*, ir::Sym> by_object_;  // of expressions in `kept_`
  std::vector<pybind11::object> kept_;
  pybind11::dict by_value_;  // sympy compares by value; holds the symbol's number
};

}  // namespace torch_remote::frontend

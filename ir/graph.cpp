#include "ir/graph.h"

#include <algorithm>
#include <limits>

namespace torch_remote::ir {
namespace {

constexpr uint32_t kEmptySlot = 0xFFFFFFFF;

uint64_t hash_of(const Expr& expr) {
  uint64_t hash = static_cast<uint64_t>(expr.value) * 0x9E3779B97F4A7C15;
  hash ^= (static_cast<uint64_t>(expr.a) << 32 | expr.b) + static_cast<uint64_t>(expr.kind);
  hash *= 0xC2B2AE3D27D4EB4F;
  return hash ^ hash >> 29;
}

// Returns false on overflow or division by zero.
bool compute(ExprKind kind, int64_t a, int64_t b, int64_t* result) {
  switch (kind) {
    case ExprKind::kAdd:
      return !__builtin_add_overflow(a, b, result);
    case ExprKind::kSub:
      return !__builtin_sub_overflow(a, b, result);
    case ExprKind::kMul:
      return !__builtin_mul_overflow(a, b, result);
    case ExprKind::kFloorDiv:
      if (b == 0 || (a == std::numeric_limits<int64_t>::min() && b == -1)) return false;
      *result = a / b - (a % b != 0 && (a < 0) != (b < 0));
      return true;
    case ExprKind::kMod:
      if (b == 0) return false;
      if (b == -1) {
        *result = 0;
        return true;
      }
      *result = a % b;
      if (*result != 0 && (*result < 0) != (b < 0)) *result += b;
      return true;
    case ExprKind::kMax:
      *result = a > b ? a : b;
      return true;
    case ExprKind::kMin:
      *result = a < b ? a : b;
      return true;
    case ExprKind::kConst:
      break;
  }
  return false;
}

bool commutes(ExprKind kind) {
  return kind == ExprKind::kAdd || kind == ExprKind::kMul || kind == ExprKind::kMax || kind == ExprKind::kMin;
}

const char* operator_name(ExprKind kind) {
  switch (kind) {
    case ExprKind::kAdd:
      return "+";
    case ExprKind::kSub:
      return "-";
    case ExprKind::kMul:
      return "*";
    case ExprKind::kFloorDiv:
      return "//";
    case ExprKind::kMod:
      return "mod";
    case ExprKind::kMax:
      return "max";
    case ExprKind::kMin:
      return "min";
    case ExprKind::kConst:
      break;
  }
  return "?";
}

}  // namespace

namespace internal {

void ExprTable::insert(const std::vector<Expr>& exprs, uint32_t index) {
  const uint32_t mask = static_cast<uint32_t>(slots_.size()) - 1;
  for (uint32_t slot = static_cast<uint32_t>(hash_of(exprs[index])) & mask;; slot = (slot + 1) & mask) {
    if (slots_[slot] == kEmptySlot) {
      slots_[slot] = index;
      return;
    }
    if (exprs[slots_[slot]] == exprs[index]) return;  // of equal expressions the first one is found
  }
}

uint32_t ExprTable::find_or_add(std::vector<Expr>& exprs, const Expr& expr) {
  const uint32_t count = static_cast<uint32_t>(exprs.size());
  if (indexed_ > count || 2 * (count + 1) > slots_.size()) {  // expressions were removed, or the table is half full
    size_t size = 32;
    while (size < 4 * (static_cast<size_t>(count) + 1)) size *= 2;
    slots_.assign(size, kEmptySlot);
    indexed_ = 0;
  }
  for (; indexed_ < count; ++indexed_) insert(exprs, indexed_);
  const uint32_t mask = static_cast<uint32_t>(slots_.size()) - 1;
  for (uint32_t slot = static_cast<uint32_t>(hash_of(expr)) & mask;; slot = (slot + 1) & mask) {
    if (slots_[slot] == kEmptySlot) {
      slots_[slot] = count;
      exprs.push_back(expr);
      ++indexed_;
      return count;
    }
    if (exprs[slots_[slot]] == expr) return slots_[slot];
  }
}

}  // namespace internal

void Graph::drop_groups() {
  groups.clear();
  for (Buffer& buffer : buffers) buffer.group_local = false;
}

void Graph::drop_plan() {
  for (Buffer& buffer : buffers) buffer.may_reuse = kNoBuffer;
}

Sym Graph::constant(int64_t value) {
  return params + index_.find_or_add(exprs, {ExprKind::kConst, kNoSym, kNoSym, value});
}

bool Graph::is_constant(Sym symbol, int64_t* value) const {
  if (symbol < params || symbol - params >= exprs.size()) return false;
  const Expr& expr = exprs[symbol - params];
  if (expr.kind != ExprKind::kConst) return false;
  if (value != nullptr) *value = expr.value;
  return true;
}

Sym Graph::expr(ExprKind kind, Sym a, Sym b) {
  if (commutes(kind) && a > b) std::swap(a, b);
  int64_t x = 0;
  int64_t y = 0;
  int64_t folded = 0;
  const bool a_known = is_constant(a, &x);
  const bool b_known = is_constant(b, &y);
  if (a_known && b_known && compute(kind, x, y, &folded)) return constant(folded);
  const auto is = [](bool known, int64_t value, int64_t wanted) { return known && value == wanted; };
  switch (kind) {
    case ExprKind::kAdd:
      if (is(a_known, x, 0)) return b;
      if (is(b_known, y, 0)) return a;
      break;
    case ExprKind::kSub:
      if (is(b_known, y, 0)) return a;
      if (a == b) return constant(0);
      break;
    case ExprKind::kMul:
      if (is(a_known, x, 1)) return b;
      if (is(b_known, y, 1)) return a;
      if (is(a_known, x, 0) || is(b_known, y, 0)) return constant(0);
      break;
    case ExprKind::kFloorDiv:
      if (is(b_known, y, 1)) return a;
      break;
    case ExprKind::kMod:
      if (is(b_known, y, 1)) return constant(0);
      break;
    case ExprKind::kMax:
    case ExprKind::kMin:
      if (a == b) return a;
      break;
    case ExprKind::kConst:
      break;
  }
  return params + index_.find_or_add(exprs, {kind, a, b, 0});
}

Status evaluate(const Graph& graph, const int64_t* params, std::vector<int64_t>* values) {
  values->resize(graph.symbols());
  int64_t* out = values->data();
  if (graph.params != 0) std::memcpy(out, params, graph.params * sizeof(int64_t));
  Sym symbol = graph.params;
  for (const Expr& expr : graph.exprs) {
    if (expr.kind == ExprKind::kConst) {
      out[symbol] = expr.value;
    } else if (!compute(expr.kind, out[expr.a], out[expr.b], &out[symbol])) {
      const bool divides = expr.kind == ExprKind::kFloorDiv || expr.kind == ExprKind::kMod;
      return Status::invalid("remote: symbol s" + std::to_string(symbol) +
                             " of the program has no value in this run: " + std::to_string(out[expr.a]) + " " +
                             operator_name(expr.kind) + " " + std::to_string(out[expr.b]) +
                             (divides && out[expr.b] == 0 ? " divides by zero" : " does not fit 64 bits"));
    }
    ++symbol;
  }
  return {};
}

void add_view_symbols(const Graph& graph, const Group& group, std::vector<Sym>* symbols) {
  for (uint32_t n = group.first; n <= group.last; ++n) {
    for_each_view(graph.nodes[n], [&](uint32_t index, bool) {
      const View& view = graph.views[index];
      if (view.dynamic) return;
      symbols->insert(symbols->end(), view.sizes.begin(), view.sizes.end());
      symbols->insert(symbols->end(), view.strides.begin(), view.strides.end());
      symbols->push_back(view.offset);
    });
  }
  std::ranges::sort(*symbols);
  const auto twice = std::ranges::unique(*symbols);
  symbols->erase(twice.begin(), twice.end());
}

}  // namespace torch_remote::ir

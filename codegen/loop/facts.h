#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "codegen/loop/loop_ir.h"

// Properties of a value that follow from its definition.
namespace torch_remote::codegen {

struct Facts {
  DimSet dims = 0;       // dims over which it varies
  bool finish = false;   // it is computed in `finish`, after all rows: it is a reduction over rows, or depends on one
  bool reduced = false;  // it is a reduction over columns, or depends on one
  bool operator==(const Facts&) const = default;
};

// Whether the value is a reduction whose result is known only after all rows.
inline bool is_total(const Value& value) { return value.kind == Kind::kReduce && value.over != Over::kColumns; }

// Whether the value is a sum of an f32 over columns or lines in f64. Its short sums are f32 (`Order::short_sum`).
bool is_wide_sum(const Kernel& kernel, const Value& value);

// Whether the value is a wide sum of products (`mul`). Its short sums use fma, so products are not rounded.
bool sums_products(const Kernel& kernel, const Value& value);

// For a sum over columns of `where condition, x, 0`, whose condition does not vary over columns: the condition, else
// kNone. Where the condition is false, code may skip the sum.
uint32_t condition_of_sum(const Kernel& kernel, std::span<const Facts> values, uint32_t value);

// The values that a value uses directly.
struct Inputs {
  std::array<uint32_t, 3 + kMaxIndexed> values;
  uint32_t count = 0;
  const uint32_t* begin() const { return values.data(); }
  const uint32_t* end() const { return values.data() + count; }
};
// The value must verify.
Inputs inputs(const Value& value);

// The facts of the next value, given those of all earlier ones. The value must pass those rules of verify() that do not
// use its facts.
Facts facts(const Kernel& kernel, const Value& value, std::span<const Facts> earlier);
// The facts of all values of a kernel that verifies.
std::vector<Facts> facts(const Kernel& kernel);

// The dims of a store: those of its operand, its value and its indices. It executes after all rows if one of these is
// known only then.
struct StoreFacts {
  DimSet dims = 0;
  bool finish = false;  // it executes in `finish`, after all rows
};
StoreFacts facts(const Kernel& kernel, const Store& store, std::span<const Facts> values);

// The values that a store uses, directly or indirectly; others are never computed. `finish` recomputes what it needs in
// addition to the totals, so a value may be in both lists.
struct UsedValues {
  std::vector<bool> rows;
  // A reduction over rows is in this list if its total is used; its operand is then in `rows`.
  std::vector<bool> finish;
};
UsedValues uses(const Kernel& kernel, std::span<const Facts> values);

}  // namespace torch_remote::codegen

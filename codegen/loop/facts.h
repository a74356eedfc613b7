#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "codegen/loop/loop_ir.h"

// What follows from the definition of each value.
namespace torch_remote::codegen {

struct Facts {
  DimSet dims = 0;       // that it varies over
  bool finish = false;   // there is a reduction over rows in what it is made of, or it is one
  bool reduced = false;  // there is a reduction over columns in what it is made of, or it is one
  bool operator==(const Facts&) const = default;
};

// Whether it is a reduction that is known when all rows are done.
inline bool is_total(const Value& value) { return value.kind == Kind::kReduce && value.over != Over::kColumns; }

// Whether it is a sum over columns or lines, in f64, of an f32: short sums are f32 (`Order::narrow`).
bool is_wide_sum(const Kernel& kernel, const Value& value);

// Whether it is such a sum of products (`mul`): the short sums are made by fma, so products are not rounded.
bool sums_products(const Kernel& kernel, const Value& value);

// Of a sum over columns of `where condition, x, 0` whose condition does not vary over columns: the condition. Where it
// is false, code may leave the sum out. Else kNone.
uint32_t condition_of_sum(const Kernel& kernel, std::span<const Facts> values, uint32_t value);

// The values that a value is made of.
struct Inputs {
  std::array<uint32_t, 3 + kMaxIndexed> values;
  uint32_t count = 0;
  const uint32_t* begin() const { return values.data(); }
  const uint32_t* end() const { return values.data() + count; }
};
// Of a value that verifies.
Inputs inputs(const Value& value);

// Of the next value, from those of the earlier ones. The value verifies but for what this tells.
Facts facts(const Kernel& kernel, const Value& value, std::span<const Facts> earlier);
// Of all values of a kernel that verifies.
std::vector<Facts> facts(const Kernel& kernel);

// Where a store writes: all dims of its operand, of its value and of its indices. It is done after all rows if one of
// these is known only then.
struct StoreFacts {
  DimSet dims = 0;
  bool finish = false;
};
StoreFacts facts(const Kernel& kernel, const Store& store, std::span<const Facts> values);

// Which values are computed at all, and when: those that a store is made of. What `finish` needs beside the totals it
// computes once more, so a value may be in both.
struct Uses {
  std::vector<bool> rows;
  std::vector<bool> finish;  // a reduction over rows: its total is wanted, and its operand is in `rows`
};
Uses uses(const Kernel& kernel, std::span<const Facts> values);

}  // namespace torch_remote::codegen

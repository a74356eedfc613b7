#pragma once

#include <cstdint>

#include "codegen/loop/loop_ir.h"

// One element: what the interpreter computes for each point. A Cell holds a value of any type of values: floats by
// their bits, integers and bool as the int64_t that they are.
namespace torch_remote::codegen {

struct Cell {
  uint64_t bits = 0;
};

template <typename T>
Cell to_cell(T x);
template <typename T>
T from_cell(Cell cell);

// An integer modulo 2^n, for a type of n bits.
int64_t wrapped(ir::DType type, int64_t x);

// Of memory's element type; the cell is of its loaded_type.
Cell load_element(ir::DType memory, const void* element);
void store_element(ir::DType memory, Cell cell, void* element);

Cell convert(ir::DType from, ir::DType to, Cell cell);
Cell bits_as(ir::DType to, Cell cell);
// Of operands of that type; for `where`, of b and c, while a is bool.
Cell apply(ir::ScalarOp op, ir::DType type, Cell a, Cell b, Cell c);
Cell fused_multiply_add(ir::DType type, Cell a, Cell b, Cell c);
// a * 2^b.
Cell scaled(ir::DType type, Cell a, Cell b);

// Of a value that is made of others at its point alone (kConvert, kBits, kScalarOp, kFma, kLdexp, kConstant).
// `operand`: the type of a; of `where`, of b.
Cell evaluate(const Value& value, ir::DType operand, Cell a, Cell b, Cell c);

// Sum, product, max, min, logsumexp: what they begin with, and one step.
Cell identity(Reduction reduction, ir::DType type);
Cell combine(Reduction reduction, ir::DType type, Cell so_far, Cell next);
// Whether argmax or argmin goes on to this later element.
bool is_better(Reduction reduction, ir::DType type, Cell best, Cell next);

// Word `number` % 4 of block `number` / 4 of Philox4x32-10.
int32_t random_word(uint64_t seed, uint64_t offset, uint64_t number);

}  // namespace torch_remote::codegen

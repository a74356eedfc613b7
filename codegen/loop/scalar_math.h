#pragma once

#include <cstdint>

#include "codegen/loop/loop_ir.h"

// Arithmetic on single elements, as the interpreter computes it at each point. A Cell contains a value of any type that
// LoopIR's values have: the bits of an f64, the bits of an f32 in the lower half, or an integer or bool as an int64_t.
namespace torch_remote::codegen {

struct Cell {
  uint64_t bits = 0;
};

// T is float, double or int64_t.
template <typename T>
Cell to_cell(T x);
template <typename T>
T from_cell(Cell cell);

// The value of the integer in a type of n bits: x modulo 2^n, within the type's range.
int64_t wrapped(ir::DType type, int64_t x);

// Load and store an element of type `memory`. The cell's type is loaded_type(memory).
Cell load_element(ir::DType memory, const void* element);
void store_element(ir::DType memory, Cell cell, void* element);

// To integers: towards zero; NaN and numbers that do not fit may become any integer. To bool: whether it is not 0.
Cell convert(ir::DType from, ir::DType to, Cell cell);
// The same bits as a value of type `to`.
Cell bits_as(ir::DType to, Cell cell);
// The operands have type `type`; for `where`, b and c have it, and a is bool. The result has type `type`, or is a bool
// if info(op).returns_bool.
Cell apply(ir::ScalarOp op, ir::DType type, Cell a, Cell b, Cell c);
// Returns a * b + c, rounded once, for f32 or f64.
Cell fused_multiply_add(ir::DType type, Cell a, Cell b, Cell c);
// Returns a * 2^b for f32 or f64. `b` has the same type as a; its fraction is dropped, and NaN counts as 0.
Cell scaled(ir::DType type, Cell a, Cell b);

// Evaluates a value that depends only on other values at its point: kConvert, kBits, kScalarOp, kFma, kLdexp,
// kConstant. `operand` is the type of a; for `where`, of b.
Cell evaluate(const Value& value, ir::DType operand, Cell a, Cell b, Cell c);

// The initial value and one step of sum, product, max, min and logsumexp.
Cell identity(Reduction reduction, ir::DType type);
Cell combine(Reduction reduction, ir::DType type, Cell so_far, Cell next);
// Whether argmax or argmin prefers the later element `next`.
bool prefers_next(Reduction reduction, ir::DType type, Cell best, Cell next);

// Returns word `number` % 4 of block `number` / 4 of Philox4x32-10 (ir/philox.h).
int32_t random_word(uint64_t seed, uint64_t offset, uint64_t number);

}  // namespace torch_remote::codegen

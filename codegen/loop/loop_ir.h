#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dtype.h"
#include "ir/ops/scalar_tree.h"
#include "ir/status.h"

// LoopIR: what one kernel computes, without saying how. docs/loop_ir.md has its grammar, and shows what becomes of it
// on a CPU and on a GPU.
//
// A kernel computes *values* at the points of a domain of rows and columns. A value is given by earlier ones at the
// same point: an element that is loaded, arithmetic, a reduction over all columns or all rows. Which dims a value
// varies over follows from that. All loads see the memory as it was before the kernel. Sizes, strides and scalars are
// arguments: one kernel serves all of them.
namespace torch_remote::codegen {

inline constexpr uint32_t kMaxRows = 6;
inline constexpr uint32_t kMaxColumns = 2;
inline constexpr uint32_t kMaxDims = kMaxRows + kMaxColumns;
inline constexpr uint32_t kMaxIndexed = 4;
inline constexpr uint32_t kNone = 0xFFFFFFFF;

// A set of dims: bit d is dim d, rows before columns.
using DimSet = uint32_t;

// A view of a buffer.
struct Operand {
  ir::DType dtype = ir::DType::kFloat32;
  DimSet dims = 0;       // along the others its stride is 0
  bool strided = false;  // along the last column the stride is an argument; else 1
  uint8_t indexed = 0;   // dims that have no place in the domain: values say where (`Value::indices`)
  bool operator==(const Operand&) const = default;
};

enum class Kind : uint8_t {
  kConstant,  // `number`, or `integer` for a type of integers
  kScalar,    // argument `a` of the kernel; its type is that argument's
  kIndex,     // the place along dim `a`: i64
  kLoad,      // of operand `operand`, at `indices`
  kConvert,   // a, as torch converts: to integers towards zero, to bool: is not 0
  kBits,      // a's bits, as another type of the same width
  kScalarOp,  // `op` of a, b, c; all of one type, but for where's condition (bool); comparisons give bool
  kFma,       // a * b + c, rounded once
  kLdexp,     // a * 2^b, rounded once; b is a whole number, and a * 2^(b / 2) a normal one, or else it is any number
  kReduce,    // `reduction` of a over all columns, or all rows, or all rows and the last column; a sum over columns or
              // lines may be f64 where a is f32
  kRandom,    // word c % 4 of block c / 4 of Philox4x32-10 with seed a and offset b (all i64), as ir/philox.h
              // has it: i32
  kRunning,   // `reduction` (sum, product or logsumexp) of a over the last column, from its first place to this one
};

enum class Reduction : uint8_t {
  kSum,
  kProduct,
  kMax,  // NaN if one is NaN
  kMin,
  kArgMax,  // i64: the place along the columns (row-major) of the first largest one; of the first NaN if there is one
  kArgMin,
  kLogSumExp,  // of floats, and running only: log(exp(a) + exp(b)), as `log_add_exp` has it
};

enum class Over : uint8_t {
  kColumns,
  kRows,
  kLines,  // all rows and the last column: one result for each place of the outer one of two columns
};

// Types of values: bool, u8, i8, i16, i32, i64, f32, f64. (Memory may also hold f16 and bf16: loads and stores
// convert.) Integers wrap around.
struct Value {
  Kind kind = Kind::kConstant;
  ir::DType type = ir::DType::kFloat32;
  ir::ScalarOp op = ir::ScalarOp::kAdd;
  Reduction reduction = Reduction::kSum;
  Over over = Over::kColumns;
  uint32_t a = kNone, b = kNone, c = kNone;
  uint32_t operand = kNone;
  std::vector<uint32_t> indices = {};  // i64 values, one for each of the operand's indexed dims
  double number = 0;
  int64_t integer = 0;
  bool operator==(const Value& other) const;  // -0 is not 0, and one NaN is as another
  // The value whose type an operation computes in: of `where`, whose `a` is the condition, `b`; kNone if there is none.
  uint32_t typed() const { return kind == Kind::kScalarOp && op == ir::ScalarOp::kWhere ? b : a; }
};

struct Store {
  uint32_t operand = 0;
  uint32_t value = 0;
  std::vector<uint32_t> indices = {};
  bool adds = false;  // to what is there, in the order of the rows; else a place is written once, or any one wins
  bool operator==(const Store&) const = default;
};

struct Kernel {
  uint32_t rows = 0;               // dims i0, i1, ...: done in any order, on any thread
  uint32_t columns = 0;            // dims j0, j1: the loops inside of a row
  std::vector<ir::DType> scalars;  // f64, i64 or bool
  std::vector<Operand> operands;
  std::vector<Value> values;
  std::vector<Store> stores;
  bool operator==(const Kernel&) const = default;

  uint32_t dims() const { return rows + columns; }
  DimSet row_dims() const { return (1u << rows) - 1; }
  DimSet column_dims() const { return ((1u << columns) - 1) << rows; }
  DimSet last_column() const { return columns == 0 ? 0 : 1u << (dims() - 1); }
};

std::string print(const Kernel& kernel);
// On an error the message starts with "line:column: ".
Status parse_kernel(std::string_view text, Kernel* kernel);

// Checks everything that lowerings rely on; the message names the value.
Status verify(const Kernel& kernel);

std::string_view name(Kind kind);
std::string_view name(Reduction reduction);
std::string_view name(Over over);

// -- What follows from a kernel --------------------------------------------------------------------------------------

// When a value is computed. A row's values are done phase by phase: phase p is one loop over the columns, and
// afterwards the row's own values, which reductions of that loop end in. What depends on a reduction over all rows
// comes when they are all done (`finish`): over the columns once more, or once. Loads and the like that it needs beside
// are computed there again.
struct Place {
  DimSet dims = 0;  // that it varies over; no row dims in `finish`
  bool finish = false;
  // The first loop that can compute it; of a row's own value: the first one that can use it. Of a reduction over rows:
  // the loop that adds to it, or before which it is added to if its operand does not vary over columns.
  uint32_t phase = 0;
};

struct Schedule {
  std::vector<Place> places;  // of each value; those that no store is made of are never computed
  uint32_t phases = 0;        // loops over the columns of a row; 0 if nothing is stored or reduced over columns
  // Values over columns that later phases want again and that are not worth computing again: kept for the length of a
  // row. The others are computed again from what was loaded or kept.
  std::vector<uint32_t> kept;
  std::vector<uint32_t> totals;  // reductions over rows that something is made of
};
// Of a kernel that verifies.
Schedule schedule(const Kernel& kernel);

// Elementary functions (exp, tanh, erf, ...) in terms of arithmetic, fma, conversions and bits, which every target has:
// f32 to 2 ulp, f64 to 2 ulp (docs/loop_ir.md has the table). Afterwards only these ScalarOps are left: neg, add, sub,
// mul, div, comparisons, abs, bit operations and shifts, ceil, floor, round, trunc, sqrt, copysign, max, min, fmax,
// fmin, where, logical ones.
void expand_functions(Kernel& kernel);

// One step of a running logsumexp of that type (f32 or f64), of these operations: `scalar` 0 and 1 are what it is made
// of (the earlier numbers are 1), the last value is the result. NaN stays, and equal infinities are themselves.
std::vector<Value> log_add_exp(ir::DType type);

// -- The oracle ------------------------------------------------------------------------------------------------------

// What a kernel is called with.
struct Arguments {
  std::span<const int64_t> sizes;  // of the dims
  std::span<void* const> data;     // of each operand: its element at place 0 of all dims
  // Elements. Of each operand: one for each dim of the domain, 0 where it does not vary, then one for each indexed dim.
  std::span<const int64_t> strides;
  std::span<const int64_t> bounds;    // of each operand's indexed dims, one after the other
  std::span<const uint64_t> scalars;  // 8 bytes each: a double's bits, an integer, 0 or 1
};

// An index that is out of its bounds: the load gave 0, the store did nothing.
struct IndexFailure {
  uint32_t operand = kNone;  // kNone: there was none
  int64_t index = 0;
  int64_t bound = 0;
};

// Running sums are the same on all targets. Of each kRunningBlock consecutive places of the last column, beginning with
// 0: each place is added to that d places before it (to 0 if there is none in the block), for d = 1, 2, 4, ...; to the
// result comes what the blocks before came to, that is the last place of the one before.
inline constexpr int64_t kRunningBlock = 16;

// In which order a target reduces. Over columns: element k of the last column dim goes to lane k % lanes; a lane adds
// up its elements of up to `block` consecutive k, beginning with 0 (sums), and these block sums one after the other; at
// the end the lanes are added up. Over lines: so along the last column, and then as over rows. Over rows: `chunk` rows
// are added one by one; chunk k goes to lane k % folds, a lane adds up its chunks, and at the end the lanes are added
// up. Lanes are added up by halves, the upper one to the lower one, until one is left: those of each groups[0]
// neighbours first, then what is left of each groups[1], then all that is left.
//
// Of a sum that is wider than its operand (`is_wide_sum`), a lane adds up its elements of each `narrow` consecutive k
// of a block in f32, beginning with 0. Factors of an operand that is a `mul` are added up by fma. The upper half of the
// lanes is added to the lower one until `wide_lanes` are left, and these are added to lanes of f64.
struct Order {
  uint32_t lanes = 32;                      // a power of two
  uint32_t block = 4096;                    // a multiple of `lanes`
  uint32_t narrow = 256;                    // a multiple of `lanes`
  uint32_t wide_lanes = 8;                  // a power of two
  std::array<uint32_t, 2> groups = {1, 1};  // powers of two, ascending up to `lanes`
  int64_t chunk = 64;
  uint32_t folds = 1;  // a power of two
};

// Computes it plainly, value by value, with libm. Sizes of 0 are right too. kOpFailed (IndexError) is not an error of
// this call: *failure has the first one in row-major order.
Status interpret(const Kernel& kernel, const Arguments& arguments, const Order& order = {},
                 IndexFailure* failure = nullptr);

}  // namespace torch_remote::codegen

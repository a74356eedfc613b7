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

// LoopIR defines what one kernel computes, but not how. docs/loop_ir.md has its grammar, and shows how CPUs and GPUs
// execute it.
//
// A kernel computes *values* at the points of a domain of rows and columns. A value is a loaded element, arithmetic on
// earlier values at the same point, or a reduction over all columns or all rows. The dims over which a value varies
// follow from this definition. A *line* is all positions of the last column dim, at one position of the other dims. All
// loads read the memory as it was before the kernel. Sizes, strides and scalars are arguments, so one kernel serves all
// of them.
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
  DimSet dims = 0;       // along all other dims its stride is 0
  bool strided = false;  // the stride along the last column is an argument; otherwise it is 1
  // Number of dims that are not in the domain: values give the indices along them (`Value::indices`).
  uint8_t indexed = 0;
  bool operator==(const Operand&) const = default;
};

enum class Kind : uint8_t {
  kConstant,  // `number`, or `integer` if the type is an integer type
  kScalar,    // scalar argument number `a` of the kernel, of the same type
  kIndex,     // the index along dim `a`: i64
  kLoad,      // the element of operand `operand` at `indices`
  kConvert,   // a, converted as in torch: to integers towards zero; to bool: whether it is not 0
  kBits,      // a's bits, as another type of the same width
  // `op` of a, b, c, all of one type, except that the condition of `where` is bool; comparisons return bool.
  kScalarOp,
  kFma,  // a * b + c, rounded once
  // a * 2^b, rounded once. b must be an integer, and a * 2^(b / 2) a normal number; otherwise the result is arbitrary.
  kLdexp,
  // `reduction` of a over all columns, or all rows, or all rows and the last column. A sum over columns or lines may be
  // f64 if a is f32.
  kReduce,
  // i32: word c % 4 of block c / 4 of Philox4x32-10, with seed a and offset b (all i64), as in ir/philox.h.
  kRandom,
  kRunning,  // `reduction` (sum, product or logsumexp) of a along the last column, from its first position to this one
};

enum class Reduction : uint8_t {
  kSum,
  kProduct,
  kMax,  // NaN if one is NaN
  kMin,
  // i64: the row-major position among the columns of the first largest element, or of the first NaN if there is one.
  kArgMax,
  kArgMin,
  kLogSumExp,  // for floats, and only as a running reduction: log(exp(a) + exp(b)), computed as in `log_add_exp`
};

enum class Over : uint8_t {
  kColumns,
  kRows,
  kLines,  // all rows and the last column: one result for each position of the outer one of two columns
};

// Values have the types bool, u8, i8, i16, i32, i64, f32, f64. Memory may also contain f16 and bf16; loads and stores
// convert them. Integers wrap around.
struct Value {
  Kind kind = Kind::kConstant;
  ir::DType type = ir::DType::kFloat32;
  ir::ScalarOp op = ir::ScalarOp::kAdd;
  Reduction reduction = Reduction::kSum;
  Over over = Over::kColumns;
  uint32_t a = kNone, b = kNone, c = kNone;
  uint32_t operand = kNone;
  std::vector<uint32_t> indices = {};  // i64 values, one for each indexed dim of the operand
  double number = 0;
  int64_t integer = 0;
  bool operator==(const Value& other) const;  // 0 and -0 differ; all NaNs are equal
  // The value whose type an operation computes in: `b` for `where`, whose `a` is the condition, else `a`. May be kNone.
  uint32_t typed() const { return kind == Kind::kScalarOp && op == ir::ScalarOp::kWhere ? b : a; }
};

struct Store {
  uint32_t operand = 0;
  uint32_t value = 0;
  std::vector<uint32_t> indices = {};
  // Adds to the existing element, in the order of the rows. Otherwise each position is written once, or any of several
  // writes wins.
  bool adds = false;
  bool operator==(const Store&) const = default;
};

struct Kernel {
  uint32_t rows = 0;               // dims i0, i1, ...: rows run in any order, on any thread
  uint32_t columns = 0;            // dims j0, j1: the loops within a row
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
// The message of an error starts with "line:column: ".
Status parse_kernel(std::string_view text, Kernel* kernel);

// Checks everything that lowerings rely on. The message of an error names the value.
Status verify(const Kernel& kernel);

std::string_view name(Kind kind);
std::string_view name(Reduction reduction);
std::string_view name(Over over);

// -- Derived from a kernel --------------------------------------------------------------------------------------------

// Where a value is computed. A row is computed in phases. Phase p is one loop over the columns, followed by the values
// that do not vary over columns and use reductions of that loop. Values that depend on a reduction over all rows are
// computed in `finish`, when all rows are done: over the columns, or once. Other values that these need, such as loads,
// are recomputed there.
struct ValueSchedule {
  DimSet dims = 0;  // dims over which it varies; no row dims in `finish`
  bool finish = false;
  // The first loop that can compute the value; for a value that does not vary over columns, the first loop that can use
  // it. For a reduction over rows, the loop in which its operand is added. An operand that does not vary over columns
  // is added before that loop begins.
  uint32_t phase = 0;
};

struct Schedule {
  std::vector<ValueSchedule> values;  // of each value; values that no store uses are never computed
  uint32_t phases = 0;  // number of loops over the columns of a row; 0 if nothing is stored or reduced over columns
  // Values over columns that later phases need and that are too expensive to recompute: they are stored in memory until
  // the row is done. Other values are recomputed from what was loaded or spilled.
  std::vector<uint32_t> spilled;
  std::vector<uint32_t> totals;  // reductions over rows whose results are used
};
// The kernel must verify.
Schedule schedule(const Kernel& kernel);

// Replaces elementary functions (exp, tanh, erf, ...) by arithmetic, fma, conversions and bits, which every target has.
// The errors are at most 2 ulp in f32 and f64, with exceptions that docs/loop_ir.md lists. Afterwards the kernel has
// only these ScalarOps: neg, add, sub, mul, div, comparisons, abs, bit operations and shifts, ceil, floor, round,
// trunc, sqrt, copysign, max, min, fmax, fmin, where, logical operations.
void expand_functions(Kernel& kernel);

// The operations of one step of a running logsumexp in f32 or f64. Scalars 0 and 1 are its inputs (1 is the result of
// the earlier numbers), and the last value is its result. NaN propagates; two equal infinities give that infinity.
std::vector<Value> log_add_exp(ir::DType type);

// -- The interpreter, which is the reference for all targets ----------------------------------------------------------

// The arguments of a call.
struct Arguments {
  std::span<const int64_t> sizes;  // of all dims of the domain
  std::span<void* const> data;     // for each operand: its element at position 0 of all dims
  // In elements. For each operand: one stride for each dim of the domain (0 if it does not vary), then one for each
  // indexed dim.
  std::span<const int64_t> strides;
  std::span<const int64_t> bounds;    // of each operand's indexed dims, one after the other
  std::span<const uint64_t> scalars;  // 8 bytes each: the bits of a double, an integer, or 0 or 1
};

// An index that was out of bounds. The load returned 0, or the store did nothing.
struct IndexFailure {
  uint32_t operand = kNone;  // kNone: no index failed
  int64_t index = 0;
  int64_t bound = 0;
};

// Running reductions are the same on all targets. Each kRunningBlock consecutive positions of the last column are a
// block. For d = 1, 2, 4, ..., each position is combined with the one d positions before it. If that is outside the
// block, the initial value is used instead. Finally each position is combined with the last result of the previous
// block.
inline constexpr int64_t kRunningBlock = 16;

// The order in which a target reduces.
//
// Over columns: element k of the last column dim goes to lane k % lanes. A lane adds its elements of up to `block`
// consecutive k, starting from 0 (for sums). It then adds these block sums one after the other. At the end the lanes
// are added up.
//
// Over lines: as over columns along the last column, then as over rows.
//
// Over rows: `chunk` rows are added one by one. Chunk k goes to lane k % chunk_lanes, a lane adds its chunks, and at
// the end the lanes are added up.
//
// To add up lanes, the upper half is added to the lower half until one lane is left. First each `groups[0]` adjacent
// lanes are added up, then the sums within each `groups[1]` adjacent lanes, then all remaining sums.
//
// A wide sum (`is_wide_sum`) adds f32 elements and has an f64 result. A block is divided into ranges of `short_sum`
// consecutive k. For each range, lanes of f32 add their elements, starting from 0. If the operand is a `mul`, fma adds
// its product without rounding it. Then the upper half of these lanes is added to the lower half until `wide_lanes` are
// left, and each of these is added to a lane of f64.
struct Order {
  uint32_t lanes = 32;                      // a power of two
  uint32_t block = 4096;                    // a multiple of `lanes`
  uint32_t short_sum = 256;                 // a multiple of `lanes`
  uint32_t wide_lanes = 8;                  // a power of two
  std::array<uint32_t, 2> groups = {1, 1};  // powers of two, ascending up to `lanes`
  int64_t chunk = 64;
  uint32_t chunk_lanes = 1;  // a power of two
};

// Computes a kernel value by value, with libm. Sizes may be 0. An index out of bounds is not an error of this call:
// *failure receives the first one in row-major order.
Status interpret(const Kernel& kernel, const Arguments& arguments, const Order& order = {},
                 IndexFailure* failure = nullptr);

}  // namespace torch_remote::codegen

#pragma once

// The arguments of the kernels in interpret.cu; see arguments.h. They are a LoopIR kernel (codegen/loop/loop_ir.h) with
// the numbers of one call. ops/interpreter/loop_encoder.h makes them.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// The operation of an instruction. An instruction is one word: its fields are the word's bytes, the lowest first. A
// cell is 8 bytes of a thread: the bits of a float, or an integer. Words are `InterpretArguments::words`.
enum class Instruction : unsigned char {
  kConstant,  // to = word a + 256 b
  kScalar,    // to = scalar a
  kIndex,     // to = the position along dim a
  kConvert,   // to = a, from type `from` to `type`
  kBits,      // to = the bits of a as `type`
  kApply,     // to = op(a, b, c) for operands of type `from`; the result has `type`
  kFma,       // to = a * b + c
  kLdexp,     // to = a * 2^b
  kRandom,    // to = word c of the random numbers with seed a and offset b
  kRunning,   // to = `op` of a over the last column, up to this position; b: the number of the running reduction
  // Adds an index to the address of the next load or store. a: the index; words b + 256 c: its stride and bound; from:
  // the number that a failure reports.
  kOffset,
  kDivisor,   // reports failure `from` if the integer a is 0
  kLoad,      // to = the element of operand `op`, of dtype `from`; words a + 256 b: its strides along all dims
  kStore,     // the same, but stores `to`; c: StoreFlags
  kTotal,     // to = total b, a reduction by `op` of `type` over all chunks
  kReduce,    // to = `op` of a over all columns, converted from type `from` to `type` first
  kAddTotal,  // adds a, of type `from`, to total b, a reduction by `op` of `type`
};

enum StoreFlags : unsigned char {
  kFirstColumn = 1,  // only at position 0 of the last column dim
  kFirstLine = 2,    // only at position 0 of the first of two column dims
  kAdds = 4,         // adds to the existing element
};

inline constexpr int kLoopDims = 12;  // of the loops around the kernel, of its rows, of its columns
inline constexpr int kLoopCells = 200;
inline constexpr int kLoopReductions = 8;  // over columns, in one phase; and running reductions
inline constexpr int kLoopOperands = 40;
inline constexpr int kLoopScalars = 12;
inline constexpr int kLoopPhases = 6;
inline constexpr int kLoopTotals = 8;
inline constexpr int kLoopWords = 352;
inline constexpr int kInterpretThreads = 128;

// Ranges of words: 32 bits each for the first word, and for one past the last.
enum LoopRange : int {
  kRowTotals,   // kAddTotal of values that do not vary over columns
  kFirstPhase,  // of each phase: a row's own values; the values at each column; kReduce and kAddTotal of these
  kRangesPerPhase = 3,
  // After the last phase: a row's own values, as for a phase; in the next one: the stores of one thread.
  kLoopRanges = kFirstPhase + kRangesPerPhase * (kLoopPhases + 2)
};

struct InterpretArguments {
  u64 failure = 0;
  u64 numbers = 0;  // the address of the scalars in memory; 0: they are the next member
  u64 scalars[kLoopScalars] = {};
  u64 data[kLoopOperands] = {};
  // All dims, outermost first: `outer` loops around the kernel, then rows, then columns.
  i64 sizes[kLoopDims] = {};
  i64 outer = 0, rows = 0, columns = 0;  // numbers of dims
  i64 row_count = 1;                     // positions along all row dims, with the additional row
  i64 remainder_columns = 0;             // size of the last column dim in the additional row; 0: there is none
  // Not 0: a thread computes a point of all dims, of so many. The range of the first phase's row computes it.
  i64 points = 0;
  // Otherwise a block computes a chunk of rows, and its threads the columns. Each chunk has its own cells of each
  // total.
  i64 chunk = 1, chunks = 0;
  u64 totals = 0;  // cells [outer positions, chunks, total_cells]
  i64 total_cells = 0;
  i64 first_cell[kLoopTotals] = {};   // of each total, among these; the following ones are those of its columns
  i64 cells_of[kLoopTotals] = {};     // number of a total's cells
  i64 total_flags[kLoopTotals] = {};  // StoreFlags: the columns that a total does not vary along
  i64 by_line[kLoopTotals] = {};      // whether the total adds all positions of the last column dim
  i64 phases = 0;
  u64 ranges[kLoopRanges] = {};
  u64 words[kLoopWords] = {};
};

}  // namespace torch_remote::worker::cuda

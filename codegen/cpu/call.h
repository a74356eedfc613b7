#pragma once

#include <cstdint>

// The interface of compiled CPU code. It is plain data, so callers need no compiler.
namespace torch_remote::codegen::cpu {

// The first index that was out of bounds. `operand` is kNoFailure while there is none.
inline constexpr uint32_t kNoFailure = 0xFFFFFFFF;
struct IndexRecord {
  uint32_t operand = kNoFailure;
  int64_t index = 0;
  int64_t bound = 0;
};

// What a variant of a kernel's code assumes about its arguments, so that it runs faster. All variants give the same
// results bit for bit.
struct Variant {
  // Stores along the columns bypass the caches (streaming stores). The operands that they write must begin at a
  // multiple of kStreamAlign bytes, and their strides must be multiples of it. A fence is needed before another thread
  // reads the results.
  bool streams = false;
  // The size of the last column dim, from 1 to kMaxFixedColumns; 0: any size.
  int64_t columns = 0;
  bool operator==(const Variant&) const = default;
};
inline constexpr int64_t kStreamAlign = 64, kMaxFixedColumns = 64;

// The arguments of a kernel with at most one row dim; the caller loops over other dims and moves `data`. Sizes and
// strides are in elements. `Schedule` (codegen/loop) lists what needs memory: spilled values, and totals. A total is a
// reduction over rows. Each chunk of rows is reduced separately, to a line of memory: one element, in the total's type,
// for each index of the column dims that the total varies over.
struct Call {
  void* const* data;       // for each operand: its element at row 0 and column 0
  const int64_t* sizes;    // of the column dims
  const int64_t* strides;  // for each operand: along the row dim if there is one, the column dims, the indexed dims
  const int64_t* bounds;   // for each operand: of its indexed dims
  const uint64_t* scalars;
  // For each of Schedule::spilled: memory for the value's elements of one row, in the value's type. Each thread has its
  // own.
  void* const* row_buffers;
  // For each of Schedule::totals: the line of the chunk that this call belongs to. For FinishFunction: the line of the
  // first chunk.
  void* const* totals;
  const int64_t* chunk_strides;  // for FinishFunction, for each total: bytes from one chunk's line to the next
  IndexRecord* failure;          // of this thread
};

// Computes and stores rows [begin, end), and reduces these rows into the totals' lines. The caller has filled the lines
// with the reductions' initial values (0, 1, -inf, ...).
using RowsFunction = void (*)(const Call*, int64_t begin, int64_t end);
// Combines the totals' lines of `chunks` chunks, then computes and stores the values that depend on them.
using FinishFunction = void (*)(const Call*, int64_t chunks);

}  // namespace torch_remote::codegen::cpu

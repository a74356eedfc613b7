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

// A variant of a kernel's code assumes this about its arguments. All variants give the same results bit for bit.
struct Variant {
  // Stores along the columns bypass the caches. Operands that are stored to in this way must begin at a multiple of
  // kStreamAlign bytes, and their strides must be multiples of it. A fence is needed before another thread reads the
  // results.
  bool streams = false;
  // The size of the last column dim, from 1 to kMaxFixedColumns; 0: any size.
  int64_t columns = 0;
  bool operator==(const Variant&) const = default;
};
inline constexpr int64_t kStreamAlign = 64, kMaxFixedColumns = 64;

// The arguments of a kernel with at most one row dim; the caller loops over other dims and moves `data`. Sizes and
// strides are in elements. `Schedule` means the schedule of the kernel after `expand_functions`.
struct Call {
  void* const* data;       // for each operand: its element at row 0 and column 0
  const int64_t* sizes;    // of the column dims
  const int64_t* strides;  // for each operand: along the row dim if there is one, the column dims, the indexed dims
  const int64_t* bounds;   // for each operand: of its indexed dims
  const uint64_t* scalars;
  // For each of Schedule::spilled: a line of memory for all columns, in the value's type. Each thread has its own
  // lines.
  void* const* row_buffers;
  // For each of Schedule::totals: the line (see RowsFunction) of the chunk of rows that this call belongs to; for
  // `finish`: of the first chunk.
  void* const* totals;
  const int64_t* chunk_strides;  // for `finish`, for each total: bytes from one chunk's line to the next
  IndexRecord* failure;          // of this thread
};

// Computes and stores rows [begin, end), and adds these rows to the totals' lines. A total is a reduction over rows; it
// may vary over column dims. Its line has one element, in the total's type, for each index of these column dims. The
// caller has filled the line with the reduction's initial value (0, 1, -inf, ...).
using RowsFunction = void (*)(const Call*, int64_t begin, int64_t end);
// Combines the lines of `chunks` chunks, computes what depends on them, and stores it.
using FinishFunction = void (*)(const Call*, int64_t chunks);

}  // namespace torch_remote::codegen::cpu

#pragma once

#include <cstdint>

// How compiled code of this CPU is called. Plain data, so that who calls needs no compiler.
namespace torch_remote::codegen::cpu {

// The first index that was out of its bounds; `operand` is kNoFailure before.
inline constexpr uint32_t kNoFailure = 0xFFFFFFFF;
struct IndexRecord {
  uint32_t operand = kNoFailure;
  int64_t index = 0;
  int64_t bound = 0;
};

// What code is made for beside its kernel: what it takes for granted, and does in another way with the same results,
// bit for bit.
struct Variant {
  // What is stored along the columns goes past the caches. Places 0 of the operands that are stored to so are aligned
  // to kStreamAlign bytes, and their strides are multiples of that. (Who reads it in another thread needs a fence.)
  bool streams = false;
  // The last column dim has so many places, kMostFixedColumns at most; 0: any number.
  int64_t columns = 0;
  bool operator==(const Variant&) const = default;
};
inline constexpr int64_t kStreamAlign = 64, kMostFixedColumns = 64;

// A kernel of one row dim at most: who calls loops over the others, moving `data`. In elements where nothing is said.
// The Schedule is that of the kernel after `expand_functions`.
struct Call {
  void* const* data;       // of each operand: its element at row 0 and column 0
  const int64_t* sizes;    // of the columns
  const int64_t* strides;  // of each operand: the row's, if there is one, the columns', the indexed dims'
  const int64_t* bounds;   // of each operand's indexed dims
  const uint64_t* scalars;
  void* const* kept;     // of each of Schedule::kept: a line of all columns, in the value's type; this thread's
  void* const* totals;   // of each of Schedule::totals: the line of this call's chunk; for `finish`, of the first chunk
  const int64_t* lines;  // for `finish`: bytes from a chunk's line to the next one's, of each total
  IndexRecord* failure;  // this thread's
};

// Rows [begin, end): computes and stores, and adds to the totals' lines. (Whoever calls has filled these with what a
// reduction begins with: 0, 1, -inf, ...; they have as many elements as the total varies over, in its value's type.)
using RowsFunction = void (*)(const Call*, int64_t begin, int64_t end);
// Adds up the lines of so many chunks, computes what follows and stores it.
using FinishFunction = void (*)(const Call*, int64_t chunks);

}  // namespace torch_remote::codegen::cpu

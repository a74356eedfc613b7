#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "ir/status.h"

// How compiled GPU kernels are launched. A Recipe is plain data that is stored with the code. From it and the arguments
// of a call, make_launches() computes the launches. Needs no compiler.
namespace torch_remote::codegen::gpu {

// -- The recipe of a kernel, for all sizes ----------------------------------------------------------------------------

// How work is assigned to threads; see docs/loop_ir.md.
enum class Shape : uint8_t {
  kPoints,  // no reductions over columns: a thread computes `vector` columns of a row, or of a chunk of rows
  kRows,    // a team of threads computes a row, or a chunk of rows
};

// The functions of a kernel's code.
enum class Function : uint8_t {
  kPoints,
  kRowsInRegisters,  // rows whose columns all stay in registers
  kRowsReloaded,     // longer rows: each phase loads them again
  kFinish,           // computes what depends on reductions over rows
};
std::string_view name(Function function);

// All functions of a kernel have the same parameters. Each parameter has 8 bytes.
enum class ParameterKind : uint8_t {
  kData,           // of operand `a`: the address of its element at position 0 of all dims
  kSize,           // of dim `a`
  kStride,         // in elements, of operand `a` along `b`: a dim, or (from dims() on) an indexed dim
  kBound,          // of indexed dim number `a`, counted over all operands
  kScalar,         // scalar number `a`
  kAligned,        // bit i: operand i may be accessed in vectors
  kFailure,        // address of an IndexRecord, which may have the bit kIndirectRecord
  kLines,          // of total `a`: the address of the first chunk's line
  kChunk,          // number of rows in a chunk
  kChunks,         // number of all chunks
  kFirstChunk,     // first chunk of this launch
  kScalarsAddress  // address of all scalars in memory, in order; 0: the scalars are parameters
};
// An address with this bit set points to 8 bytes that contain the address of the IndexRecord.
inline constexpr uint64_t kIndirectRecord = 1;
struct Parameter {
  ParameterKind kind = ParameterKind::kData;
  uint32_t a = 0, b = 0;
  bool operator==(const Parameter&) const = default;
};

// A reduction over rows. Each chunk of rows has a line of partial results in scratch memory.
struct Total {
  uint32_t item_size = 0;
  DimSet dims = 0;  // columns over which it varies
  bool operator==(const Total&) const = default;
};

struct Recipe {
  Shape shape = Shape::kPoints;
  uint32_t rows = 0, columns = 0;  // numbers of dims
  // number of adjacent elements along the last column dim that a thread processes together
  uint32_t vector = 1;
  // kRowsInRegisters: number of vectors of a row that a thread holds; 0: there is no such function
  uint32_t slots = 0;
  // Number of columns that a block of kFinish computes at a time; 0: there is no kFinish.
  uint32_t finish_columns = 0;
  // kFinish must run as one block, because it may store to memory that all its threads load.
  bool finish_in_one_block = false;
  std::vector<Operand> operands;
  std::vector<Total> totals;
  std::vector<Parameter> parameters;
  bool operator==(const Recipe&) const = default;
};

// The recipe as bytes, for caches of code. The bytes contain no types of the compiler. If their meaning changes, the
// compiler's version must change.
std::vector<uint8_t> encode(const Recipe& recipe);
// Returns kInvalid if the bytes are no recipe.
Status decode(std::span<const uint8_t> bytes, Recipe* recipe);

// An index that was out of bounds; `operand` is kNone before the launch. If several indices are out of bounds, the
// record has any one of them. Bit min(operand, 31) of `unfailed_operands` is 0 for each operand with such an index. All
// its bits are 1 before the launch. Hand-written kernels also report other failures here, such as a division by zero
// (worker/targets/cuda/device/deferred_failures.h).
struct IndexRecord {
  uint32_t operand = kNone;
  uint32_t unfailed_operands = ~uint32_t{0};
  int64_t index = 0;
  int64_t bound = 0;
};

// -- A call -----------------------------------------------------------------------------------------------------------

// Like Arguments (codegen/loop/loop_ir.h), but with addresses of device memory.
struct Call {
  std::span<const int64_t> sizes;  // of all dims
  std::span<const uint64_t> data;  // for each operand
  std::span<const int64_t> strides;
  std::span<const int64_t> bounds;
  std::span<const uint64_t> scalars;
  // One more row follows the others, with this size of the column dim; 0: there is none. Otherwise the kernel must have
  // one row dim and one column dim.
  int64_t remainder_columns = 0;
  uint64_t scratch = 0;          // scratch_bytes() bytes, aligned to 16; may be 0 without reductions over rows
  uint64_t failure = 0;          // see kFailure; may be 0 if no operand is indexed
  uint64_t scalars_address = 0;  // see kScalarsAddress
  uint32_t processors = 132;     // multiprocessors of the device, which limit the grid; results do not depend on it
};

struct Launch {
  Function function = Function::kPoints;
  uint32_t grid = 0;
  std::array<uint32_t, 2> block = {1, 1};  // x, y
  uint32_t shared_bytes = 0;               // dynamic
  std::vector<uint64_t> parameters;        // each passed by value
};

// Bytes of scratch memory for a call; 0 without reductions over rows.
uint64_t scratch_bytes(const Recipe& recipe, std::span<const int64_t> sizes, int64_t remainder_columns = 0);

// Computes the launches of a call, which must run in this order. There are none if there is nothing to compute. Returns
// kInvalid if the call does not fit the recipe.
Status make_launches(const Recipe& recipe, const Call& call, std::vector<Launch>* launches);

// The order in which the launches for these sizes reduce.
Order order(const Recipe& recipe, std::span<const int64_t> sizes);

// -- Constants of the compiler and of launches ------------------------------------------------------------------------

inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kPointsThreads = 256;  // per block
inline constexpr uint32_t kTeamThreads = 512;    // at most, per team, and so per block
inline constexpr uint32_t kLoopedThreads = 256;  // at most, per team whose row is not in registers
inline constexpr uint32_t kShortTeams = 8;       // teams of one warp per block
inline constexpr uint32_t kFinishThreads = 512;

// Bytes of one access: 16, or all adjacent elements of a thread if these are fewer.
inline uint32_t access_bytes(uint32_t item_size, uint32_t vector) {
  return item_size * vector < 16 ? item_size * vector : 16;
}

}  // namespace torch_remote::codegen::gpu

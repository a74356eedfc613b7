#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "ir/status.h"

// How compiled kernels of a GPU are launched: plain data that belongs to the code, and what a call makes of it. No
// compiler here.
namespace torch_remote::codegen::gpu {

// -- The recipe: of a kernel, for all sizes ---------------------------------------------------------------------------

// What a thread goes over. docs/loop_ir.md tells both.
enum class Shape : uint8_t {
  kPoints,  // no reductions over columns: a thread has `vector` columns of a row, or of a chunk of rows
  kRows,    // a row, or a chunk of rows, has a team of threads
};

// Functions of the code.
enum class Function : uint8_t {
  kPoints,
  kHeld,    // rows whose columns are all held in registers
  kLooped,  // longer rows: each phase loads them again
  kFinish,  // what follows from reductions over rows
};
std::string_view name(Function function);

// All functions of a kernel have the same parameters, each of 8 bytes.
enum class ParameterKind : uint8_t {
  kData,        // of operand `a`: address of its element at place 0 of all dims
  kSize,        // of dim `a`
  kStride,      // elements, of operand `a` along `b`: a dim, or (from dims() on) an indexed dim
  kBound,       // of the indexed dim number `a` of all operands'
  kScalar,      // `a`
  kAligned,     // bit i: operand i may be accessed in vectors
  kFailure,     // address of an IndexRecord, or kElsewhere
  kLines,       // of total `a`: address of the first chunk's line
  kChunk,       // rows of a chunk
  kChunks,      // all that there are
  kFirstChunk,  // of this launch
  kNumbers      // where the scalars are in memory, in their order; 0: they are parameters
};
// An address of an IndexRecord with this bit is that of 8 bytes in memory which have the record's.
inline constexpr uint64_t kElsewhere = 1;
struct Parameter {
  ParameterKind kind = ParameterKind::kData;
  uint32_t a = 0, b = 0;
  bool operator==(const Parameter&) const = default;
};

// The partial result of a reduction over rows: each chunk has a line of it in scratch memory.
struct Total {
  uint32_t item_size = 0;
  DimSet dims = 0;  // columns that it varies over
  bool operator==(const Total&) const = default;
};

struct Recipe {
  Shape shape = Shape::kPoints;
  uint32_t rows = 0, columns = 0;  // dims
  uint32_t vector = 1;             // elements along the last column that a thread has side by side
  uint32_t slots = 0;              // vectors of a row that a thread holds; 0: there is no kHeld
  uint32_t finish_columns = 0;     // columns that a block of kFinish does at a time; 0: there is no kFinish
  bool finish_alone = false;       // kFinish is for one block: it stores where all blocks would load
  std::vector<Operand> operands;
  std::vector<Total> totals;
  std::vector<Parameter> parameters;
  bool operator==(const Recipe&) const = default;
};

// A recipe as bytes, for where code is kept. They name no types of the compiler: a change of what they mean is a change
// of the compiler's version.
std::vector<uint8_t> encode(const Recipe& recipe);
// kInvalid: they are no recipe.
Status decode(std::span<const uint8_t> bytes, Recipe* recipe);

// The first index that was found out of its bounds; `operand` is kNone before the launch. Of several any one is told,
// and all of their operands: bit min(operand, 31) of `good` is 0 for each. Before the launch all of its bits are 1.
struct IndexRecord {
  uint32_t operand = kNone;
  uint32_t good = ~uint32_t{0};
  int64_t index = 0;
  int64_t bound = 0;
};

// -- A call -----------------------------------------------------------------------------------------------------------

// As `Arguments`, with addresses of device memory.
struct Call {
  std::span<const int64_t> sizes;  // of the dims
  std::span<const uint64_t> data;  // of each operand
  std::span<const int64_t> strides;
  std::span<const int64_t> bounds;
  std::span<const uint64_t> scalars;
  int64_t rest = 0;           // after the rows (of one dim) one more, of so many places in the last column; 0: none
  uint64_t scratch = 0;       // scratch_bytes, at a multiple of 16
  uint64_t failure = 0;       // as kFailure; may be 0 if no operand is indexed
  uint64_t numbers = 0;       // as kNumbers
  uint32_t processors = 132;  // multiprocessors of the device: how many blocks are worth while. Results are the same.
};

struct Launch {
  Function function = Function::kPoints;
  uint32_t grid = 0;
  std::array<uint32_t, 2> block = {1, 1};  // x, y
  uint32_t shared_bytes = 0;               // dynamic
  std::vector<uint64_t> parameters;        // each by value
};

// In bytes; 0 without reductions over rows.
uint64_t scratch_bytes(const Recipe& recipe, std::span<const int64_t> sizes, int64_t rest = 0);

// To be done one after the other; none if there is nothing to do.
Status make_launches(const Recipe& recipe, const Call& call, std::vector<Launch>* launches);

// In which order the launches for these sizes reduce.
Order order(const Recipe& recipe, std::span<const int64_t> sizes);

// -- What compiler and launches agree on ------------------------------------------------------------------------------

inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kPointsThreads = 256;  // of a block
inline constexpr uint32_t kTeamThreads = 512;    // of a team, at most, and of its block
inline constexpr uint32_t kLoopedThreads = 256;  // of a team whose row is not held
inline constexpr uint32_t kShortTeams = 8;       // teams of one warp in a block
inline constexpr uint32_t kFinishThreads = 512;

// Elements of 16 bytes, or of all that a thread has side by side if that is less.
inline uint32_t access_bytes(uint32_t item_size, uint32_t vector) {
  return item_size * vector < 16 ? item_size * vector : 16;
}

}  // namespace torch_remote::codegen::gpu

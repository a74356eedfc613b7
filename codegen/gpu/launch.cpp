#include "codegen/gpu/launch.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

namespace torch_remote::codegen::gpu {
namespace {

constexpr int64_t kMaxGrid = std::numeric_limits<int32_t>::max();
// Most blocks per multiprocessor. These fill it several times, so that blocks that end early do not matter.
constexpr int64_t kBlocksPerMultiprocessor = 32;
constexpr int64_t kMaxChunks = 2048;
constexpr int64_t kPointsItems = 1 << 17;  // chunks times threads per chunk: enough to fill a device
constexpr int64_t kMinPointsRows = 8;      // per chunk: for each line that is written, at least this many are read
constexpr int64_t kRowsChunks = 1024;
constexpr int64_t kMinRows = 4;
constexpr int64_t kMaxLines = 1 << 23;  // elements of the lines of all chunks
constexpr uint64_t kAlign = 16;
constexpr uint32_t kNoBlocks = 1u << 30;  // Order::block: rows are not divided

int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Sizes, and numbers that follow from them.
struct Extents {
  Extents(const Recipe& recipe, std::span<const int64_t> sizes) {
    for (uint32_t d = 0; d < recipe.rows; ++d) rows *= sizes[d];
    if (recipe.columns > 0) last = sizes[recipe.rows + recipe.columns - 1];
    if (recipe.columns > 1) outer = sizes[recipe.rows];
    vectors = std::max<int64_t>(1, divide_up(last, recipe.vector));
    lines = std::max<int64_t>(1, outer);
  }
  int64_t rows = 1, outer = 1, last = 1;
  int64_t vectors;  // threads for a line of the last column
  int64_t lines;    // lines in a row
};

int64_t elements(const Recipe& recipe, const Total& total, std::span<const int64_t> sizes) {
  int64_t count = 1;
  for (uint32_t d = recipe.rows; d < recipe.rows + recipe.columns; ++d) {
    if ((total.dims >> d & 1) != 0) count *= sizes[d];
  }
  return count;
}

// The number of rows in a chunk, which are reduced one by one. It depends only on sizes.
int64_t chunk_rows(const Recipe& recipe, std::span<const int64_t> sizes) {
  if (recipe.totals.empty()) return 1;
  const Extents extents(recipe, sizes);
  int64_t line = 1;
  for (const Total& total : recipe.totals) line += elements(recipe, total, sizes);
  const bool points = recipe.shape == Shape::kPoints;
  int64_t most = points ? kPointsItems / (extents.vectors * extents.lines) : kRowsChunks;
  most = std::clamp<int64_t>(std::min(most, kMaxLines / line), 1, kMaxChunks);
  return std::max(divide_up(extents.rows, most), points ? kMinPointsRows : kMinRows);
}

int64_t count_chunks(const Recipe& recipe, std::span<const int64_t> sizes) {
  return divide_up(Extents(recipe, sizes).rows, chunk_rows(recipe, sizes));
}

// The threads of a row: as few as can hold it in registers. Longer rows get as many as they need, up to a maximum.
struct Team {
  Team(const Recipe& recipe, const Extents& extents) {
    const int64_t wanted = divide_up(extents.vectors, std::max(recipe.slots, 1u));
    is_held = recipe.slots != 0 && wanted <= kTeamThreads;
    const int64_t most = is_held ? kTeamThreads : kLoopedThreads;
    threads = std::bit_ceil(static_cast<uint32_t>(std::clamp<int64_t>(wanted, kWarp, most)));
  }
  uint32_t threads;
  bool is_held;
};

uint32_t folds(const Recipe& recipe) { return recipe.finish_columns == 0 ? 1 : kFinishThreads / recipe.finish_columns; }

uint64_t line_bytes(const Recipe& recipe, const Total& total, std::span<const int64_t> sizes) {
  return static_cast<uint64_t>(elements(recipe, total, sizes)) * total.item_size;
}

// Computes the launches of a call.
class Launcher {
 public:
  Launcher(const Recipe& recipe, const Call& call, std::vector<Launch>* launches)
      : recipe_(recipe), call_(call), launches_(launches) {
    chunk_ = chunk_rows(recipe, call.sizes);
    full_ = count_chunks(recipe, call.sizes);
    uint64_t next = call.scratch;
    const uint64_t chunks = static_cast<uint64_t>(full_ + (call.remainder_columns != 0 ? 1 : 0));
    for (const Total& total : recipe.totals) {
      lines_.push_back(next);
      next += (line_bytes(recipe, total, call.sizes) * chunks + kAlign - 1) / kAlign * kAlign;
    }
  }

  void run() {
    main(call_.sizes, call_.data, 0);
    if (call_.remainder_columns != 0) {
      const int64_t sizes[] = {1, call_.remainder_columns};
      std::vector<uint64_t> data(call_.data.begin(), call_.data.end());
      const size_t rows = static_cast<size_t>(call_.sizes[0]);
      for (size_t i = 0, stride = 0; i < data.size(); ++i) {
        const Operand& operand = recipe_.operands[i];
        data[i] += static_cast<uint64_t>(call_.strides[stride]) * rows * ir::item_size(operand.dtype);
        stride += dims() + operand.indexed;
      }
      main(sizes, data, full_);
    }
    if (recipe_.finish_columns != 0) finish();
  }

 private:
  uint32_t dims() const { return recipe_.rows + recipe_.columns; }

  void main(std::span<const int64_t> sizes, std::span<const uint64_t> data, int64_t first_chunk) {
    const Extents extents(recipe_, sizes);
    const int64_t items = divide_up(extents.rows, chunk_);
    if (items == 0) return;
    Launch launch;
    int64_t blocks = 0;
    if (recipe_.shape == Shape::kPoints) {
      launch.block = {kPointsThreads, 1};
      blocks = divide_up(items * extents.lines * extents.vectors, kPointsThreads);
    } else {
      const Team team(recipe_, extents);
      // No team may be without a row: it would load memory that belongs to no row, and may be stored to.
      const int64_t most = team.threads == kWarp ? kShortTeams : 1;
      const auto teams = static_cast<uint32_t>(std::min(items, most));
      launch.function = team.is_held ? Function::kRowsInRegisters : Function::kRowsReloaded;
      launch.block = {team.threads, teams};
      blocks = divide_up(items, teams);
    }
    launch.grid = limited(blocks);
    set_parameters(sizes, data, first_chunk, &launch);
    launches_->push_back(std::move(launch));
  }

  void finish() {
    const Extents extents(recipe_, call_.sizes);
    Launch launch;
    launch.function = Function::kFinish;
    launch.block = {recipe_.finish_columns, folds(recipe_)};
    const int64_t columns = std::max<int64_t>(1, extents.outer * extents.last);
    const bool one_block = recipe_.finish_in_one_block || recipe_.finish_columns == 1;
    launch.grid = one_block ? 1 : limited(divide_up(columns, recipe_.finish_columns));
    set_parameters(call_.sizes, call_.data, 0, &launch);
    launches_->push_back(std::move(launch));
  }

  uint32_t limited(int64_t blocks) const {
    const int64_t most = std::min<int64_t>(kMaxGrid, std::max(1u, call_.processors) * kBlocksPerMultiprocessor);
    return static_cast<uint32_t>(std::min(blocks, most));
  }

  void set_parameters(std::span<const int64_t> sizes, std::span<const uint64_t> data, int64_t first_chunk,
                      Launch* launch) const {
    std::vector<size_t> first_stride;
    size_t stride = 0;
    for (const Operand& operand : recipe_.operands) {
      first_stride.push_back(stride);
      stride += dims() + operand.indexed;
    }
    const auto value = [&](const Parameter& parameter) -> uint64_t {
      switch (parameter.kind) {
        case ParameterKind::kData:
          return data[parameter.a];
        case ParameterKind::kSize:
          return static_cast<uint64_t>(sizes[parameter.a]);
        case ParameterKind::kStride:
          return static_cast<uint64_t>(call_.strides[first_stride[parameter.a] + parameter.b]);
        case ParameterKind::kBound:
          return static_cast<uint64_t>(call_.bounds[parameter.a]);
        case ParameterKind::kScalar:
          return call_.scalars[parameter.a];
        case ParameterKind::kAligned:
          return aligned(data, first_stride);
        case ParameterKind::kFailure:
          return call_.failure;
        case ParameterKind::kLines:
          return lines_[parameter.a];
        case ParameterKind::kChunk:
          return static_cast<uint64_t>(chunk_);
        case ParameterKind::kChunks:
          return static_cast<uint64_t>(full_ + (call_.remainder_columns != 0 ? 1 : 0));
        case ParameterKind::kFirstChunk:
          return static_cast<uint64_t>(first_chunk);
        case ParameterKind::kScalarsAddress:
          return call_.scalars_address;
      }
      return 0;
    };
    for (const Parameter& parameter : recipe_.parameters) launch->parameters.push_back(value(parameter));
  }

  // Bit i is set if all vectors of operand i are at multiples of the size of one access.
  uint64_t aligned(std::span<const uint64_t> data, const std::vector<size_t>& first_stride) const {
    uint64_t bits = 0;
    for (size_t i = 0; i < recipe_.operands.size() && i < 64; ++i) {
      const Operand& operand = recipe_.operands[i];
      const uint32_t item = ir::item_size(operand.dtype);
      uint64_t all = data[i];
      for (uint32_t d = 0; d < dims() + operand.indexed; ++d) {
        const bool unit = recipe_.columns != 0 && d + 1 == dims();
        if (!unit) all |= static_cast<uint64_t>(call_.strides[first_stride[i] + d]) * item;
      }
      if (all % access_bytes(item, recipe_.vector) == 0) bits |= uint64_t{1} << i;
    }
    return bits;
  }

  const Recipe& recipe_;
  const Call& call_;
  std::vector<Launch>* launches_;
  int64_t chunk_ = 1, full_ = 0;  // rows per chunk; number of chunks without the rest
  std::vector<uint64_t> lines_;   // for each total: the address of the first line
};

Status check(const Recipe& recipe, const Call& call) {
  size_t strides = 0, bounds = 0;
  for (const Operand& operand : recipe.operands) {
    strides += recipe.rows + recipe.columns + operand.indexed;
    bounds += operand.indexed;
  }
  size_t scalars = 0;
  for (const Parameter& parameter : recipe.parameters) {
    if (parameter.kind == ParameterKind::kScalar) scalars = std::max<size_t>(scalars, parameter.a + 1);
  }
  if (call.sizes.size() != recipe.rows + recipe.columns || call.data.size() != recipe.operands.size() ||
      call.strides.size() != strides || call.bounds.size() != bounds || call.scalars.size() < scalars) {
    return Status::invalid("gpu: the number of sizes, data, strides, bounds or scalars differs from the kernel's");
  }
  if (std::ranges::any_of(call.sizes, [](int64_t size) { return size < 0; })) {
    return Status::invalid("gpu: a size is negative");
  }
  if (bounds != 0 && call.failure == 0) return Status::invalid("gpu: a kernel with indices needs an IndexRecord");
  if (!recipe.totals.empty() && (call.scratch == 0 || call.scratch % kAlign != 0)) {
    return Status::invalid("gpu: a kernel with reductions over rows needs scratch memory at a multiple of 16");
  }
  if (call.remainder_columns != 0 && (recipe.rows != 1 || recipe.columns != 1)) {
    return Status::invalid("gpu: a last row of another length needs a kernel with one row dim and one column dim");
  }
  return {};
}

}  // namespace

std::string_view name(Function function) {
  switch (function) {
    case Function::kPoints:
      return "points";
    case Function::kRowsInRegisters:
      return "rows_held";
    case Function::kRowsReloaded:
      return "rows_looped";
    case Function::kFinish:
      return "finish";
  }
  return "";
}

uint64_t scratch_bytes(const Recipe& recipe, std::span<const int64_t> sizes, int64_t remainder_columns) {
  const auto chunks = static_cast<uint64_t>(count_chunks(recipe, sizes) + (remainder_columns != 0 ? 1 : 0));
  uint64_t bytes = 0;
  for (const Total& total : recipe.totals) {
    bytes += (line_bytes(recipe, total, sizes) * chunks + kAlign - 1) / kAlign * kAlign;
  }
  return recipe.totals.empty() ? 0 : std::max(bytes, kAlign);
}

Status make_launches(const Recipe& recipe, const Call& call, std::vector<Launch>* launches) {
  launches->clear();
  if (Status status = check(recipe, call); !status.ok()) return status;
  Launcher(recipe, call, launches).run();
  return {};
}

Order order(const Recipe& recipe, std::span<const int64_t> sizes) {
  const Extents extents(recipe, sizes);
  const uint32_t threads = recipe.shape == Shape::kRows ? Team(recipe, extents).threads : 1;
  return {.lanes = threads * recipe.vector,
          .block = kNoBlocks,
          .short_sum = threads * recipe.vector,
          .wide_lanes = threads * recipe.vector,
          .groups = {recipe.vector, std::min(threads, kWarp) * recipe.vector},
          .chunk = chunk_rows(recipe, sizes),
          .chunk_lanes = folds(recipe)};
}

}  // namespace torch_remote::codegen::gpu

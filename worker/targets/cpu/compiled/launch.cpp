#include "worker/targets/cpu/compiled/launch.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <vector>

#include "codegen/loop/facts.h"
#include "worker/targets/cpu/compiled/pack.h"
#include "worker/targets/cpu/compiled/scratch.h"

namespace torch_remote::worker::kernels {
namespace {

using codegen::Binding;
using codegen::Launch;
using codegen::cpu::Call;
using codegen::cpu::IndexRecord;

constexpr int64_t kGrain = 1 << 14;  // points that are worth waking a thread
// points per launch before the next launch takes over the same rows, so that their data stays in the cache
constexpr int64_t kInterleavedPoints = 1 << 13;
constexpr int64_t kMostChunks = 64, kLeastChunks = 4;  // chunks of rows with separate totals
constexpr int64_t kMostTotals = 1 << 22;               // elements of all chunks' totals, unless kLeastChunks exceeds it
// Rows and columns that are packed at a time. Pieces are tall, because memory is read down the columns. Kernels that
// need whole rows use fewer rows.
constexpr int64_t kPackedRows = 128, kPackedColumns = 256, kPackedWholeRows = 32;
constexpr size_t kMostItem = 8;
constexpr int64_t kPiece = 64;       // columns are assigned to threads in multiples of this: results stay aligned
constexpr int64_t kAddedPiece = 16;  // for kernels that add at indices, where only columns can be split

size_t aligned(size_t bytes) { return (bytes + kLineAlign - 1) / kLineAlign * kLineAlign; }

// A call's pointers; on the stack while they are few.
class Pointers {
 public:
  explicit Pointers(size_t count) {
    if (count > few_.size()) many_.resize(count);
    data_ = count > few_.size() ? many_.data() : few_.data();
  }
  Pointers(const Pointers&) = delete;
  Pointers& operator=(const Pointers&) = delete;
  void*& operator[](size_t i) { return data_[i]; }
  void* const* data() const { return data_; }

 private:
  std::array<void*, 24> few_;
  std::vector<void*> many_;
  void** data_ = nullptr;
};

void* moved(void* data, int64_t elements, uint32_t item_size) {
  return static_cast<std::byte*>(data) + elements * static_cast<int64_t>(item_size);
}

// Whether no two rows write the same element, whatever the indices are: each store at indices varies over all row dims.
// ir::IterationDomain guarantees that these elements differ.
bool are_rows_apart(const Launch& launch) {
  return std::ranges::all_of(launch.kernel.stores, [&](const codegen::Store& store) {
    if (store.indices.empty()) return true;
    const Binding& to = launch.operands[store.operand];
    const bool rows = launch.kernel.rows == 0 || to.strides[0] != 0;
    return !to.needs_zero_fill && rows && std::ranges::count(to.outer, 0) == 0;
  });
}

// Whether the store writes along the columns, without indices.
bool stores_along_columns(const Launch& launch, const codegen::Store& store) {
  const codegen::Kernel& kernel = launch.kernel;
  const codegen::Operand& to = kernel.operands[store.operand];
  return store.indices.empty() && kernel.columns > 0 && (to.dims >> (kernel.dims() - 1) & 1) != 0;
}

// Arithmetic intensity (operations per vector lane and byte of memory) above which streaming stores do not pay: for
// kernels with one loop over a row, and for kernels with several loops, some of which do not use memory. Measured: silu
// (2.4) and a gated gelu (2.6) gain; gelu (3.9), softmax (2.5) and cross entropy's gradient (2.9) do not.
constexpr double kMostOperations = 2.75, kMostInLoops = 1.5;
// The cost of a random number.
constexpr double kRandomOperations = 40;

}  // namespace

// One run of the launches.
class LaunchRun {
 public:
  using Prepared = Launches::Prepared;

  LaunchRun(const Launches& launches, const ParallelFor& parallel, IndexRecord* failure)
      : launches_(launches), parallel_(parallel), failure_(failure) {}

  void run() {
    for (const Prepared& p : launches_.list_) {
      if (!p.kernel->totals.empty()) run_with_totals(p);
    }
    for_parts(launches_.assigned_points_, kGrain, [this](int64_t begin, int64_t end) { run_points(begin, end); });
  }

 private:
  template <typename Body>
  void for_parts(int64_t count, int64_t grain, const Body& body) const {
    const auto part = [&](int64_t begin, int64_t end) {
      body(begin, end);
      if (launches_.streams_) end_of_streams();
    };
    if (parallel_ && count > grain) {
      parallel_(count, grain, part);
    } else if (count > 0) {
      part(0, count);
    }
  }

  // Orders this thread's streaming stores before its later stores, by which other threads learn that it has finished.
  static void end_of_streams() {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
  }

  void* const* data(const Prepared& p) const { return launches_.data_.data() + p.first_operand; }

  // Runs the units whose first points are in [begin, end), of all launches.
  void run_points(int64_t begin, int64_t end) const {
    const auto& assigned = launches_.assigned_;
    const auto first_of = [&](uint32_t i) { return launches_.list_[i].first_point; };
    auto at = std::ranges::upper_bound(assigned, begin, {}, first_of);
    if (at != assigned.begin()) --at;
    for (; at != assigned.end() && first_of(*at) < end; ++at) {
      const Prepared& p = launches_.list_[*at];
      const auto unit = [&](int64_t point) {
        return std::clamp<int64_t>((point - p.first_point + p.unit_points - 1) / p.unit_points, 0, p.units);
      };
      const int64_t first = begin <= p.first_point ? 0 : unit(begin), last = unit(end);
      if (first >= last) continue;
      if (p.by_columns) {
        run_columns(p, first * p.piece, std::min(last * p.piece, p.columns.empty() ? 1 : p.columns[0]));
      } else if (p.needs_row_order) {
        clear_zeroed(p, 0, p.columns.empty() ? 1 : p.columns[0]);
        run_rows(p, 0, p.rows * p.lines);
      } else {
        const int64_t step =
            p.interleaved == 1 ? last - first : std::max<int64_t>(1, kInterleavedPoints / p.unit_points);
        for (int64_t row = first; row < last; row += step) {
          for (uint32_t turn = 0; turn < p.interleaved; ++turn) {
            run_rows(launches_.list_[*at + turn], row, std::min(last, row + step));
          }
        }
      }
    }
  }

  void run_rows(const Prepared& p, int64_t begin, int64_t end) const {
    if (p.launch->outer.empty()) return call(p, data(p), p.columns, nullptr, begin, end);
    Pointers pointers(p.item_sizes.size());
    while (begin < end) {
      const int64_t line = begin / p.rows, row = begin % p.rows;
      const int64_t last = std::min(p.rows, row + end - begin);
      at_line(p, line, pointers);
      call(p, pointers.data(), p.columns, nullptr, row, last);
      begin += last - row;
    }
  }

  // Computes the operands' addresses at one index of the outer dims.
  void at_line(const Prepared& p, int64_t line, Pointers& pointers) const {
    const Launch& launch = *p.launch;
    for (size_t i = 0; i < p.item_sizes.size(); ++i) pointers[i] = data(p)[i];
    for (size_t d = launch.outer.size(); d-- > 0;) {
      const int64_t place = line % launch.outer[d];
      line /= launch.outer[d];
      for (size_t i = 0; i < p.item_sizes.size(); ++i) {
        pointers[i] = moved(pointers[i], place * launch.operands[i].outer[d], p.item_sizes[i]);
      }
    }
  }

  // Runs some columns of a single row, or of all rows of a kernel that adds.
  void run_columns(const Prepared& p, int64_t begin, int64_t end) const {
    Pointers pointers(p.item_sizes.size());
    const int64_t size = end - begin;
    clear_zeroed(p, begin, end);
    for (int64_t line = 0; line < p.lines; ++line) {
      at_line(p, line, pointers);
      for (size_t i = 0; i < p.item_sizes.size(); ++i) {
        pointers[i] = moved(pointers[i], begin * column_stride(p, i), p.item_sizes[i]);
      }
      call(p, pointers.data(), p.columns.empty() ? p.columns : std::span(&size, 1), nullptr, 0, p.rows);
    }
  }

  static int64_t column_stride(const Prepared& p, size_t operand) {
    return p.columns.empty() ? 0 : p.launch->operands[operand].strides[p.kernel->has_rows ? 1 : 0];
  }

  // Clears some columns of the operands that are added to, at all positions that an index may name.
  void clear_zeroed(const Prepared& p, int64_t begin, int64_t end) const {
    for (const uint32_t i : p.zeroed) {
      const Binding& to = p.launch->operands[i];
      const int64_t stride = column_stride(p, i), count = stride == 0 ? 1 : end - begin;
      for (int64_t place = 0; place < to.bounds[0]; ++place) {
        void* const first = moved(data(p)[i], place * to.strides.back() + begin * stride, p.item_sizes[i]);
        std::memset(first, 0, static_cast<size_t>(count) * p.item_sizes[i]);
      }
    }
  }

  // For each index of the outer dims, runs the rows chunk by chunk, each chunk with its own totals; then adds the
  // chunks' totals.
  void run_with_totals(const Prepared& p) const {
    const std::vector<Line>& totals = p.kernel->totals;
    std::vector<size_t> offsets;
    std::vector<int64_t> sizes;
    size_t bytes = 0;
    for (const size_t line : p.total_lines) {
      offsets.push_back(bytes);
      sizes.push_back(static_cast<int64_t>(line));
      bytes += line * static_cast<size_t>(p.chunks * p.lines);
    }
    thread_local Scratch memory;
    std::byte* const sums = memory.get(bytes);
    for_parts(p.chunks * p.lines, 1, [&](int64_t begin, int64_t end) {
      Pointers at(totals.size()), pointers(p.item_sizes.size());
      for (int64_t n = begin; n < end; ++n) {
        for (size_t t = 0; t < totals.size(); ++t) {
          at[t] = sums + offsets[t] + static_cast<size_t>(n) * p.total_lines[t];
          clear(totals[t], p.total_counts[t], static_cast<std::byte*>(at[t]));
        }
        const int64_t c = n % p.chunks;
        if (n == begin || c == 0) at_line(p, n / p.chunks, pointers);
        if (c < p.full_chunks) {
          call(p, pointers.data(), p.columns, at.data(), c * p.chunk, std::min(p.rows, (c + 1) * p.chunk));
        } else {
          call_rest(p, at.data());
        }
      }
    });
    Pointers first(totals.size()), pointers(p.item_sizes.size());
    for (int64_t line = 0; line < p.lines; ++line) {
      at_line(p, line, pointers);
      for (size_t t = 0; t < totals.size(); ++t) {
        first[t] = sums + offsets[t] + static_cast<size_t>(line * p.chunks) * p.total_lines[t];
      }
      Call finish = make_call(p, pointers.data(), p.columns, first.data());
      finish.chunk_strides = sizes.data();
      with_kept(p, finish, [&] { p.kernel->finish(&finish, p.chunks); });
    }
  }

  void call_rest(const Prepared& p, void* const* totals) const {
    Pointers pointers(p.item_sizes.size());
    for (size_t i = 0; i < p.item_sizes.size(); ++i) {
      pointers[i] = moved(data(p)[i], p.rows * p.launch->operands[i].strides[0], p.item_sizes[i]);
    }
    call(p, pointers.data(), std::span(&p.launch->remainder_columns, 1), totals, 0, 1);
  }

  static void clear(const Line& line, int64_t count, std::byte* data) {
    const auto size = static_cast<size_t>(count) * line.item_size;
    if (line.identity == 0) {
      std::memset(data, 0, size);
      return;
    }
    // Copies the filled part, which doubles its size each time.
    std::memcpy(data, &line.identity, std::min<size_t>(size, line.item_size));
    for (size_t done = line.item_size; done < size; done *= 2) {
      std::memcpy(data + done, data, std::min(done, size - done));
    }
  }

  static Call make_call(const Prepared& p, void* const* data, std::span<const int64_t> columns, void* const* totals) {
    Call call{};
    call.data = data;
    call.sizes = columns.data();
    call.strides = p.strides.data();
    call.bounds = p.bounds.data();
    call.scalars = p.launch->scalars.data();
    call.totals = totals;
    return call;
  }

  // Gives the call this thread's lines for kept values, and its own failure record.
  template <typename Work>
  void with_kept(const Prepared& p, Call& call, const Work& work) const {
    thread_local Scratch memory;
    Pointers lines(p.saved_values.size());
    if (!p.saved_values.empty()) {
      std::byte* const data = memory.get(p.saved_bytes);
      for (size_t i = 0; i < p.saved_values.size(); ++i) lines[i] = data + p.saved_values[i];
      call.row_buffers = lines.data();
    }
    IndexRecord record;
    call.failure = &record;
    work();
    if (record.operand == codegen::cpu::kNoFailure) return;
    const std::lock_guard lock(mutex_);
    if (failure_->operand == codegen::cpu::kNoFailure) *failure_ = record;
  }

  void call(const Prepared& p, void* const* data, std::span<const int64_t> columns, void* const* totals, int64_t begin,
            int64_t end) const {
    if (p.packed.empty()) return call_rows(p, data, columns, totals, begin, end);
    for (int64_t row = begin; row < end; row += p.packed_rows) {
      for (int64_t column = 0; column < columns[0]; column += p.packed_columns) {
        const int64_t count = std::min(p.packed_columns, columns[0] - column);
        call_packed(p, data, row, std::min(end, row + p.packed_rows), column, count, totals);
      }
    }
  }

  // Runs some rows and columns with packed copies of strided operands: loaded operands are packed before, and stored
  // ones are unpacked after.
  void call_packed(const Prepared& p, void* const* data, int64_t begin, int64_t end, int64_t column, int64_t count,
                   void* const* totals) const {
    thread_local Scratch memory;
    const size_t bytes = static_cast<size_t>(p.packed_rows * p.packed_line) * kMostItem;
    std::byte* lines = memory.get(bytes * p.packed.size());
    Pointers pointers(p.item_sizes.size());
    for (size_t i = 0; i < p.item_sizes.size(); ++i) {
      pointers[i] = moved(data[i], column * p.strides[p.first_stride[i] + 1], p.item_sizes[i]);
    }
    for (const auto& [i, loads, stores] : p.packed) {
      if (loads) pack(packing(p, i, data, begin, end, column, count, lines), p.item_sizes[i]);
      pointers[i] = moved(lines, -begin * p.packed_line, p.item_sizes[i]);
      lines += bytes;
    }
    call_rows(p, pointers.data(), std::span(&count, 1), totals, begin, end);
    lines -= bytes * p.packed.size();
    for (const auto& [i, loads, stores] : p.packed) {
      if (stores) unpack(packing(p, i, data, begin, end, column, count, lines), p.item_sizes[i]);
      lines += bytes;
    }
  }

  static Packing packing(const Prepared& p, uint32_t operand, void* const* data, int64_t begin, int64_t end,
                         int64_t column, int64_t count, std::byte* lines) {
    const std::vector<int64_t>& apart = p.launch->operands[operand].strides;
    void* const strided = moved(data[operand], begin * apart[0] + column * apart[1], p.item_sizes[operand]);
    return {strided, apart[0], apart[1], lines, p.packed_line, end - begin, count};
  }

  void call_rows(const Prepared& p, void* const* data, std::span<const int64_t> columns, void* const* totals,
                 int64_t begin, int64_t end) const {
    Call call = make_call(p, data, columns, totals);
    with_kept(p, call, [&] { p.kernel->rows(&call, begin, end); });
  }

  const Launches& launches_;
  const ParallelFor& parallel_;
  IndexRecord* const failure_;
  mutable std::mutex mutex_;  // guards *failure_
};

void Launches::clear() {
  list_.clear();
  assigned_.clear();
  data_.clear();
  assigned_points_ = 0;
  streams_ = false;
}

void Launches::add(const Launch& launch, const CompiledKernel& kernel) {
  Prepared p;
  p.launch = &launch;
  p.kernel = &kernel;
  p.first_operand = data_.size();
  data_.resize(data_.size() + launch.operands.size());
  p.rows = kernel.has_rows ? launch.sizes[0] : 1;
  p.columns = std::span(launch.sizes).subspan(kernel.has_rows ? 1 : 0);
  for (const int64_t size : p.columns) p.row_points *= size;
  for (const int64_t size : launch.outer) p.lines *= size;
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    const Binding& binding = launch.operands[i];
    p.item_sizes.push_back(ir::item_size(launch.kernel.operands[i].dtype));
    p.first_stride.push_back(p.strides.size());
    p.strides.insert(p.strides.end(), binding.strides.begin(), binding.strides.end());
    if (binding.needs_zero_fill) p.zeroed.push_back(static_cast<uint32_t>(i));
    if (binding.packed) {
      const auto loads = [&](const codegen::Value& value) { return value.operand == i; };
      const auto stores = [&](const codegen::Store& store) { return store.operand == i; };
      p.packed.push_back({static_cast<uint32_t>(i), std::ranges::any_of(launch.kernel.values, loads),
                          std::ranges::any_of(launch.kernel.stores, stores)});
    }
    p.bounds.insert(p.bounds.end(), binding.bounds.begin(), binding.bounds.end());
  }
  if (!p.packed.empty()) {
    p.packed_rows = kernel.splits_columns ? kPackedRows : kPackedWholeRows;
    p.packed_columns = kernel.splits_columns ? std::min(kPackedColumns, p.columns[0]) : p.columns[0];
    // Lines with a power of two as size would map to the same cache sets.
    p.packed_line = (p.packed_columns + kPiece - 1) / kPiece * kPiece + kPiece / 4;
    for (const Prepared::Packed& packed : p.packed) {
      p.strides[p.first_stride[packed.operand]] = p.packed_line;
      p.strides[p.first_stride[packed.operand] + 1] = 1;
    }
  }
  for (const Line& line : kernel.saved_values) {
    p.saved_values.push_back(p.saved_bytes);
    p.saved_bytes += aligned(size_t{line.item_size} * static_cast<size_t>(p.row_points));
  }
  for (const Line& line : kernel.totals) {
    int64_t count = 1;
    for (size_t c = 0; c < p.columns.size(); ++c) count *= (line.columns >> c & 1) != 0 ? p.columns[c] : 1;
    p.total_counts.push_back(count);
    p.total_lines.push_back(aligned(size_t{line.item_size} * static_cast<size_t>(count)));
  }
  const int64_t points = std::max<int64_t>(1, p.row_points);
  const int64_t most = std::clamp(kMostTotals / points, kLeastChunks, kMostChunks);
  p.chunk = std::max({int64_t{1}, kGrain / points, (p.rows + most - 1) / most});
  p.full_chunks = (p.rows + p.chunk - 1) / p.chunk;
  p.chunks = p.full_chunks + (launch.remainder_columns != 0 ? 1 : 0);
  if (kernel.totals.empty()) {
    p.needs_row_order = kernel.needs_row_order && !are_rows_apart(launch);
    // Code for a fixed number of columns computes all of them in each call.
    const bool splits_columns = kernel.splits_columns && kernel.variant.columns == 0;
    p.by_columns = (p.needs_row_order || p.rows * p.lines == 1) && splits_columns;
    p.piece = p.needs_row_order ? kAddedPiece : kPiece;
    const int64_t columns = p.columns.empty() ? 1 : p.columns[0];
    p.units = p.by_columns ? (columns + p.piece - 1) / p.piece : p.needs_row_order ? 1 : p.rows * p.lines;
    int64_t rows = p.needs_row_order ? p.rows * p.lines : 1;
    for (const uint32_t i : p.zeroed) rows += launch.operands[i].bounds[0];
    p.unit_points = rows * (p.by_columns ? p.piece : std::max<int64_t>(1, p.row_points));
    p.first_point = assigned_points_;
    assigned_points_ += p.units * p.unit_points;
    Prepared* const before = assigned_.empty() ? nullptr : &list_[assigned_.back()];
    if (launch.alternates_with_previous && before != nullptr && !p.by_columns && !before->by_columns &&
        before->units == p.units) {
      ++before->interleaved;
      before->unit_points += p.unit_points;
    } else {
      assigned_.push_back(static_cast<uint32_t>(list_.size()));
    }
  }
  streams_ |= kernel.variant.streams;
  list_.push_back(std::move(p));
}

bool Launches::may_stream(const Launch& launch) {
  bool streams = false;
  for (const codegen::Store& store : launch.kernel.stores) {
    if (!store.indices.empty() || store.adds) return false;
    if (!stores_along_columns(launch, store)) continue;
    const codegen::Operand& operand = launch.kernel.operands[store.operand];
    const Binding& to = launch.operands[store.operand];
    if (operand.strided) continue;
    if (to.packed) return false;
    const auto item = static_cast<int64_t>(ir::item_size(operand.dtype));
    const auto fits = [&](int64_t stride) { return stride * item % codegen::cpu::kStreamAlign == 0; };
    // The last stride is the columns' stride.
    const size_t outer = to.strides.size() - 1;
    if (!std::all_of(to.strides.begin(), to.strides.begin() + static_cast<int64_t>(outer), fits)) return false;
    if (!std::ranges::all_of(to.outer, fits)) return false;
    streams = true;
  }
  return streams;
}

bool Launches::waits_for_memory(const Launch& launch) {
  codegen::Kernel kernel = launch.kernel;
  codegen::expand_functions(kernel);
  if (kernel.columns == 0) return false;
  const codegen::DimSet column = kernel.last_column();
  const std::vector<codegen::Facts> facts = codegen::facts(kernel);
  double operations = 0;
  bool in_loops = false;
  std::vector<bool> moved(kernel.operands.size());
  // Inputs of conditional sums alone are rarely computed, so they do not count.
  std::vector<bool> counts(kernel.values.size());
  for (const codegen::Store& store : kernel.stores) {
    counts[store.value] = true;
    for (const uint32_t index : store.indices) counts[index] = true;
  }
  for (size_t i = kernel.values.size(); i-- > 0;) {
    counts[i] = counts[i] && codegen::condition_of_sum(kernel, facts, static_cast<uint32_t>(i)) == codegen::kNone;
    if (!counts[i]) continue;
    for (const uint32_t input : codegen::inputs(kernel.values[i])) counts[input] = true;
  }
  for (size_t i = 0; i < kernel.values.size(); ++i) {
    if (!counts[i]) continue;
    const codegen::Value& value = kernel.values[i];
    const bool reduces = value.kind == codegen::Kind::kReduce && (facts[value.a].dims & column) != 0;
    in_loops |= reduces;
    if ((facts[i].dims & column) == 0 && !reduces) continue;
    switch (value.kind) {
      case codegen::Kind::kConstant:
      case codegen::Kind::kScalar:
      case codegen::Kind::kIndex:
      case codegen::Kind::kBits:
        break;
      case codegen::Kind::kLoad:
        moved[value.operand] = true;
        break;
      case codegen::Kind::kRandom:
        operations += kRandomOperations;
        break;
      default:
        operations += 1;
    }
  }
  for (const codegen::Store& store : kernel.stores) moved[store.operand] = true;
  double bytes = 0;
  for (size_t i = 0; i < moved.size(); ++i) {
    const codegen::Operand& operand = kernel.operands[i];
    // Data that all rows share stays in the caches.
    const bool lines = (operand.dims & column) != 0 && (kernel.rows == 0 || (operand.dims & 1) != 0);
    if (moved[i] && lines) bytes += static_cast<double>(ir::item_size(operand.dtype));
  }
  return operations <= bytes * (in_loops ? kMostInLoops : kMostOperations);
}

uint64_t Launches::stored_bytes(const Launch& launch) {
  uint64_t points = 1, bytes = 0;
  for (const int64_t size : launch.sizes) points *= static_cast<uint64_t>(size);
  for (const int64_t size : launch.outer) points *= static_cast<uint64_t>(size);
  for (const codegen::Store& store : launch.kernel.stores) {
    if (stores_along_columns(launch, store))
      bytes += points * ir::item_size(launch.kernel.operands[store.operand].dtype);
  }
  return bytes;
}

bool Launches::may_stream_to(std::span<const tr_buffer> buffers) const {
  return std::ranges::all_of(list_, [&](const Prepared& p) {
    if (!p.kernel->variant.streams) return true;
    const codegen::Kernel& kernel = p.launch->kernel;
    const auto memory = [&](uint32_t operand) { return buffers[p.launch->operands[operand].buffer].data; };
    return std::ranges::all_of(kernel.stores, [&](const codegen::Store& store) {
      const codegen::Operand& operand = kernel.operands[store.operand];
      if (!stores_along_columns(*p.launch, store) || operand.strided) return true;
      const Binding& to = p.launch->operands[store.operand];
      void* const first = moved(buffers[to.buffer].data, to.offset, ir::item_size(operand.dtype));
      if (reinterpret_cast<uintptr_t>(first) % codegen::cpu::kStreamAlign != 0) return false;
      return std::ranges::none_of(kernel.values, [&](const codegen::Value& value) {
        return value.kind == codegen::Kind::kLoad && memory(value.operand) == memory(store.operand);
      });
    });
  });
}

double Launches::points() const {
  double points = 0;
  for (const Prepared& p : list_) {
    points += static_cast<double>(p.rows) * static_cast<double>(p.row_points) * static_cast<double>(p.lines);
  }
  return points;
}

size_t Launches::scratch() const {
  size_t most = 0;
  for (const Prepared& p : list_) {
    size_t bytes = p.saved_bytes + p.packed.size() * static_cast<size_t>(p.packed_rows * p.packed_line) * kMostItem;
    for (const size_t line : p.total_lines) bytes += line * static_cast<size_t>(p.chunks * p.lines);
    most = std::max(most, bytes);
  }
  return most;
}

void Launches::run(std::span<const tr_buffer> buffers, const ParallelFor& parallel, IndexRecord* failure) {
  for (const Prepared& p : list_) {
    for (size_t i = 0; i < p.item_sizes.size(); ++i) {
      const Binding& binding = p.launch->operands[i];
      data_[p.first_operand + i] = moved(buffers[binding.buffer].data, binding.offset, p.item_sizes[i]);
    }
  }
  LaunchRun(*this, parallel, failure).run();
}

}  // namespace torch_remote::worker::kernels

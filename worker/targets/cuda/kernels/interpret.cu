// Interprets LoopIR kernels, for ops and layouts that are not compiled, or not yet: see interpret_arguments.h.

#include "codegen/formulas/apply_generated.h"
#include "worker/targets/cuda/kernels/device.h"
#include "worker/targets/cuda/kernels/interpret_arguments.h"
#include "worker/targets/cuda/kernels/philox.h"

namespace torch_remote::worker::cuda {
namespace {

namespace formulas = codegen::formulas;

enum ReductionKind : int { kSum, kProduct, kMax, kMin, kArgMax, kArgMin, kLogSumExp };

__device__ inline u64 cell_of(float x) { return __builtin_bit_cast(u32, x); }
__device__ inline u64 cell_of(double x) { return __builtin_bit_cast(u64, x); }
__device__ inline float f32_of(u64 cell) { return __builtin_bit_cast(float, static_cast<u32>(cell)); }
__device__ inline double f64_of(u64 cell) { return __builtin_bit_cast(double, cell); }

// The integer modulo 2^n, for a type of n bits.
__device__ i64 wrapped(i64 type, i64 x) {
  switch (type) {
    case kBool:
      return x & 1;
    case kUInt8:
      return static_cast<u8>(x);
    case kInt8:
      return static_cast<signed char>(x);
    case kInt16:
      return static_cast<short>(x);
    case kInt32:
      return static_cast<int>(x);
    default:
      return x;
  }
}

// NaN, and numbers that do not fit, may become any integer.
__device__ i64 integer_of(i64 type, double x) {
  return x >= -0x1p63 && x < 0x1p63 ? wrapped(type, static_cast<i64>(x)) : 0;
}

__device__ INLINE u64 convert(i64 from, i64 to, u64 cell) {
  if (from == kFloat32 || from == kFloat64) {
    const double x = from == kFloat32 ? static_cast<double>(f32_of(cell)) : f64_of(cell);
    if (to == kFloat32) return cell_of(static_cast<float>(x));
    if (to == kFloat64) return cell_of(x);
    if (to == kBool) return x != 0 ? 1 : 0;
    return static_cast<u64>(integer_of(to, x));
  }
  const auto x = static_cast<i64>(cell);
  if (to == kFloat32) return cell_of(static_cast<float>(x));
  if (to == kFloat64) return cell_of(static_cast<double>(x));
  if (to == kBool) return x != 0 ? 1 : 0;
  return static_cast<u64>(wrapped(to, x));
}

__device__ INLINE u64 load(u64 address, i64 dtype) {
  if (dtype == kFloat64) return *pointer<const u64>(address);
  if (is_float(dtype)) return cell_of(static_cast<float>(load_float(address, 0, dtype)));
  return static_cast<u64>(load_int(address, 0, dtype));
}
__device__ INLINE void store(u64 address, i64 dtype, u64 cell) {
  if (dtype == kFloat64) {
    *pointer<u64>(address) = cell;
  } else if (is_float(dtype)) {
    store_float(address, 0, dtype, static_cast<double>(f32_of(cell)));
  } else {
    store_int(address, 0, dtype, static_cast<i64>(cell));
  }
}
__device__ i64 loaded_type(i64 dtype) { return dtype == kFloat16 || dtype == kBFloat16 ? kFloat32 : dtype; }
__device__ i64 bytes_of(i64 dtype) {
  switch (dtype) {
    case kFloat64:
    case kInt64:
      return 8;
    case kFloat32:
    case kInt32:
      return 4;
    case kFloat16:
    case kBFloat16:
    case kInt16:
      return 2;
    default:
      return 1;
  }
}

template <typename T>
__device__ T combined(int reduction, T a, T b) {
  switch (reduction) {
    case kSum:
      return a + b;
    case kProduct:
      return a * b;
    case kMax:
    case kArgMax:
      return formulas::max(a, b);
    default:
      return formulas::min(a, b);
  }
}
template <>
__device__ i64 combined(int reduction, i64 a, i64 b) {
  const auto x = static_cast<u64>(a), y = static_cast<u64>(b);
  if (reduction == kSum) return static_cast<i64>(x + y);
  if (reduction == kProduct) return static_cast<i64>(x * y);
  return (reduction == kMax || reduction == kArgMax) == (a > b) ? a : b;
}
__device__ INLINE u64 combine(int reduction, i64 type, u64 a, u64 b) {
  if (type == kFloat32) return cell_of(combined(reduction, f32_of(a), f32_of(b)));
  if (type == kFloat64) return cell_of(combined(reduction, f64_of(a), f64_of(b)));
  return static_cast<u64>(wrapped(type, combined(reduction, static_cast<i64>(a), static_cast<i64>(b))));
}
// One step of a running reduction; `b` is the result of the earlier elements.
__device__ INLINE u64 combine_running(int reduction, i64 type, u64 a, u64 b) {
  if (reduction != kLogSumExp) return combine(reduction, type, a, b);
  if (type == kFloat32) return cell_of(formulas::log_add_exp(f32_of(a), f32_of(b)));
  return cell_of(formulas::log_add_exp(f64_of(a), f64_of(b)));
}

__device__ u64 identity(int reduction, i64 type) {
  if (reduction == kSum || reduction == kProduct) return convert(kInt64, type, reduction == kProduct ? 1 : 0);
  const bool lowest = reduction == kMax || reduction == kLogSumExp;
  if (is_float(type)) return convert(kFloat64, type, cell_of(lowest ? -__builtin_inf() : __builtin_inf()));
  if (type == kBool) return lowest ? 0 : 1;
  if (type == kUInt8) return lowest ? 0 : 255;
  const i64 most = static_cast<i64>(~u64{0} >> 1) >> (64 - 8 * bytes_of(type));
  return static_cast<u64>(lowest ? -most - 1 : most);
}

// Whether an argmax or argmin prefers the later element.
template <typename T>
__device__ bool prefers(int reduction, T best, T next) {
  if (best != best) return false;
  return next != next || (reduction == kArgMax ? next > best : next < best);
}
__device__ bool prefers(int reduction, i64 type, u64 best, u64 next) {
  if (type == kFloat32) return prefers(reduction, f32_of(best), f32_of(next));
  if (type == kFloat64) return prefers(reduction, f64_of(best), f64_of(next));
  return prefers(reduction, static_cast<i64>(best), static_cast<i64>(next));
}

// An element and its place; place -1: there is none.
struct Best {
  u64 cell;
  i64 place;
};
__device__ INLINE Best better(int reduction, i64 type, Best a, Best b) {
  if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
  const Best first = a.place < b.place ? a : b, later = a.place < b.place ? b : a;
  return prefers(reduction, type, first.cell, later.cell) ? later : first;
}

struct Code {
  Instruction what;
  int op;
  i64 type, from;
  int a, b, c, to;
};
__device__ Code decode(u64 word) {
  const auto byte = [&](int i) { return static_cast<int>(word >> (8 * i) & 0xFF); };
  return {static_cast<Instruction>(byte(0)), byte(1), byte(2), byte(3), byte(4), byte(5), byte(6), byte(7)};
}

// A thread's values.
struct Thread {
  u64 cells[kLoopCells];
  i64 at[kLoopDims];  // the position along all dims
  u64 running[kLoopReductions];
};

// The words `begin` to `end` - 1.
struct Range {
  int begin, end;
};
// No pointer may be one of two members of the arguments: the compiler would copy the arguments to local memory.
__device__ INLINE Range range_at(const InterpretArguments& f, i64 number) {
  const u64 both = f.ranges[number];
  return {static_cast<int>(static_cast<u32>(both)), static_cast<int>(both >> 32)};
}

struct Shared {
  u64 cells[kInterpretThreads];
  i64 places[kInterpretThreads];
};

// Inclusive scan over the block's threads, which all call this, after `before`. Returns this thread's result, and the
// last thread's in *last.
__device__ INLINE u64 scan(const Code& code, u64 mine, u64 before, u64* last, Shared& shared) {
  sync();
  shared.cells[thread()] = mine;
  for (i64 apart = 1; apart < threads(); apart *= 2) {
    sync();
    u64 more = shared.cells[thread()];
    if (thread() >= apart) more = combine_running(code.op, code.type, more, shared.cells[thread() - apart]);
    sync();
    shared.cells[thread()] = more;
  }
  sync();
  const u64 all = shared.cells[threads() - 1], own = shared.cells[thread()];
  *last = combine_running(code.op, code.type, all, before);
  return combine_running(code.op, code.type, own, before);
}

__device__ INLINE u64 operation(const Code& code, const Thread& mine) {
  const u64 a = mine.cells[code.a], b = mine.cells[code.b];
  if (code.op == static_cast<int>(formulas::kWhere)) return a != 0 ? b : mine.cells[code.c];
  const bool answers = code.type == kBool;
  if (code.from == kFloat32) {
    const float x = formulas::apply(code.op, f32_of(a), f32_of(b));
    return answers ? (x != 0 ? 1 : 0) : cell_of(x);
  }
  if (code.from == kFloat64) {
    const double x = formulas::apply(code.op, f64_of(a), f64_of(b));
    return answers ? (x != 0 ? 1 : 0) : cell_of(x);
  }
  return static_cast<u64>(wrapped(code.type, formulas::apply(code.op, static_cast<i64>(a), static_cast<i64>(b))));
}

__device__ INLINE bool is_kept_out(const InterpretArguments& f, const Thread& mine, i64 flags) {
  const i64 last = f.outer + f.rows + f.columns - 1;
  return ((flags & kFirstColumn) != 0 && mine.at[last] != 0) || ((flags & kFirstLine) != 0 && mine.at[last - 1] != 0);
}

// The cell of a total, among those of a chunk, for the thread's position.
__device__ INLINE i64 cell_of_total(const InterpretArguments& f, const Thread& mine, int total) {
  const i64 last = f.outer + f.rows + f.columns - 1, flags = f.total_flags[total];
  i64 cell = f.columns == 2 && (flags & kFirstLine) == 0 ? mine.at[last - 1] : 0;
  if (f.columns != 0 && (flags & kFirstColumn) == 0) cell = cell * f.sizes[last] + mine.at[last];
  return f.first_cell[total] + cell;
}

// Executes the instructions of a range. If the thread is not active, it takes part in running reductions only.
__device__ INLINE void run(const InterpretArguments& f, Range range, bool active, Thread& mine, Shared& shared) {
  i64 offset = 0;
  bool allowed = true;
  const i64 dims = f.outer + f.rows + f.columns;
  for (int i = range.begin; i < range.end; ++i) {
    const Code code = decode(f.words[i]);
    if (code.what == Instruction::kRunning) {
      u64 last = 0;
      const u64 own = active ? mine.cells[code.a] : identity(code.op, code.type);
      mine.cells[code.to] = scan(code, own, mine.running[code.b], &last, shared);
      mine.running[code.b] = last;
      continue;
    }
    if (!active) continue;
    switch (code.what) {
      case Instruction::kConstant:
        mine.cells[code.to] = f.words[code.a + 256 * code.b];
        break;
      case Instruction::kScalar: {
        u64 scalar = f.scalars[code.a];
        if (f.numbers != 0) scalar = pointer<const volatile u64>(f.numbers)[code.a];  // see range_at
        mine.cells[code.to] = scalar;
        break;
      }
      case Instruction::kIndex:
        mine.cells[code.to] = static_cast<u64>(mine.at[code.a]);
        break;
      case Instruction::kConvert:
        mine.cells[code.to] = convert(code.from, code.type, mine.cells[code.a]);
        break;
      case Instruction::kBits:
        mine.cells[code.to] = code.type == kFloat32   ? mine.cells[code.a] & 0xFFFFFFFF
                              : code.type == kFloat64 ? mine.cells[code.a]
                                                      : static_cast<u64>(wrapped(
                                                            code.type, static_cast<i64>(mine.cells[code.a])));
        break;
      case Instruction::kApply:
        mine.cells[code.to] = operation(code, mine);
        break;
      case Instruction::kFma: {
        const u64 a = mine.cells[code.a], b = mine.cells[code.b], c = mine.cells[code.c];
        mine.cells[code.to] = code.type == kFloat32 ? cell_of(__builtin_fmaf(f32_of(a), f32_of(b), f32_of(c)))
                                                    : cell_of(__builtin_fma(f64_of(a), f64_of(b), f64_of(c)));
        break;
      }
      case Instruction::kLdexp: {
        const u64 a = mine.cells[code.a], b = mine.cells[code.b];
        mine.cells[code.to] = code.type == kFloat32 ? cell_of(formulas::ldexp(f32_of(a), f32_of(b)))
                                                    : cell_of(formulas::ldexp(f64_of(a), f64_of(b)));
        break;
      }
      case Instruction::kRandom: {
        const u64 number = mine.cells[code.c];
        const Words words = philox(mine.cells[code.a], mine.cells[code.b], number / 4);
        mine.cells[code.to] = static_cast<u64>(static_cast<i64>(static_cast<int>(words.word[number % 4])));
        break;
      }
      case Instruction::kOffset: {
        const auto index = static_cast<i64>(mine.cells[code.a]);
        const int word = code.b + 256 * code.c;
        const auto bound = static_cast<i64>(f.words[word + 1]);
        if (index < 0 || index >= bound) {
          if (allowed) fail(f.failure, static_cast<u32>(code.from), index, bound);
          allowed = false;
        } else {
          offset += index * static_cast<i64>(f.words[word]);
        }
        break;
      }
      case Instruction::kDivisor:
        if (mine.cells[code.a] == 0) fail(f.failure, static_cast<u32>(code.from), 0, 0);
        break;
      case Instruction::kLoad:
      case Instruction::kStore: {
        const bool loads = code.what == Instruction::kLoad;
        const int strides = code.a + 256 * code.b;
        for (i64 d = 0; d < dims; ++d) offset += mine.at[d] * static_cast<i64>(f.words[strides + d]);
        const u64 address = f.data[code.op] + static_cast<u64>(offset * bytes_of(code.from));
        if (loads) {
          mine.cells[code.to] = allowed ? load(address, code.from) : 0;
        } else if (allowed && !is_kept_out(f, mine, code.c)) {
          u64 cell = mine.cells[code.to];
          if ((code.c & kAdds) != 0) cell = combine(kSum, loaded_type(code.from), load(address, code.from), cell);
          store(address, code.from, cell);
        }
        offset = 0;
        allowed = true;
        break;
      }
      case Instruction::kTotal: {
        i64 position = 0;
        for (i64 d = 0; d < f.outer; ++d) position = position * f.sizes[d] + mine.at[d];
        const auto* const cells =
            pointer<const u64>(f.totals) + position * f.chunks * f.total_cells + cell_of_total(f, mine, code.b);
        u64 all = identity(code.op, code.type);
        for (i64 c = 0; c < f.chunks; ++c) all = combine(code.op, code.type, all, cells[c * f.total_cells]);
        mine.cells[code.to] = all;
        break;
      }
      default:
        break;
    }
  }
}

// Sets the position along the dims `first` to `end` - 1 from their linear number.
__device__ INLINE void go_to(const InterpretArguments& f, i64 number, i64 first, i64 end, Thread& mine) {
  for (i64 d = end; d-- > first;) {
    const i64 rest = divide(number, f.sizes[d]);
    mine.at[d] = number - rest * f.sizes[d];
    number = rest;
  }
}

// Reduces the elements of all threads.
__device__ INLINE Best reduce_block(int reduction, i64 type, Best mine, Shared& shared) {
  const bool chooses = reduction == kArgMax || reduction == kArgMin;
  sync();
  shared.cells[thread()] = mine.cell;
  shared.places[thread()] = mine.place;
  for (i64 half = threads() / 2; half > 0; half /= 2) {
    sync();
    if (thread() >= half) continue;
    const i64 other = thread() + half;
    if (chooses) {
      mine = better(reduction, type, mine, {shared.cells[other], shared.places[other]});
    } else {
      mine.cell = combine(reduction, type, mine.cell, shared.cells[other]);
    }
    shared.cells[thread()] = mine.cell;
    shared.places[thread()] = mine.place;
  }
  sync();
  return {shared.cells[0], shared.places[0]};
}

struct Chunk {
  i64 item, begin, end;
};

// Adds to the totals of values at a column, and reduces the others in `best`.
__device__ INLINE void add_column(const InterpretArguments& f, Range reductions, bool active, i64 line, i64 length,
                                  bool ends_line, u64* totals, Best* best, Thread& mine, Shared& shared) {
  const i64 dims = f.outer + f.rows + f.columns;
  for (int i = reductions.begin; i < reductions.end; ++i) {
    const Code code = decode(f.words[i]);
    Best& so_far = best[i - reductions.begin];
    const bool adds = code.what == Instruction::kAddTotal, by_line = adds && f.by_line[code.b] != 0;
    const u64 cell = mine.cells[code.a];
    if (adds && !by_line) {
      if (!active || is_kept_out(f, mine, f.total_flags[code.b])) continue;
      u64& total = totals[cell_of_total(f, mine, code.b)];
      total = combine(code.op, code.type, total, convert(code.from, code.type, cell));
      continue;
    }
    if (active && (code.op == kArgMax || code.op == kArgMin)) {
      so_far = better(code.op, code.from, so_far, {cell, line * length + mine.at[dims - 1]});
    } else if (active) {
      so_far.cell = combine(code.op, code.type, so_far.cell, convert(code.from, code.type, cell));
    }
    if (by_line && ends_line) {
      const Best all = reduce_block(code.op, code.type, so_far, shared);
      u64& total = totals[f.first_cell[code.b] + line];
      if (thread() == 0) total = combine(code.op, code.type, total, all.cell);
      so_far = {identity(code.op, code.type), -1};
    }
  }
}

// Computes a row, or one point for each thread.
__device__ INLINE void run_row(const InterpretArguments& f, bool is_there, i64 length, u64* totals, Thread& mine,
                               Shared& shared) {
  const i64 dims = f.outer + f.rows + f.columns;
  const i64 lines = f.columns == 2 ? f.sizes[dims - 2] : 1, tiles = (length + threads() - 1) / threads();
  for (i64 phase = 0; phase <= f.phases + 1; ++phase) {
    const i64 first = kFirstPhase + kRangesPerPhase * phase;
    const Range reductions = range_at(f, first + 2);
    Best best[kLoopReductions];
    for (int i = reductions.begin; i < reductions.end; ++i) {
      const Code code = decode(f.words[i]);
      best[i - reductions.begin] = {identity(code.op, code.type), -1};
    }
    const i64 steps = phase < f.phases ? lines * tiles : 0;
    i64 line = 0, tile = 0;
    for (i64 step = -1; step < steps; ++step) {  // -1: the row's own values
      const Range range = range_at(f, first + (step < 0 ? 0 : 1));
      bool active = is_there && (phase <= f.phases || f.points != 0 || thread() == 0);
      if (step >= 0) {
        const i64 column = tile * threads() + thread();
        active = column < length;
        mine.at[dims - 1] = column;
        if (f.columns == 2) mine.at[dims - 2] = line;
        for (int i = range.begin; tile == 0 && i < range.end; ++i) {
          const Code code = decode(f.words[i]);
          if (code.what == Instruction::kRunning) mine.running[code.b] = identity(code.op, code.type);
        }
      } else if (f.points == 0 && f.columns != 0) {
        mine.at[dims - 1] = 0;
        if (f.columns == 2) mine.at[dims - 2] = 0;
      }
      run(f, range, active, mine, shared);
      if (step < 0) continue;
      add_column(f, reductions, active, line, length, tile == tiles - 1, totals, best, mine, shared);
      if (++tile == tiles) {
        tile = 0;
        ++line;
      }
    }
    for (int i = reductions.begin; i < reductions.end; ++i) {
      const Code code = decode(f.words[i]);
      if (code.what != Instruction::kReduce) continue;
      const bool chooses = code.op == kArgMax || code.op == kArgMin;
      const Best all = reduce_block(code.op, chooses ? code.from : code.type, best[i - reductions.begin], shared);
      mine.cells[code.to] = chooses ? static_cast<u64>(all.place < 0 ? 0 : all.place) : all.cell;
    }
  }
}

// Sets the cells of a chunk's totals to the identity of the instruction that adds to them.
__device__ INLINE void clear_totals(const InterpretArguments& f, u64* totals) {
  for (i64 phase = -1; phase < f.phases; ++phase) {
    const Range range = range_at(f, phase < 0 ? kRowTotals : kFirstPhase + kRangesPerPhase * phase + 2);
    for (int i = range.begin; i < range.end; ++i) {
      const Code code = decode(f.words[i]);
      if (code.what != Instruction::kAddTotal) continue;
      u64* const cells = totals + f.first_cell[code.b];
      for (i64 cell = thread(); cell < f.cells_of[code.b]; cell += threads()) cells[cell] = identity(code.op, code.type);
    }
  }
  sync();
}

}  // namespace

// A block computes a chunk of rows, its threads the columns; or a thread computes a point of all dims.
KERNEL(kInterpretThreads) interpret(const InterpretArguments f) {
  __shared__ Shared shared;
  Thread mine;
  const i64 dims = f.outer + f.rows + f.columns;
  i64 items = f.chunks;
  for (i64 d = 0; d < f.outer; ++d) items *= f.sizes[d];
  if (f.points != 0) items = (f.points + threads() - 1) / threads();
  for (i64 item = block(); item < items; item += blocks()) {
    const i64 point = item * threads() + thread();
    const i64 position = f.points != 0 ? 0 : divide(item, f.chunks), chunk = item - position * f.chunks;
    u64* const totals = pointer<u64>(f.totals) + item * f.total_cells;
    const bool is_there = f.points == 0 || point < f.points;
    i64 row = chunk * f.chunk, end = row + f.chunk < f.row_count ? row + f.chunk : f.row_count;
    if (f.points != 0) {
      if (is_there) go_to(f, point, 0, dims, mine);
      row = 0;
      end = 1;
    } else {
      go_to(f, position, 0, f.outer, mine);
      clear_totals(f, totals);
    }
    for (; row < end; ++row) {
      const bool is_additional = f.remainder_columns != 0 && row == f.row_count - 1;
      i64 length = f.columns == 0 || f.points != 0 ? 0 : f.sizes[dims - 1];
      if (is_additional) length = f.remainder_columns;
      if (f.remainder_columns != 0) {
        mine.at[f.outer] = row;
      } else if (f.points == 0) {
        go_to(f, row, f.outer, f.outer + f.rows, mine);
      }
      run_row(f, is_there, length, totals, mine, shared);
      const Range range = range_at(f, kRowTotals);
      for (int i = range.begin; thread() == 0 && i < range.end; ++i) {
        const Code code = decode(f.words[i]);
        u64& total = totals[f.first_cell[code.b]];
        total = combine(code.op, code.type, total, convert(code.from, code.type, mine.cells[code.a]));
      }
    }
  }
}

}  // namespace torch_remote::worker::cuda

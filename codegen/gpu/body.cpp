#include "codegen/gpu/body.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "codegen/gpu/values.h"

// Emits the loops of a function: which thread computes which positions, phase by phase.
namespace torch_remote::codegen::gpu {
namespace {

using ir::DType;
namespace ll = mlir::LLVM;
using cpu::LoopPlan;
using cpu::Scope;

constexpr int64_t kLinesAtOnce = 4;

// The common part of all functions.
class Body {
 public:
  Body(LlvmBuilder& builder, const Plans& plans, const cpu::Plan& plan, const Recipe& recipe, uint32_t lanes,
       uint32_t slots, mlir::Block* entry, SharedMemory* shared)
      : b_(builder),
        ops_(builder),
        memory_(ops_, plans.kernel, recipe, lanes, entry),
        values_(ops_, memory_, plans.kernel, plan, lanes, slots),
        reducer_(ops_, plans.kernel, shared),
        kernel_(plans.kernel),
        schedule_(plans.schedule),
        plan_(plan),
        recipe_(recipe),
        lanes_(lanes) {}

 protected:
  MlirValue i64(int64_t value) { return b_.i64(value); }
  DType type(uint32_t value) const { return kernel_.values[value].type; }
  bool two_columns() const { return kernel_.columns == 2; }
  uint32_t totals() const { return static_cast<uint32_t>(schedule_.totals.size()); }
  const Value& total(uint32_t t) const { return kernel_.values[schedule_.totals[t]]; }
  Scope total_scope(uint32_t t) const { return plan_.scopes[total(t).a]; }
  bool total_along(uint32_t t, uint32_t dim) const { return (recipe_.totals[t].dims >> dim & 1) != 0; }
  MlirValue at_least_one(MlirValue x) { return b_.create<ll::SMaxOp>(x, i64(1)); }
  MlirValue chunk_rows() { return memory_.parameter(ParameterKind::kChunk); }

  void store_scalar(uint32_t s) {
    const Store& store = kernel_.stores[s];
    memory_.store(store, values_.scalar(store.value), values_.indices(store.indices, 0));
  }
  void store_lanes(uint32_t s, size_t slot, const EmitPosition& at) {
    const Store& store = kernel_.stores[s];
    memory_.store_lanes(store, values_.lanes(store.value, slot), values_.indices(store.indices, slot), at);
  }

  // Computes an item: a row, or a chunk of rows one by one. `row` returns the carried values of the next row, and
  // `write` gets the final ones. `number` counts the items of this launch.
  template <typename Row, typename Write>
  void item(MlirValue number, MlirValues first, Row&& row, Write&& write) {
    if (totals() == 0) {
      row(number, MlirValue(), MlirValues());
      return;
    }
    MlirValue begin = b_.mul(number, chunk_rows());
    MlirValue end = b_.create<ll::SMinOp>(b_.add(begin, chunk_rows()), memory_.rows());
    const MlirValues sums = b_.loop(begin, end, i64(1), first, [&](MlirValue index, mlir::ValueRange carried) {
      return row(index, ops_.equal(index, begin), MlirValues(carried));
    });
    write(b_.add(number, memory_.parameter(ParameterKind::kFirstChunk)), sums);
  }
  MlirValue items() { return totals() == 0 ? memory_.rows() : b_.divide_up(memory_.rows(), chunk_rows()); }

  LlvmBuilder& b_;
  GpuOps ops_;
  Memory memory_;
  Values values_;
  RowReducer reducer_;
  const Kernel& kernel_;
  const Schedule& schedule_;
  const cpu::Plan& plan_;
  const Recipe& recipe_;
  const uint32_t lanes_;
};

// -- Points -----------------------------------------------------------------------------------------------------------

// A thread computes some adjacent columns of a row, or of all rows of a chunk.
class PointsBody : Body {
 public:
  PointsBody(LlvmBuilder& builder, const Plans& plans, const Recipe& recipe, mlir::Block* entry, SharedMemory* shared)
      : Body(builder, plans, plans.main, recipe, recipe.vector, 1, entry, shared) {}

  void run() {
    memory_.enter_row({});
    values_.define(plan_.before);
    vectors_ = at_least_one(b_.divide_up(memory_.columns(), i64(lanes_)));
    if (two_columns()) lines_ = at_least_one(memory_.size(kernel_.rows));
    MlirValue count = b_.mul(items(), vectors_);
    if (lines_) count = b_.mul(count, lines_);
    MlirValue thread = b_.add(b_.mul(ops_.block(), ops_.threads_x()), ops_.thread_x());
    b_.loop(thread, count, b_.mul(ops_.blocks(), ops_.threads_x()), {}, [&](MlirValue index, mlir::ValueRange) {
      point(index);
      return MlirValues();
    });
  }

 private:
  void point(MlirValue index) {
    MlirValue number = index, vector = index, outer;
    if (kernel_.rows != 0 || lines_) {
      number = b_.divide(index, vectors_);
      vector = b_.sub(index, b_.mul(number, vectors_));
    }
    MlirValue first = b_.is_zero(vector);
    if (lines_) {
      MlirValue line = number;
      number = b_.divide(line, lines_);
      outer = b_.sub(line, b_.mul(number, lines_));
      first = b_.bit_and(first, b_.is_zero(outer));
    }
    if (kernel_.rows == 0) number = i64(0);
    const EmitPosition at = memory_.position(outer, b_.mul(vector, i64(lanes_)));
    MlirValues begin;
    for (uint32_t t = 0; t < totals(); ++t) begin.append(width(t), reducer_.neutral(total(t)));
    item(
        number, begin,
        [&](MlirValue row, MlirValue, const MlirValues& sums) { return this->row(row, at, first, sums); },
        [&](MlirValue chunk, const MlirValues& sums) { write(chunk, at, sums); });
  }

  size_t width(uint32_t t) const { return total_scope(t) == Scope::kVector ? lanes_ : 1; }

  MlirValues row(MlirValue number, const EmitPosition& at, MlirValue first, MlirValues sums) {
    memory_.enter_row(number);
    values_.clear_lanes();
    values_.define(plan_.values[0]);
    if (!plan_.loops.empty()) {
      sums = b_.if_then_else(memory_.valid(at, 0), sums, [&] { return line(plan_.loops[0], at, sums); });
      values_.define(plan_.values[1]);
    }
    size_t next = 0;
    for (uint32_t t = 0; t < totals(); next += width(t++)) {
      if (total_scope(t) >= Scope::kOuter) continue;
      sums[next] = reducer_.combine(total(t), sums[next], values_.scalar(total(t).a));
    }
    if (!plan_.stores.empty()) {
      b_.if_then(first, false, [&] {
        for (const uint32_t s : plan_.stores) store_scalar(s);
      });
    }
    return sums;
  }

  MlirValues line(const LoopPlan& loop, const EmitPosition& at, MlirValues sums) {
    if (at.outer) memory_.enter_outer(at.outer);
    values_.define(loop.outers, at.outer);
    values_.define_lanes(loop.vectors, {&at, 1});
    size_t next = 0;
    for (uint32_t t = 0; t < totals(); next += width(t++)) {
      if (total_scope(t) < Scope::kOuter) continue;
      for (uint32_t lane = 0; lane < width(t); ++lane) {
        sums[next + lane] = reducer_.combine(total(t), sums[next + lane], values_.lane(total(t).a, 0, lane));
      }
    }
    for (const uint32_t s : loop.stores) store_lanes(s, 0, at);
    return sums;
  }

  // If a total does not vary over a column dim, only the thread at the first position of that dim writes it.
  void write(MlirValue chunk, const EmitPosition& at, const MlirValues& sums) {
    size_t next = 0;
    for (uint32_t t = 0; t < totals(); next += width(t++)) {
      MlirValue mine;
      const auto require = [&](MlirValue condition) { mine = mine ? b_.bit_and(mine, condition) : condition; };
      if (total_scope(t) >= Scope::kOuter) require(memory_.valid(at, 0));
      if (kernel_.columns > 0 && !total_along(t, kernel_.dims() - 1)) require(b_.is_zero(at.column));
      if (two_columns() && !total_along(t, kernel_.rows)) require(b_.is_zero(at.outer));
      const auto put = [&] {
        MlirValue line = memory_.line(t, chunk), place = memory_.line_place(t, at);
        for (uint32_t lane = 0; lane < width(t); ++lane) {
          const auto one = [&] {
            memory_.store_place(sums[next + lane], line, b_.add(place, i64(lane)), total(t).type);
          };
          if (lane == 0) {
            one();
          } else {
            b_.if_then(memory_.valid(at, lane), false, one);
          }
        }
      };
      if (mine) {
        b_.if_then(mine, false, put);
      } else {
        put();
      }
    }
  }

  MlirValue vectors_, lines_;
};

// -- Rows -------------------------------------------------------------------------------------------------------------

// A team of threads computes a row, or the rows of a chunk one after the other.
class RowsBody : Body {
 public:
  RowsBody(LlvmBuilder& builder, const Plans& plans, const Recipe& recipe, bool held, mlir::Block* entry,
           SharedMemory* shared)
      : Body(builder, plans, plans.main, recipe, recipe.vector, held ? recipe.slots : 1, entry, shared), held_(held) {
    for (const LoopPlan& loop : plan_.loops) exchanges_ += loop.reduces.empty() ? 0 : 1;
  }

  void run() {
    memory_.enter_row({});
    values_.define(plan_.before);
    thread_ = ops_.thread_x();
    first_column_ = b_.mul(thread_, i64(lanes_));
    step_ = b_.mul(ops_.threads_x(), i64(lanes_));
    MlirValue team = b_.add(b_.mul(ops_.block(), ops_.threads_y()), ops_.thread_y());
    b_.loop(team, items(), b_.mul(ops_.blocks(), ops_.threads_y()), {}, [&](MlirValue number, mlir::ValueRange) {
      MlirValues begin;
      for (uint32_t t = 0; t < totals(); ++t) begin.append(width(t), reducer_.neutral(total(t)));
      item(
          number, begin,
          [&](MlirValue row, MlirValue first, const MlirValues& sums) { return this->row(row, first, sums); },
          [&](MlirValue chunk, const MlirValues& sums) { write(chunk, sums); });
      return MlirValues();
    });
  }

 private:
  // Computes the positions of the slots. This is repeated for each row, to save registers.
  void find_spots() {
    spots_.clear();
    for (uint32_t slot = 0; held_ && slot < recipe_.slots; ++slot) {
      spots_.push_back(memory_.position({}, b_.add(first_column_, b_.mul(step_, i64(slot)))));
    }
  }

  // Number of sums that stay in registers from row to row. Sums that do not are added to their line of memory.
  size_t width(uint32_t t) const {
    if (total_scope(t) < Scope::kOuter) return 1;
    return held_ ? size_t{recipe_.slots} * lanes_ : 0;
  }

  MlirValues row(MlirValue number, MlirValue first, MlirValues sums) {
    memory_.enter_row(number);
    values_.clear_lanes();
    if (first && !held_) {
      MlirValue chunk = b_.divide(number, chunk_rows());
      chunk_ = b_.add(chunk, memory_.parameter(ParameterKind::kFirstChunk));
    }
    first_ = first;
    find_spots();
    // Each exchange has its own shared memory. If there are several, no barrier is needed: a thread that comes to one
    // again has met all others at the next one.
    if (exchanges_ == 1) reducer_.barrier();
    for (size_t number = 0; number < plan_.values.size(); ++number) {
      values_.define(plan_.values[number]);
      if (number >= plan_.loops.size()) continue;
      if (held_) {
        held_phase(plan_.loops[number], sums);
      } else {
        looped_phase(plan_.loops[number]);
      }
    }
    size_t next = 0;
    for (uint32_t t = 0; t < totals(); next += width(t++)) {
      if (total_scope(t) >= Scope::kOuter) continue;
      sums[next] = reducer_.combine(total(t), sums[next], values_.scalar(total(t).a));
    }
    if (!plan_.stores.empty()) {
      reducer_.barrier();  // all threads have loaded the old contents
      b_.if_then(b_.is_zero(thread_), false, [&] {
        for (const uint32_t s : plan_.stores) store_scalar(s);
      });
    }
    return sums;
  }

  std::vector<Partial> begin(const LoopPlan& loop) {
    std::vector<Partial> partials;
    for (const uint32_t v : loop.reduces) partials.push_back(reducer_.begin(kernel_.values[v], lanes_));
    return partials;
  }

  void accumulate(std::vector<Partial>& partials, size_t slot, const EmitPosition& at) {
    if (partials.empty()) return;
    const std::vector<Partial> before = partials;
    const auto after = [&](bool masked) {
      partials = before;
      for (Partial& partial : partials) {
        for (uint32_t lane = 0; lane < lanes_; ++lane) {
          MlirValue place = b_.add(at.column, i64(lane));
          if (at.outer) place = b_.add(place, b_.mul(at.outer, memory_.size(kernel_.dims() - 1)));
          MlirValue valid = masked ? memory_.valid(at, lane) : MlirValue();
          reducer_.accumulate(partial, lane, values_.lane(partial.reduce->a, slot, lane), place, valid);
        }
      }
      return flat(partials);
    };
    const MlirValues old = flat(before);
    const llvm::SmallVector<mlir::Type> types(mlir::ValueRange(old).getTypes());
    const MlirValues results =
        b_.branch(memory_.full(at), [&] { return after(false); }, [&] { return after(true); }, types, false);
    set(partials, results);
  }

  void end(const LoopPlan& loop, std::vector<Partial>& partials) {
    if (partials.empty()) return;
    const std::vector<MlirValue> results = reducer_.reduce(partials);
    for (size_t i = 0; i < results.size(); ++i) values_.set(loop.reduces[i], results[i]);
  }

  void held_phase(const LoopPlan& loop, MlirValues& sums) {
    values_.define_lanes(loop.vectors, spots_);
    std::vector<Partial> partials = begin(loop);
    for (size_t slot = 0; slot < spots_.size(); ++slot) accumulate(partials, slot, spots_[slot]);
    size_t next = 0;
    for (uint32_t t = 0; t < totals(); next += width(t++)) {
      if (std::ranges::find(loop.totals, t) == loop.totals.end()) continue;
      for (size_t i = 0; i < width(t); ++i) {
        MlirValue x = values_.lane(total(t).a, i / lanes_, static_cast<uint32_t>(i % lanes_));
        sums[next + i] = reducer_.combine(total(t), sums[next + i], x);
      }
    }
    for (const uint32_t s : loop.stores) {
      for (size_t slot = 0; slot < spots_.size(); ++slot) store_lanes(s, slot, spots_[slot]);
    }
    end(loop, partials);
  }

  // -- Rows that are not held ---------------------------------------------------------------------------------------

  static MlirValues flat(const std::vector<Partial>& partials) {
    MlirValues result;
    for (const Partial& partial : partials) {
      for (const MlirValues& lane : partial.lanes) result.append(lane);
    }
    return result;
  }
  static void set(std::vector<Partial>& partials, mlir::ValueRange values) {
    for (Partial& partial : partials) {
      for (MlirValues& lane : partial.lanes) {
        lane.assign(values.begin(), values.begin() + static_cast<ptrdiff_t>(lane.size()));
        values = values.drop_front(lane.size());
      }
    }
  }
  std::vector<Partial> partials_of(const LoopPlan& loop, mlir::ValueRange values) {
    std::vector<Partial> partials = begin(loop);
    set(partials, values);
    return partials;
  }

  void looped_phase(const LoopPlan& loop) {
    MlirValues results = flat(begin(loop));
    if (two_columns()) {
      MlirValue lines = memory_.size(kernel_.rows);
      results = b_.loop(i64(0), lines, i64(1), results, [&](MlirValue outer, mlir::ValueRange carried) {
        memory_.enter_outer(outer);
        values_.define(loop.outers, outer);
        add_outer_totals(loop, outer);
        std::vector<Partial> sums = partials_of(loop, carried);
        const std::vector<Partial> of_line = partials_of(loop, line(loop, outer, flat(begin(loop))));
        for (size_t i = 0; i < sums.size(); ++i) reducer_.combine(sums[i], of_line[i]);
        return flat(sums);
      });
    } else {
      results = line(loop, {}, results);
    }
    std::vector<Partial> partials = partials_of(loop, results);
    end(loop, partials);
  }

  MlirValues line(const LoopPlan& loop, MlirValue outer, const MlirValues& before) {
    if (loop.vectors.empty() && loop.reduces.empty() && loop.stores.empty()) return before;
    return b_.loop(first_column_, memory_.columns(), step_, before, [&](MlirValue column, mlir::ValueRange carried) {
      const EmitPosition at = memory_.position(outer, column);
      values_.clear_lanes();
      values_.define_lanes(loop.vectors, {&at, 1});
      std::vector<Partial> partials = partials_of(loop, carried);
      accumulate(partials, 0, at);
      for (const uint32_t t : loop.totals) {
        if (total_scope(t) == Scope::kVector) add_to_line(t, at);
      }
      for (const uint32_t s : loop.stores) store_lanes(s, 0, at);
      return flat(partials);
    });
  }

  void add_outer_totals(const LoopPlan& loop, MlirValue outer) {
    for (const uint32_t t : loop.totals) {
      if (total_scope(t) != Scope::kOuter) continue;
      b_.if_then(b_.is_zero(thread_), false, [&] {
        const EmitPosition at{outer, {}, {}};
        add_one(t, memory_.line(t, chunk_), memory_.line_place(t, at), values_.scalar(total(t).a));
      });
    }
  }

  void add_to_line(uint32_t t, const EmitPosition& at) {
    MlirValue line = memory_.line(t, chunk_), place = memory_.line_place(t, at);
    for (uint32_t lane = 0; lane < lanes_; ++lane) {
      MlirValue mine = memory_.valid(at, lane);
      if (at.outer && !total_along(t, kernel_.rows)) mine = b_.bit_and(mine, b_.is_zero(at.outer));
      b_.if_then(mine, false, [&] { add_one(t, line, b_.add(place, i64(lane)), values_.lane(total(t).a, 0, lane)); });
    }
  }

  // In the chunk's first row, the line has no contents yet.
  void add_one(uint32_t t, MlirValue line, MlirValue place, MlirValue x) {
    MlirValue later = b_.bit_xor(first_, b_.integer(b_.getI1Type(), 1));
    MlirValue before = b_.if_then_else(later, MlirValues{reducer_.neutral(total(t))},
                                       [&] { return MlirValues{memory_.load_place(line, place, total(t).type)}; })[0];
    memory_.store_place(reducer_.combine(total(t), before, x), line, place, total(t).type);
  }

  void write(MlirValue chunk, const MlirValues& sums) {
    find_spots();
    size_t next = 0;
    for (uint32_t t = 0; t < totals(); next += width(t++)) {
      MlirValue line = memory_.line(t, chunk);
      if (total_scope(t) < Scope::kOuter) {
        b_.if_then(b_.is_zero(thread_), false, [&] { memory_.store_place(sums[next], line, i64(0), total(t).type); });
        continue;
      }
      for (size_t i = 0; i < width(t); ++i) {
        const EmitPosition& at = spots_[i / lanes_];
        const auto lane = static_cast<uint32_t>(i % lanes_);
        b_.if_then(memory_.valid(at, lane), false, [&] {
          MlirValue place = b_.add(memory_.line_place(t, at), i64(lane));
          memory_.store_place(sums[next + i], line, place, total(t).type);
        });
      }
    }
  }

  const bool held_;
  uint32_t exchanges_ = 0;
  std::vector<EmitPosition> spots_;  // for each slot
  MlirValue thread_, first_column_, step_;
  MlirValue first_, chunk_;  // whether the row is the chunk's first one; the chunk's number
};

// -- Finish -----------------------------------------------------------------------------------------------------------

// A block computes some columns. For each, several threads add up the chunks' lines, and one of them computes the rest.
class FinishBody : Body {
 public:
  FinishBody(LlvmBuilder& builder, const Plans& plans, const Recipe& recipe, mlir::Block* entry, SharedMemory* shared)
      : Body(builder, plans, plans.finish, recipe, 1, 1, entry, shared) {}

  void run() {
    memory_.enter_row({});
    MlirValue first = b_.is_zero(ops_.thread_y());
    for (uint32_t t = 0; t < totals(); ++t) {
      if (scope(t) < Scope::kOuter) values_.set(schedule_.totals[t], total_of_chunks(t, {}, {}));
    }
    values_.define(plan_.before);
    for (const auto& values : plan_.values) values_.define(values);
    if (!plan_.loops.empty()) columns(first);
    if (plan_.stores.empty()) return;
    if (recipe_.finish_in_one_block) ops_.barrier();  // all threads have loaded the old contents
    first = b_.bit_and(first, b_.bit_and(b_.is_zero(ops_.thread_x()), b_.is_zero(ops_.block())));
    b_.if_then(first, false, [&] {
      for (const uint32_t s : plan_.stores) store_scalar(s);
    });
  }

 private:
  Scope scope(uint32_t t) const { return plan_.scopes[schedule_.totals[t]]; }

  void columns(MlirValue first) {
    MlirValue width = memory_.columns(), count = width;
    if (two_columns()) count = b_.mul(memory_.size(kernel_.rows), width);
    MlirValue begin = b_.mul(ops_.block(), ops_.threads_x()), step = b_.mul(ops_.blocks(), ops_.threads_x());
    b_.loop(begin, count, step, {}, [&](MlirValue start, mlir::ValueRange) {
      MlirValue index = b_.add(start, ops_.thread_x()), valid = b_.less_than(index, count), outer, column = index;
      if (two_columns()) {
        outer = b_.divide(index, width);
        column = b_.sub(index, b_.mul(outer, width));
      }
      const EmitPosition at{outer, column, b_.create<ll::ZExtOp>(b_.getI32Type(), valid)};
      values_.clear_lanes();
      for (uint32_t t = 0; t < totals(); ++t) {
        if (scope(t) < Scope::kOuter) continue;
        MlirValue sum = total_of_chunks(t, at, valid);
        values_.set(schedule_.totals[t], sum);
        values_.set_lanes(schedule_.totals[t], 0, {sum});
      }
      b_.if_then(b_.bit_and(valid, first), false, [&] {
        const LoopPlan& loop = plan_.loops[0];
        if (outer) memory_.enter_outer(outer);
        values_.define(loop.outers, outer);
        values_.define_lanes(loop.vectors, {&at, 1});
        for (const uint32_t s : loop.stores) store_lanes(s, 0, at);
      });
      return MlirValues();
    });
  }

  MlirValue total_of_chunks(uint32_t t, const EmitPosition& at, MlirValue valid) {
    const uint32_t folds = kFinishThreads / recipe_.finish_columns;
    MlirValue end = memory_.parameter(ParameterKind::kChunks), place = memory_.line_place(t, at);
    if (valid) end = b_.select(valid, end, i64(0));
    // Several lines are loaded at a time, so that the loads overlap.
    MlirValue sum = reducer_.neutral(total(t)), next = ops_.thread_y();
    for (const int64_t lines : {kLinesAtOnce, int64_t{1}}) {
      MlirValue last = b_.sub(end, i64((lines - 1) * folds));
      const MlirValues before{sum, next};
      const MlirValues after =
          b_.loop(next, last, i64(lines * folds), before, [&](MlirValue chunk, mlir::ValueRange so_far) {
            MlirValues x;
            for (int64_t i = 0; i < lines; ++i) {
              MlirValue line = memory_.line(t, b_.add(chunk, i64(i * folds)));
              x.push_back(memory_.load_place(line, place, total(t).type));
            }
            MlirValue all = so_far[0];
            for (MlirValue one : x) all = reducer_.combine(total(t), all, one);
            return MlirValues{all, b_.add(chunk, i64(lines * folds))};
          });
      sum = after[0];
      next = after[1];
    }
    return reducer_.fold(total(t), sum, recipe_.finish_columns, folds);
  }
};

}  // namespace

void emit_body(LlvmBuilder& builder, Function function, const Plans& plans, const Recipe& recipe, mlir::Block* entry,
               SharedMemory* shared) {
  switch (function) {
    case Function::kPoints:
      return PointsBody(builder, plans, recipe, entry, shared).run();
    case Function::kRowsInRegisters:
    case Function::kRowsReloaded:
      return RowsBody(builder, plans, recipe, function == Function::kRowsInRegisters, entry, shared).run();
    case Function::kFinish:
      return FinishBody(builder, plans, recipe, entry, shared).run();
  }
}

}  // namespace torch_remote::codegen::gpu

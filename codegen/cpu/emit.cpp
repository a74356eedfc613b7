#include "codegen/cpu/emit.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cpu/memory.h"
#include "codegen/cpu/ops.h"
#include "codegen/cpu/plan.h"
#include "codegen/cpu/reductions.h"
#include "codegen/loop/facts.h"

// Emits the loops of a function: rows, phases, blocks, pairs of vectors, and the remainder.
namespace torch_remote::codegen::cpu {
namespace {

using ir::DType;
namespace ll = mlir::LLVM;

constexpr Order kOrder;
constexpr int64_t kHalves = 2;
constexpr uint32_t kSlotAlign = 64;
// Loops with at most this many vector values are unrolled (`pairs`).
constexpr size_t kMaxUnrolled = 8;
static_assert(kOrder.lanes == kHalves * kLanes && kOrder.block % kOrder.short_sum == 0 &&
              kOrder.short_sum % kOrder.lanes == 0 && kOrder.wide_lanes == kLanes / 2);

class FunctionEmitter {
 public:
  FunctionEmitter(LlvmBuilder& builder, const Kernel& kernel, const Schedule& schedule, const Plan& plan,
                  mlir::Block* entry, const Features& features, const Variant& variant)
      : b_(builder),
        ops_(builder, features),
        reductions_(ops_),
        variant_(variant),
        memory_(ops_, kernel, variant, entry->getArgument(0), entry),
        kernel_(kernel),
        schedule_(schedule),
        plan_(plan),
        entry_(entry),
        scalars_(kernel.values.size()) {}

  // Emits the body at the builder's insertion point.
  void run() {
    memory_.enter_row({});
    emit_scalars(plan_.before);
    choose_prefetches();
    if (plan_.finish) return row({});
    b_.loop(entry_->getArgument(1), entry_->getArgument(2), 1, {}, [&](MlirValue index, mlir::ValueRange) {
      row(index);
      return MlirValues();
    });
  }

 private:
  DType type(uint32_t value) const { return kernel_.values[value].type; }
  bool varies_over(uint32_t value, uint32_t dim) const { return (schedule_.values[value].dims >> dim & 1) != 0; }
  uint32_t last_column() const { return kernel_.dims() - 1; }
  MlirValue columns() { return memory_.size(kernel_.columns - 1); }

  void row(MlirValue index) {
    row_ = index;
    memory_.enter_row(index);
    for (size_t number = 0; number < plan_.values.size(); ++number) {
      emit_scalars(plan_.values[number]);
      if (number < plan_.loops.size()) phase(plan_.loops[number]);
    }
    for (const uint32_t total : plan_.totals) add_to_total(total, scalar(total_operand(total)), {});
    for (const uint32_t s : plan_.stores) store(kernel_.stores[s], {});
  }

  // -- Prefetching ----------------------------------------------------------------------------------------------------

  // If a row is processed in several loops, only the first one loads from memory, and computation waits for it. In the
  // other loops memory would be idle. So the longest of these prefetches what the next row reads, and the locations to
  // which results are written. A single loop with reductions is limited by memory. It prefetches for itself, because
  // the processor's prefetcher stops at the end of a page.
  void choose_prefetches() {
    if (plan_.finish || kernel_.rows == 0 || kernel_.columns != 1 || plan_.loops.empty()) return;
    const bool reduces = !plan_.loops[0].reduces.empty() || !plan_.loops[0].totals.empty();
    if (plan_.loops.size() == 1 && !reduces) return;
    ahead_ = plan_.loops.size() == 1 ? 0 : 1;
    for (uint32_t loop = 2; loop < plan_.loops.size(); ++loop) {
      if (plan_.loops[loop].condition != kNone) continue;
      const bool is_left_out = plan_.loops[ahead_].condition != kNone;
      if (is_left_out || plan_.loops[loop].vectors.size() > plan_.loops[ahead_].vectors.size()) ahead_ = loop;
    }
    std::vector<bool> known(kernel_.operands.size());
    for (const LoopPlan& loop : plan_.loops) {
      for (const uint32_t v : loop.vectors) {
        const Value& value = kernel_.values[v];
        if (value.kind != Kind::kLoad || known[value.operand] || !memory_.has_contiguous_rows(value.operand)) continue;
        known[value.operand] = true;
        reads_next_.push_back(value.operand);
      }
    }
    for (const uint32_t s : plan_.loops.back().stores) {
      const uint32_t operand = kernel_.stores[s].operand;
      if (!known[operand] && memory_.has_contiguous_rows(operand) && !variant_.streams) writes_next_.push_back(operand);
    }
  }

  void emit_prefetches(const LoopPlan& loop, MlirValue column) {
    if (loop.number != ahead_) return;
    const bool is_last = ahead_ + 1 == plan_.loops.size();
    for (const uint32_t operand : reads_next_) memory_.prefetch(operand, column, true, false);
    for (const uint32_t operand : writes_next_) memory_.prefetch(operand, column, is_last, true);
  }

  // -- A loop over the columns of a row -----------------------------------------------------------------------------

  void phase(const LoopPlan& loop) {
    MlirValues results;
    if (loop.condition == kNone) {
      results = sums_over_row(loop);
    } else {
      const auto zeros = [&] {
        MlirValues none;
        for (const uint32_t reduce : loop.reduces) {
          none.push_back(reductions_.neutral(Reduction::kSum, type(reduce), ops_.type(type(reduce))));
        }
        return none;
      };
      llvm::SmallVector<mlir::Type, 4> types;
      for (const uint32_t reduce : loop.reduces) types.push_back(ops_.type(type(reduce)));
      results = b_.branch(scalar(loop.condition), [&] { return sums_over_row(loop); }, zeros, types, true);
    }
    for (size_t i = 0; i < loop.reduces.size(); ++i) scalars_[loop.reduces[i]] = results[i];
  }

  // Emits the whole loop over a row, and returns the results of its reductions.
  MlirValues sums_over_row(const LoopPlan& loop) {
    MlirValues results = begin(loop.reduces);
    if (kernel_.columns == 2) {
      results = b_.loop(b_.i64(0), memory_.size(0), 1, results, [&](MlirValue outer, mlir::ValueRange carried) {
        memory_.enter_outer(outer);
        return line(loop, outer, carried);
      });
    } else {
      results = line(loop, {}, results);
    }
    outer_ = {};
    size_t next = 0;
    MlirValues sums;
    for (const uint32_t reduce : loop.reduces) sums.push_back(end(reduce, results, &next));
    return sums;
  }

  // The result of a reduction, given all partial results of a loop. This reduction's own begin at `*next` in each half.
  MlirValue end(uint32_t reduce, mlir::ValueRange results, size_t* next) {
    const Value& value = kernel_.values[reduce];
    const size_t parts = Reductions::parts(value), at = std::exchange(*next, *next + parts);
    const size_t half = results.size() / kHalves;
    if (is_wide(reduce)) return reductions_.fold(value, value.type, {results[at]});
    return reductions_.end(value, type(value.a), results.slice(at, parts), results.slice(half + at, parts));
  }

  // The reductions for which a loop carries partial results: those over columns, then those over lines.
  std::vector<uint32_t> sums_of(const LoopPlan& loop) const {
    std::vector<uint32_t> sums = loop.reduces;
    for (const uint32_t total : loop.lines) sums.push_back(schedule_.totals[total]);
    return sums;
  }

  // Emits the loop over the last column dim, at one position of the outer one.
  MlirValues line(const LoopPlan& loop, MlirValue outer, mlir::ValueRange carried) {
    outer_ = outer;
    emit_scalars(loop.outers);
    begin_running(loop);
    for (const uint32_t s : loop.outer_stores) store(kernel_.stores[s], {outer, {}, {}});
    bool inner = !loop.vectors.empty() || !loop.reduces.empty() || !loop.lines.empty() || !loop.stores.empty();
    for (const uint32_t total : loop.totals) {
      if (plan_.scopes[total_operand(total)] == Scope::kOuter)
        add_to_total(total, scalar(total_operand(total)), {outer, {}, {}});
    }
    if (!inner) return MlirValues(carried);
    if (loop.lines.empty()) return places(loop, carried);
    // Sums of lines start anew in each line.
    MlirValues before;
    const size_t half = carried.size() / kHalves;
    for (int64_t h = 0; h < kHalves; ++h) {
      before.append(MlirValues(carried.slice(static_cast<size_t>(h) * half, half)));
      for (const uint32_t total : loop.lines) {
        before.append(begin(schedule_.totals[total], h));
      }
    }
    const MlirValues results = places(loop, before);
    size_t next = half;
    for (const uint32_t total : loop.lines) {
      add_to_total(total, end(schedule_.totals[total], results, &next), {outer, {}, {}});
    }
    const mlir::ValueRange all = results;
    MlirValues after(all.take_front(half));
    after.append(MlirValues(all.slice(results.size() / kHalves, half)));
    return after;
  }

  // Emits the code for all positions of the last column dim.
  MlirValues places(const LoopPlan& loop, mlir::ValueRange carried) {
    const std::vector<uint32_t> sums = sums_of(loop);
    const bool blocks = std::any_of(sums.begin(), sums.end(), [&](uint32_t sum) {
      return Reductions::is_ordered(kernel_.values[sum]) && !is_wide(sum);
    });
    if (variant_.columns != 0) {  // fewer than in a block or a short sum
      const auto all = [&](mlir::ValueRange before) {
        return with_short_sums(sums, before, [&](mlir::ValueRange narrow) { return fixed_range(loop, narrow); });
      };
      return blocks ? in_block(sums, carried, all) : all(carried);
    }
    if (!blocks) return range(loop, b_.i64(0), columns(), carried);
    return b_.loop(b_.i64(0), columns(), kOrder.block, carried, [&](MlirValue start, mlir::ValueRange before) {
      MlirValue end = b_.create<ll::SMinOp>(b_.add(start, b_.i64(kOrder.block)), columns());
      return in_block(sums, before, [&](mlir::ValueRange begun) { return range(loop, start, end, begun); });
    });
  }

  using Work = llvm::function_ref<MlirValues(mlir::ValueRange)>;

  // The type of a wide sum's partial result. Only the lower half has one.
  mlir::Type wide_type() const { return mlir::VectorType::get(kOrder.wide_lanes, b_.getF64Type()); }
  bool is_wide(uint32_t sum) const { return is_wide_sum(kernel_, kernel_.values[sum]); }

  // Calls `change` with the positions of the wide sums' partial results among all those of a loop.
  void for_wide(const std::vector<uint32_t>& sums, llvm::function_ref<void(size_t, const Value&)> change) {
    size_t at = 0;
    for (int64_t half = 0; half < kHalves; ++half) {
      for (const uint32_t sum : sums) {
        if (is_wide(sum)) change(at, kernel_.values[sum]);
        at += Reductions::parts(kernel_.values[sum]);
      }
    }
  }

  // `work` covers a block. In it, all sums except wide ones start anew; afterwards they are added to `before`.
  MlirValues in_block(const std::vector<uint32_t>& sums, mlir::ValueRange before, Work work) {
    MlirValues block = begin(sums);
    for_wide(sums, [&](size_t at, const Value&) { block[at] = before[at]; });
    block = work(block);
    return combine(sums, before, block);
  }

  // `work` covers at most kOrder.narrow positions. In it, wide sums start anew in the type of their operand.
  MlirValues with_short_sums(const std::vector<uint32_t>& sums, mlir::ValueRange before, Work work) {
    MlirValues values(before);
    for_wide(sums, [&](size_t at, const Value& sum) { values[at] = reductions_.begin(sum, type(sum.a), 0)[0]; });
    values = work(values);
    const size_t half = values.size() / kHalves;
    for_wide(sums, [&](size_t at, const Value& sum) {
      if (at >= half) {  // is included in the lower half's sum
        values[at] = before[at];
        return;
      }
      const DType narrow = type(sum.a);
      MlirValue all = reductions_.combine(sum, narrow, values[at], values[half + at])[0];
      MlirValue more = ops_.convert(reductions_.halved(sum, narrow, {all})[0], narrow, sum.type);
      values[at] = reductions_.combine(sum, sum.type, before[at], more)[0];
    });
    return values;
  }

  // Emits short sums one after the other if there are wide sums, else the plain range.
  MlirValues range(const LoopPlan& loop, MlirValue start, MlirValue end, mlir::ValueRange carried) {
    const std::vector<uint32_t> sums = sums_of(loop);
    if (std::none_of(sums.begin(), sums.end(), [&](uint32_t sum) { return is_wide(sum); })) {
      return short_range(loop, start, end, carried);
    }
    MlirValue rest = b_.add(start, b_.bit_and(b_.sub(end, start), b_.i64(-int64_t{kOrder.short_sum})));
    const MlirValues most =
        b_.loop(start, rest, kOrder.short_sum, carried, [&](MlirValue first, mlir::ValueRange before) {
          return with_short_sums(sums, before, [&](mlir::ValueRange narrow) { return pairs(loop, first, narrow); });
        });
    const auto remaining = [&] {
      return with_short_sums(sums, most, [&](mlir::ValueRange narrow) { return short_range(loop, rest, end, narrow); });
    };
    const llvm::SmallVector<mlir::Type> types(mlir::ValueRange(most).getTypes());
    return b_.branch(b_.less_than(rest, end), remaining, [&] { return most; }, types, false);
  }

  // Emits kOrder.narrow positions: without a loop if that is little code.
  MlirValues pairs(const LoopPlan& loop, MlirValue first, mlir::ValueRange before) {
    if (loop.vectors.size() > kMaxUnrolled) {
      MlirValue last = b_.add(first, b_.i64(kOrder.short_sum));
      return b_.loop(first, last, kOrder.lanes, before, [&](MlirValue column, mlir::ValueRange carried) {
        return pair(loop, column, b_.add(column, b_.i64(kLanes)), carried);
      });
    }
    MlirValues results(before);
    for (int64_t column = 0; column < kOrder.short_sum; column += kOrder.lanes) {
      results = pair(loop, b_.add(first, b_.i64(column)), b_.add(first, b_.i64(column + kLanes)), results);
    }
    return results;
  }

  // Emits a loop over pairs of vectors, then one over masked single vectors for the remainder. In the latter the halves
  // swap after each vector, so that the same code serves both.
  MlirValues short_range(const LoopPlan& loop, MlirValue start, MlirValue end, mlir::ValueRange carried) {
    MlirValue count = b_.sub(end, start);
    MlirValue pairs = b_.add(start, b_.bit_and(count, b_.i64(-int64_t{kOrder.lanes})));
    MlirValues results = b_.loop(start, pairs, kOrder.lanes, carried, [&](MlirValue column, mlir::ValueRange before) {
      return pair(loop, column, b_.add(column, b_.i64(kLanes)), before);
    });
    MlirValue stop = end;
    if (!loop.reduces.empty() || !loop.lines.empty()) {
      MlirValue both = b_.add(pairs, b_.i64(kOrder.lanes));
      stop = b_.select(b_.less_than(pairs, end), both, pairs);
    }
    return b_.loop(pairs, stop, kLanes, results, [&](MlirValue column, mlir::ValueRange before) {
      return masked_vector(loop, column, ops_.convert(b_.sub(end, column), DType::kInt64, DType::kInt32), before);
    });
  }

  MlirValues pair(const LoopPlan& loop, MlirValue column, MlirValue next, mlir::ValueRange before) {
    const size_t half = before.size() / kHalves;
    const EmitPosition low = {outer_, column, {}}, high = {outer_, next, {}};
    emit_prefetches(loop, column);
    emit_pair(loop, low, high);
    MlirValues after = reduce(loop, 0, low, before.take_front(half));
    after.append(reduce(loop, 1, high, before.drop_front(half)));
    write(loop, 0, low);
    write(loop, 1, high);
    return after;
  }

  // Emits a vector of which the first `left` lanes are active.
  MlirValues masked_vector(const LoopPlan& loop, MlirValue column, MlirValue left, mlir::ValueRange before) {
    const size_t half = before.size() / kHalves;
    const EmitPosition at = {outer_, column, b_.less_than(b_.ramp(left.getType(), 0), b_.splat(left))};
    emit_vectors(loop, 0, at);
    const MlirValues changed = reduce(loop, 0, at, before.take_front(half));
    write(loop, 0, at);
    MlirValues after(before.drop_front(half));
    after.append(changed);
    return after;
  }

  // The same as `short_range` over all columns, whose number the variant fixes: no loop and no test is needed.
  MlirValues fixed_range(const LoopPlan& loop, mlir::ValueRange carried) {
    MlirValues results(carried);
    int64_t column = 0, stop = variant_.columns;
    for (; column + kOrder.lanes <= variant_.columns; column += kOrder.lanes) {
      results = pair(loop, b_.i64(column), b_.i64(column + kLanes), results);
    }
    if (column < stop && (!loop.reduces.empty() || !loop.lines.empty())) stop = column + kOrder.lanes;
    for (; column < stop; column += kLanes) {
      const int64_t left = std::max<int64_t>(0, variant_.columns - column);
      results = masked_vector(loop, b_.i64(column), b_.i32(left), results);
    }
    return results;
  }

  // The initial partial results for both halves: in each half, all parts of all reductions.
  MlirValues begin(const std::vector<uint32_t>& sums) {
    MlirValues result;
    for (int64_t half = 0; half < kHalves; ++half) {
      for (const uint32_t reduce : sums) result.append(begin(reduce, half));
    }
    return result;
  }

  MlirValues begin(uint32_t reduce, int64_t half) {
    if (is_wide(reduce)) return {b_.number(wide_type(), 0)};
    const Value& value = kernel_.values[reduce];
    return reductions_.begin(value, type(value.a), half);
  }

  MlirValues combine(const std::vector<uint32_t>& sums, mlir::ValueRange x, mlir::ValueRange y) {
    MlirValues result;
    size_t next = 0;
    for (int64_t half = 0; half < kHalves; ++half) {
      for (const uint32_t reduce : sums) {
        const Value& value = kernel_.values[reduce];
        const size_t parts = Reductions::parts(value);
        if (is_wide(reduce)) {
          result.push_back(y[next]);
        } else {
          result.append(reductions_.combine(value, type(value.a), x.slice(next, parts), y.slice(next, parts)));
        }
        next += parts;
      }
    }
    return result;
  }

  // Emits all values of 16 positions.
  void emit_vectors(const LoopPlan& loop, int64_t half, const EmitPosition& at) {
    vectors_[half].assign(kernel_.values.size(), {});
    for (const uint32_t value : loop.vectors) vectors_[half][value] = emit_vector(loop, value, half, at);
  }

  // With 32 registers we interleave both vectors. A chain of functions mostly waits for its own results, and the
  // processor does not look far enough ahead to find the other vector's instructions. Loads at indices branch, so with
  // these we emit one vector after the other.
  void emit_pair(const LoopPlan& loop, const EmitPosition& low, const EmitPosition& high) {
    const bool branches = std::any_of(loop.vectors.begin(), loop.vectors.end(),
                                      [&](uint32_t value) { return !kernel_.values[value].indices.empty(); });
    if (!ops_.features.avx512 || branches) {
      emit_vectors(loop, 0, low);
      return emit_vectors(loop, 1, high);
    }
    for (std::vector<MlirValue>& vectors : vectors_) vectors.assign(kernel_.values.size(), {});
    for (const uint32_t value : loop.vectors) {
      vectors_[0][value] = emit_vector(loop, value, 0, low);
      vectors_[1][value] = emit_vector(loop, value, 1, high);
    }
  }

  // Adds a vector's elements to the partial results of the loop's reductions.
  MlirValues reduce(const LoopPlan& loop, int64_t half, const EmitPosition& at, mlir::ValueRange before) {
    MlirValues after;
    for (const uint32_t reduce : sums_of(loop)) {
      const Value& value = kernel_.values[reduce];
      const mlir::ValueRange parts = before.slice(after.size(), Reductions::parts(value));
      if (sums_products(kernel_, value)) {
        after.push_back(add_product(kernel_.values[value.a], half, parts[0], at.mask));
        continue;
      }
      MlirValue place = parts.size() == 2 ? place_in_row(at) : MlirValue();
      after.append(reductions_.accumulate(value, type(value.a), parts, vector(value.a, half), place, at.mask));
    }
    return after;
  }

  MlirValue add_product(const Value& product, int64_t half, MlirValue sum, MlirValue mask) {
    MlirValue more = ops_.fma(vector(product.a, half), vector(product.b, half), sum);
    return mask ? b_.select(mask, more, sum) : more;
  }

  // The row-major numbers of a vector's lanes among the columns.
  MlirValue place_in_row(const EmitPosition& at) {
    return b_.add(b_.splat(line_index(at, true)), b_.ramp(b_.getI64Type(), 0));
  }

  // The index of a point in a line of memory, which covers both column dims or only the last one.
  MlirValue line_index(const EmitPosition& at, bool both) {
    if (!at.outer || !both) return at.column;
    return b_.add(b_.mul(at.outer, columns()), at.column);
  }

  // Emits keeps, totals and stores of a vector, after all loads of its positions.
  void write(const LoopPlan& loop, int64_t half, const EmitPosition& at) {
    for (const uint32_t k : loop.spills) {
      const uint32_t value = schedule_.spilled[k];
      memory_.store_line(vector(value, half), kept_pointer(value, at), type(value), at);
    }
    for (const uint32_t total : loop.totals) {
      if (plan_.scopes[total_operand(total)] == Scope::kVector)
        add_to_total(total, vector(total_operand(total), half), at);
    }
    for (const uint32_t s : loop.stores) store(kernel_.stores[s], at, half);
  }

  // -- Values ---------------------------------------------------------------------------------------------------------

  MlirValue scalar(uint32_t value) { return scalars_[value]; }

  // A value as a vector; a scalar is broadcast to all lanes.
  MlirValue vector(uint32_t value, int64_t half) {
    MlirValue& found = vectors_[half][value];
    if (!found) {
      const Value& of = kernel_.values[value];
      found = of.kind == Kind::kConstant ? ops_.constant(of, vector_of(ops_.type(of.type))) : b_.splat(scalar(value));
    }
    return found;
  }

  void emit_scalars(const std::vector<uint32_t>& values) {
    for (const uint32_t v : values) {
      const Value& value = kernel_.values[v];
      if (value.kind == Kind::kReduce && value.over == Over::kColumns) continue;  // its loop has defined it
      const EmitPosition at = {outer_, {}, {}};
      if (value.kind == Kind::kReduce) {
        scalars_[v] = total_of_chunks(v, at);
      } else if (value.kind == Kind::kConstant) {
        scalars_[v] = ops_.constant(value, ops_.type(value.type));
      } else if (value.kind == Kind::kScalar) {
        scalars_[v] = memory_.scalar(value.a);
      } else if (value.kind == Kind::kIndex) {
        scalars_[v] = value.a < kernel_.rows ? row_ : outer_;
      } else {
        scalars_[v] = compose(value, at, [&](uint32_t input) { return scalar(input); });
      }
    }
  }

  MlirValue emit_vector(const LoopPlan& loop, uint32_t v, int64_t half, const EmitPosition& at) {
    const Value& value = kernel_.values[v];
    if (plan_.spill_loop[v] < loop.number) return memory_.load_line(kept_pointer(v, at), value.type, at);
    if (value.kind == Kind::kReduce) return total_of_chunks(v, at);
    if (value.kind == Kind::kIndex) {
      return b_.add(b_.splat(at.column), b_.ramp(b_.getI64Type(), 0));
    }
    if (value.kind == Kind::kRandom) {
      if (const std::optional<MlirValue> first = first_number(value, at)) return random(v, value, *first, half, at);
    }
    if (value.kind == Kind::kRunning) return running(v, vector(value.a, half));
    return compose(value, at, [&](uint32_t input) { return vector(input, half); });
  }

  // -- Running sums: a block is one vector. Another vector has the result of all previous blocks, in every lane.

  MlirValue slot(uint32_t v) {
    MlirValue& found = slots_[v];
    if (!found) {
      mlir::OpBuilder::InsertionGuard guard(b_);
      b_.setInsertionPointToEnd(entry_);
      const mlir::Type pointer = ll::LLVMPointerType::get(b_.getContext());
      found = b_.create<ll::AllocaOp>(pointer, vector_of(ops_.type(type(v))), b_.i64(1), kSlotAlign);
    }
    return found;
  }

  MlirValue combined(const Value& value, MlirValue x, MlirValue y) {
    if (value.reduction == Reduction::kLogSumExp) return log_sum_exp(value.type, x, y);
    const auto op = value.reduction == Reduction::kSum ? ir::ScalarOp::kAdd : ir::ScalarOp::kMul;
    return ops_.scalar_op(op, value.type, x, y, {});
  }

  MlirValue log_sum_exp(DType dtype, MlirValue x, MlirValue y) {
    const std::vector<Value> steps = log_add_exp(dtype);
    std::vector<MlirValue> made;
    made.reserve(steps.size());
    for (const Value& step : steps) {
      if (step.kind == Kind::kScalar) {
        made.push_back(step.a == 0 ? x : y);
      } else if (step.kind == Kind::kConstant) {
        made.push_back(ops_.constant(step, same_width(x.getType(), ops_.type(step.type))));
      } else {
        made.push_back(ops_.computed(steps, step, [&](uint32_t input) { return made[input]; }));
      }
    }
    return made.back();
  }

  MlirValue identity_vector(const Value& value, mlir::Type of) {
    if (value.reduction == Reduction::kLogSumExp) {
      return b_.number(of, -std::numeric_limits<double>::infinity());
    }
    const int64_t none = value.reduction == Reduction::kSum ? 0 : 1;
    return ir::is_float(value.type) ? b_.number(of, static_cast<double>(none)) : b_.integer(of, none);
  }

  // Resets the running sums at the beginning of a line.
  void begin_running(const LoopPlan& loop) {
    for (const uint32_t v : loop.vectors) {
      const Value& value = kernel_.values[v];
      if (value.kind != Kind::kRunning || plan_.spill_loop[v] < loop.number) continue;
      b_.create<ll::StoreOp>(identity_vector(value, vector_of(ops_.type(value.type))), slot(v), kSlotAlign);
    }
  }

  // Returns `none` in a form that LLVM cannot see through. To shift known zeros into a vector, LLVM would use
  // vexpandps, which takes several cycles on AMD's processors. The alternative is one instruction that shifts a pair of
  // vectors.
  MlirValue opaque_identity(const Value& value, MlirValue none) {
    if (!ops_.features.avx512) return none;
    MlirValue& found = identity_vectors_[{value.reduction, value.type}];
    if (!found) {
      mlir::OpBuilder::InsertionGuard guard(b_);
      b_.setInsertionPointToEnd(entry_);
      const mlir::Type pointer = ll::LLVMPointerType::get(b_.getContext()), type = none.getType();
      MlirValue place = b_.create<ll::AllocaOp>(pointer, type, b_.i64(1), kSlotAlign);
      b_.create<ll::StoreOp>(identity_vector(value, type), place, kSlotAlign, /*isVolatile=*/true);
      found = b_.create<ll::LoadOp>(type, place, kSlotAlign, /*isVolatile=*/true);
    }
    return found;
  }

  MlirValue running(uint32_t v, MlirValue x) {
    static_assert(kRunningBlock == kLanes);
    const Value& value = kernel_.values[v];
    MlirValue none = opaque_identity(value, identity_vector(value, x.getType()));
    constexpr int32_t kCount = kLanes;
    for (int32_t apart = 1; apart < kCount; apart *= 2) {
      llvm::SmallVector<int32_t, kLanes> from;  // lanes of x, or of `none`, which stands for the positions before x
      for (int32_t lane = 0; lane < kCount; ++lane) {
        from.push_back(lane < apart ? kCount + kCount - apart + lane : lane - apart);
      }
      x = combined(value, x, b_.create<ll::ShuffleVectorOp>(x, none, from));
    }
    MlirValue before = b_.create<ll::LoadOp>(x.getType(), slot(v), kSlotAlign);
    x = combined(value, x, before);
    const llvm::SmallVector<int32_t, kLanes> everywhere(kLanes, kLanes - 1);
    MlirValue last = b_.create<ll::ShuffleVectorOp>(x, x, everywhere);
    b_.create<ll::StoreOp>(last, slot(v), kSlotAlign);
    return x;
  }

  // If a vector's random words have one seed and offset, and consecutive numbers in its lanes: the first lane's number.
  std::optional<MlirValue> first_number(const Value& value, const EmitPosition& at) {
    const auto is_scalar = [&](uint32_t v) { return plan_.scopes[v] != Scope::kVector; };
    const auto is_place = [&](uint32_t v) {
      return kernel_.values[v].kind == Kind::kIndex && kernel_.values[v].a == last_column();
    };
    if (!is_scalar(value.a) || !is_scalar(value.b)) return std::nullopt;
    if (is_place(value.c)) return at.column;
    const Value& number = kernel_.values[value.c];
    if (number.kind != Kind::kScalarOp || number.op != ir::ScalarOp::kAdd) return std::nullopt;
    if (is_place(number.a) && is_scalar(number.b)) return b_.add(at.column, scalar(number.b));
    if (is_place(number.b) && is_scalar(number.a)) return b_.add(at.column, scalar(number.a));
    return std::nullopt;
  }

  // In the main loop, the words of the second vector are computed with those of the first one.
  MlirValue random(uint32_t v, const Value& value, MlirValue first, int64_t half, const EmitPosition& at) {
    if (at.mask) return ops_.random_vector(scalar(value.a), scalar(value.b), first);
    if (half == 0) {
      const auto [low, high] = ops_.random_vectors(scalar(value.a), scalar(value.b), first);
      words_[v] = high;
      return low;
    }
    return std::exchange(words_[v], {});
  }

  MlirValues indices(const std::vector<uint32_t>& values, const EmitPosition& at, int64_t half) {
    MlirValues result;
    for (const uint32_t index : values) {
      const bool lanes = at.column && plan_.scopes[index] == Scope::kVector;
      result.push_back(lanes ? vector(index, half) : scalar(index));
    }
    return result;
  }

  // A value that depends on earlier ones; `get` returns these, as wide as the value.
  MlirValue compose(const Value& value, const EmitPosition& at, llvm::function_ref<MlirValue(uint32_t)> get) {
    switch (value.kind) {
      case Kind::kLoad: {
        MlirValues places;
        for (const uint32_t index : value.indices) {
          places.push_back(plan_.scopes[index] == Scope::kVector ? get(index) : scalar(index));
        }
        return memory_.load(value.operand, places, at);
      }
      case Kind::kRandom:
        return ops_.random(get(value.a), get(value.b), get(value.c));
      default:
        return ops_.computed(kernel_.values, value, get);
    }
  }

  // -- Lines of memory ------------------------------------------------------------------------------------------------

  uint32_t total_operand(uint32_t total) const { return kernel_.values[schedule_.totals[total]].a; }

  MlirValue kept_pointer(uint32_t value, const EmitPosition& at) {
    MlirValue index = line_index(at, kernel_.columns == 1 || varies_over(value, kernel_.rows));
    return b_.at(memory_.row_buffer(plan_.spill_index[value]), ops_.memory_type(type(value)), index);
  }

  // The address of a total's element in the first chunk's line.
  MlirValue total_pointer(uint32_t total, const EmitPosition& at) {
    const uint32_t value = schedule_.totals[total];
    MlirValue index;
    if (at.column) {
      index = line_index(at, kernel_.columns == 1 || varies_over(value, kernel_.rows));
    } else if (at.outer) {
      index = at.outer;
    }
    MlirValue line = memory_.total(total);
    return index ? b_.at(line, ops_.memory_type(type(value)), index) : line;
  }

  void add_to_total(uint32_t total, MlirValue x, const EmitPosition& at) {
    const uint32_t number = schedule_.totals[total];
    const Value& value = kernel_.values[number];
    const EmitPosition to = {at.outer, at.column, first_place_mask(number, at)};
    MlirValue pointer = total_pointer(total, to);
    MlirValue before = memory_.load_line(pointer, value.type, to);
    memory_.store_line(reductions_.combine(value, value.type, before, x)[0], pointer, value.type, to);
  }

  // A value that does not vary over the outer column dim is added only at the first position of that dim.
  MlirValue first_place_mask(uint32_t total, const EmitPosition& at) {
    if (!at.outer || !at.column || varies_over(total, kernel_.rows)) return at.mask;
    MlirValue first = b_.splat(b_.is_zero(at.outer));
    return at.mask ? b_.bit_and(at.mask, first) : first;
  }

  // In `finish`: combines the lines of all chunks, in order.
  MlirValue total_of_chunks(uint32_t number, const EmitPosition& at) {
    const Value& value = kernel_.values[number];
    const auto total = static_cast<uint32_t>(std::find(schedule_.totals.begin(), schedule_.totals.end(), number) -
                                             schedule_.totals.begin());
    mlir::Type type = ops_.type(value.type);
    if (at.column) type = vector_of(type);
    MlirValue first = total_pointer(total, at), start = reductions_.neutral(value.reduction, value.type, type);
    return b_.loop(b_.i64(0), entry_->getArgument(1), 1, start, [&](MlirValue chunk, mlir::ValueRange before) {
      MlirValue offset = b_.mul(chunk, memory_.chunk_bytes(total));
      MlirValue line = memory_.load_line(b_.at(first, b_.getI8Type(), offset), value.type, at);
      return reductions_.combine(value, value.type, before, line);
    })[0];
  }

  void store(const Store& store, const EmitPosition& at, int64_t half = 0) {
    MlirValue value = at.column ? vector(store.value, half) : scalar(store.value);
    memory_.store(store, value, indices(store.indices, at, half), at);
  }

  LlvmBuilder& b_;
  Ops ops_;
  Reductions reductions_;
  const Variant variant_;
  Memory memory_;
  const Kernel& kernel_;
  const Schedule& schedule_;
  const Plan& plan_;
  mlir::Block* entry_;
  MlirValue row_, outer_;
  uint32_t ahead_ = kNone;                          // the loop that prefetches
  std::vector<uint32_t> reads_next_, writes_next_;  // operands that it prefetches
  std::vector<MlirValue> scalars_;                  // for each value: its scalar at the current position, if it has one
  // For running sums: the result of previous blocks, which LLVM keeps in a register.
  std::map<uint32_t, MlirValue> slots_;
  std::map<std::pair<Reduction, DType>, MlirValue> identity_vectors_;
  std::map<uint32_t, MlirValue> words_;      // for random values: the words of the second vector
  std::vector<MlirValue> vectors_[kHalves];  // for each value: its vectors at the current positions
};

void emit_function(LlvmBuilder& builder, std::string_view name, const Kernel& kernel, const Schedule& schedule,
                   const Plan& plan, const Features& features, const Variant& variant) {
  const mlir::Type pointer = ll::LLVMPointerType::get(builder.getContext()), i64 = builder.getI64Type();
  llvm::SmallVector<mlir::Type, 3> arguments{pointer, i64};
  if (!plan.finish) arguments.push_back(i64);
  const auto type = ll::LLVMFunctionType::get(ll::LLVMVoidType::get(builder.getContext()), arguments);
  auto function = builder.create<ll::LLVMFuncOp>(llvm::StringRef(name.data(), name.size()), type);
  mlir::OpBuilder::InsertionGuard guard(builder);
  mlir::Block* entry = function.addEntryBlock(builder);
  mlir::Block* start = builder.createBlock(&function.getBody(), function.getBody().end());
  FunctionEmitter(builder, kernel, schedule, plan, entry, features, variant).run();
  builder.create<ll::ReturnOp>(mlir::ValueRange());
  builder.setInsertionPointToEnd(entry);
  builder.create<ll::BrOp>(start);
}

}  // namespace

mlir::OwningOpRef<mlir::ModuleOp> emit(const Kernel& kernel, const Features& features, const Variant& variant,
                                       mlir::MLIRContext& context) {
  LlvmBuilder builder(mlir::UnknownLoc::get(&context), &context);
  mlir::OwningOpRef<mlir::ModuleOp> module = builder.create<mlir::ModuleOp>();
  builder.setInsertionPointToEnd(module->getBody());
  const Schedule schedule = codegen::schedule(kernel);
  emit_function(builder, kRowsName, kernel, schedule, plan_rows(kernel, schedule), features, variant);
  const Plan finish = plan_finish(kernel, schedule);
  if (!finish.empty()) emit_function(builder, kFinishName, kernel, schedule, finish, features, variant);
  return module;
}

}  // namespace torch_remote::codegen::cpu

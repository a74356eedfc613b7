#include "codegen/gpu/row_reducer.h"

#include <algorithm>
#include <limits>

#include "codegen/loop/facts.h"

namespace torch_remote::codegen::gpu {

using ir::DType;
namespace ll = mlir::LLVM;

namespace {

constexpr uint32_t kWarps = kTeamThreads / kWarp;  // most warps of a team
constexpr int64_t kNoPlace =
    std::numeric_limits<int64_t>::max();  // argmax: no element was better than the initial value

}  // namespace

// -- Within a thread --------------------------------------------------------------------------------------------------

Partial RowReducer::begin(const Value& reduce, uint32_t lanes) {
  const DType dtype = is_wide_sum(kernel_, reduce) ? reduce.type : kernel_.values[reduce.a].type;
  MlirValues first{reductions_.neutral(reduce.reduction, dtype, ops_.type(dtype))};
  if (is_arg(reduce)) first.push_back(b_.i64(kNoPlace));
  return {&reduce, dtype, std::vector<MlirValues>(lanes, first)};
}

void RowReducer::accumulate(Partial& partial, uint32_t lane, MlirValue x, MlirValue place, MlirValue valid) {
  if (is_wide_sum(kernel_, *partial.reduce)) x = ops_.convert(x, kernel_.values[partial.reduce->a].type, partial.dtype);
  partial.lanes[lane] = reductions_.accumulate(*partial.reduce, partial.dtype, partial.lanes[lane], x, place, valid);
}

void RowReducer::combine(Partial& partial, const Partial& later) {
  for (size_t lane = 0; lane < partial.lanes.size(); ++lane) {
    partial.lanes[lane] = reductions_.combine(*partial.reduce, partial.dtype, partial.lanes[lane], later.lanes[lane]);
  }
}

void RowReducer::fold_lanes(Partial& partial) {
  for (size_t half = partial.lanes.size() / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) {
      partial.lanes[lane] =
          reductions_.combine(*partial.reduce, partial.dtype, partial.lanes[lane], partial.lanes[lane + half]);
    }
  }
  partial.lanes.resize(1);
}

MlirValue RowReducer::neutral(const Value& reduce) {
  return reductions_.neutral(reduce.reduction, reduce.type, ops_.type(reduce.type));
}

MlirValue RowReducer::combine(const Value& reduce, MlirValue x, MlirValue y) {
  return reductions_.combine(reduce, reduce.type, x, y)[0];
}

// -- Warps ------------------------------------------------------------------------------------------------------------

bool RowReducer::is_order_sensitive(const Partial& partial) {
  const Reduction reduction = partial.reduce->reduction;
  return ir::is_float(partial.dtype) && (reduction == Reduction::kMax || reduction == Reduction::kMin);
}

DType RowReducer::part_type(const Partial& partial, size_t part) const {
  return part == 0 ? partial.dtype : DType::kInt64;
}

// Reduces over the first `threads` lanes of a warp. The other lanes have copies of these, or are ignored. All lanes get
// the result.
void RowReducer::fold_warp(Partial& partial, uint32_t threads) {
  MlirValues& mine = partial.lanes[0];
  const bool sides = is_order_sensitive(partial);
  for (uint32_t distance = threads / 2; distance > 0; distance /= 2) {
    MlirValues other;
    for (MlirValue part : mine) {
      other.push_back(sides ? ops_.shuffle_down(part, distance) : ops_.shuffle_xor(part, distance));
    }
    mine = reductions_.combine(*partial.reduce, partial.dtype, mine, other);
  }
  if (!sides) return;
  for (MlirValue& part : mine) part = ops_.broadcast_first(part);
}

MlirValue RowReducer::place(uint32_t first, MlirValue offset) {
  const auto pointer = ll::LLVMPointerType::get(b_.getContext(), kSharedSpace);
  MlirValue base = b_.create<ll::AddressOfOp>(pointer, shared_->name);
  return b_.at(base, b_.getI64Type(), b_.add(b_.i64(first), offset));
}

// -- Blocks -----------------------------------------------------------------------------------------------------------

void RowReducer::barrier() {
  MlirValue several = b_.less_than(b_.i64(kWarp), ops_.threads_x());
  b_.branch(
      several,
      [&] {
        ops_.barrier();
        return MlirValues();
      },
      [&] {
        ops_.warp_barrier();
        return MlirValues();
      },
      {}, false);
}

// Each warp writes its results to shared memory, and then reads the results of all warps.
MlirValues RowReducer::several_warps(std::vector<Partial>& partials) {
  MlirValue thread = ops_.thread_x();
  MlirValue lane = b_.bit_and(thread, b_.i64(kWarp - 1));
  MlirValue warp = b_.divide(thread, b_.i64(kWarp));
  uint32_t parts = 0;
  for (const Partial& partial : partials) parts += static_cast<uint32_t>(partial.lanes[0].size());
  const uint32_t first = shared_->places;
  shared_->places += parts * kWarps;
  b_.if_then(b_.is_zero(lane), false, [&] {
    uint32_t at = first;
    for (const Partial& partial : partials) {
      for (size_t part = 0; part < partial.lanes[0].size(); ++part, at += kWarps) {
        ops_.store(ops_.to_memory(partial.lanes[0][part], part_type(partial, part)), place(at, warp),
                   part_type(partial, part));
      }
    }
  });
  ops_.barrier();
  MlirValue other = b_.bit_and(lane, b_.i64(kWarps - 1));
  MlirValue is_there = b_.less_than(other, b_.divide(ops_.threads_x(), b_.i64(kWarp)));
  uint32_t at = first;
  MlirValues results;
  for (Partial& partial : partials) {
    const MlirValues none = begin(*partial.reduce, 1).lanes[0];
    partial.lanes[0] = b_.if_then_else(is_there, none, [&] {
      MlirValues loaded;
      for (size_t part = 0; part < none.size(); ++part, at += kWarps) {
        const DType dtype = part_type(partial, part);
        loaded.push_back(ops_.from_memory(ops_.load(ops_.memory_type(dtype), place(at, other), dtype), dtype));
      }
      return loaded;
    });
    fold_warp(partial, kWarps);
    results.append(partial.lanes[0]);
  }
  return results;
}

std::vector<MlirValue> RowReducer::reduce(std::vector<Partial>& partials) {
  MlirValues one_warp;
  for (Partial& partial : partials) {
    fold_lanes(partial);
    fold_warp(partial, kWarp);
    one_warp.append(partial.lanes[0]);
  }
  MlirValue several = b_.less_than(b_.i64(kWarp), ops_.threads_x());
  const MlirValues all = b_.if_then_else(several, one_warp, [&] { return several_warps(partials); });
  std::vector<MlirValue> results;
  size_t next = 0;
  for (const Partial& partial : partials) {
    next += partial.lanes[0].size();
    MlirValue result = all[next - 1];
    if (is_arg(*partial.reduce)) {
      MlirValue none = ops_.equal(result, b_.i64(kNoPlace));
      result = b_.select(none, b_.i64(0), result);
    }
    results.push_back(result);
  }
  return results;
}

MlirValue RowReducer::fold(const Value& reduce, MlirValue x, uint32_t columns, uint32_t folds) {
  MlirValue column = ops_.thread_x(), row = ops_.thread_y();
  shared_->places = std::max(shared_->places, columns * folds);
  const auto at = [&](MlirValue y) { return place(0, b_.add(b_.mul(y, b_.i64(columns)), column)); };
  const auto load = [&](MlirValue y) {
    return ops_.from_memory(ops_.load(ops_.memory_type(reduce.type), at(y), reduce.type), reduce.type);
  };
  const auto store = [&](MlirValue value) { ops_.store(ops_.to_memory(value, reduce.type), at(row), reduce.type); };
  store(x);
  for (uint32_t half = folds / 2; half > 0; half /= 2) {
    ops_.barrier();
    b_.if_then(b_.less_than(row, b_.i64(half)), false,
               [&] { store(combine(reduce, load(row), load(b_.add(row, b_.i64(half))))); });
  }
  ops_.barrier();
  MlirValue result = load(b_.i64(0));
  ops_.barrier();  // the memory is reused
  return result;
}

}  // namespace torch_remote::codegen::gpu

#include "codegen/gpu/team.h"

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

Partial Team::begin(const Value& reduce, uint32_t lanes) {
  const DType dtype = is_wide_sum(kernel_, reduce) ? reduce.type : kernel_.values[reduce.a].type;
  MlirValues first{reductions_.neutral(reduce.reduction, dtype, machine_.type(dtype))};
  if (is_arg(reduce)) first.push_back(machine_.i64(kNoPlace));
  return {&reduce, dtype, std::vector<MlirValues>(lanes, first)};
}

void Team::accumulate(Partial& partial, uint32_t lane, MlirValue x, MlirValue place, MlirValue valid) {
  if (is_wide_sum(kernel_, *partial.reduce))
    x = machine_.convert(x, kernel_.values[partial.reduce->a].type, partial.dtype);
  partial.lanes[lane] = reductions_.accumulate(*partial.reduce, partial.dtype, partial.lanes[lane], x, place, valid);
}

void Team::combine(Partial& partial, const Partial& later) {
  for (size_t lane = 0; lane < partial.lanes.size(); ++lane) {
    partial.lanes[lane] = reductions_.combine(*partial.reduce, partial.dtype, partial.lanes[lane], later.lanes[lane]);
  }
}

void Team::fold_lanes(Partial& partial) {
  for (size_t half = partial.lanes.size() / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) {
      partial.lanes[lane] =
          reductions_.combine(*partial.reduce, partial.dtype, partial.lanes[lane], partial.lanes[lane + half]);
    }
  }
  partial.lanes.resize(1);
}

MlirValue Team::neutral(const Value& reduce) {
  return reductions_.neutral(reduce.reduction, reduce.type, machine_.type(reduce.type));
}

MlirValue Team::combine(const Value& reduce, MlirValue x, MlirValue y) {
  return reductions_.combine(reduce, reduce.type, x, y)[0];
}

// -- Warps ------------------------------------------------------------------------------------------------------------

bool Team::has_sides(const Partial& partial) {
  const Reduction reduction = partial.reduce->reduction;
  return ir::is_float(partial.dtype) && (reduction == Reduction::kMax || reduction == Reduction::kMin);
}

DType Team::part_type(const Partial& partial, size_t part) const { return part == 0 ? partial.dtype : DType::kInt64; }

// Reduces over the first `threads` lanes of a warp. The other lanes have copies of these, or are ignored. All lanes get
// the result.
void Team::fold_warp(Partial& partial, uint32_t threads) {
  MlirValues& mine = partial.lanes[0];
  const bool sides = has_sides(partial);
  for (uint32_t distance = threads / 2; distance > 0; distance /= 2) {
    MlirValues other;
    for (MlirValue part : mine) {
      other.push_back(sides ? machine_.from_above(part, distance) : machine_.from_across(part, distance));
    }
    mine = reductions_.combine(*partial.reduce, partial.dtype, mine, other);
  }
  if (!sides) return;
  for (MlirValue& part : mine) part = machine_.from_first(part);
}

MlirValue Team::place(uint32_t first, MlirValue offset) {
  const auto pointer = ll::LLVMPointerType::get(machine_.b.getContext(), kSharedSpace);
  MlirValue base = machine_.b.create<ll::AddressOfOp>(pointer, shared_->name);
  return machine_.at(base, machine_.b.getI64Type(), machine_.add(machine_.i64(first), offset));
}

// -- Blocks -----------------------------------------------------------------------------------------------------------

void Team::barrier() {
  MlirValue several = machine_.less_than(machine_.i64(kWarp), machine_.threads_x());
  machine_.branch(
      several,
      [&] {
        machine_.barrier();
        return MlirValues();
      },
      [&] {
        machine_.warp_barrier();
        return MlirValues();
      },
      {}, false);
}

// Each warp writes its results to shared memory, and then reads the results of all warps.
MlirValues Team::several_warps(std::vector<Partial>& partials) {
  MlirValue thread = machine_.thread_x();
  MlirValue lane = machine_.bit_and(thread, machine_.i64(kWarp - 1));
  MlirValue warp = machine_.divide(thread, machine_.i64(kWarp));
  uint32_t parts = 0;
  for (const Partial& partial : partials) parts += static_cast<uint32_t>(partial.lanes[0].size());
  const uint32_t first = shared_->places;
  shared_->places += parts * kWarps;
  machine_.if_then(machine_.is_zero(lane), false, [&] {
    uint32_t at = first;
    for (const Partial& partial : partials) {
      for (size_t part = 0; part < partial.lanes[0].size(); ++part, at += kWarps) {
        machine_.store(machine_.to_memory(partial.lanes[0][part], part_type(partial, part)), place(at, warp),
                       part_type(partial, part));
      }
    }
  });
  machine_.barrier();
  MlirValue other = machine_.bit_and(lane, machine_.i64(kWarps - 1));
  MlirValue is_there = machine_.less_than(other, machine_.divide(machine_.threads_x(), machine_.i64(kWarp)));
  uint32_t at = first;
  MlirValues results;
  for (Partial& partial : partials) {
    const MlirValues none = begin(*partial.reduce, 1).lanes[0];
    partial.lanes[0] = machine_.only_if_gives(is_there, none, [&] {
      MlirValues loaded;
      for (size_t part = 0; part < none.size(); ++part, at += kWarps) {
        const DType dtype = part_type(partial, part);
        loaded.push_back(
            machine_.from_memory(machine_.load(machine_.memory_type(dtype), place(at, other), dtype), dtype));
      }
      return loaded;
    });
    fold_warp(partial, kWarps);
    results.append(partial.lanes[0]);
  }
  return results;
}

std::vector<MlirValue> Team::reduce(std::vector<Partial>& partials) {
  MlirValues one_warp;
  for (Partial& partial : partials) {
    fold_lanes(partial);
    fold_warp(partial, kWarp);
    one_warp.append(partial.lanes[0]);
  }
  MlirValue several = machine_.less_than(machine_.i64(kWarp), machine_.threads_x());
  const MlirValues all = machine_.only_if_gives(several, one_warp, [&] { return several_warps(partials); });
  std::vector<MlirValue> results;
  size_t next = 0;
  for (const Partial& partial : partials) {
    next += partial.lanes[0].size();
    MlirValue result = all[next - 1];
    if (is_arg(*partial.reduce)) {
      MlirValue none = machine_.equal(result, machine_.i64(kNoPlace));
      result = machine_.select(none, machine_.i64(0), result);
    }
    results.push_back(result);
  }
  return results;
}

MlirValue Team::fold(const Value& reduce, MlirValue x, uint32_t columns, uint32_t folds) {
  MlirValue column = machine_.thread_x(), row = machine_.thread_y();
  shared_->places = std::max(shared_->places, columns * folds);
  const auto at = [&](MlirValue y) { return place(0, machine_.add(machine_.mul(y, machine_.i64(columns)), column)); };
  const auto load = [&](MlirValue y) {
    return machine_.from_memory(machine_.load(machine_.memory_type(reduce.type), at(y), reduce.type), reduce.type);
  };
  const auto store = [&](MlirValue value) {
    machine_.store(machine_.to_memory(value, reduce.type), at(row), reduce.type);
  };
  store(x);
  for (uint32_t half = folds / 2; half > 0; half /= 2) {
    machine_.barrier();
    machine_.if_then(machine_.less_than(row, machine_.i64(half)), false,
                     [&] { store(combine(reduce, load(row), load(machine_.add(row, machine_.i64(half))))); });
  }
  machine_.barrier();
  MlirValue result = load(machine_.i64(0));
  machine_.barrier();  // the memory is reused
  return result;
}

}  // namespace torch_remote::codegen::gpu

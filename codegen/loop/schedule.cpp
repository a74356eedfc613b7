#include <algorithm>

#include "codegen/loop/facts.h"
#include "codegen/loop/loop_ir.h"

// Determines phases, and the values that are kept between them. docs/loop_ir.md has the rules.
namespace torch_remote::codegen {
namespace {

using ir::ScalarOp;

// A value that costs more than this is kept instead of recomputed. The unit is about one addition. A kept value is
// stored once, and loaded from a cache in each later loop.
constexpr uint32_t kRecomputeCostLimit = 8;
constexpr uint32_t kCostly = 16;  // a division, a root, a function, a random number
constexpr uint32_t kGather = 4;

uint32_t cost(ScalarOp op) {
  switch (op) {
    case ScalarOp::kNeg:
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
    case ScalarOp::kMul:
    case ScalarOp::kEq:
    case ScalarOp::kNe:
    case ScalarOp::kLt:
    case ScalarOp::kLe:
    case ScalarOp::kGt:
    case ScalarOp::kGe:
    case ScalarOp::kAbs:
    case ScalarOp::kBitAnd:
    case ScalarOp::kBitNot:
    case ScalarOp::kBitOr:
    case ScalarOp::kBitXor:
    case ScalarOp::kCeil:
    case ScalarOp::kCopysign:
    case ScalarOp::kFloor:
    case ScalarOp::kFmax:
    case ScalarOp::kFmin:
    case ScalarOp::kIsInf:
    case ScalarOp::kIsNan:
    case ScalarOp::kLogicalAnd:
    case ScalarOp::kLogicalNot:
    case ScalarOp::kLogicalOr:
    case ScalarOp::kLogicalXor:
    case ScalarOp::kMax:
    case ScalarOp::kMin:
    case ScalarOp::kRound:
    case ScalarOp::kShiftLeft:
    case ScalarOp::kShiftRight:
    case ScalarOp::kSign:
    case ScalarOp::kTrunc:
    case ScalarOp::kWhere:
      return 1;
    default:
      return kCostly;
  }
}

class Scheduler {
 public:
  explicit Scheduler(const Kernel& kernel)
      : kernel_(kernel), facts_(facts(kernel)), uses_(uses(kernel, facts_)), kept_(kernel.values.size()) {}

  Schedule run() {
    places();
    phases();
    keep();
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      if (kept_[i]) result_.spilled.push_back(i);
      if (is_total(i) && uses_.finish[i]) result_.totals.push_back(i);
    }
    return std::move(result_);
  }

 private:
  // The first and the last loop of a row that need a value.
  struct Loops {
    uint32_t first = kNone;
    uint32_t last = 0;
    bool any() const { return first != kNone; }
    bool several() const { return any() && first != last; }
    void add(uint32_t loop) {
      first = std::min(first, loop);
      last = std::max(last, loop);
    }
  };

  bool is_reduction(uint32_t value, Over over) const {
    return kernel_.values[value].kind == Kind::kReduce && kernel_.values[value].over == over;
  }
  bool is_total(uint32_t value) const { return codegen::is_total(kernel_.values[value]); }
  bool over_columns(uint32_t value) const { return (facts_[value].dims & kernel_.column_dims()) != 0; }
  uint32_t phase(uint32_t value) const { return result_.values[value].phase; }

  void places() {
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      ValueSchedule place{.dims = facts_[i].dims, .finish = facts_[i].finish};
      if (!place.finish || is_total(i)) {
        for (const uint32_t input : inputs(kernel_.values[i])) place.phase = std::max(place.phase, phase(input));
      }
      if (is_reduction(i, Over::kColumns)) ++place.phase;
      result_.values.push_back(place);
    }
  }

  void phases() {
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      if (uses_.rows[i] && is_reduction(i, Over::kColumns)) result_.phases = std::max(result_.phases, phase(i));
      if (uses_.finish[i] && is_total(i) && over_columns(i)) result_.phases = std::max(result_.phases, phase(i) + 1);
    }
    for (const Store& store : kernel_.stores) {
      const StoreFacts at = facts(kernel_, store, facts_);
      if (at.finish || (at.dims & kernel_.column_dims()) == 0) continue;
      uint32_t last = phase(store.value);
      for (const uint32_t index : store.indices) last = std::max(last, phase(index));
      result_.phases = std::max(result_.phases, last + 1);
    }
  }

  // Stores and reductions need values in their loop. A value that is not kept needs its inputs in each loop that needs
  // it.
  std::vector<Loops> initial_uses() const {
    std::vector<Loops> wanted(kernel_.values.size());
    for (const Store& store : kernel_.stores) {
      const StoreFacts at = facts(kernel_, store, facts_);
      if (at.finish || (at.dims & kernel_.column_dims()) == 0) continue;
      wanted[store.value].add(result_.phases - 1);
      for (const uint32_t index : store.indices) wanted[index].add(result_.phases - 1);
    }
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      const bool reduces = is_reduction(i, Over::kColumns) ? uses_.rows[i] : is_total(i) && uses_.finish[i];
      if (reduces) wanted[kernel_.values[i].a].add(phase(kernel_.values[i].a));
    }
    return wanted;
  }

  void keep() {
    std::vector<Loops> wanted = initial_uses();
    // We go from the results back. A value that several loops need is kept, and then needs its inputs only once.
    for (uint32_t i = static_cast<uint32_t>(kernel_.values.size()); i-- > 0;) {
      if (!over_columns(i) || facts_[i].finish || !wanted[i].any()) continue;
      kept_[i] = wanted[i].several() && !is_widening(kernel_.values[i]);
      for (const uint32_t input : inputs(kernel_.values[i])) {
        wanted[input].add(wanted[i].first);
        if (!kept_[i]) wanted[input].add(wanted[i].last);
      }
    }
    // Values that are cheap to recompute from what is kept of their inputs are not kept.
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) kept_[i] = kept_[i] && cost_of(i) > kRecomputeCostLimit;
  }

  // Whether it is a conversion whose operand takes less memory.
  bool is_widening(const Value& value) const {
    return value.kind == Kind::kConvert && ir::item_size(value.type) > ir::item_size(kernel_.values[value.a].type);
  }

  // The cost of computing a value from what is loaded or kept. Values that are used twice count once.
  uint32_t cost_of(uint32_t value) const {
    std::vector<bool> needed(value + 1);
    needed[value] = true;
    uint32_t sum = 0;
    for (uint32_t i = value + 1; i-- > 0;) {
      if (!needed[i] || !over_columns(i)) continue;
      if (i != value && kept_[i]) {
        sum += 1;
        continue;
      }
      sum += own_cost(kernel_.values[i]);
      for (const uint32_t input : inputs(kernel_.values[i])) needed[input] = true;
    }
    return sum;
  }

  uint32_t own_cost(const Value& value) const {
    switch (value.kind) {
      case Kind::kConstant:
      case Kind::kScalar:
      case Kind::kIndex:
      case Kind::kReduce:
        return 0;
      case Kind::kLoad: {
        bool gathers = kernel_.operands[value.operand].strided;
        for (const uint32_t index : value.indices) gathers |= over_columns(index);
        return gathers ? kGather : 1;
      }
      case Kind::kConvert:
      case Kind::kBits:
      case Kind::kFma:
      case Kind::kLdexp:
        return 1;
      case Kind::kScalarOp:
        return cost(value.op);
      case Kind::kRandom:
      case Kind::kRunning:
        return kCostly;
    }
    return 0;
  }

  const Kernel& kernel_;
  const std::vector<Facts> facts_;
  const UsedValues uses_;
  std::vector<bool> kept_;
  Schedule result_;
};

}  // namespace

Schedule schedule(const Kernel& kernel) { return Scheduler(kernel).run(); }

}  // namespace torch_remote::codegen

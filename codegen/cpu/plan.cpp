#include "codegen/cpu/plan.h"

#include <algorithm>
#include <utility>

#include "codegen/loop/facts.h"

namespace torch_remote::codegen::cpu {
namespace {

class Planner {
 public:
  Planner(const Kernel& kernel, const Schedule& schedule, bool finish) : kernel_(kernel), schedule_(schedule) {
    plan_.finish = finish;
  }

  Plan run() {
    find_scopes();
    collect_sinks();
    place_values();
    plan_.loops.resize(loops_);
    for (uint32_t loop = 0; loop < loops_; ++loop) fill(loop);
    return std::move(plan_);
  }

 private:
  bool is_total(uint32_t value) const { return codegen::is_total(kernel_.values[value]); }
  bool is_of_lines(uint32_t value) const { return is_total(value) && kernel_.values[value].over == Over::kLines; }
  bool is_column_reduction(uint32_t value) const {
    return kernel_.values[value].kind == Kind::kReduce && kernel_.values[value].over == Over::kColumns;
  }
  DimSet dims(uint32_t value) const { return schedule_.values[value].dims; }

  void find_scopes() {
    const size_t count = kernel_.values.size();
    plan_.levels.assign(count, 0);
    plan_.spill_index.assign(count, kNone);
    plan_.spill_loop.assign(count, kNone);
    for (uint32_t v = 0; v < count; ++v) {
      bool once = (dims(v) & kernel_.row_dims()) == 0 && kernel_.values[v].kind != Kind::kReduce;
      if (!is_total(v)) {
        for (const uint32_t input : inputs(kernel_.values[v])) {
          plan_.levels[v] = std::max(plan_.levels[v], plan_.levels[input]);
          once &= plan_.scopes[input] == Scope::kFunction;
        }
        if (is_column_reduction(v)) ++plan_.levels[v];
      }
      plan_.scopes.push_back((dims(v) & kernel_.last_column()) != 0   ? Scope::kVector
                             : (dims(v) & kernel_.column_dims()) != 0 ? Scope::kOuter
                             : once                                   ? Scope::kFunction
                                                                      : Scope::kRow);
    }
    if (plan_.finish) return;
    for (uint32_t k = 0; k < schedule_.spilled.size(); ++k) {
      // A value that varies over the outer dim only costs one computation per line, so it is recomputed instead.
      if (plan_.scopes[schedule_.spilled[k]] == Scope::kVector) plan_.spill_index[schedule_.spilled[k]] = k;
    }
  }

  // Finds the stores and totals that the function computes, and all values that these need.
  void collect_sinks() {
    needed_.assign(kernel_.values.size(), false);
    for (uint32_t s = 0; s < kernel_.stores.size(); ++s) {
      const Store& store = kernel_.stores[s];
      const StoreFacts at = facts(kernel_, store, facts_);
      if (at.finish != plan_.finish) continue;
      ((at.dims & kernel_.column_dims()) != 0 ? column_stores_ : plan_.stores).push_back(s);
      need(store.value);
      for (const uint32_t index : store.indices) need(index);
    }
    if (!plan_.finish) {
      for (uint32_t t = 0; t < schedule_.totals.size(); ++t) {
        const uint32_t v = kernel_.values[schedule_.totals[t]].a;
        need(v);
        if (is_of_lines(schedule_.totals[t])) {
          loops_ = std::max(loops_, plan_.levels[v] + 1);
        } else if (plan_.scopes[v] < Scope::kOuter) {
          plan_.totals.push_back(t);
        }
      }
    }
    for (const uint32_t s : column_stores_) {
      loops_ = std::max(loops_, plan_.levels[kernel_.stores[s].value] + 1);
      for (const uint32_t index : kernel_.stores[s].indices) loops_ = std::max(loops_, plan_.levels[index] + 1);
    }
    for (uint32_t v = 0; v < kernel_.values.size(); ++v) {
      if (!needed_[v]) continue;
      if (is_column_reduction(v)) loops_ = std::max(loops_, plan_.levels[v]);
      if (plan_.scopes[v] >= Scope::kOuter) loops_ = std::max(loops_, plan_.levels[v] + 1);
    }
  }

  void need(uint32_t value) {
    if (needed_[value]) return;
    needed_[value] = true;
    if (is_total(value)) return;
    for (const uint32_t input : inputs(kernel_.values[value])) need(input);
  }

  void place_values() {
    plan_.values.resize(loops_ + 1);
    for (uint32_t v = 0; v < kernel_.values.size(); ++v) {
      if (!needed_[v] || plan_.scopes[v] >= Scope::kOuter) continue;
      (plan_.scopes[v] == Scope::kFunction ? plan_.before : plan_.values[plan_.levels[v]]).push_back(v);
    }
  }

  void fill(uint32_t number) {
    LoopPlan& loop = plan_.loops[number];
    loop.number = number;
    wanted_.assign(kernel_.values.size(), false);
    for (uint32_t v = 0; v < kernel_.values.size(); ++v) {
      if (!needed_[v] || !is_column_reduction(v) || plan_.levels[v] != number + 1) continue;
      loop.reduces.push_back(v);
      want(kernel_.values[v].a, number);
    }
    for (uint32_t t = 0; t < schedule_.totals.size() && !plan_.finish; ++t) {
      const uint32_t v = kernel_.values[schedule_.totals[t]].a;
      const bool of_lines = is_of_lines(schedule_.totals[t]);
      if ((plan_.scopes[v] < Scope::kOuter && !of_lines) || plan_.levels[v] != number) continue;
      (of_lines ? loop.lines : loop.totals).push_back(t);
      want(v, number);
    }
    if (number + 1 == loops_) {
      for (const uint32_t s : column_stores_) {
        const bool by_line = (facts(kernel_, kernel_.stores[s], facts_).dims & kernel_.last_column()) == 0;
        (by_line ? loop.outer_stores : loop.stores).push_back(s);
        want(kernel_.stores[s].value, number);
        for (const uint32_t index : kernel_.stores[s].indices) want(index, number);
      }
    }
    for (uint32_t v = 0; v < kernel_.values.size(); ++v) {
      if (!wanted_[v]) continue;
      if (plan_.scopes[v] == Scope::kVector) loop.vectors.push_back(v);
      if (plan_.scopes[v] == Scope::kOuter) loop.outers.push_back(v);
    }
    loop.condition = condition_of(loop);
  }

  // See LoopPlan::condition.
  uint32_t condition_of(const LoopPlan& loop) const {
    const bool only_reduces = loop.spills.empty() && loop.totals.empty() && loop.lines.empty() && loop.stores.empty() &&
                              loop.outer_stores.empty();
    if (!only_reduces) return kNone;
    uint32_t found = kNone;
    for (const uint32_t reduce : loop.reduces) {
      const uint32_t condition = condition_of_sum(kernel_, facts_, reduce);
      if (condition == kNone || (found != kNone && found != condition)) return kNone;
      found = condition;
    }
    return found;
  }

  void want(uint32_t value, uint32_t number) {
    if (wanted_[value] || plan_.scopes[value] < Scope::kOuter) return;
    wanted_[value] = true;
    if (plan_.spill_loop[value] < number || is_total(value)) return;
    if (plan_.spill_index[value] != kNone) {
      plan_.spill_loop[value] = number;
      plan_.loops[number].spills.push_back(plan_.spill_index[value]);
    }
    for (const uint32_t input : inputs(kernel_.values[value])) want(input, number);
  }

  const Kernel& kernel_;
  const Schedule& schedule_;
  const std::vector<Facts> facts_ = facts(kernel_);
  Plan plan_;
  uint32_t loops_ = 0;
  std::vector<uint32_t> column_stores_;
  std::vector<bool> needed_, wanted_;
};

}  // namespace

Plan plan_rows(const Kernel& kernel, const Schedule& schedule) { return Planner(kernel, schedule, false).run(); }

Plan plan_finish(const Kernel& kernel, const Schedule& schedule) { return Planner(kernel, schedule, true).run(); }

}  // namespace torch_remote::codegen::cpu

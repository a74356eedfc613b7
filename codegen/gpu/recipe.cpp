#include "codegen/gpu/recipe.h"

#include <algorithm>
#include <string>

#include "codegen/loop/facts.h"
#include "codegen/loop/scalar_ops.h"

namespace torch_remote::codegen::gpu {
namespace {

constexpr uint32_t kAccess = 16;        // bytes per load of a thread
constexpr uint32_t kMaxVector = 8;      // elements
constexpr size_t kMaxParameters = 512;  // of 8 bytes; all drivers accept this many
constexpr uint32_t kMaxLanes = 24;      // most registers for the part of a row that a thread holds

// The elements of a row that a thread may hold, by the number of operations per element, all of which are unrolled.
struct Held {
  uint32_t elements, operations;
};
constexpr Held kHeldElements[] = {{16, 24}, {8, 80}, {4, 400}};

Schedule without_spills(Schedule schedule) {
  schedule.spilled.clear();
  return schedule;
}

class Chooser {
 public:
  Chooser(const Plans& plans, Recipe* recipe) : plans_(plans), kernel_(plans.kernel), recipe_(*recipe) {}

  void run() {
    recipe_ = {};
    recipe_.rows = kernel_.rows;
    recipe_.columns = kernel_.columns;
    recipe_.operands = kernel_.operands;
    const bool reduces = std::ranges::any_of(plans_.main.loops, [](const auto& loop) { return !loop.reduces.empty(); });
    // The threads of a team synchronize before one of them stores what all of them load.
    if (reduces || loads_what_it_stores(plans_.main)) recipe_.shape = Shape::kRows;
    choose_vector();
    if (recipe_.shape == Shape::kRows && kernel_.columns == 1) choose_slots();
    for (const uint32_t total : plans_.schedule.totals) {
      const ir::DType dtype = kernel_.values[total].type;
      recipe_.totals.push_back({ir::item_size(dtype), plans_.schedule.values[total].dims & kernel_.column_dims()});
    }
    if (!plans_.finish.empty()) {
      const bool columns = !plans_.finish.loops.empty();
      recipe_.finish_columns = columns ? kWarp : 1;
      recipe_.finish_in_one_block = columns && loads_what_it_stores(plans_.finish);
    }
    list_parameters();
  }

 private:
  // Whether a store outside of the columns may write what many threads load.
  bool loads_what_it_stores(const cpu::Plan& plan) const {
    return std::ranges::any_of(plan.stores, [&](uint32_t s) {
      const Operand& stored = kernel_.operands[kernel_.stores[s].operand];
      return std::ranges::any_of(kernel_.values, [&](const Value& value) {
        if (value.kind != Kind::kLoad) return false;
        const Operand& loaded = kernel_.operands[value.operand];
        return loaded.dtype == stored.dtype && loaded.dims == stored.dims;
      });
    });
  }

  bool is_vector(uint32_t value) const { return plans_.main.scopes[value] == cpu::Scope::kVector; }

  void choose_vector() {
    if (kernel_.columns == 0) return;
    uint32_t narrowest = 0;
    for (const Operand& operand : kernel_.operands) {
      if ((operand.dims >> (kernel_.dims() - 1) & 1) == 0 || operand.strided) continue;
      const uint32_t size = ir::item_size(operand.dtype);
      narrowest = narrowest == 0 ? size : std::min(narrowest, size);
    }
    if (narrowest == 0) return;
    uint32_t most = kMaxVector;
    for (const cpu::LoopPlan& loop : plans_.main.loops) {
      operations_ += static_cast<uint32_t>(loop.vectors.size());
      for (const uint32_t v : loop.vectors) {
        if (ir::item_size(kernel_.values[v].type) == 8) most = kMaxVector / 2;
      }
    }
    if (operations_ > 150) most = 4;
    if (operations_ > 600) most = 2;
    recipe_.vector = std::min(kAccess / narrowest, most);
  }

  // Registers per element for values that are held from one phase to a later one, or over all rows of a chunk.
  uint32_t held_registers() const {
    std::vector<uint32_t> first(kernel_.values.size(), kNone);
    std::vector<bool> held(kernel_.values.size());
    for (const cpu::LoopPlan& loop : plans_.main.loops) {
      const auto use = [&](uint32_t value) {
        if (is_vector(value) && first[value] < loop.number) held[value] = true;
      };
      for (const uint32_t v : loop.vectors) {
        if (first[v] != kNone) continue;
        first[v] = loop.number;
        for (const uint32_t input : inputs(kernel_.values[v])) use(input);
      }
      for (const uint32_t v : loop.reduces) use(kernel_.values[v].a);
      for (const uint32_t t : loop.totals) use(kernel_.values[plans_.schedule.totals[t]].a);
      for (const uint32_t s : loop.stores) use(kernel_.stores[s].value);
    }
    const auto registers = [&](uint32_t value) { return (ir::item_size(kernel_.values[value].type) + 3) / 4; };
    uint32_t count = 0;
    for (uint32_t v = 0; v < held.size(); ++v) {
      if (held[v]) count += registers(v);
    }
    for (const uint32_t total : plans_.schedule.totals) {
      if (is_vector(kernel_.values[total].a)) count += registers(total);
    }
    return std::max(count, 1u);
  }

  void choose_slots() {
    const uint32_t registers = held_registers();
    for (const auto& [elements, operations] : kHeldElements) {
      if (elements * registers > kMaxLanes || operations_ > operations) continue;
      recipe_.vector = std::min(recipe_.vector, elements);
      recipe_.slots = elements / recipe_.vector;
      return;
    }
  }

  void list_parameters() {
    const auto add = [&](ParameterKind kind, uint32_t a = 0, uint32_t b = 0) {
      recipe_.parameters.push_back({kind, a, b});
    };
    const auto count = static_cast<uint32_t>(kernel_.operands.size());
    uint32_t bounds = 0;
    for (uint32_t o = 0; o < count; ++o) add(ParameterKind::kData, o);
    for (uint32_t d = 0; d < kernel_.dims(); ++d) add(ParameterKind::kSize, d);
    for (uint32_t o = 0; o < count; ++o) {
      const Operand& operand = kernel_.operands[o];
      for (uint32_t d = 0; d < kernel_.dims(); ++d) {
        const bool unit = kernel_.columns != 0 && d + 1 == kernel_.dims() && !operand.strided;
        if ((operand.dims >> d & 1) != 0 && !unit) add(ParameterKind::kStride, o, d);
      }
      for (uint32_t i = 0; i < operand.indexed; ++i) {
        add(ParameterKind::kStride, o, kernel_.dims() + i);
        add(ParameterKind::kBound, bounds++);
      }
    }
    if (!kernel_.scalars.empty()) add(ParameterKind::kScalarsAddress);
    for (uint32_t s = 0; s < kernel_.scalars.size(); ++s) add(ParameterKind::kScalar, s);
    add(ParameterKind::kAligned);
    if (bounds != 0) add(ParameterKind::kFailure);
    for (uint32_t t = 0; t < recipe_.totals.size(); ++t) add(ParameterKind::kLines, t);
    if (recipe_.totals.empty()) return;
    add(ParameterKind::kChunk);
    add(ParameterKind::kChunks);
    add(ParameterKind::kFirstChunk);
  }

  const Plans& plans_;
  const Kernel& kernel_;
  Recipe& recipe_;
  uint32_t operations_ = 0;  // per element, of all phases
};

}  // namespace

Plans::Plans(const Kernel& expanded)
    : kernel(expanded),
      schedule(without_spills(codegen::schedule(expanded))),
      main(cpu::plan_rows(expanded, schedule)),
      finish(cpu::plan_finish(expanded, schedule)) {}

Status make_recipe(const Plans& plans, Recipe* recipe) {
  for (const Store& store : plans.kernel.stores) {
    if (store.adds && !store.indices.empty() && ir::is_float(loaded_type(plans.kernel.operands[store.operand].dtype))) {
      return {
          ErrorCode::kUnsupported,
          "gpu: a store adds floats at indices in the order of the rows, but rows run concurrently; sort the indices"};
    }
  }
  for (const Value& value : plans.kernel.values) {
    if (value.kind == Kind::kReduce && value.over == Over::kLines) {
      return {ErrorCode::kUnsupported, "gpu: a reduction over lines is not supported; run the nodes one by one"};
    }
    if (value.kind == Kind::kRunning) {
      return {ErrorCode::kUnsupported, "gpu: a running sum is not supported; run the nodes one by one"};
    }
  }
  for (const Store& store : plans.kernel.stores) {
    const DimSet columns = plans.kernel.operands[store.operand].dims & plans.kernel.column_dims();
    if (store.indices.empty() && columns != 0 && columns != plans.kernel.column_dims()) {
      return {ErrorCode::kUnsupported,
              "gpu: a store along the outer column dim only is not supported; run the nodes one by one"};
    }
  }
  Chooser(plans, recipe).run();
  if (recipe->parameters.size() > kMaxParameters) {
    return {ErrorCode::kUnsupported, "gpu: a kernel has " + std::to_string(recipe->parameters.size()) +
                                         " parameters; the limit is " + std::to_string(kMaxParameters)};
  }
  return {};
}

}  // namespace torch_remote::codegen::gpu

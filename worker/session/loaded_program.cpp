#include "worker/session/loaded_program.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "ir/ops/op_table.h"
#include "worker/device/no_memory.h"

namespace torch_remote::worker {
namespace {

constexpr uint64_t kLarge = 128 << 10;  // Bytes: work on so many takes longer than allocating and freeing a block.

void describe_operand(const ir::Graph& graph, const ir::Arg& arg, const std::vector<int64_t>& values,
                      std::string* out) {
  const auto separate = [&] {
    if (out->back() != '(' && out->back() != '[') *out += ", ";
  };
  switch (arg.tag) {
    case ir::ArgTag::kView: {
      const ir::View& view = graph.views[arg.a];
      separate();
      *out += ir::name(view.dtype);
      *out += '[';
      for (size_t i = 0; i < view.sizes.size(); ++i) {
        if (i) *out += ", ";
        *out += values.empty() ? "?" : std::to_string(values[view.sizes[i]]);
      }
      *out += ']';
      break;
    }
    case ir::ArgTag::kScalarTensor:
      separate();
      *out += ir::name(static_cast<ir::DType>(arg.b & 0xFF));
      *out += "[]";
      break;
    case ir::ArgTag::kList: {
      bool tensors = false;
      for (const ir::Arg& item : arg.items) {
        tensors |= item.tag == ir::ArgTag::kView || item.tag == ir::ArgTag::kScalarTensor;
      }
      if (!tensors) break;
      separate();
      *out += '[';
      constexpr size_t kShown = 8;
      for (size_t i = 0; i < arg.items.size() && i < kShown; ++i) describe_operand(graph, arg.items[i], values, out);
      if (arg.items.size() > kShown) *out += ", and " + std::to_string(arg.items.size() - kShown) + " more";
      *out += ']';
      break;
    }
    default:
      break;
  }
}

// Whether the view covers all of `nbytes` bytes, each element once.
bool is_whole(const ir::View& view, const std::vector<int64_t>& values, uint64_t nbytes) {
  if (view.dynamic || values[view.offset] != 0) return false;
  std::vector<std::pair<int64_t, int64_t>> dims;  // Stride, size.
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    const int64_t size = values[view.sizes[d]];
    if (size == 0) return nbytes == 0;
    if (size != 1) dims.emplace_back(values[view.strides[d]], size);
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != extent) return false;
    extent *= size;
  }
  return static_cast<uint64_t>(extent) * ir::item_size(view.dtype) == nbytes;
}

void find_updates(LoadedProgram& program) {
  const ir::Graph& graph = program.graph;
  for (const ir::Buffer& buffer : graph.buffers) program.outlives.push_back(buffer.survives);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const ir::Node& node = graph.nodes[n];
    if (node.in_place && program.outlives[graph.views[node.results[0].a].buffer]) {
      program.outlives[graph.views[node.args[0].a].buffer] = program.updates = true;
    }
    ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
      const bool writes = access == ir::Access::kUpdates || access == ir::Access::kOverwrites;
      program.updates = program.updates || (writes && program.outlives[graph.views[view].buffer]);
    });
  }
}

Status no_memory_to_load(size_t size) { return no_memory_for("a program of " + std::to_string(size) + " bytes"); }

// Upper bound of the memory needed while a program is decoded, per byte of it.
constexpr uint64_t kDecoded = 16;

// Bytes charged for a number that names no decoded program.
constexpr uint64_t kNumber = 4096;

// Estimates the bytes that a program takes, here and in the runner. Too large rather than too small, so that no program
// is free.
uint64_t footprint(const ir::Graph& graph, size_t result_words) {
  uint64_t args = 0, dims = 0, text = 0;
  for (const ir::Node& node : graph.nodes) {
    for (const std::vector<ir::Arg>* all : {&node.args, &node.results}) {
      args += all->size();
      for (const ir::Arg& arg : *all) {
        args += arg.items.size();
        text += arg.text.size();
      }
    }
  }
  for (const ir::View& view : graph.views) dims += view.sizes.size();
  for (const std::string& source : graph.source_lines) text += sizeof(std::string) + source.size();
  return kNumber + 32 * uint64_t{graph.params} + 64 * graph.exprs.size() + 320 * graph.buffers.size() +
         480 * graph.views.size() + 32 * dims + 1024 * graph.nodes.size() + 160 * args + 2 * text +
         sizeof(int64_t) * result_words;
}

void describe_graph(LoadedProgram& program) {
  const ir::Graph& graph = program.graph;
  const size_t count = graph.buffers.size();
  program.params.assign(graph.params, 0);
  program.lifetimes = ir::find_lifetimes(graph);
  program.written = ir::written_buffers(graph);
  program.dead_after.resize(graph.nodes.size());
  for (uint32_t b = 0; b < count; ++b) {
    const ir::Buffer& buffer = graph.buffers[b];
    if (buffer.kind == ir::BufferKind::kInput) {
      program.inputs.push_back(b);
    } else if (buffer.survives) {
      program.survivors.push_back(b);
    } else if (program.lifetimes[b].last != ir::kNoNode) {
      program.dead_after[program.lifetimes[b].last].push_back(b);
    }
  }
  find_updates(program);
  program.uses_cached_data = std::ranges::any_of(
      graph.nodes, [](const ir::Node& node) { return ir::op_desc(node.opcode).family == ir::Family::kConv; });
  program.bindings.ids.assign(program.inputs.size(), 0);
}

// Returns the first runner for which `accepts` returns true, or kNoRunner.
template <typename F>
uint32_t first_runner(const Runners& runners, F&& accepts) {
  const auto found =
      std::ranges::find_if(runners, [&](const std::unique_ptr<Runner>& runner) { return accepts(*runner); });
  return found == runners.end() ? kNoRunner : static_cast<uint32_t>(found - runners.begin());
}

// Finds the runners that may execute each node alone.
void find_runners(LoadedProgram& program, const Runners& runners) {
  const ir::Graph& graph = program.graph;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    uint64_t may = 0;
    for (size_t r = 0; r < runners.size(); ++r) {
      if (!runners[r]->accepts(graph, n)) continue;
      may |= uint64_t{1} << r;
      if (!runners[r]->may_decline()) break;
    }
    program.accepting_runners.push_back(may);
    // The runner was not asked with values yet.
    program.node_runners.push_back(may == 0 ? kNoRunner : static_cast<uint32_t>(std::countr_zero(may)));
  }
}

// Returns the first runner that takes the node. If none does, asks again and waits for plans that are being built.
uint32_t first_taker(const LoadedProgram& program, uint32_t node) {
  for (const bool wait : {program.waits_for_plans, true}) {
    for (uint64_t rest = program.accepting_runners[node]; rest != 0; rest &= rest - 1) {
      const auto runner = static_cast<uint32_t>(std::countr_zero(rest));
      if (program.loaded[runner].program->takes_node(node, program.values, wait)) return runner;
    }
    if (wait) break;
  }
  return kNoRunner;
}

// Finds the groups that a runner may execute as one, and that runner.
std::vector<Step> find_groups(const ir::Graph& graph, const Runners& runners) {
  std::vector<Step> groups;
  for (const ir::Group& group : graph.groups) {
    const uint32_t runner = first_runner(runners, [&](Runner& r) { return r.accepts_group(graph, group); });
    if (runner != kNoRunner) groups.push_back({group.first, group.last + 1, runner, true});
  }
  return groups;
}

// Makes steps of the groups that are taken; the nodes between them form steps of one runner each.
std::vector<Step> make_steps(const LoadedProgram& program) {
  std::vector<Step> steps;
  size_t next = 0;  // Index of the next group.
  for (uint32_t n = 0; n < program.graph.nodes.size();) {
    while (next < program.groups.size() && program.groups[next].last <= n) ++next;
    const bool inside = next < program.groups.size() && program.groups[next].first <= n;
    if (inside && program.group_taken[next] != 0) {
      steps.push_back(program.groups[next]);
      n = steps.back().last;
      continue;
    }
    const uint32_t timed = inside && program.is_tuning ? static_cast<uint32_t>(next) : ir::kNoNode;
    if (steps.empty() || steps.back().is_group || steps.back().runner != program.node_runners[n] ||
        steps.back().timed_group != timed) {
      steps.push_back({n, n, program.node_runners[n], false, timed});
    }
    steps.back().last = ++n;
  }
  return steps;
}

// Returns the groups of this runner.
std::vector<Step> groups_of(const std::vector<Step>& steps, uint32_t runner) {
  std::vector<Step> groups;
  std::ranges::copy_if(steps, std::back_inserter(groups),
                       [&](const Step& step) { return step.is_group && step.runner == runner; });
  return groups;
}

// Makes the steps for the groups that are taken, and finds which buffers the runners allocate.
void apply_steps(LoadedProgram& program) {
  const ir::Graph& graph = program.graph;
  program.steps = make_steps(program);
  ++program.choice;
  program.steps_outdated = false;
  program.step_lifetimes = program.lifetimes;
  program.runner_allocates.assign(graph.buffers.size(), false);
  program.temporary.assign(graph.buffers.size(), false);
  program.placed = false;
  for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
    const ir::Buffer& buffer = graph.buffers[b];
    ir::Lifetime& life = program.step_lifetimes[b];
    bool has_memory = true;
    if (life.first != ir::kNoNode) {
      // The runner of the node that creates a buffer says whether it allocates the memory, too.
      const auto first = step_of(program, life.first), last = step_of(program, life.last);
      program.runner_allocates[b] =
          first->runner != kNoRunner && program.loaded[first->runner].program->allocates_buffer(b);
      has_memory = !(first->is_group && buffer.group_local);
      if (first->is_group) life.first = first->first;
      if (last->is_group) life.last = last->last - 1;
    }
    program.temporary[b] =
        buffer.kind == ir::BufferKind::kFresh && !buffer.survives && !program.runner_allocates[b] && has_memory;
  }
}

std::vector<uint64_t> generations(const Runners& runners) {
  std::vector<uint64_t> all;
  for (const auto& runner : runners) all.push_back(runner->generation());
  return all;
}

// Finds the groups and has the runners load their nodes: on the first call all of them, later those whose groups
// changed. If it fails or throws, it changes nothing, and the next call tries again.
Status load_groups(LoadedProgram& program, const Runners& runners, std::span<const uint8_t> bytes) {
  const ir::Graph& graph = program.graph;
  const bool first = program.steps.empty();
  program.loaded.resize(runners.size());
  std::vector<uint64_t> accepted = generations(runners);
  std::vector<Step> found = find_groups(graph, runners);
  std::vector<std::optional<LoadedProgram::Loaded>> loaded(runners.size());  // Empty: the runner's form stays.
  for (uint32_t r = 0; r < runners.size(); ++r) {
    const std::vector<Step> groups = groups_of(found, r);
    if (!first && groups == groups_of(program.groups, r)) continue;
    LoadRequest request{bytes, graph, std::vector<uint8_t>(graph.nodes.size()), program.tune};
    bool any = !groups.empty();
    for (size_t n = 0; n < graph.nodes.size(); ++n) any |= request.may_run[n] = program.accepting_runners[n] >> r & 1;
    for (const Step& step : groups) {
      std::fill(request.may_run.begin() + step.first, request.may_run.begin() + step.last, 1);
    }
    loaded[r].emplace();
    if (!any) continue;
    if (Status status = runners[r]->load(request, &loaded[r]->program); !status.ok()) return status;
  }
  std::vector<uint8_t> group_taken(found.size(), 0);
  std::vector<uint64_t> group_times(found.size(), 0);
  // Nothing throws from here on, except for a first call.
  program.accepted = std::move(accepted);
  program.chosen = false;
  if (!first && program.groups == found) return {};
  program.groups = std::move(found);
  program.group_taken = std::move(group_taken);
  program.group_times = std::move(group_times);
  for (uint32_t r = 0; r < runners.size(); ++r) {
    if (loaded[r].has_value()) program.loaded[r] = std::move(*loaded[r]);
  }
  program.is_tuning = false;
  program.steps_outdated = true;
  if (first) apply_steps(program);
  return {};
}

bool some_program(const LoadedProgram& program, bool (RunnerProgram::*says)() const) {
  return std::ranges::any_of(program.loaded, [&](const LoadedProgram::Loaded& loaded) {
    return loaded.program != nullptr && (*loaded.program.*says)();
  });
}

// The most words that the node's results take. A dynamic view: dtype, rank, sizes and strides. A host result: tag and
// two words.
size_t most_words(const ir::Graph& graph, const ir::Node& node) {
  size_t words = 0;
  ir::for_each_result_view(node, [&](uint32_t view) {
    if (graph.views[view].dynamic) words += 2 + 2 * ir::kMaxRank;
  });
  if ((ir::op_desc(node.opcode).flags & ir::kOpHostResult) != 0) words += 3 * node.results.size();
  return words;
}

bool may_grow(const LoadedProgram& program) { return !program.graph.groups.empty(); }

void load(LoadedProgram& program, const Runners& runners, std::span<const std::byte> bytes) {
  ir::Graph& graph = program.graph;
  // Decodes a copy: the bytes may change between verification and decoding.
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  std::vector<uint8_t> copy(data, data + bytes.size());
  program.status = ir::decode_program(copy.data(), copy.size(), &graph);
  if (!program.status.ok()) return;
  for (const ir::Node& node : graph.nodes) program.result_words += most_words(graph, node);
  const uint64_t takes = footprint(graph, program.result_words) + (may_grow(program) ? bytes.size() : 0);
  if (!program.memory->charge(takes)) {
    program.status = no_memory_to_load(bytes.size());
    graph = {};
    return;
  }
  program.charged = takes;
  program.decoded = true;
  describe_graph(program);
  find_runners(program, runners);
  program.status = load_groups(program, runners, copy);
  if (program.status.ok() && may_grow(program)) program.bytes = std::move(copy);
}

}  // namespace

LoadedProgram::~LoadedProgram() {
  if (charged != 0) memory->discharge(charged);
}

std::shared_ptr<LoadedProgram> load_program(uint32_t number, const Runners& runners, CachingAllocator* memory,
                                            std::span<const std::byte> bytes, bool tune) {
  const auto make = [&] {
    auto program = std::make_shared<LoadedProgram>();
    program->number = number;
    program->tune = tune;
    program->memory = memory;
    return program;
  };
  // Charged while the program is decoded.
  const uint64_t decoding = kDecoded * bytes.size();
  const bool room = memory->charge(decoding);
  std::shared_ptr<LoadedProgram> program;
  if (room) {
    try {
      program = make();
      load(*program, runners, bytes);
    } catch (const std::bad_alloc&) {
      program = nullptr;
    }
    memory->discharge(decoding);
  }
  if (!program) {
    program = make();
    program->status = no_memory_to_load(bytes.size());
  }
  if (program->charged == 0) {  // The program was not decoded, but its number is taken.
    program->charged = kNumber;
    memory->charge_unchecked(kNumber);
  }
  return program;
}

void update_groups(LoadedProgram& program, const Runners& runners) {
  bool changed = false;
  for (size_t r = 0; r < program.accepted.size(); ++r) changed |= program.accepted[r] != runners[r]->generation();
  if (!changed) return;
  if (!program.bytes.empty()) {
    program.status = load_groups(program, runners, program.bytes);
    return;
  }
  program.accepted = generations(runners);
  program.chosen = false;
}

void choose_steps(LoadedProgram& program) {
  if (program.chosen) return;
  bool& changed = program.steps_outdated;  // It stays set if something throws here.
  uint32_t next = 0;                       // Index of the next node.
  const auto choose_alone = [&](uint32_t end) {
    for (; next < end; ++next) {
      const uint32_t runner = first_taker(program, next);
      changed |= std::exchange(program.node_runners[next], runner) != runner;
    }
  };
  for (size_t g = 0; g < program.groups.size(); ++g) {
    const Step& step = program.groups[g];
    choose_alone(step.first);
    const bool takes = program.loaded[step.runner].program->takes(step.first, step.last, program.values);
    changed |= takes != (program.group_taken[g] != 0);
    program.group_taken[g] = takes;
    if (!takes) continue;
    for (; next < step.last; ++next) program.node_runners[next] = kUnknownRunner;
  }
  choose_alone(static_cast<uint32_t>(program.graph.nodes.size()));
  const bool times = program.tune && some_program(program, &RunnerProgram::tunes);
  changed |= std::exchange(program.is_tuning, times) != times;
  program.asks_again = times || some_program(program, &RunnerProgram::asks_again);
  if (changed) apply_steps(program);
  program.work = 0;
  for (const Step& step : program.steps) {
    if (step.runner != kNoRunner) program.work += program.loaded[step.runner].program->work(step.first, step.last);
  }
  program.chosen = true;
}

uint32_t runner_of(LoadedProgram& program, uint32_t node) {
  uint32_t& runner = program.node_runners[node];
  if (runner == kUnknownRunner) {
    runner = first_taker(program, node);
    ++program.choice;
  }
  return runner;
}

std::string reasons(const LoadedProgram& program, const Runners& runners, uint32_t node) {
  std::string all;
  const auto add = [&](uint32_t runner, const std::string& reason) {
    if (!reason.empty()) all += (all.empty() ? "" : "; ") + runners[runner]->name() + ": " + reason;
  };
  for (size_t g = 0; g < program.groups.size(); ++g) {
    const Step& group = program.groups[g];
    if (node < group.first || node >= group.last) continue;
    if (program.group_taken[g] != 0) return {};
    add(group.runner, program.loaded[group.runner].program->why_not_group(group.first));
  }
  const uint32_t taker = program.node_runners[node];
  if (taker == kUnknownRunner) return all;
  for (uint32_t r = 0; r < std::min<size_t>(taker, runners.size()); ++r) {
    const bool asked = (program.accepting_runners[node] >> r & 1) != 0 && program.loaded[r].program != nullptr;
    add(r, asked ? program.loaded[r].program->why_not(node) : runners[r]->why_accepts_none());
  }
  return all;
}

Status refusal(const LoadedProgram& program, const Runners& runners, uint32_t node) {
  std::string why = reasons(program, runners, node);
  if (why.empty()) why = "it has " + (runners.empty() ? "no runner" : descriptions(runners));
  return {ErrorCode::kOpFailed,
          "remote: nothing in this worker does the op '" +
              std::string(ir::op_desc(program.graph.nodes[node].opcode).name) + "' like this (" + why +
              "); compute it on the CPU (.cpu()), or give it contiguous tensors",
          "NotImplementedError"};
}

void end_tuned_run(LoadedProgram& program, bool complete) {
  for (size_t g = 0; g < program.groups.size(); ++g) {
    const uint64_t ns = std::exchange(program.group_times[g], 0);
    const Step& step = program.groups[g];
    if (ns != 0 && complete) program.loaded[step.runner].program->report_time(step.first, ns);
  }
}

std::vector<Step>::const_iterator step_of(const LoadedProgram& program, uint32_t node) {
  return std::prev(std::ranges::upper_bound(program.steps, node, {}, &Step::first));
}

uint32_t next_cut(const LoadedProgram& program, uint32_t node) {
  const auto step = std::ranges::lower_bound(program.steps, node, {}, &Step::last);
  if (step == program.steps.end() || !step->is_group || node <= step->first) return node;
  return step->last;
}

namespace {

// Finds the buffer whose memory the large temporary `made`, created at `node`, takes over; kNoBuffer: none. `owns`: the
// buffers that still have memory of their own.
uint32_t find_source(const LoadedProgram& program, uint32_t made, uint32_t node, const std::vector<bool>& owns) {
  const auto may = [&](uint32_t from, uint32_t last) {
    return owns[from] && program.step_lifetimes[from].first < node && program.step_lifetimes[from].last == last &&
           program.nbytes[made] <= program.nbytes[from];
  };
  const Step& step = *step_of(program, node);
  if (!step.is_group) {
    const uint32_t from = program.graph.buffers[made].may_reuse;
    return from != ir::kNoBuffer && may(from, node) ? from : ir::kNoBuffer;
  }
  for (uint32_t from = 0; from < owns.size(); ++from) {
    if (may(from, step.last - 1) && program.loaded[step.runner].program->may_share(step.first, made, from)) return from;
  }
  return ir::kNoBuffer;
}

void find_stages(LoadedProgram& program, const std::vector<bool>& in_block) {
  const ir::Graph& graph = program.graph;
  const auto count = static_cast<uint32_t>(graph.nodes.size());
  std::vector<std::vector<uint32_t>> born(count), dying(count), last_read(count);
  program.stages.assign(1, {});
  for (uint32_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    if (!graph.buffers[b].survives && program.step_lifetimes[b].last != ir::kNoNode) {
      last_read[program.step_lifetimes[b].last].push_back(i);
    }
  }
  for (const uint32_t b : program.survivors) {
    if (program.runner_allocates[b]) continue;
    if (program.step_lifetimes[b].first == ir::kNoNode) {
      program.stages[0].allocate.push_back({b});
    } else {
      born[program.step_lifetimes[b].first].push_back(b);
    }
  }
  for (uint32_t b = 0; b < in_block.size(); ++b) {
    if (!in_block[b]) continue;
    born[program.step_lifetimes[b].first].push_back(b);
    dying[program.step_lifetimes[b].last].push_back(b);
  }
  std::vector<bool> owns = in_block;  // Its memory is freed when it is dead.
  std::vector<bool> freed(program.runner_allocates.size(), false);
  // A buffer that a runner allocates is released with the last node that touches it, if the same runner executes that
  // node.
  for (uint32_t b = 0; b < program.runner_allocates.size(); ++b) {
    const auto& [first, last] = program.step_lifetimes[b];
    if (!program.runner_allocates[b] || graph.buffers[b].survives ||
        step_of(program, first)->runner == step_of(program, last)->runner)
      continue;
    freed[b] = true;
    born[first].push_back(b);
    dying[last].push_back(b);
  }
  uint64_t dead = 0;
  for (uint32_t n = 0; n < count; ++n) {
    const auto is_large = [&](uint32_t b) { return program.nbytes[b] >= kLarge; };
    if (dead >= kLarge && std::ranges::any_of(born[n], is_large) && next_cut(program, n) == n) {
      program.stages.push_back({n, n, {}, {}, {}});
      dead = 0;
    }
    Stage& stage = program.stages.back();
    stage.last = n + 1;
    for (const uint32_t b : born[n]) {
      if (program.runner_allocates[b] && !graph.buffers[b].survives) continue;
      const uint32_t from = in_block[b] ? find_source(program, b, n, owns) : ir::kNoBuffer;
      if (from != ir::kNoBuffer) owns[from] = false;
      stage.allocate.push_back({b, from});
    }
    for (const uint32_t b : dying[n]) {
      if (!owns[b] && !freed[b]) continue;
      stage.release.push_back(b);
      dead += program.nbytes[b];
    }
    for (const uint32_t i : last_read[n]) {
      stage.erase.push_back(i);
      dead += program.nbytes[program.inputs[i]];
    }
  }
}

}  // namespace

void place_buffers(LoadedProgram& program) {
  std::vector<bool> in_block(program.temporary.size(), false), in_arena = program.temporary;
  for (uint32_t b = 0; b < in_block.size(); ++b) {
    if (!in_arena[b] || program.nbytes[b] < kLarge || program.step_lifetimes[b].first == ir::kNoNode) continue;
    in_block[b] = true;
    in_arena[b] = false;
  }
  ir::place_in_arena(program.graph, program.step_lifetimes, in_arena, program.nbytes, &program.layout);
  find_stages(program, in_block);
}

uint64_t reach(const ir::Graph& graph, const std::vector<int64_t>& values, uint32_t buffer) {
  uint64_t bytes = 0;
  for (const ir::View& view : graph.views) {
    if (view.buffer != buffer || view.dynamic) continue;
    int64_t last = values[view.offset];
    bool empty = false;
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      empty |= values[view.sizes[d]] == 0;
      last += (values[view.sizes[d]] - 1) * values[view.strides[d]];
    }
    if (!empty) bytes = std::max(bytes, static_cast<uint64_t>(last + 1) * ir::item_size(view.dtype));
  }
  return bytes;
}

bool overwrites_all(const ir::Graph& graph, const std::vector<int64_t>& values, uint64_t nbytes, uint32_t node,
                    uint32_t buffer) {
  if (nbytes == kUnknownSize) nbytes = reach(graph, values, buffer);
  bool whole = false, only = true;
  ir::for_each_access(graph.nodes[node], [&](uint32_t view, ir::Access access) {
    if (graph.views[view].buffer != buffer) return;
    only = only && access == ir::Access::kOverwrites;
    whole = whole || is_whole(graph.views[view], values, nbytes);
  });
  return whole && only;
}

std::string describe_node(const ir::Graph& graph, const ir::Node& node, const std::vector<int64_t>& values) {
  std::string out(ir::op_desc(node.opcode).name);
  out += '(';
  for (const ir::Arg& arg : node.args) describe_operand(graph, arg, values, &out);
  return out + ')';
}

}  // namespace torch_remote::worker

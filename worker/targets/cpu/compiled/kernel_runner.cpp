#include "worker/targets/cpu/compiled/kernel_runner.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codegen/lower/lower.h"
#include "ir/ops/op_table_generated.h"
#include "worker/device/monotonic_clock.h"
#include "worker/runner/number_checks.h"
#include "worker/targets/cpu/compiled/index_check.h"
#include "worker/targets/cpu/compiled/launch.h"
#include "worker/targets/cpu/compiled/loop_program.h"
#include "worker/targets/cpu/compiled/reuse.h"
#include "worker/targets/cpu/loops/host.h"

namespace torch_remote::worker::kernels {
namespace {

// Results of at least this size may be worth streaming stores: they do not fit into the L2 cache next to other data.
constexpr uint64_t kStreamedBytes = 4 << 20;
// A group of a program, bound to the values of the last run that asked for it.
struct BoundGroup {
  BoundGroup(const ir::Graph& graph, const ir::Group& made)
      : group(made), numbers(graph, made, ScalarChecks::HalfPolicy::kAny) {}

  ir::Group group;
  ScalarChecks numbers;
  std::vector<ir::Sym> symbols;  // those of the group's views, and others that the launches depend on
  std::vector<int64_t> values;   // the symbols' values
  bool bound = false;
  bool fits = false;     // loop nests can compute it with these values
  bool taken = false;    // kernels execute it
  bool refused = false;  // the refusal was reported
  std::string why;       // why it is not taken
  std::vector<codegen::Launch> launches;
  // The kernels that can execute the launches: those for all sizes and, in tuned programs, variants of them.
  struct Kernels {
    GroupAlgorithm algorithm = GroupAlgorithm::kDefault;
    std::vector<std::shared_ptr<CompiledKernel>> per_launch;  // one per launch
    Launches prepared;
  };
  std::vector<Kernels> kernels;  // the plain ones first; empty if there are none
  // In tuned programs: the algorithm of the next run, and the tuner that finds the best one.
  GroupAlgorithm algorithm = GroupAlgorithm::kDefault, chosen = GroupAlgorithm::kDefault;
  std::optional<GroupTuner> tuner;
  bool timed = false;  // the next run is timed
  std::string key;     // identifies the group among the choices

  Kernels& by(GroupAlgorithm wanted) {
    const auto found = std::ranges::find(kernels, wanted, &Kernels::algorithm);
    return found == kernels.end() ? kernels.front() : *found;
  }
  const Launches& plain() const { return kernels.front().prepared; }
  // A launch may read memory that another one writes. If an index is out of bounds, nothing must have been written.
  mutable bool shares = false;
};

// Whether the group contains a group norm of channels-last float32 images. A kernel would read the few channels of a
// group at each position, once per group. The ATen plugin has loops for it
// (worker/targets/aten/kernels/images/images.h).
bool norms_channels_last(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values) {
  for (uint32_t n = group.first; n <= group.last; ++n) {
    const ir::Node& node = graph.nodes[n];
    if (node.opcode != ir::ops::aten_native_group_norm) continue;
    const ir::View& input = graph.views[node.args[0].a];
    if (input.dtype != ir::DType::kFloat32 || input.sizes.size() < 3) continue;
    const int64_t channels = values[input.sizes[1]];
    if (channels > 1 && values[input.strides[1]] == 1 && values[input.strides.back()] >= channels) return true;
  }
  return false;
}

// For example "softmax, mul.Tensor, 3 more".
std::string describe(const ir::Graph& graph, const ir::Group& group) {
  constexpr uint32_t kNamed = 4;
  const uint32_t nodes = group.last - group.first + 1;
  std::string text;
  for (uint32_t n = 0; n < std::min(nodes, kNamed); ++n) {
    text += (n == 0 ? "" : ", ") + std::string(ir::op_desc(graph.nodes[group.first + n].opcode).name);
  }
  return nodes <= kNamed ? text : text + ", " + std::to_string(nodes - kNamed) + " more";
}

class KernelProgram : public RunnerProgram {
 public:
  // `refused` counts groups that no kernel supports. `tunes`: times the groups' algorithms and uses the best.
  KernelProgram(const KernelRunnerOptions& options, const ir::Graph& graph, std::atomic<uint64_t>& refused, bool tunes)
      : options_(options), graph_(graph), refused_(refused), tunes_(tunes && options.choices != nullptr) {
    for (const ir::Group& group : graph.groups) {
      groups_.emplace_back(graph, group);
    }
  }

  bool allocates_buffer(uint32_t) const override { return false; }

  bool takes(uint32_t first, uint32_t, std::span<const int64_t> values) override {
    BoundGroup& group = group_at(first);
    group.taken = takes(group, values);
    return group.taken;
  }

  bool tunes() const override {
    return tunes_ && std::ranges::any_of(groups_, [](const BoundGroup& group) {
             return group.bound && group.fits && group.tuner.has_value() && group.tuner->needs_samples();
           });
  }

  void report_time(uint32_t first, uint64_t ns) override {
    BoundGroup& group = group_at(first);
    if (std::exchange(group.timed, false) && group.algorithm == GroupAlgorithm::kNodes) add_time(group, ns);
  }

  bool may_share(uint32_t first, uint32_t made, uint32_t source) const override {
    const BoundGroup& group = group_at(first);
    if (std::ranges::any_of(group.launches, &codegen::Launch::computes_indices)) return false;
    if (!std::ranges::all_of(group.launches, checks_little)) return false;
    const bool shares = codegen::may_share(group.launches, made, source);
    group.shares |= shares;
    return shares;
  }

  std::string why_not_group(uint32_t first) const override {
    const BoundGroup& group = group_at(first);
    return group.taken ? "" : group.why;
  }

  double work(uint32_t first, uint32_t last) const override {
    double points = 0;
    for (const BoundGroup& group : groups_) {
      if (group.taken && group.group.first >= first && group.group.last < last) points += group.plain().points();
    }
    return points;
  }

  bool run(tr_run& run, tr_error* error) override {
    const std::span<const tr_buffer> buffers(run.buffers, run.buffer_count);
    for (uint32_t n = run.first; n < run.last;) {
      BoundGroup& group = group_at(n);
      const uint64_t began = run.times != nullptr ? monotonic_ns() : 0;
      codegen::cpu::IndexRecord failure;
      if (may_begin(group, buffers, &failure)) run_kernels(group, buffers, &failure);
      if (failure.operand != codegen::cpu::kNoFailure) {
        std::snprintf(error->exception_type, sizeof(error->exception_type), "IndexError");
        std::snprintf(error->message, sizeof(error->message),
                      "index %lld is out of bounds for dimension with size %lld", static_cast<long long>(failure.index),
                      static_cast<long long>(failure.bound));
        error->node = group.group.first;
        error->retry_as_nodes = 1;
        return false;
      }
      if (run.times != nullptr) note_times(run, group.group, began);
      n = group.group.last + 1;
    }
    return true;
  }

 private:
  // Whether checking all of a launch's indices first is cheap compared with the launch.
  static bool checks_little(const codegen::Launch& launch) {
    constexpr int64_t kLittle = 16;
    int64_t points = 1, indices = 0;
    for (const int64_t size : launch.sizes) points *= size;
    for (const int64_t size : launch.outer) points *= size;
    for (const codegen::IndexCheck& check : launch.checks) {
      int64_t count = 1;
      for (size_t d = 0; d < check.sizes.size(); ++d) count *= check.strides[d] != 0 ? check.sizes[d] : 1;
      indices += count;
    }
    return indices * kLittle <= points || indices == 0;
  }

  static bool may_begin(const BoundGroup& group, std::span<const tr_buffer> buffers,
                        codegen::cpu::IndexRecord* failure) {
    return std::ranges::all_of(group.launches, [&](const codegen::Launch& launch) {
      if (!group.shares && !launch.check_indices_first) return true;
      return std::ranges::all_of(launch.checks,
                                 [&](const codegen::IndexCheck& check) { return are_inside(check, buffers, failure); });
    });
  }

  bool takes(BoundGroup& group, std::span<const int64_t> values) {
    if (!is_bound(group, values)) bind(group, values);
    if (!group.fits) return false;
    if (const Status numbers = group.numbers.check(values); !numbers.ok()) {  // the op with the bad number reports it
      group.why = numbers.message();
      return false;
    }
    if (group.kernels.empty()) return true;
    set_scalars(group, values);
    const BoundGroup::Kernels& plain = group.kernels.front();
    if (const auto state = state_of(plain); state != CompiledKernel::State::kReady) {
      const auto failed = [](const auto& kernel) { return kernel->state == CompiledKernel::State::kFailed; };
      group.why = "its kernel is being compiled";
      if (state == CompiledKernel::State::kFailed)
        refuse(group, (*std::ranges::find_if(plain.per_launch, failed))->status.message());
      return false;
    }
    if (tunes_) {
      choose_way(group);
    } else if (group.chosen != GroupAlgorithm::kDefault) {
      use(group);
    }
    if (group.algorithm == GroupAlgorithm::kNodes) group.why = "its nodes one by one were faster, or are being timed";
    return group.algorithm != GroupAlgorithm::kNodes;
  }

  // Whether all kernels are ready; kFailed if one has failed.
  CompiledKernel::State state_of(const BoundGroup::Kernels& kernels) const {
    auto all = CompiledKernel::State::kReady;
    for (const std::shared_ptr<CompiledKernel>& kernel : kernels.per_launch) {
      if (options_.waits) options_.cache->wait(*kernel);
      const auto state = kernel->state.load(std::memory_order_acquire);
      if (state == CompiledKernel::State::kFailed) return state;
      if (state == CompiledKernel::State::kPending) all = state;
    }
    return all;
  }

  // -- Tuning ---------------------------------------------------------------------------------------------------------

  // Chooses how the next run executes the group: while times are needed, the algorithms alternate.
  void choose_way(BoundGroup& group) {
    group.timed = false;
    if (group.key.empty()) begin_tuning(group);
    if (!group.tuner.has_value() || !group.tuner->needs_samples()) return use(group);
    group.algorithm = GroupAlgorithm::kDefault;
    for (const BoundGroup::Kernels& kernels : group.kernels) {
      const auto state = state_of(kernels);
      if (state == CompiledKernel::State::kFailed) drop(group, kernels.algorithm);
      if (state == CompiledKernel::State::kPending) return;
    }
    if (!group.tuner->needs_samples()) return;
    group.algorithm = group.tuner->next();
    group.timed = true;
  }

  static bool may_stream(const BoundGroup& group) {
    uint64_t stored = 0;
    for (const codegen::Launch& launch : group.launches) stored += Launches::stored_bytes(launch);
    return stored >= kStreamedBytes && std::ranges::any_of(group.launches, Launches::may_stream);
  }

  static codegen::cpu::Variant streaming(const codegen::Launch& launch) {
    return {.streams = Launches::may_stream(launch)};
  }

  // Adds variants of the kernels of all launches. Returns false if there are too many kernels.
  template <typename F>
  bool add_kernels(BoundGroup& group, GroupAlgorithm algorithm, F&& variant_of) {
    BoundGroup::Kernels kernels{algorithm, {}, {}};
    for (const codegen::Launch& launch : group.launches) {
      const std::shared_ptr<CompiledKernel> kernel =
          options_.cache->get(codegen::print(launch.kernel), launch.kernel, variant_of(launch));
      if (kernel == nullptr) return false;
      used_.insert(kernel);
      kernels.per_launch.push_back(kernel);
      kernels.prepared.add(launch, *kernel);
    }
    group.kernels.push_back(std::move(kernels));
    return true;
  }

  // Uses streaming stores for results that would leave the caches before they are read.
  void choose_streams(BoundGroup& group, std::span<const int64_t> values) {
    if (tunes_ || options_.cache_bytes == 0 || !may_stream(group)) return;
    // Kernels that compute more are not limited by memory loads, but would be by streaming stores.
    if (!std::ranges::all_of(group.launches, Launches::waits_for_memory)) return;
    if (bytes_until_read(graph_, group.group, values, options_.cache_bytes) <= options_.cache_bytes) return;
    if (add_kernels(group, GroupAlgorithm::kStreamingStores, streaming))
      group.chosen = GroupAlgorithm::kStreamingStores;
  }

  // Called once the kernel is ready. Uses the known choice, or starts a tuner.
  void begin_tuning(BoundGroup& group) {
    group.key = "group";
    for (const codegen::Launch& launch : group.launches) {
      group.key += "\n" + codegen::print(launch.kernel) + (launch.alternates_with_previous ? "in turn, " : "");
      for (const int64_t size : launch.sizes) group.key += std::to_string(size_class(size)) + " ";
      for (const int64_t size : launch.outer) group.key += "* " + std::to_string(size_class(size));
    }
    std::vector<GroupAlgorithm> algorithms = {GroupAlgorithm::kDefault};
    const auto offer = [&](GroupAlgorithm algorithm, auto&& variant_of) {
      if (add_kernels(group, algorithm, variant_of)) algorithms.push_back(algorithm);
    };
    const std::optional<GroupAlgorithm> known = options_.choices->find(group.key);
    const auto wanted = [&](GroupAlgorithm algorithm) { return !known.has_value() || *known == algorithm; };
    if (may_stream(group) && wanted(GroupAlgorithm::kStreamingStores))
      offer(GroupAlgorithm::kStreamingStores, streaming);
    if (std::ranges::any_of(group.launches, has_short_rows) && wanted(GroupAlgorithm::kColumns)) {
      offer(GroupAlgorithm::kColumns, [](const codegen::Launch& launch) {
        return codegen::cpu::Variant{.columns = has_short_rows(launch) ? launch.sizes.back() : 0};
      });
    }
    // Runs that wait for kernels need the same bits in each process, so they never use kNodes.
    if (!options_.waits) algorithms.push_back(GroupAlgorithm::kNodes);
    if (!known.has_value()) {
      group.tuner = make_group_tuner(algorithms);
      return;
    }
    const bool possible = std::ranges::count(algorithms, *known) != 0;
    group.chosen = possible ? *known : GroupAlgorithm::kDefault;
    if (options_.on_choice)
      options_.on_choice(describe(graph_, group.group), std::string(name(group.chosen)) + ", from an earlier choice");
  }

  // The size in a group's key. It is exact where code may be specialized for it; other sizes are rounded down to a
  // power of two.
  static int64_t size_class(int64_t size) {
    if (size <= codegen::cpu::kMaxFixedColumns) return size;
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size)));
  }

  static bool has_short_rows(const codegen::Launch& launch) {
    const codegen::Kernel& kernel = launch.kernel;
    return kernel.rows == 1 && kernel.columns > 0 && launch.remainder_columns == 0 && launch.sizes.back() > 0 &&
           launch.sizes.back() <= codegen::cpu::kMaxFixedColumns;
  }

  // Uses the chosen algorithm if its kernels are ready.
  void use(BoundGroup& group) {
    group.algorithm = group.chosen;
    if (group.algorithm == GroupAlgorithm::kNodes) return;
    const BoundGroup::Kernels& kernels = group.by(group.algorithm);
    if (state_of(kernels) != CompiledKernel::State::kReady) group.algorithm = GroupAlgorithm::kDefault;
  }

  void add_time(BoundGroup& group, uint64_t ns) {
    group.tuner->add(ns);
    if (!group.tuner->needs_samples()) decide(group);
  }

  void drop(BoundGroup& group, GroupAlgorithm algorithm) {
    const bool was_open = group.tuner->needs_samples();
    group.tuner->drop(algorithm);
    if (was_open && !group.tuner->needs_samples()) decide(group);
  }

  void decide(BoundGroup& group) {
    const GroupTuner& tuner = *group.tuner;
    group.chosen = tuner.best();
    options_.choices->store(group.key, group.chosen, tuner.is_reliable());
    if (!options_.on_choice) return;
    std::string text(name(group.chosen));
    if (!tuner.is_reliable()) text += ", as times vary too much";
    for (const GroupAlgorithm algorithm : {GroupAlgorithm::kDefault, GroupAlgorithm::kStreamingStores,
                                           GroupAlgorithm::kColumns, GroupAlgorithm::kNodes}) {
      if (tuner.ns(algorithm) != 0)
        text += "; " + std::string(name(algorithm)) + " took " + std::to_string(tuner.ns(algorithm)) + " ns";
    }
    options_.on_choice(describe(graph_, group.group), text);
  }

  void run_kernels(BoundGroup& group, std::span<const tr_buffer> buffers, codegen::cpu::IndexRecord* failure) {
    BoundGroup::Kernels* kernels = &group.by(group.algorithm);
    bool timed = std::exchange(group.timed, false);
    if (kernels->algorithm == GroupAlgorithm::kStreamingStores && !kernels->prepared.may_stream_to(buffers)) {
      kernels = &group.kernels.front();
      if (timed) drop(group, GroupAlgorithm::kStreamingStores);
      timed = false;
    }
    const auto clock = [&] { return options_.clock ? options_.clock() : monotonic_ns(); };
    const uint64_t began = timed ? clock() : 0;
    kernels->prepared.run(buffers, options_.threads, failure);
    if (timed) add_time(group, clock() - began);
  }

  // Counts and reports, once per group, that no kernel supports it with the sizes and strides of this run.
  void refuse(BoundGroup& group, std::string_view why) const {
    group.why = why;
    if (std::exchange(group.refused, true)) return;
    refused_.fetch_add(1, std::memory_order_relaxed);
    if (options_.on_refusal) options_.on_refusal(describe(graph_, group.group), why);
  }

  // The group's time is assigned to its first node.
  static void note_times(tr_run& run, const ir::Group& group, uint64_t began) {
    const uint64_t ended = monotonic_ns();
    run.times[group.first - run.first] = began;
    for (uint32_t n = group.first + 1; n <= group.last + 1; ++n) run.times[n - run.first] = ended;
  }

  BoundGroup& group_at(uint32_t first) { return const_cast<BoundGroup&>(std::as_const(*this).group_at(first)); }
  const BoundGroup& group_at(uint32_t first) const {
    return *std::ranges::lower_bound(groups_, first, {}, [](const BoundGroup& g) { return g.group.first; });
  }

  static bool is_bound(const BoundGroup& group, std::span<const int64_t> values) {
    if (!group.bound) return false;
    for (size_t i = 0; i < group.symbols.size(); ++i) {
      if (group.values[i] != values[group.symbols[i]]) return false;
    }
    return true;
  }

  void bind(BoundGroup& group, std::span<const int64_t> values) {
    group.bound = true;
    group.kernels.clear();
    group.algorithm = group.chosen = GroupAlgorithm::kDefault;
    group.tuner.reset();
    group.timed = false;
    group.key.clear();
    group.symbols.clear();
    if (norms_channels_last(graph_, group.group, values)) {
      group.fits = false;
      remember(group, values);
      return refuse(group, "the channels of a group norm are adjacent");
    }
    const Status lowered = codegen::lower_group(graph_, group.group, values, &group.launches);
    group.fits = lowered.ok();
    for (const codegen::Launch& launch : group.launches) {
      group.symbols.insert(group.symbols.end(), launch.depends.begin(), launch.depends.end());
    }
    remember(group, values);
    if (!group.fits) return refuse(group, lowered.message());
    BoundGroup::Kernels& kernels = group.kernels.emplace_back();
    for (const codegen::Launch& launch : group.launches) {
      const std::shared_ptr<CompiledKernel> kernel = options_.cache->get(codegen::print(launch.kernel), launch.kernel);
      group.fits &= kernel != nullptr;
      if (kernel == nullptr) continue;
      used_.insert(kernel);
      kernels.per_launch.push_back(kernel);
      kernels.prepared.add(launch, *kernel);
    }
    if (!group.fits) return refuse(group, "it is too large, or there are too many kernels");
    group.fits = kernels.prepared.scratch() <= kMaxScratch;
    if (!group.fits) return refuse(group, "its rows are too long for what a thread keeps of them");
    choose_streams(group, values);
  }

  // Stores the values that the group was bound with.
  void remember(BoundGroup& group, std::span<const int64_t> values) {
    ir::add_view_symbols(graph_, group.group, &group.symbols);
    group.values.clear();
    for (const ir::Sym symbol : group.symbols) group.values.push_back(values[symbol]);
  }

  // Updates numbers that are kernel arguments.
  static void set_scalars(BoundGroup& group, std::span<const int64_t> values) {
    for (codegen::Launch& launch : group.launches) codegen::set_scalars(values, &launch);
  }

  const KernelRunnerOptions& options_;
  const ir::Graph& graph_;
  std::atomic<uint64_t>& refused_;
  const bool tunes_;
  std::vector<BoundGroup> groups_;
  // Every kernel that this program has used with any sizes, which may come back. The cache drops kernels that no
  // program holds.
  std::set<std::shared_ptr<CompiledKernel>> used_;
};

class KernelRunner : public Runner {
 public:
  explicit KernelRunner(KernelRunnerOptions options) : options_(std::move(options)) {}

  std::string name() const override { return "compiled kernels"; }
  std::string description() const override { return options_.description; }
  bool accepts(const ir::Graph&, uint32_t) override { return false; }
  bool accepts_group(const ir::Graph&, const ir::Group& group) override {
    const bool loops = group.kind == ir::GroupKind::kAttention || group.kind == ir::GroupKind::kMatmul;
    return !loops && (group_kind_mask() >> static_cast<uint32_t>(group.kind) & 1) != 0;
  }
  uint64_t generation() const override { return options_.cache->generation(); }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<KernelProgram>(options_, request.graph, refused_, request.tune);
    return {};
  }
  uint64_t kernels_compiled() const override { return options_.cache->compiled(); }
  uint64_t groups_without_kernel() const override { return refused_.load(std::memory_order_relaxed); }

 private:
  const KernelRunnerOptions options_;
  std::atomic<uint64_t> refused_ = 0;
};

constexpr uint32_t bit(ir::GroupKind kind) { return 1u << static_cast<uint32_t>(kind); }

}  // namespace

std::unique_ptr<Runner> make_kernel_runner(KernelRunnerOptions options) {
  return std::make_unique<KernelRunner>(std::move(options));
}

uint32_t group_kind_mask() {
  return bit(ir::GroupKind::kPointwise) | bit(ir::GroupKind::kRowwise) | bit(ir::GroupKind::kReduce) |
         bit(ir::GroupKind::kMultiTensor) |
         (host_target().empty() ? 0 : bit(ir::GroupKind::kAttention) | bit(ir::GroupKind::kMatmul));
}

std::string host_target() {
  const auto targets = host_targets();
  return targets.empty() ? std::string() : std::string(targets[0]);
}

}  // namespace torch_remote::worker::kernels

#include "worker/cuda/cuda_runner.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>

#include "codegen/lower/lower.h"
#include "ir/fusion.h"
#include "worker/cuda/group_call.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr uint64_t bit(ir::DType dtype) { return uint64_t{1} << static_cast<uint32_t>(dtype); }
constexpr uint32_t bit(ir::GroupKind kind) { return 1u << static_cast<uint32_t>(kind); }

bool has_kernel_dtypes(const ir::Graph& graph, const ir::Node& node) {
  bool all = true;
  ir::for_each_view(node, [&](uint32_t view, bool) { all = all && (dtypes() & bit(graph.views[view].dtype)) != 0; });
  return all;
}

// Nodes that are done by kernels together, as the last run that looked at them had them.
struct Unit {
  ir::Group group;
  std::vector<uint32_t> fresh;   // buffers with memory that its nodes make or use
  std::vector<ir::Sym> symbols;  // on which the call depends
  std::vector<int64_t> values;   // theirs
  bool bound = false;
  Status status;  // of the call
  GroupCall call;
};

void make_unique(std::vector<ir::Sym>& symbols) {
  std::ranges::sort(symbols);
  const auto twice = std::ranges::unique(symbols);
  symbols.erase(twice.begin(), twice.end());
}

// Called where a stream comes to it; `data` is where the time goes, CLOCK_MONOTONIC in ns.
void note_time(void* data) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *static_cast<uint64_t*>(data) =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void set_error(const Status& status, uint32_t node, tr_error* error) {
  const char* kind = status.kind().empty() ? "RuntimeError" : status.kind().c_str();
  std::snprintf(error->kind, sizeof(error->kind), "%s", kind);
  std::snprintf(error->message, sizeof(error->message), "%s", status.message().c_str());
  error->node = node;
}

class CudaProgram final : public RunnerProgram {
 public:
  CudaProgram(CudaDevice& device, const LoadRequest& request)
      : device_(device), graph_(request.graph), apart_(request.graph) {
    // Done alone, a node leaves what a group would not.
    for (ir::Buffer& buffer : apart_.buffers) buffer.in_group = false;
    for (const ir::Group& group : graph_.groups) {
      if (request.nodes[group.first] != 0) units_.emplace(group.first, make_unit(graph_, group));
    }
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      if (request.nodes[n] == 0) continue;
      ir::Group group;
      group.first = group.last = n;
      alone_.emplace(n, make_unit(apart_, group));
    }
  }

  bool creates_buffer(uint32_t) const override { return false; }

  bool takes(uint32_t first, uint32_t, std::span<const int64_t> values) override {
    Unit& unit = units_.at(first);
    bind(graph_, unit, values);
    return unit.status.ok();
  }

  bool may_share(uint32_t first, uint32_t made, uint32_t source) const override {
    const codegen::Launch* both = nullptr;
    for (const codegen::Launch& launch : units_.at(first).call.launches()) {
      const auto has = [&](const codegen::Binding& binding) {
        return binding.buffer == made || binding.buffer == source;
      };
      if (std::ranges::none_of(launch.operands, has)) continue;
      if (both != nullptr) return false;
      both = &launch;
    }
    return both != nullptr && codegen::may_share(*both, made, source);
  }

  bool run(tr_run& run, tr_error* error) override {
    const Current current(device_.gpu());
    const std::span<const int64_t> values(run.symbols, graph_.symbols());
    run.word_count = 0;
    bool good = true;
    for (uint32_t n = run.first; good && n < run.last;) {
      Unit& unit = unit_at(n, run.last);
      const bool whole = unit.group.last != n;
      bind(whole ? graph_ : apart_, unit, values);
      note(run, n);
      good = run_unit(run, unit, error);
      for (uint32_t inner = n + 1; inner <= unit.group.last; ++inner) note(run, inner);
      n = unit.group.last + 1;
    }
    note(run, run.last);
    device_.queued();
    return good;
  }

 private:
  static Unit make_unit(const ir::Graph& graph, const ir::Group& group) {
    Unit unit;
    unit.group = group;
    for (uint32_t n = group.first; n <= group.last; ++n) {
      ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool) {
        const uint32_t buffer = graph.views[view].buffer;
        const bool has_memory = graph.buffers[buffer].kind == ir::BufferKind::kFresh && !graph.buffers[buffer].in_group;
        if (has_memory) unit.fresh.push_back(buffer);
      });
    }
    return unit;
  }

  // The group that begins there, if it was said that it is done as one, and is; else the node.
  Unit& unit_at(uint32_t node, uint32_t last) {
    const auto group = units_.find(node);
    const bool whole = group != units_.end() && group->second.bound && group->second.status.ok() &&
                       group->second.group.last < last && group->second.group.last != node;
    return whole ? group->second : alone_.at(node);
  }

  // Another value of a symbol on which the call depends makes it anew.
  void bind(const ir::Graph& graph, Unit& unit, std::span<const int64_t> values) {
    const auto is_same = [&] {
      for (size_t i = 0; i < unit.symbols.size(); ++i) {
        if (unit.values[i] != values[unit.symbols[i]]) return false;
      }
      return true;
    };
    const bool may_work_now = !unit.status.ok() && unit.status.code() != ErrorCode::kUnsupported;
    if (!unit.bound || may_work_now || !is_same()) {
      unit.bound = true;
      unit.status = unit.call.bind(device_, graph, unit.group, values);
      note_symbols(graph, unit, values);
    }
    unit.call.set_scalars(values);
  }

  static void note_symbols(const ir::Graph& graph, Unit& unit, std::span<const int64_t> values) {
    unit.symbols.clear();
    unit.values.clear();
    for (uint32_t n = unit.group.first; n <= unit.group.last; ++n) {
      ir::for_each_view(graph.nodes[n], [&](uint32_t index, bool) {
        const ir::View& view = graph.views[index];
        unit.symbols.insert(unit.symbols.end(), view.sizes.begin(), view.sizes.end());
        unit.symbols.insert(unit.symbols.end(), view.strides.begin(), view.strides.end());
        unit.symbols.push_back(view.offset);
      });
    }
    for (const codegen::Launch& launch : unit.call.launches()) {
      unit.symbols.insert(unit.symbols.end(), launch.depends.begin(), launch.depends.end());
    }
    make_unique(unit.symbols);
    for (const ir::Sym symbol : unit.symbols) unit.values.push_back(values[symbol]);
  }

  bool run_unit(tr_run& run, Unit& unit, tr_error* error) {
    const uint32_t node = unit.group.first;
    const std::string_view op = ir::op_desc(graph_.nodes[node].opcode).name;
    device_.gpu().set_doing(op);
    Status status = unit.status;
    if (status.code() == ErrorCode::kUnsupported) {
      status = {ErrorCode::kUnsupported,
                "remote: no kernel of the GPU worker does '" + std::string(op) + "' like this (" + status.message() +
                    "); compute it on the CPU (.cpu()), or give it contiguous tensors",
                "NotImplementedError"};
    }
    if (status.ok()) status = allocate(run, unit);
    if (status.ok()) status = unit.call.run(device_, {run.buffers, run.buffer_count}, run.number);
    if (!status.ok()) set_error(status, node, error);
    return status.ok();
  }

  // Memory for what has none.
  Status allocate(tr_run& run, const Unit& unit) {
    for (const uint32_t buffer : unit.fresh) {
      if (run.buffers[buffer].data != nullptr) continue;
      const auto nbytes = static_cast<uint64_t>(run.symbols[graph_.buffers[buffer].nbytes]);
      if (device_.memory().allocate(nbytes, &run.buffers[buffer])) continue;
      return {ErrorCode::kOutOfMemory, "remote: the GPU has no " + std::to_string(nbytes) + " bytes left",
              "OutOfMemoryError"};
    }
    return {};
  }

  // When the work stream comes to a node, if somebody wants to know.
  void note(const tr_run& run, uint32_t node) {
    if (run.times == nullptr || device_.gpu().is_lost()) return;
    Gpu& gpu = device_.gpu();
    gpu.check(gpu.driver().launch_host_func(gpu.work(), note_time, run.times + (node - run.first)), "cuLaunchHostFunc");
  }

  CudaDevice& device_;
  const ir::Graph& graph_;
  ir::Graph apart_;
  std::map<uint32_t, Unit> units_, alone_;  // by their first node
};

class CudaRunner final : public Runner {
 public:
  explicit CudaRunner(CudaDevice& device) : device_(device) {}

  std::string description() const override { return "CUDA kernels"; }

  bool accepts(const ir::Graph& graph, uint32_t node) override {
    ir::Form form;
    return has_kernel_dtypes(graph, graph.nodes[node]) && ir::find_form(graph, graph.nodes[node], 0, &form);
  }

  bool accepts_group(const ir::Graph& graph, const ir::Group& group) override {
    for (uint32_t n = group.first; n <= group.last; ++n) {
      if (!has_kernel_dtypes(graph, graph.nodes[n])) return false;
    }
    return (group_kinds() >> static_cast<uint32_t>(group.kind) & 1) != 0;
  }

  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<CudaProgram>(device_, request);
    return {};
  }

  bool has_op(const char* name) override {
    const ir::Opcode opcode = ir::find_op(name);
    return opcode != ir::kInvalidOpcode && ir::expansion_of(opcode) != ir::Expansion::kNone;
  }

  uint64_t kernels_compiled() const override { return device_.kernels().compiled(); }

 private:
  CudaDevice& device_;
};

}  // namespace

std::unique_ptr<Runner> make_cuda_runner(CudaDevice& device) { return std::make_unique<CudaRunner>(device); }

uint32_t group_kinds() {
  return bit(ir::GroupKind::kPointwise) | bit(ir::GroupKind::kRowwise) | bit(ir::GroupKind::kReduce) |
         bit(ir::GroupKind::kMultiTensor);
}

uint64_t dtypes() {
  using enum ir::DType;
  return bit(kBool) | bit(kUInt8) | bit(kInt8) | bit(kInt16) | bit(kInt32) | bit(kInt64) | bit(kFloat16) |
         bit(kBFloat16) | bit(kFloat32) | bit(kFloat64);
}

}  // namespace torch_remote::worker::cuda

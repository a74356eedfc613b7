#include "worker/targets/cuda/compiled/cuda_runner.h"

#include <algorithm>

#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/lower.h"
#include "ir/fusion/fusion.h"
#include "ir/fusion/sections.h"
#include "worker/targets/cuda/launch/group_call.h"
#include "worker/targets/cuda/launch/unit_program.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr uint32_t bit(ir::GroupKind kind) { return 1u << static_cast<uint32_t>(kind); }

bool has_kernel_dtypes(const ir::Graph& graph, const ir::Node& node) {
  bool all = true;
  ir::for_each_view(node, [&](uint32_t view, bool) { all = all && codegen::is_memory_type(graph.views[view].dtype); });
  return all;
}

// Hand-written kernels (op_runner.h) read at indices of all forms.
bool is_gather(ir::Expansion expansion) {
  return expansion == ir::Expansion::kIndexSelect || expansion == ir::Expansion::kGather ||
         expansion == ir::Expansion::kTake || expansion == ir::Expansion::kIndex;
}

// Whether a compiled kernel can execute the op as a single node.
bool has_kernel(ir::Opcode opcode) {
  const ir::Expansion expansion = ir::expansion_of(opcode);
  return expansion != ir::Expansion::kNone && expansion != ir::Expansion::kNllLoss && !ir::is_sequential(expansion) &&
         !is_gather(expansion) && !ir::is_join(opcode);
}

// It reads only operands without elements but writes elements; a kernel cannot iterate over such operands. (A size of 0
// is a constant of the graph.)
bool reduces_nothing(const ir::Graph& graph, const ir::Node& node) {
  bool reads_none = false, makes_none = true;
  const auto look_at = [&](uint32_t view, bool writes) {
    const bool none = std::ranges::any_of(graph.views[view].sizes, [&](ir::Sym size) {
      int64_t value = 1;
      return graph.is_constant(size, &value) && value == 0;
    });
    reads_none |= !writes && none;
    makes_none &= !writes || none;
  };
  const uint32_t items = ir::count_items(node);
  if (items == 1) {
    ir::for_each_view(node, look_at);
    return reads_none && !makes_none;
  }
  for (uint32_t item = 0; item < items; ++item) {  // Some tensors of a list may have elements.
    ir::KernelForm form;
    if (!ir::find_form(graph, node, item, &form)) return false;
    reads_none = false;
    makes_none = true;
    for (const ir::Part& part : form.parts) look_at(part.view, part.writes);
    if (reads_none && !makes_none) return true;
  }
  return false;
}

// Executes nodes with kernels compiled for them.
class KernelUnit final : public Unit {
 public:
  KernelUnit(CudaDevice& device, const ir::Graph& graph, const ir::Group& group)
      : Unit(graph, group), device_(device) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t run_id) override {
    return call_.run(device_, buffers, run_id);
  }
  bool may_share(uint32_t made, uint32_t source) const override {
    return codegen::may_share(call_.launches(), made, source);
  }

 private:
  Status plan(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override {
    Status status = call_.request_kernels(device_, graph(), group(), values);
    for (const codegen::Launch& launch : call_.launches()) {
      symbols->insert(symbols->end(), launch.depends.begin(), launch.depends.end());
    }
    return status;
  }
  Status finish() override { return call_.finish(device_, graph()); }
  void set_numbers(std::span<const int64_t> values) override { call_.set_scalars(values); }

  CudaDevice& device_;
  GroupCall call_;
};

class CudaRunner final : public UnitRunner {
 public:
  using UnitRunner::UnitRunner;

  std::string name() const override { return "CUDA kernels"; }

  bool accepts(const ir::Graph& graph, uint32_t node) override {
    ir::KernelForm form;
    return has_kernel(graph.nodes[node].opcode) && has_kernel_dtypes(graph, graph.nodes[node]) &&
           !reduces_nothing(graph, graph.nodes[node]) && ir::find_form(graph, graph.nodes[node], 0, &form);
  }

  bool accepts_group(const ir::Graph& graph, const ir::Group& group) override {
    for (uint32_t n = group.first; n <= group.last; ++n) {
      const bool ordered = ir::is_sequential(ir::expansion_of(graph.nodes[n].opcode));
      const bool good = has_kernel_dtypes(graph, graph.nodes[n]) && !reduces_nothing(graph, graph.nodes[n]);
      if (ordered || !good) return false;
    }
    return (group_kind_mask() >> static_cast<uint32_t>(group.kind) & 1) != 0;
  }

  bool has_opcode(ir::Opcode opcode) override { return has_kernel(opcode); }

  uint64_t kernels_compiled() const override { return device().kernels().compiled(); }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    return std::make_unique<KernelUnit>(device(), graph, group);
  }
};

}  // namespace

std::unique_ptr<Runner> make_cuda_runner(CudaDevice& device) { return std::make_unique<CudaRunner>(device); }

uint32_t group_kind_mask() {
  return bit(ir::GroupKind::kPointwise) | bit(ir::GroupKind::kRowwise) | bit(ir::GroupKind::kReduce) |
         bit(ir::GroupKind::kMultiTensor);
}

}  // namespace torch_remote::worker::cuda

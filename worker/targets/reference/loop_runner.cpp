#include "worker/targets/reference/loop_runner.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/lower/loops.h"
#include "codegen/lower/lower.h"
#include "ir/dtype.h"
#include "ir/fusion/fusion.h"
#include "worker/runner/number_checks.h"
#include "worker/targets/reference/node_program.h"

namespace torch_remote::worker::reference {
namespace {

// Interprets the kernels of one node, one after the other.
class LoopPlan final : public NodePlan {
 public:
  Status bind(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values) override {
    ir::Group group;
    group.first = group.last = node;
    launches_.clear();
    if (!numbers_) numbers_.emplace(graph, group, ScalarChecks::HalfPolicy::kAny);
    Status status = codegen::lower_group(graph, group, values, &launches_, /*in_order=*/true);
    for (codegen::Launch& launch : launches_) {
      // An index out of bounds is only known at the end.
      if (status.ok() && launch.check_indices_first) {
        status = {ErrorCode::kUnsupported, "an index selects what is written in place"};
      }
      if (status.ok() && launch.splits_linear_indices) {
        status = {ErrorCode::kUnsupported, "the number of an element is decomposed into indices"};
      }
      if (status.ok()) status = codegen::take_in_loops(&launch);
    }
    if (!status.ok()) return {ErrorCode::kUnsupported, status.message()};
    // An op whose number its dtype cannot hold is ATen's, which reports it.
    if (status = numbers_->check(values); !status.ok()) return {ErrorCode::kUnsupported, status.message()};
    return {};
  }

  Status run(std::span<const tr_buffer> buffers, std::span<const int64_t> values) override {
    for (codegen::Launch& launch : launches_) {
      codegen::set_scalars(values, &launch);
      if (Status status = run(launch, buffers); !status.ok()) return status;
    }
    return {};
  }

 private:
  static Status run(const codegen::Launch& launch, std::span<const tr_buffer> buffers) {
    if (std::ranges::find(launch.outer, 0) != launch.outer.end()) return {};
    std::vector<int64_t> sizes = launch.sizes, strides, bounds;
    // A reduction of all elements: they are contiguous, so they make one row.
    if (launch.remainder_columns != 0) {
      sizes.back() = sizes.front() * sizes.back() + launch.remainder_columns;
      sizes.front() = 1;
    }
    for (const codegen::Binding& binding : launch.operands) {
      strides.insert(strides.end(), binding.strides.begin(), binding.strides.end());
      bounds.insert(bounds.end(), binding.bounds.begin(), binding.bounds.end());
    }
    std::vector<int64_t> index(launch.outer.size());
    std::vector<void*> data(launch.operands.size());
    bool is_first = true;
    do {
      for (size_t i = 0; i < data.size(); ++i) {
        const codegen::Binding& binding = launch.operands[i];
        data[i] =
            static_cast<std::byte*>(buffers[binding.buffer].data) +
            codegen::offset_at(binding, index) * static_cast<int64_t>(ir::item_size(launch.kernel.operands[i].dtype));
        // All positions along the outer dims add to the same elements.
        if (binding.needs_zero_fill && is_first) clear(launch, binding, i, data[i]);
      }
      is_first = false;
      codegen::IndexFailure failure;
      Status status = codegen::interpret(
          launch.kernel,
          {.sizes = sizes, .data = data, .strides = strides, .bounds = bounds, .scalars = launch.scalars}, {},
          &failure);
      if (!status.ok()) return status;
      if (failure.operand != codegen::kNone) {
        return {ErrorCode::kOpFailed,
                "index " + std::to_string(failure.index) + " is out of bounds for dimension with size " +
                    std::to_string(failure.bound),
                "IndexError"};
      }
    } while (codegen::next_index(launch.outer, index));
    return {};
  }

  // An operand that sums are added to: its rows, of all columns.
  static void clear(const codegen::Launch& launch, const codegen::Binding& binding, size_t operand, void* first) {
    const auto item = static_cast<int64_t>(ir::item_size(launch.kernel.operands[operand].dtype));
    const int64_t stride = launch.kernel.columns != 0 ? binding.strides[launch.kernel.dims() - 1] : 0;
    const int64_t columns = stride != 0 ? launch.sizes.back() : 1;
    for (int64_t row = 0; row < binding.bounds[0]; ++row) {
      std::memset(static_cast<std::byte*>(first) + row * binding.strides.back() * item, 0,
                  static_cast<size_t>(columns * item));
    }
  }

  std::vector<codegen::Launch> launches_;
  std::optional<ScalarChecks> numbers_;
};

class LoopRunner final : public Runner {
 public:
  explicit LoopRunner(Device& device) : device_(device) {}

  std::string name() const override { return "interpreted loops"; }
  bool accepts(const ir::Graph& graph, uint32_t node) override {
    const ir::Node& its = graph.nodes[node];
    bool has_dtypes = true;
    ir::for_each_view(its, [&](uint32_t view, bool) {
      has_dtypes &= !graph.views[view].dynamic && ir::is_kernel_dtype(graph.views[view].dtype);
    });
    ir::KernelForm form;
    return has_dtypes && has_form(its.opcode) && ir::count_items(its) != 0 && ir::find_form(graph, its, 0, &form);
  }
  bool may_decline() const override { return true; }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    std::vector<std::unique_ptr<NodePlan>> plans(request.graph.nodes.size());
    for (size_t n = 0; n < plans.size(); ++n) {
      if (request.may_run[n] != 0) plans[n] = std::make_unique<LoopPlan>();
    }
    *program = std::make_unique<NodeProgram>(device_, request.graph, std::move(plans));
    return {};
  }
  bool has_opcode(ir::Opcode opcode) override { return has_form(opcode); }

 private:
  static bool has_form(ir::Opcode opcode) { return ir::expansion_of(opcode) != ir::Expansion::kNone; }

  Device& device_;
};

}  // namespace

std::unique_ptr<Runner> make_loop_runner(Device& device) { return std::make_unique<LoopRunner>(device); }

}  // namespace torch_remote::worker::reference

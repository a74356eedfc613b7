#include "worker/targets/cuda/ops/op_runner.h"

#include <string>
#include <utility>

#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/unit_program.h"
#include "worker/targets/cuda/ops/plan_table.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr std::string_view kForWhat = "a kernel";

class OpUnit final : public Unit {
 public:
  OpUnit(OpKernels& kernels, const ir::Graph& graph, const ir::Group& group, const NamedPlan& plan)
      : Unit(graph, group), kernels_(kernels), make_(plan) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t number) override {
    RunMemory memory(kernels_.device(), buffers);
    return do_plan(plan_, number, memory);
  }
  Status run(tr_run& run) override;

 private:
  Status plan(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override {
    plan_ = {};
    OpNode node(graph(), group().first, values, symbols);
    Status status = plan_node(make_, node, &plan_);
    operands_ = std::make_shared<const std::vector<IndexedOperand>>(plan_.operands);
    values_.clear();
    return status;
  }
  // Seeds differ in every run, so steps that use them need the values.
  void set_numbers(std::span<const int64_t> values) override {
    values_.clear();
    for (const OpStep& step : plan_.steps) {
      const auto* const launch = std::get_if<OpLaunch>(&step);
      const bool needs = std::holds_alternative<OpUpload>(step) || (launch != nullptr && !launch->parameters.empty());
      if (!needs) continue;
      values_.assign(values.begin(), values.end());
      return;
    }
  }

  Status do_plan(const OpPlan& plan, uint64_t number, RunMemory& memory);

  OpKernels& kernels_;
  const NamedPlan& make_;
  OpPlan plan_;
  std::shared_ptr<const std::vector<IndexedOperand>> operands_;
  std::vector<int64_t> values_;  // The run's values, if a step needs them.
};

Status OpUnit::do_plan(const OpPlan& plan, uint64_t number, RunMemory& memory) {
  CudaDevice& device = kernels_.device();
  Gpu& gpu = device.gpu();
  if (Status status = memory.allocate(plan.scratch, kForWhat); !status.ok()) return status;
  if (gpu.is_lost()) return {};
  uint64_t record = 0;
  for (const OpStep& step : plan.steps) {
    Status status;
    if (const auto* const launch = std::get_if<OpLaunch>(&step)) {
      if (launch->failure && record == 0) {
        record = device.take_failure_record(number, operands_);
        if (record == 0) return gpu.is_lost() ? Status() : no_memory(sizeof(codegen::gpu::IndexRecord), kForWhat);
      }
      status = kernels_.launch(*launch, memory, record, values_);
    } else if (const auto* const moved = std::get_if<StridedMove>(&step)) {
      status = memory.copy(*moved);
    } else if (const auto* const fill = std::get_if<OpFill>(&step)) {
      memory.fill(fill->to, fill->nbytes, fill->value);
    } else {
      const auto& upload = std::get<OpUpload>(step);
      const auto bytes = std::make_shared<std::vector<std::byte>>(upload.make(values_));
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
      device.copy_in(reinterpret_cast<void*>(memory.address(upload.to)), *bytes, bytes);
    }
    if (!status.ok()) return status;
  }
  return {};
}

Status OpUnit::run(tr_run& run) {
  const std::span<tr_buffer> buffers(run.buffers, run.buffer_count);
  CudaDevice& device = kernels_.device();
  RunMemory memory(device, buffers);
  if (Status status = do_plan(plan_, run.run_id, memory); !status.ok() || !plan_.count) return status;
  int64_t count = 0;
  if (device.gpu().is_lost()) return {};
  if (Status status = kernels_.read(memory.address(*plan_.count), &count); !status.ok()) return status;
  OpPlan rest;
  std::vector<DynamicResult> results;
  if (Status status = plan_.plan_rest(count, &rest, &results); !status.ok()) return status;
  for (const DynamicResult& result : results) {
    if (result.number) {
      if (run.result_word_count == run.result_word_capacity) return Status::internal("cuda: too many words");
      run.result_words[run.result_word_count++] = *result.number;
      continue;
    }
    // Elements of GPU memory may say any size.
    const int64_t elements = count_of(result.sizes);
    uint64_t nbytes = 0;
    if (elements < 0 || __builtin_mul_overflow(static_cast<uint64_t>(elements), ir::item_size(result.dtype), &nbytes)) {
      return no_memory(static_cast<uint64_t>(elements), kForWhat);
    }
    tr_buffer& buffer = buffers[graph().views[result.view].buffer];
    if (buffer.release != nullptr) buffer.release(buffer.owner);
    buffer = {};
    if (!device.memory().allocate(nbytes, &buffer)) return no_memory(nbytes, kForWhat);
    std::vector<int64_t> words = {static_cast<int64_t>(result.dtype), static_cast<int64_t>(result.sizes.size())};
    words.insert(words.end(), result.sizes.begin(), result.sizes.end());
    const std::vector<int64_t> strides = result.strides.empty() ? packed_strides(result.sizes) : result.strides;
    words.insert(words.end(), strides.begin(), strides.end());
    if (run.result_word_count + words.size() > run.result_word_capacity)
      return Status::internal("cuda: too many words");
    for (const int64_t word : words) run.result_words[run.result_word_count++] = word;
  }
  return do_plan(rest, run.run_id, memory);
}

const NamedPlan* plan_of(const ir::Graph& graph, const ir::Node& node) {
  bool has_complex = false;
  ir::for_each_view(node, [&](uint32_t view, bool) { has_complex |= ir::is_complex(graph.views[view].dtype); });
  return find_op_plan(node.opcode, has_complex);
}

class OpRunner final : public UnitRunner {
 public:
  explicit OpRunner(std::shared_ptr<OpKernels> kernels) : UnitRunner(kernels->device()), kernels_(std::move(kernels)) {}

  std::string name() const override { return "hand-written kernels"; }

  bool accepts(const ir::Graph& graph, uint32_t node) override { return plan_of(graph, graph.nodes[node]) != nullptr; }
  bool has_opcode(ir::Opcode opcode) override {
    return find_op_plan(opcode) != nullptr || find_op_plan(opcode, true) != nullptr;
  }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    const NamedPlan* const plan = plan_of(graph, graph.nodes[group.first]);
    if (group.first != group.last || plan == nullptr) return nullptr;
    return std::make_unique<OpUnit>(*kernels_, graph, group, *plan);
  }

  const std::shared_ptr<OpKernels> kernels_;
};

}  // namespace

std::unique_ptr<Runner> make_op_runner(std::shared_ptr<OpKernels> kernels) {
  return std::make_unique<OpRunner>(std::move(kernels));
}

}  // namespace torch_remote::worker::cuda

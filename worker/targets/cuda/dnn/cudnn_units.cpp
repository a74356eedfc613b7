#include "worker/targets/cuda/dnn/cudnn_units.h"

#include <utility>

#include "worker/targets/cuda/dnn/batch_norm_library.h"
#include "worker/targets/cuda/dnn/batch_norm_plan.h"
#include "worker/targets/cuda/dnn/late_plan_unit.h"
#include "worker/targets/cuda/dnn/rnn_library.h"
#include "worker/targets/cuda/dnn/rnn_plan.h"

namespace torch_remote::worker::cuda {
namespace {

struct BatchNorm {
  using Library = BatchNormLibrary;
  using Plan = BatchNormPlan;
  static constexpr const char* kWhat = "batch norm";

  static Status plan(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, Plan* plan,
                     std::vector<ir::Sym>* symbols) {
    return plan_batch_norm(graph, node, values, plan, symbols);
  }
  template <typename At>
  static Status run(Library& library, const Library::Prepared& prepared, const Plan& plan, At&& at) {
    return library.run(prepared, {.input = at(plan.input),
                                  .output = at(plan.output),
                                  .scale = at(plan.scale),
                                  .bias = at(plan.bias),
                                  .mean = at(plan.mean),
                                  .deviation = at(plan.deviation),
                                  .mean_before = at(plan.mean_before),
                                  .variance_before = at(plan.variance_before),
                                  .mean_after = at(plan.mean_after),
                                  .variance_after = at(plan.variance_after),
                                  .grad = at(plan.grad),
                                  .grad_input = at(plan.grad_input),
                                  .grad_scale = at(plan.grad_scale),
                                  .grad_bias = at(plan.grad_bias),
                                  .epsilon = plan.epsilon,
                                  .momentum = plan.momentum});
  }
};

// A recurrent layer, or its gradients, by cuDNN, or by kernels where that refuses the layer. Which of the two it is
// depends on nothing but the layer, so both passes are done by the same: kernels cannot go on with what cuDNN made.
class RnnUnit final : public Unit {
 public:
  RnnUnit(CudaDevice& device, LateLibrary<RnnLibrary>& libraries, WrittenUnits& written, const ir::Graph& graph,
          const ir::Group& group)
      : Unit(graph, group), device_(device), libraries_(libraries), own_(written.make(graph, group)) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t number) override {
    if (prepared_ == nullptr) return own_->run(buffers, number);
    RunMemory memory(device_, buffers);
    if (Status status = memory.allocate(plan_.steps.scratch, "a recurrent layer"); !status.ok()) return status;
    if (device_.gpu().is_lost()) return {};
    const auto at = [&](const Place& place) { return memory.address(place); };
    const std::vector<OpStep>& steps = plan_.steps.steps;
    Status status;
    for (size_t i = 0; i < plan_.before && status.ok(); ++i) status = do_step(steps[i], memory);
    if (status.ok()) {
      const RnnPointers pointers = {.input = at(plan_.input),
                                    .hx = at(plan_.hx),
                                    .cx = at(plan_.cx),
                                    .output = at(plan_.output),
                                    .hy = at(plan_.hy),
                                    .cy = at(plan_.cy),
                                    .weights = at(plan_.weights),
                                    .workspace = at(plan_.workspace),
                                    .reserve = at(plan_.reserve),
                                    .grad_output = at(plan_.grad_output),
                                    .grad_hy = at(plan_.grad_hy),
                                    .grad_cy = at(plan_.grad_cy),
                                    .grad_input = at(plan_.grad_input),
                                    .grad_hx = at(plan_.grad_hx),
                                    .grad_cx = at(plan_.grad_cx),
                                    .grad_weights = at(plan_.grad_weights)};
      RnnLibrary& library = *libraries_.get();
      status = plan_.backward ? library.backward(*prepared_, pointers) : library.forward(*prepared_, pointers);
    }
    for (size_t i = plan_.before; i < steps.size() && status.ok(); ++i) status = do_step(steps[i], memory);
    return status;
  }

 private:
  Status begin(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override {
    const Current current(device_.gpu());
    values_.assign(values.begin(), values.end());
    prepared_ = nullptr;
    RnnProblem problem;
    Status status = find_rnn_problem(graph(), group().first, values, &problem, symbols);
    RnnLibrary* const library = status.ok() ? libraries_.get() : nullptr;
    if (library != nullptr) {
      status = library->prepare(problem, &prepared_);
      if (status.ok()) {
        return plan_rnn(graph(), group().first, values, problem, prepared_->space(), &plan_, symbols);
      }
      if (status.code() != ErrorCode::kUnsupported) return status;
    }
    return own_->ask(values);
  }
  Status finish() override { return prepared_ != nullptr ? Status() : own_->bind(values_); }
  void set_numbers(std::span<const int64_t>) override {}

  static Status do_step(const OpStep& step, const RunMemory& memory) {
    if (const auto* const moved = std::get_if<Moved>(&step)) return memory.copy(*moved);
    const auto& fill = std::get<OpFill>(step);
    memory.fill(fill.to, fill.nbytes, fill.value);
    return {};
  }

  CudaDevice& device_;
  LateLibrary<RnnLibrary>& libraries_;
  const std::unique_ptr<Unit> own_;  // by kernels written by hand
  std::vector<int64_t> values_;
  RnnPlan plan_;
  std::shared_ptr<PreparedRnn> prepared_;  // null: cuDNN is not asked
};

class CudnnUnits final : public WrittenUnits {
 public:
  CudnnUnits(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
             std::shared_ptr<WrittenUnits> written)
      : device_(device),
        written_(std::move(written)),
        norms_(device, table, std::move(folder)),
        layers_(device, std::move(table)) {}

  std::unique_ptr<Unit> make(const ir::Graph& graph, const ir::Group& group) override {
    if (group.first == group.last && is_batch_norm(graph, graph.nodes[group.first])) {
      return std::make_unique<LatePlanUnit<BatchNorm>>(norms_, *written_, graph, group);
    }
    if (group.first == group.last && is_rnn(graph, graph.nodes[group.first])) {
      return std::make_unique<RnnUnit>(device_, layers_, *written_, graph, group);
    }
    return written_->make(graph, group);
  }
  Status launch(const OpLaunch& launch, const RunMemory& memory) override { return written_->launch(launch, memory); }

 private:
  CudaDevice& device_;
  const std::shared_ptr<WrittenUnits> written_;
  LateLibrary<BatchNormLibrary> norms_;
  LateLibrary<RnnLibrary> layers_;
};

}  // namespace

std::shared_ptr<WrittenUnits> make_cudnn_units(CudaDevice& device, std::shared_ptr<CudnnTable> table,
                                               std::string folder, std::shared_ptr<WrittenUnits> written) {
  return std::make_shared<CudnnUnits>(device, std::move(table), std::move(folder), std::move(written));
}

}  // namespace torch_remote::worker::cuda

#include "worker/cuda/cudnn_units.h"

#include <utility>

#include "worker/cuda/batch_norm_library.h"
#include "worker/cuda/batch_norm_plan.h"
#include "worker/cuda/late_plan_unit.h"

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

class CudnnUnits final : public WrittenUnits {
 public:
  CudnnUnits(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
             std::shared_ptr<WrittenUnits> written)
      : written_(std::move(written)), norms_(device, std::move(table), std::move(folder)) {}

  std::unique_ptr<Unit> make(const ir::Graph& graph, const ir::Group& group) override {
    if (group.first == group.last && is_batch_norm(graph, graph.nodes[group.first])) {
      return std::make_unique<LatePlanUnit<BatchNorm>>(norms_, *written_, graph, group);
    }
    return written_->make(graph, group);
  }
  Status launch(const OpLaunch& launch, const RunMemory& memory) override { return written_->launch(launch, memory); }

 private:
  const std::shared_ptr<WrittenUnits> written_;
  LateLibrary<BatchNormLibrary> norms_;
};

}  // namespace

std::shared_ptr<WrittenUnits> make_cudnn_units(CudaDevice& device, std::shared_ptr<CudnnTable> table,
                                               std::string folder, std::shared_ptr<WrittenUnits> written) {
  return std::make_shared<CudnnUnits>(device, std::move(table), std::move(folder), std::move(written));
}

}  // namespace torch_remote::worker::cuda

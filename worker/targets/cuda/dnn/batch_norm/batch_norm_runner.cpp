#include "worker/targets/cuda/dnn/batch_norm/batch_norm_runner.h"

#include <utility>

#include "worker/targets/cuda/dnn/batch_norm/batch_norm_library.h"
#include "worker/targets/cuda/dnn/batch_norm/batch_norm_plan.h"
#include "worker/targets/cuda/dnn/deferred_plan_runner.h"

namespace torch_remote::worker::cuda {
namespace {

struct BatchNorm {
  using Library = BatchNormLibrary;
  using Plan = BatchNormPlan;
  static constexpr const char* kRunner = "cuDNN batch norm";
  static constexpr const char* kWhat = "batch norm";

  static bool accepts(const ir::Graph& graph, const ir::Node& node) { return is_batch_norm(graph, node); }
  static bool has_op(ir::Opcode opcode) { return is_batch_norm_op(opcode); }

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
                                  .inverse_std = at(plan.inverse_std),
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

}  // namespace

std::unique_ptr<Runner> make_batch_norm_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table,
                                               std::string folder, std::shared_ptr<OpKernels> kernels) {
  return std::make_unique<DeferredPlanRunner<BatchNorm>>(device, std::move(table), std::move(folder),
                                                         std::move(kernels));
}

}  // namespace torch_remote::worker::cuda

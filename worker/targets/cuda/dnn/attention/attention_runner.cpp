#include "worker/targets/cuda/dnn/attention/attention_runner.h"

#include <utility>

#include "worker/targets/cuda/dnn/attention/attention_library.h"
#include "worker/targets/cuda/dnn/attention/attention_plan.h"
#include "worker/targets/cuda/dnn/deferred_plan_runner.h"

namespace torch_remote::worker::cuda {
namespace {

struct Attention {
  using Library = AttentionLibrary;
  using Plan = AttentionPlan;
  static constexpr const char* kRunner = "cuDNN attention";
  static constexpr const char* kWhat = "attention";

  static bool accepts(const ir::Graph& graph, const ir::Node& node) { return is_attention(graph, node); }
  static bool has_op(ir::Opcode opcode) { return is_attention_op(opcode); }

  static Status plan(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, Plan* plan,
                     std::vector<ir::Sym>* symbols) {
    return plan_attention(graph, node, values, plan, symbols);
  }
  template <typename At>
  static Status run(Library& library, const Library::Prepared& prepared, const Plan& plan, At&& at) {
    return library.run(prepared, {.query = at(plan.query),
                                  .key = at(plan.key),
                                  .value = at(plan.value),
                                  .out = at(plan.out),
                                  .logsumexp = at(plan.logsumexp),
                                  .bias = at(plan.bias),
                                  .grad = at(plan.grad),
                                  .grad_query = at(plan.grad_query),
                                  .grad_key = at(plan.grad_key),
                                  .grad_value = at(plan.grad_value),
                                  .scale = plan.scale});
  }
};

}  // namespace

std::unique_ptr<Runner> make_attention_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
                                              std::shared_ptr<OpKernels> kernels) {
  return std::make_unique<DeferredPlanRunner<Attention>>(device, std::move(table), std::move(folder),
                                                         std::move(kernels));
}

}  // namespace torch_remote::worker::cuda

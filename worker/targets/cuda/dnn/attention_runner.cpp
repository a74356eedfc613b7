#include "worker/targets/cuda/dnn/attention_runner.h"

#include <utility>

#include "worker/targets/cuda/dnn/attention_library.h"
#include "worker/targets/cuda/dnn/attention_plan.h"
#include "worker/targets/cuda/dnn/late_plan_unit.h"
#include "worker/targets/cuda/launch/unit_program.h"

namespace torch_remote::worker::cuda {
namespace {

struct Attention {
  using Library = AttentionLibrary;
  using Plan = AttentionPlan;
  static constexpr const char* kWhat = "attention";

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

class AttentionProgram final : public UnitProgram {
 public:
  AttentionProgram(LateLibrary<AttentionLibrary>& libraries, WrittenUnits& written, const LoadRequest& request,
                   uint64_t& refused)
      : UnitProgram(libraries.device(), request, refused), libraries_(libraries), written_(written) {
    make_units(request);
  }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    if (group.first != group.last || !is_attention(graph, graph.nodes[group.first])) return nullptr;
    return std::make_unique<LatePlanUnit<Attention>>(libraries_, written_, graph, group);
  }

  LateLibrary<AttentionLibrary>& libraries_;
  WrittenUnits& written_;
};

class AttentionRunner final : public Runner {
 public:
  AttentionRunner(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
                  std::shared_ptr<WrittenUnits> written)
      : written_(std::move(written)), libraries_(device, std::move(table), std::move(folder)) {}

  std::string description() const override { return "cuDNN's attention"; }

  bool accepts(const ir::Graph& graph, uint32_t node) override { return is_attention(graph, graph.nodes[node]); }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<AttentionProgram>(libraries_, *written_, request, refused_);
    return {};
  }
  bool has_op(const char* name) override {
    const ir::Opcode opcode = ir::find_op(name);
    return opcode != ir::kInvalidOpcode && is_attention_op(opcode);
  }

 private:
  const std::shared_ptr<WrittenUnits> written_;
  LateLibrary<AttentionLibrary> libraries_;
  uint64_t refused_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_attention_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
                                              std::shared_ptr<WrittenUnits> units) {
  return std::make_unique<AttentionRunner>(device, std::move(table), std::move(folder), std::move(units));
}

}  // namespace torch_remote::worker::cuda

#include "worker/targets/cuda/dnn/rnn/rnn_runner.h"

#include <span>
#include <utility>
#include <vector>

#include "worker/targets/cuda/dnn/deferred_plan_runner.h"
#include "worker/targets/cuda/dnn/rnn/rnn_library.h"
#include "worker/targets/cuda/dnn/rnn/rnn_plan.h"
#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/unit_program.h"

namespace torch_remote::worker::cuda {
namespace {

// A recurrent layer, or its gradients. Whether cuDNN supports it depends only on the layer, so both passes have the
// same runner. Another runner could not read what cuDNN's forward pass stores.
class RnnUnit final : public Unit {
 public:
  RnnUnit(LazyLibrary<RnnLibrary>& libraries, const ir::Graph& graph, const ir::Group& group)
      : Unit(graph, group), device_(libraries.device()), libraries_(libraries) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t) override {
    RunMemory memory(device_, buffers);
    if (Status status = memory.allocate(plan_.steps.scratch, "a recurrent layer"); !status.ok()) return status;
    if (device_.gpu().is_lost()) return {};
    const auto at = [&](const Location& location) { return memory.address(location); };
    const std::span<const OpStep> steps(plan_.steps.steps);
    Status status = do_steps(steps.first(plan_.before), memory);
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
    if (status.ok()) status = do_steps(steps.subspan(plan_.before), memory);
    return status;
  }

 private:
  Status plan(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override {
    const ContextGuard current(device_.gpu());
    prepared_ = nullptr;
    RnnProblem problem;
    if (Status status = find_rnn_problem(graph(), group().first, values, &problem, symbols); !status.ok()) {
      return status;
    }
    RnnLibrary* const library = libraries_.get();
    if (library == nullptr) return {ErrorCode::kUnsupported, libraries_.status().message()};
    if (Status status = library->prepare(problem, &prepared_); !status.ok()) return status;
    return plan_rnn(graph(), group().first, values, problem, prepared_->space(), &plan_, symbols);
  }
  void set_numbers(std::span<const int64_t>) override {}

  CudaDevice& device_;
  LazyLibrary<RnnLibrary>& libraries_;
  RnnPlan plan_;
  std::shared_ptr<PreparedRnn> prepared_;
};

class RnnRunner final : public UnitRunner {
 public:
  RnnRunner(CudaDevice& device, std::shared_ptr<CudnnTable> table)
      : UnitRunner(device), libraries_(device, std::move(table)) {}

  std::string name() const override { return "cuDNN recurrent layers"; }

  bool accepts(const ir::Graph& graph, uint32_t node) override { return is_rnn(graph, graph.nodes[node]); }
  bool has_opcode(ir::Opcode opcode) override { return is_rnn_op(opcode); }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    if (group.first != group.last || !is_rnn(graph, graph.nodes[group.first])) return nullptr;
    return std::make_unique<RnnUnit>(libraries_, graph, group);
  }

  LazyLibrary<RnnLibrary> libraries_;
};

}  // namespace

std::unique_ptr<Runner> make_rnn_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table) {
  return std::make_unique<RnnRunner>(device, std::move(table));
}

}  // namespace torch_remote::worker::cuda

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/cudnn_table.h"
#include "worker/targets/cuda/dnn/deferred_plans.h"
#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/unit_program.h"
#include "worker/targets/cuda/ops/op_kernels.h"

// Runners that execute a node with one cuDNN call. The second use of a problem waits for its plan (deferred_plans.h).
// So which runner executes a use does not depend on timing. The first use is declined, because a plan is not worth
// building for a single use. It waits, too, if no other runner takes the node, or in deterministic mode. Nodes that
// cuDNN refuses are declined.
namespace torch_remote::worker::cuda {

// Opens a library (a subclass of DeferredPlans, or RnnLibrary) on first use. If that fails, it is not tried again. Used
// by one thread. The device must outlive it. `folder`: DeferredPlanOptions::folder.
template <typename Library>
class LazyLibrary {
 public:
  LazyLibrary(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder = "")
      : device_(device), table_(std::move(table)), folder_(std::move(folder)) {}

  CudaDevice& device() { return device_; }
  // Opens the library at the first call. Null: it cannot be opened, and status() says why.
  Library* get() {
    if (library_ == nullptr && status_.ok()) {
      const dnn::Table* const table = table_->get(&status_);
      if (table != nullptr) {
        typename Library::Options options;
        options.table = table;
        if constexpr (requires { options.folder; }) options.folder = folder_;
        status_ = Library::open(device_.shared_gpu(), device_.memory(), options, &library_);
      }
    }
    return library_.get();
  }
  const Status& status() const { return status_; }
  // DeferredPlans::finished(), or 0 while the library is not open.
  uint64_t finished() const { return library_ == nullptr ? 0 : library_->finished(); }

 private:
  CudaDevice& device_;
  const std::shared_ptr<CudnnTable> table_;
  const std::string folder_;
  Status status_;
  std::unique_ptr<Library> library_;
};

// A `Kind` has
//   Library    a subclass of DeferredPlans
//   Plan       how to execute a node. `problem` describes the cuDNN call, `steps` the copies and kernels around it;
//              `before` is the number of steps that precede the call
//   kRunner    the runner's name
//   kWhat      names the kind in errors
//   accepts    whether a node is of this kind; has_op: whether nodes of an opcode may be
//   plan       makes the plan for one run's values (as OpNode has them); kUnsupported: the message says why. Even
//              then, `symbols` has everything that the op depends on
//   run        calls or queues cuDNN's call (DeferredPlans::run_plan); `at` gives a location's address
template <typename Kind>
class DeferredPlanUnit final : public Unit {
 public:
  using Library = typename Kind::Library;

  DeferredPlanUnit(LazyLibrary<Library>& library, OpKernels& kernels, const ir::Graph& graph, const ir::Group& group,
                   bool tune)
      : Unit(graph, group), lazy_library_(library), kernels_(kernels), tune_(tune) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t) override {
    Status status = run_plan(buffers);
    // Another runner may need less memory, but would not give the same bits.
    if (status.code() != ErrorCode::kOutOfMemory || is_deterministic()) return status;
    return {ErrorCode::kUnsupported, status.message()};
  }
  bool wants_retry() const override {
    return prepared_ != nullptr && lazy_library_.get()->is_not_requested(*prepared_);
  }

 private:
  Status plan(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override {
    const ContextGuard current(lazy_library_.device().gpu());
    math_modes_ = lazy_library_.device().math_modes();
    prepared_ = nullptr;
    if (Status planned = Kind::plan(graph(), group().first, values, &plan_, symbols); !planned.ok()) return planned;
    Library* const library = lazy_library_.get();
    if (library == nullptr) return {ErrorCode::kUnsupported, lazy_library_.status().message()};
    plan_.problem.deterministic = is_deterministic();
    plan_.problem.tune = tune_ && !is_deterministic();
    prepared_ = library->find(plan_.problem);
    state_ = library->state(*prepared_);
    if (state_ == DeferredPlanState::kWaiting && (waits() || is_deterministic() || library->count_use(*prepared_))) {
      library->wait(prepared_);
      state_ = library->state(*prepared_);
    }
    switch (state_) {
      case DeferredPlanState::kReady:
        return {};
      case DeferredPlanState::kWaiting:
        return {ErrorCode::kUnsupported, "its plan is built when these sizes are used again"};
      case DeferredPlanState::kRefused: {
        const Status why = library->status(*prepared_);
        return {ErrorCode::kUnsupported, why.message()};
      }
    }
    return Status::internal("cuda: an unknown state of a plan");
  }

  // False while there is no plan, so that every prepare() counts a use. Also false once the plan's state or the math
  // modes have changed.
  bool is_still_valid(std::span<const int64_t>) const override {
    if (lazy_library_.device().math_modes() != math_modes_) return false;
    if (prepared_ == nullptr) return true;
    return state_ != DeferredPlanState::kWaiting && lazy_library_.get()->state(*prepared_) == state_;
  }
  void set_numbers(std::span<const int64_t>) override {}

  Status do_step(const OpStep& step, const RunMemory& memory) {
    if (const auto* const moved = std::get_if<StridedMove>(&step)) return memory.copy(*moved);
    return kernels_.launch(std::get<OpLaunch>(step), memory, 0, {});
  }

  Status run_plan(std::span<const tr_buffer> buffers) {
    CudaDevice& device = lazy_library_.device();
    RunMemory memory(device, buffers);
    if (Status status = memory.allocate(plan_.steps.scratch, Kind::kWhat); !status.ok()) return status;
    if (device.gpu().is_lost()) return {};
    const std::vector<OpStep>& steps = plan_.steps.steps;
    Status status;
    for (size_t i = 0; i < plan_.before && status.ok(); ++i) status = do_step(steps[i], memory);
    if (status.ok()) {
      status = Kind::run(*lazy_library_.get(), prepared_, plan_,
                         [&](const Location& location) { return memory.address(location); });
    }
    for (size_t i = plan_.before; i < steps.size() && status.ok(); ++i) status = do_step(steps[i], memory);
    return status;
  }
  bool is_deterministic() const { return (math_modes_ & ir::kDeterministic) != 0; }

  LazyLibrary<Library>& lazy_library_;
  OpKernels& kernels_;
  const bool tune_;
  ir::MathModes math_modes_ = 0;
  typename Kind::Plan plan_;
  typename Library::Prepared prepared_;  // Null: Kind::plan() refused the node, or there is no library.
  DeferredPlanState state_ = DeferredPlanState::kRefused;
};

template <typename Kind>
class DeferredPlanProgram final : public UnitProgram {
 public:
  DeferredPlanProgram(LazyLibrary<typename Kind::Library>& library, OpKernels& kernels, const LoadRequest& request,
                      uint64_t& refused)
      : UnitProgram(library.device(), request, refused),
        lazy_library_(library),
        kernels_(kernels),
        tune_(request.tune) {
    make_units(request);
  }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    if (group.first != group.last || !Kind::accepts(graph, graph.nodes[group.first])) return nullptr;
    return std::make_unique<DeferredPlanUnit<Kind>>(lazy_library_, kernels_, graph, group, tune_);
  }

  LazyLibrary<typename Kind::Library>& lazy_library_;
  OpKernels& kernels_;
  const bool tune_;
};

template <typename Kind>
class DeferredPlanRunner final : public Runner {
 public:
  DeferredPlanRunner(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
                     std::shared_ptr<OpKernels> kernels)
      : kernels_(std::move(kernels)), lazy_library_(device, std::move(table), std::move(folder)) {}

  std::string name() const override { return Kind::kRunner; }

  bool accepts(const ir::Graph& graph, uint32_t node) override { return Kind::accepts(graph, graph.nodes[node]); }
  bool may_decline() const override { return true; }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<DeferredPlanProgram<Kind>>(lazy_library_, *kernels_, request, refused_);
    return {};
  }
  bool has_opcode(ir::Opcode opcode) override { return Kind::has_op(opcode); }
  uint64_t generation() const override { return refused_ + lazy_library_.finished(); }

 private:
  const std::shared_ptr<OpKernels> kernels_;
  LazyLibrary<typename Kind::Library> lazy_library_;
  uint64_t refused_ = 0;
};

}  // namespace torch_remote::worker::cuda

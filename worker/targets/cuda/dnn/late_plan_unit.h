#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/cudnn_table.h"
#include "worker/targets/cuda/dnn/late_plans.h"
#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/unit_program.h"
#include "worker/targets/cuda/ops/op_runner.h"

// A node that one call of cuDNN does once its plan is there (late_plans.h), and kernels written by hand until then, or
// where cuDNN refuses it, or is not there.
namespace torch_remote::worker::cuda {

// A library, as soon as somebody needs it.
template <typename Library>
class LateLibrary {
 public:
  LateLibrary(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder = "")
      : device_(device), table_(std::move(table)), folder_(std::move(folder)) {}

  CudaDevice& device() { return device_; }
  // Null: there is none, and `status` says why.
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

 private:
  CudaDevice& device_;
  const std::shared_ptr<CudnnTable> table_;
  const std::string folder_;
  Status status_;
  std::unique_ptr<Library> library_;
};

// Of a `Kind`:
//   Library  one of LatePlans
//   Plan     what is done for a node: `steps`, of which `before` come before the call, and its `problem`
//   kWhat    for errors
//   plan     the plan for one run's values (as OpPlanner has them); kUnsupported: the message says why. `symbols` are
//            all that the op has then, too
//   run      queues the call; `at` gives a place's address
template <typename Kind>
class LatePlanUnit final : public Unit {
 public:
  using Library = typename Kind::Library;

  LatePlanUnit(LateLibrary<Library>& libraries, WrittenUnits& written, const ir::Graph& graph, const ir::Group& group)
      : Unit(graph, group), libraries_(libraries), written_(written), own_(written.make(graph, group)) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t number) override {
    if (state_ == LateState::kReady) {
      Status status = run_plan(buffers);
      // The kernels want less memory, but would not give the same bits.
      const bool other_way =
          status.code() == ErrorCode::kUnsupported || (status.code() == ErrorCode::kOutOfMemory && !is_deterministic());
      if (status.ok() || !other_way) return status;
      if (const Status& own = own_->bind(values_); !own.ok()) return status;
      return own_->run(buffers, number);
    }
    if (state_ == LateState::kWaiting) libraries_.get()->note_use(prepared_);
    return own_->run(buffers, number);
  }

 private:
  Status begin(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override {
    const Current current(libraries_.device().gpu());
    math_ = libraries_.device().math();
    values_.assign(values.begin(), values.end());
    prepared_ = nullptr;
    state_ = LateState::kRefused;
    // Also where there is no library: on the op's numbers depends what the kernels do.
    const Status planned = Kind::plan(graph(), group().first, values, &plan_, symbols);
    Library* const library = planned.ok() ? libraries_.get() : nullptr;
    if (library != nullptr) {
      plan_.problem.deterministic = is_deterministic();
      prepared_ = library->find(plan_.problem);
      state_ = library->state(*prepared_);
    }
    if (state_ == LateState::kReady) return {};
    const Status& own = own_->ask(values);
    if (own.ok() || state_ == LateState::kRefused || own.code() != ErrorCode::kUnsupported) return own;
    return {};  // then it has to be cuDNN
  }

  // What cannot be done in another way, or would not come out the same, waits for the plan.
  Status finish() override {
    if (state_ == LateState::kWaiting && (is_deterministic() || !own_->is_good())) {
      Library& library = *libraries_.get();
      library.wait(prepared_);
      state_ = library.state(*prepared_);
    }
    return state_ == LateState::kReady ? Status() : own_->bind(values_);
  }

  // Not for longer than there is no plan.
  bool suits(std::span<const int64_t>) const override {
    if (libraries_.device().math() != math_) return false;
    return prepared_ == nullptr || libraries_.get()->state(*prepared_) == state_;
  }
  void set_numbers(std::span<const int64_t>) override {}

  Status do_step(const OpStep& step, const RunMemory& memory) {
    if (const auto* const moved = std::get_if<Moved>(&step)) return memory.copy(*moved);
    return written_.launch(std::get<OpLaunch>(step), memory);
  }

  Status run_plan(std::span<const tr_buffer> buffers) {
    CudaDevice& device = libraries_.device();
    RunMemory memory(device, buffers);
    if (Status status = memory.allocate(plan_.steps.scratch, Kind::kWhat); !status.ok()) return status;
    if (device.gpu().is_lost()) return {};
    const std::vector<OpStep>& steps = plan_.steps.steps;
    Status status;
    for (size_t i = 0; i < plan_.before && status.ok(); ++i) status = do_step(steps[i], memory);
    if (status.ok()) {
      status =
          Kind::run(*libraries_.get(), prepared_, plan_, [&](const Place& place) { return memory.address(place); });
    }
    for (size_t i = plan_.before; i < steps.size() && status.ok(); ++i) status = do_step(steps[i], memory);
    return status;
  }
  bool is_deterministic() const { return (math_ & ir::kDeterministic) != 0; }

  LateLibrary<Library>& libraries_;
  WrittenUnits& written_;
  const std::unique_ptr<Unit> own_;  // by kernels written by hand
  ir::MathModes math_ = 0;
  std::vector<int64_t> values_;
  typename Kind::Plan plan_;
  typename Library::Prepared prepared_;  // null: cuDNN is not asked
  LateState state_ = LateState::kRefused;
};

}  // namespace torch_remote::worker::cuda

#include "worker/cuda/attention_runner.h"

#include <optional>
#include <utility>
#include <vector>

#include "worker/cuda/attention_library.h"
#include "worker/cuda/attention_plan.h"
#include "worker/cuda/run_memory.h"
#include "worker/cuda/unit_program.h"

namespace torch_remote::worker::cuda {
namespace {

using State = AttentionLibrary::State;

// The library, as soon as somebody needs it.
class Attentions {
 public:
  Attentions(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
             std::shared_ptr<WrittenUnits> units)
      : device_(device), table_(std::move(table)), folder_(std::move(folder)), units_(std::move(units)) {}

  CudaDevice& device() { return device_; }
  WrittenUnits& units() { return *units_; }
  // Null: there is none. (Whoever wants to know why asks `--probe`.)
  AttentionLibrary* get() {
    if (library_ == nullptr && status_.ok()) {
      const dnn::Table* const table = table_->get(&status_);
      if (table != nullptr) {
        status_ = AttentionLibrary::open(device_.shared_gpu(), device_.memory(), {.table = table, .folder = folder_},
                                         &library_);
      }
    }
    return library_.get();
  }

 private:
  CudaDevice& device_;
  const std::shared_ptr<CudnnTable> table_;
  const std::string folder_;
  const std::shared_ptr<WrittenUnits> units_;
  Status status_;
  std::unique_ptr<AttentionLibrary> library_;
};

class AttentionUnit final : public Unit {
 public:
  AttentionUnit(Attentions& attentions, const ir::Graph& graph, const ir::Group& group)
      : Unit(graph, group), attentions_(attentions), own_(attentions.units().make(graph, group)) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t number) override;

 private:
  Status begin(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override;
  Status finish() override;
  bool suits(std::span<const int64_t>) const override;
  void set_numbers(std::span<const int64_t>) override {}
  Status do_step(const OpStep& step, const RunMemory& memory);
  Status run_plan(std::span<const tr_buffer> buffers);
  bool is_deterministic() const { return (math_ & ir::kDeterministic) != 0; }

  Attentions& attentions_;
  const std::unique_ptr<Unit> own_;  // by kernels written by hand
  ir::MathModes math_ = 0;
  std::vector<int64_t> values_;
  AttentionPlan plan_;
  std::shared_ptr<PreparedAttention> prepared_;  // null: cuDNN is not asked
  State state_ = State::kRefused;
};

Status AttentionUnit::begin(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) {
  const Current current(attentions_.device().gpu());
  math_ = attentions_.device().math();
  values_.assign(values.begin(), values.end());
  prepared_ = nullptr;
  state_ = State::kRefused;
  // Also where there is no library: on the op's numbers depends what the kernels do.
  const Status planned = plan_attention(graph(), group().first, values, &plan_, symbols);
  AttentionLibrary* const library = planned.ok() ? attentions_.get() : nullptr;
  if (library != nullptr) {
    plan_.problem.deterministic = is_deterministic();
    prepared_ = library->find(plan_.problem);
    state_ = library->state(*prepared_);
  }
  if (state_ == State::kReady) return {};
  const Status& own = own_->ask(values);
  if (own.ok() || state_ == State::kRefused || own.code() != ErrorCode::kUnsupported) return own;
  return {};  // then it has to be cuDNN
}

// What cannot be done in another way, or would not come out the same, waits for the plan.
Status AttentionUnit::finish() {
  if (state_ == State::kWaiting && (is_deterministic() || !own_->is_good())) {
    AttentionLibrary& library = *attentions_.get();
    library.wait(prepared_);
    state_ = library.state(*prepared_);
  }
  return state_ == State::kReady ? Status() : own_->bind(values_);
}

// Not for longer than there is no plan.
bool AttentionUnit::suits(std::span<const int64_t>) const {
  if (attentions_.device().math() != math_) return false;
  return prepared_ == nullptr || attentions_.get()->state(*prepared_) == state_;
}

Status AttentionUnit::do_step(const OpStep& step, const RunMemory& memory) {
  if (const auto* const moved = std::get_if<Moved>(&step)) return memory.copy(*moved);
  return attentions_.units().launch(std::get<OpLaunch>(step), memory);
}

Status AttentionUnit::run_plan(std::span<const tr_buffer> buffers) {
  CudaDevice& device = attentions_.device();
  RunMemory memory(device, buffers);
  if (Status status = memory.allocate(plan_.steps.scratch, "attention"); !status.ok()) return status;
  if (device.gpu().is_lost()) return {};
  const auto at = [&](const Place& place) { return memory.address(place); };
  const std::vector<OpStep>& steps = plan_.steps.steps;
  Status status;
  for (size_t i = 0; i < plan_.before && status.ok(); ++i) status = do_step(steps[i], memory);
  if (status.ok()) {
    status = attentions_.get()->run(prepared_, {.query = at(plan_.query),
                                                .key = at(plan_.key),
                                                .value = at(plan_.value),
                                                .out = at(plan_.out),
                                                .logsumexp = at(plan_.logsumexp),
                                                .bias = at(plan_.bias),
                                                .grad = at(plan_.grad),
                                                .grad_query = at(plan_.grad_query),
                                                .grad_key = at(plan_.grad_key),
                                                .grad_value = at(plan_.grad_value),
                                                .scale = plan_.scale});
  }
  for (size_t i = plan_.before; i < steps.size() && status.ok(); ++i) status = do_step(steps[i], memory);
  return status;
}

Status AttentionUnit::run(std::span<const tr_buffer> buffers, uint64_t number) {
  if (state_ == State::kReady) {
    Status status = run_plan(buffers);
    // The kernels want less memory, but would not give the same bits.
    const bool other_way =
        status.code() == ErrorCode::kUnsupported || (status.code() == ErrorCode::kOutOfMemory && !is_deterministic());
    if (status.ok() || !other_way) return status;
    if (const Status& own = own_->bind(values_); !own.ok()) return status;
    return own_->run(buffers, number);
  }
  if (state_ == State::kWaiting) attentions_.get()->note_use(prepared_);
  return own_->run(buffers, number);
}

class AttentionProgram final : public UnitProgram {
 public:
  AttentionProgram(Attentions& attentions, const LoadRequest& request, uint64_t& refused)
      : UnitProgram(attentions.device(), request, refused), attentions_(attentions) {
    make_units(request);
  }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    if (group.first != group.last || !is_attention(graph, graph.nodes[group.first])) return nullptr;
    return std::make_unique<AttentionUnit>(attentions_, graph, group);
  }

  Attentions& attentions_;
};

class AttentionRunner final : public Runner {
 public:
  AttentionRunner(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
                  std::shared_ptr<WrittenUnits> units)
      : attentions_(device, std::move(table), std::move(folder), std::move(units)) {}

  std::string description() const override { return "cuDNN's attention"; }

  bool accepts(const ir::Graph& graph, uint32_t node) override { return is_attention(graph, graph.nodes[node]); }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<AttentionProgram>(attentions_, request, refused_);
    return {};
  }
  bool has_op(const char* name) override {
    const ir::Opcode opcode = ir::find_op(name);
    return opcode != ir::kInvalidOpcode && is_attention_op(opcode);
  }

 private:
  Attentions attentions_;
  uint64_t refused_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_attention_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder,
                                              std::shared_ptr<WrittenUnits> units) {
  return std::make_unique<AttentionRunner>(device, std::move(table), std::move(folder), std::move(units));
}

}  // namespace torch_remote::worker::cuda

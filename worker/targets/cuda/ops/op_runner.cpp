#include "worker/targets/cuda/ops/op_runner.h"

#include <array>
#include <map>
#include <string>
#include <utility>

#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/unit_program.h"
#include "worker/targets/cuda/ops/op_plan.h"

namespace torch_remote::worker::cuda {
namespace {

// Modules that are loaded, and functions in them.
class OpKernels {
 public:
  OpKernels(CudaDevice& device, KernelArchive archive) : device_(device), archive_(archive) {}
  ~OpKernels() {
    if (gpu().is_lost()) return;
    const Current current(gpu());
    gpu().queue().clear();
    for (const Module module : modules_) {
      if (module != nullptr) (void)gpu().driver().module_unload(module);
    }
    if (count_ != nullptr) (void)gpu().driver().mem_free_host(count_);
  }
  OpKernels(const OpKernels&) = delete;
  OpKernels& operator=(const OpKernels&) = delete;

  CudaDevice& device() { return device_; }

  // The GPU's context is current, as in what follows.
  Status find(KernelFile file, const char* name, Function* function) {
    Function& known = functions_[name];
    if (known == nullptr) {
      Module& module = modules_[static_cast<size_t>(file)];
      if (module == nullptr) {
        if (Status status = load(file, &module); !status.ok()) return status;
      }
      const Result result = gpu().driver().module_get_function(&known, module, name);
      if (result != Result::kSuccess) return to_status(gpu().driver(), result, "cuModuleGetFunction");
    }
    *function = known;
    return {};
  }

  // `record`: of indices that may be wrong; `values`: the run's, of what has parameters.
  Status launch(const OpLaunch& launch, const RunMemory& memory, uint64_t record, std::span<const int64_t> values) {
    Function function = nullptr;
    if (Status status = find(launch.file, launch.kernel, &function); !status.ok()) return status;
    Work work{.function = function, .grid = launch.grid, .block = {launch.block, 1}, .one_parameter = true};
    work.words = launch.words;
    for (const OpLaunch::Address& word : launch.addresses) work.words[word.word] = memory.address(word.place);
    for (const OpLaunch::Parameter& word : launch.parameters) {
      work.words[word.word] = static_cast<uint64_t>(values[word.symbol]);
    }
    work.numbers = launch.numbers.value_or(0);
    work.number_count = launch.parameters.size();
    work.failure = launch.failure;
    if (launch.failure) work.words[*launch.failure] = record;
    gpu().queue().add(std::move(work));
    return {};
  }

  // Waits for what is queued.
  Status read(DevicePointer from, int64_t* count) {
    const Driver& driver = gpu().driver();
    if (count_ == nullptr) {
      void* memory = nullptr;
      const Result result = driver.mem_host_alloc(&memory, sizeof(*count_), 0);
      if (result != Result::kSuccess) return to_status(driver, result, "cuMemHostAlloc");
      count_ = static_cast<int64_t*>(memory);
    }
    const bool good =
        gpu().check(driver.memcpy_dtoh_async(count_, from, sizeof(*count_), gpu().work()), "cuMemcpyDtoHAsync") &&
        gpu().check(driver.stream_synchronize(gpu().work()), "cuStreamSynchronize");
    *count = good ? *count_ : 0;
    return {};
  }

 private:
  Gpu& gpu() { return device_.gpu(); }

  Status load(KernelFile file, Module* module) {
    const KernelArchive image = find_image(archive_, file, gpu().sm());
    if (image.empty()) return {ErrorCode::kInternal, "remote: the worker has no kernels for " + gpu().name()};
    const Result result = gpu().driver().module_load_data_ex(module, image.data(), 0, nullptr, nullptr);
    return result == Result::kSuccess ? Status() : to_status(gpu().driver(), result, "cuModuleLoadDataEx");
  }

  CudaDevice& device_;
  const KernelArchive archive_;
  std::array<Module, kKernelFiles> modules_ = {};
  std::map<std::string_view, Function> functions_;
  int64_t* count_ = nullptr;  // pinned
};

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
  Status begin(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override {
    plan_ = {};
    bool has_complex = false;
    ir::for_each_view(graph().nodes[group().first],
                      [&](uint32_t view, bool) { has_complex |= ir::is_complex(graph().views[view].dtype); });
    if (has_complex && !make_.takes_complex) return refuse("of complex numbers");
    OpPlanner planner(graph(), group().first, values, &plan_, symbols);
    Status status = make_.plan(planner);
    planner.finish();
    operands_ = std::make_shared<const std::vector<IndexedOperand>>(plan_.operands);
    values_.clear();
    return status;
  }
  // Seeds, which are others in each run.
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
  std::vector<int64_t> values_;  // of the run, if they are needed
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
    } else if (const auto* const moved = std::get_if<Moved>(&step)) {
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
  if (Status status = do_plan(plan_, run.number, memory); !status.ok() || !plan_.count) return status;
  int64_t count = 0;
  if (device.gpu().is_lost()) return {};
  if (Status status = kernels_.read(memory.address(*plan_.count), &count); !status.ok()) return status;
  OpPlan rest;
  std::vector<DynamicResult> results;
  if (Status status = plan_.then(count, &rest, &results); !status.ok()) return status;
  for (const DynamicResult& result : results) {
    if (result.number) {
      if (run.word_count == run.word_capacity) return Status::internal("cuda: too many words");
      run.words[run.word_count++] = *result.number;
      continue;
    }
    uint64_t nbytes = ir::item_size(result.dtype);
    for (const int64_t size : result.sizes) nbytes *= static_cast<uint64_t>(size);
    tr_buffer& buffer = buffers[graph().views[result.view].buffer];
    if (buffer.release != nullptr) buffer.release(buffer.owner);
    buffer = {};
    if (!device.memory().allocate(nbytes, &buffer)) return no_memory(nbytes, kForWhat);
    std::vector<int64_t> words = {static_cast<int64_t>(result.dtype), static_cast<int64_t>(result.sizes.size())};
    words.insert(words.end(), result.sizes.begin(), result.sizes.end());
    const std::vector<int64_t> strides = result.strides.empty() ? packed_strides(result.sizes) : result.strides;
    words.insert(words.end(), strides.begin(), strides.end());
    if (run.word_count + words.size() > run.word_capacity) return Status::internal("cuda: too many words");
    for (const int64_t word : words) run.words[run.word_count++] = word;
  }
  return do_plan(rest, run.number, memory);
}

// What nobody does: an error of this node alone.
class RefusedUnit final : public Unit {
 public:
  RefusedUnit(const ir::Graph& graph, const ir::Group& group, AtenKernels* aten) : Unit(graph, group), aten_(aten) {}
  Status run(std::span<const tr_buffer>, uint64_t) override { return {}; }

 private:
  Status begin(std::span<const int64_t>, std::vector<ir::Sym>*) override {
    const std::string op(ir::op_desc(graph().nodes[group().first].opcode).name);
    const std::string aten = aten_ != nullptr ? aten_->why_not(op) : "no libtorch";
    return {ErrorCode::kUnsupported,
            "remote: nothing in this worker does the op '" + op + "' (it has kernels and NVIDIA's libraries, " + aten +
                "); compute that on the CPU (.cpu())",
            "NotImplementedError"};
  }
  void set_numbers(std::span<const int64_t>) override {}

  AtenKernels* const aten_;  // may be null
};

class OpProgram final : public UnitProgram {
 public:
  OpProgram(CudaDevice& device, std::shared_ptr<WrittenUnits> units, std::shared_ptr<AtenKernels> aten,
            const LoadRequest& request, uint64_t& refused)
      : UnitProgram(device, request, refused), units_(std::move(units)), aten_(std::move(aten)) {
    if (aten_ && aten_->is_there()) {
      bytes_ = std::make_shared<const std::vector<uint8_t>>(request.bytes.begin(), request.bytes.end());
    }
    make_units(request);
  }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    if (group.first != group.last) return nullptr;
    if (auto unit = units_->make(graph, group)) return unit;
    return std::make_unique<RefusedUnit>(graph, group, aten_.get());
  }
  std::unique_ptr<Unit> make_other(const ir::Graph& graph, const ir::Group& group) override {
    return bytes_ ? aten_->make_unit(graph, group, bytes_) : nullptr;
  }

  const std::shared_ptr<WrittenUnits> units_;
  const std::shared_ptr<AtenKernels> aten_;            // may be null
  std::shared_ptr<const std::vector<uint8_t>> bytes_;  // of the program, for these
};

class OpRunner final : public Runner {
 public:
  OpRunner(CudaDevice& device, std::shared_ptr<WrittenUnits> units, std::shared_ptr<AtenKernels> aten)
      : device_(device), units_(std::move(units)), aten_(std::move(aten)) {}

  std::string description() const override { return "written kernels"; }

  // Also what nobody does: so the rest of a program runs.
  bool accepts(const ir::Graph&, uint32_t) override { return true; }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<OpProgram>(device_, units_, aten_, request, refused_);
    return {};
  }
  bool has_op(const char* name) override {
    const ir::Opcode opcode = ir::find_op(name);
    if (opcode != ir::kInvalidOpcode && (find_op_plan(opcode) != nullptr || find_op_plan(opcode, true) != nullptr)) {
      return true;
    }
    return aten_ && aten_->has_op(name);
  }

 private:
  CudaDevice& device_;
  const std::shared_ptr<WrittenUnits> units_;
  const std::shared_ptr<AtenKernels> aten_;  // may be null
  uint64_t refused_ = 0;
};

class OpUnits final : public WrittenUnits {
 public:
  OpUnits(CudaDevice& device, KernelArchive archive) : kernels_(device, archive) {}

  std::unique_ptr<Unit> make(const ir::Graph& graph, const ir::Group& group) override {
    bool has_complex = false;
    ir::for_each_view(graph.nodes[group.first],
                      [&](uint32_t view, bool) { has_complex |= ir::is_complex(graph.views[view].dtype); });
    const NamedPlan* const plan = find_op_plan(graph.nodes[group.first].opcode, has_complex);
    if (group.first != group.last || plan == nullptr) return nullptr;
    return std::make_unique<OpUnit>(kernels_, graph, group, *plan);
  }
  Status launch(const OpLaunch& launch, const RunMemory& memory) override {
    return kernels_.launch(launch, memory, 0, {});
  }

 private:
  OpKernels kernels_;
};

}  // namespace

std::shared_ptr<WrittenUnits> make_written_units(CudaDevice& device, KernelArchive kernels) {
  return std::make_shared<OpUnits>(device, kernels);
}

std::unique_ptr<Runner> make_op_runner(CudaDevice& device, std::shared_ptr<WrittenUnits> units,
                                       std::shared_ptr<AtenKernels> aten) {
  return std::make_unique<OpRunner>(device, std::move(units), std::move(aten));
}

}  // namespace torch_remote::worker::cuda

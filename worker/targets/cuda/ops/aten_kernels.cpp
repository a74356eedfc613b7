#include "worker/targets/cuda/ops/aten_kernels.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <span>
#include <utility>

#include "ir/ops/op_table.h"
#include "worker/runner/plugin_loader.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr const char* kInstall = "install torch for CUDA, of the version that this was built for, beside the worker";

class AtenUnit final : public Unit {
 public:
  AtenUnit(AtenKernels& kernels, const ir::Graph& graph, const ir::Group& group,
           std::shared_ptr<const std::vector<uint8_t>> bytes)
      : Unit(graph, group), kernels_(kernels), bytes_(std::move(bytes)) {}

  Status run(std::span<const tr_buffer>, uint64_t) override { return Status::internal("cuda: torch's ops need a run"); }

  Status run(tr_run& run) override {
    CudaDevice& device = kernels_.device();
    (void)device.gpu().work();  // what is queued before is there before
    tr_run own = run;
    own.first = group().first;
    own.last = group().first + 1;
    own.symbols_changed = 1;  // since it ran last
    own.words = run.words + run.word_count;
    own.word_capacity = run.word_capacity - run.word_count;
    own.word_count = 0;
    own.times = nullptr;
    own.attachments = nullptr;
    own.math = device.math();
    tr_error error{};
    error.struct_size = sizeof(error);
    const bool good = program_->run(own, &error);
    run.word_count += own.word_count;
    return good ? Status() : runner_error(error);
  }

 private:
  bool takes_complex_numbers() const override { return true; }
  Status begin(std::span<const int64_t>, std::vector<ir::Sym>*) override {
    if (asked_) return status_;
    asked_ = true;
    const std::string op(ir::op_desc(graph().nodes[group().first].opcode).name);
    if (!kernels_.has_op(op.c_str())) {
      status_ = {ErrorCode::kUnsupported, kernels_.why_not(op), "NotImplementedError"};
    } else {
      std::vector<uint8_t> nodes(graph().nodes.size());
      nodes[group().first] = 1;
      status_ = kernels_.load({*bytes_, graph(), std::move(nodes)}, &program_);
      bytes_ = nullptr;
    }
    return status_;
  }
  void set_numbers(std::span<const int64_t>) override {}

  AtenKernels& kernels_;
  std::shared_ptr<const std::vector<uint8_t>> bytes_;
  std::unique_ptr<RunnerProgram> program_;
  bool asked_ = false;
  Status status_;
};

}  // namespace

AtenSource find_aten(const std::string& folder, const std::string& plugin) {
  AtenSource source;
  const std::string library = folder + "/libtorch_cuda.so";
  if (access(library.c_str(), R_OK) != 0) {
    source.missing = "there is no " + library + "; " + kInstall;
    return source;
  }
  source.found = library;
  source.open = [plugin](const tr_runner_api** api) { return load_plugin(plugin, api); };
  return source;
}

Status AtenKernels::open() {
  if (opened_) return status_;
  opened_ = true;
  const Current current(device_.gpu());
  const auto begin = std::chrono::steady_clock::now();
  const tr_runner_api* api = nullptr;
  status_ = source_.open(&api);
  if (status_.ok()) {
    PluginOptions options;
    options.memory = &device_.memory();
    options.gpu = PluginGpu{device_.gpu().ordinal(), device_.gpu().stream(), source_.library};
    status_ = make_plugin_runner(api, std::move(options), &runner_);
  }
  if (status_.ok()) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    spdlog::info("opened {} for {} in {:.2f} s", runner_->description(), device_.gpu().name(), took.count());
  } else {
    spdlog::warn("torch's kernels for GPUs are there, and cannot be used: {}", status_.message());
  }
  return status_;
}

bool AtenKernels::has_op(const char* name) { return is_there() && open().ok() && runner_->has_op(name); }

std::string AtenKernels::why_not(std::string_view op) {
  if (!is_there()) return "no libtorch for CUDA: " + source_.missing;
  if (!open().ok()) return "and a libtorch for CUDA that cannot be used: " + status_.message();
  return "and torch's kernels for GPUs, of which none is for '" + std::string(op) +
         "' or may be used: random numbers, and what takes positions from tensors, are not left to them";
}

std::unique_ptr<Unit> AtenKernels::make_unit(const ir::Graph& graph, const ir::Group& group,
                                             std::shared_ptr<const std::vector<uint8_t>> bytes) {
  return std::make_unique<AtenUnit>(*this, graph, group, std::move(bytes));
}

Status AtenKernels::load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) {
  return runner_->load(request, program);
}

}  // namespace torch_remote::worker::cuda

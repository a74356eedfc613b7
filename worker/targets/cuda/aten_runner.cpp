#include "worker/targets/cuda/aten_runner.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/ops/op_table.h"
#include "worker/runner/plugin_loader.h"
#include "worker/runner/plugin_runner.h"
#include "worker/targets/cuda/launch/unit_program.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr const char* kInstall = "install torch for CUDA, of the version that this was built for, next to the worker";

// The ATen plugin, opened on first use.
class AtenPlugin {
 public:
  AtenPlugin(CudaDevice& device, AtenSource source) : device_(device), source_(std::move(source)) {}

  CudaDevice& device() { return device_; }
  const AtenSource& source() const { return source_; }
  // Null: it cannot be opened, and `status` says why.
  Runner* get();
  const Status& status() const { return status_; }

 private:
  CudaDevice& device_;
  const AtenSource source_;
  bool opened_ = false;
  Status status_;  // The outcome of opening.
  std::unique_ptr<Runner> runner_;
};

class AtenUnit final : public Unit {
 public:
  AtenUnit(AtenPlugin& plugin, const ir::Graph& graph, const ir::Group& group,
           std::shared_ptr<const std::vector<uint8_t>> bytes)
      : Unit(graph, group), plugin_(plugin), bytes_(std::move(bytes)) {}

  Status run(std::span<const tr_buffer>, uint64_t) override { return Status::internal("cuda: torch's ops need a run"); }

  Status run(tr_run& run) override {
    CudaDevice& device = plugin_.device();
    (void)device.gpu().work_stream();  // Flushes the queue, so that earlier work precedes torch's kernels.
    tr_run own = run;
    own.first = group().first;
    own.last = group().first + 1;
    own.symbols_changed = 1;  // The plugin's program may have last run with other values.
    own.result_words = run.result_words + run.result_word_count;
    own.result_word_capacity = run.result_word_capacity - run.result_word_count;
    own.result_word_count = 0;
    own.times = nullptr;
    own.cached_data = nullptr;
    own.math_modes = device.math_modes();
    tr_error error{};
    error.struct_size = sizeof(error);
    const bool good = program_->run(own, &error);
    run.result_word_count += own.result_word_count;
    return good ? Status() : runner_error(error);
  }

 private:
  bool takes_complex_numbers() const override { return true; }
  bool takes_any_sizes() const override { return true; }
  Status plan(std::span<const int64_t>, std::vector<ir::Sym>*) override {
    if (asked_) return status_;
    asked_ = true;
    const std::string op(ir::op_desc(graph().nodes[group().first].opcode).name);
    Runner* const runner = plugin_.get();
    if (runner == nullptr) {
      status_ = {ErrorCode::kUnsupported, "torch's libraries for CUDA cannot be used: " + plugin_.status().message()};
    } else if (!runner->has_op(op.c_str())) {
      status_ = {ErrorCode::kUnsupported, "torch has no CUDA kernel for '" + op +
                                              "', or it must not be used: random numbers, and ops that take "
                                              "positions from tensors, are not left to torch"};
    } else {
      std::vector<uint8_t> nodes(graph().nodes.size());
      nodes[group().first] = 1;
      status_ = runner->load({*bytes_, graph(), std::move(nodes)}, &program_);
      bytes_ = nullptr;
    }
    return status_;
  }
  void set_numbers(std::span<const int64_t>) override {}

  AtenPlugin& plugin_;
  std::shared_ptr<const std::vector<uint8_t>> bytes_;
  std::unique_ptr<RunnerProgram> program_;
  bool asked_ = false;
  Status status_;
};

Runner* AtenPlugin::get() {
  if (opened_) return runner_.get();
  opened_ = true;
  const ContextGuard current(device_.gpu());
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
  if (!status_.ok()) runner_ = nullptr;
  return runner_.get();
}

class AtenRunner final : public UnitRunner {
 public:
  AtenRunner(CudaDevice& device, AtenSource source) : UnitRunner(device), plugin_(device, std::move(source)) {}

  std::string name() const override { return "ATen"; }
  std::string description() const override { return is_there() ? name() : ""; }
  // Accepts every node if the plugin exists: opening torch takes seconds, so missing ops are found only when a node is
  // asked for.
  bool accepts(const ir::Graph&, uint32_t) override { return is_there(); }
  std::string why_accepts_none() const override { return is_there() ? "" : plugin_.source().missing; }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    bytes_ = std::make_shared<const std::vector<uint8_t>>(request.bytes.begin(), request.bytes.end());
    return UnitRunner::load(request, program);
  }
  bool has_op(const char* name) override {
    Runner* const runner = is_there() ? plugin_.get() : nullptr;
    return runner != nullptr && runner->has_op(name);
  }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    return group.first == group.last ? std::make_unique<AtenUnit>(plugin_, graph, group, bytes_) : nullptr;
  }
  bool is_there() const { return plugin_.source().open != nullptr; }

  AtenPlugin plugin_;
  std::shared_ptr<const std::vector<uint8_t>> bytes_;  // Of the last loaded program.
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

std::unique_ptr<Runner> make_aten_runner(CudaDevice& device, AtenSource source) {
  return std::make_unique<AtenRunner>(device, std::move(source));
}

}  // namespace torch_remote::worker::cuda

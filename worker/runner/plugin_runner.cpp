#include "worker/runner/plugin_runner.h"

#include <cstddef>
#include <string_view>
#include <utility>

namespace torch_remote::worker {
namespace {

class PluginProgram final : public RunnerProgram {
 public:
  PluginProgram(const tr_runner_api* api, tr_runner* runner, tr_program* program)
      : api_(api), runner_(runner), program_(program) {}
  ~PluginProgram() override { api_->unload(runner_, program_); }

  bool allocates_buffer(uint32_t buffer) const override { return api_->allocates_buffer(program_, buffer) != 0; }
  bool run(tr_run& run, tr_error* error) override { return api_->run(runner_, program_, &run, error) == 0; }

 private:
  const tr_runner_api* api_;
  tr_runner* runner_;
  tr_program* program_;
};

class PluginRunner final : public Runner {
 public:
  PluginRunner(const tr_runner_api* api, PluginOptions options) : api_(api), options_(std::move(options)) {}
  ~PluginRunner() override {
    if (runner_) api_->destroy(runner_);
  }

  Status create() {
    host_ = {};
    host_.struct_size = sizeof(tr_host);
    host_.abi = TR_RUNNER_ABI;
    host_.context = this;
    host_.allocate = allocate;
    host_.client_activity = options_.client_activity ? client_activity : nullptr;
    host_.matmul_algorithm = options_.matmul_algorithm ? matmul_algorithm : nullptr;
    if (options_.gpu) {
      host_.has_gpu = 1;
      host_.gpu = options_.gpu->number;
      host_.gpu_stream = options_.gpu->stream;
      host_.torch_cuda_library =
          options_.gpu->torch_cuda_library.empty() ? nullptr : options_.gpu->torch_cuda_library.c_str();
    }
    tr_error error{};
    error.struct_size = sizeof(error);
    if (api_->create(&host_, options_.threads, options_.inproc, &runner_, &error) == 0) return {};
    runner_ = nullptr;
    return {ErrorCode::kInternal, std::string("remote: the runner cannot start: ") + error.message,
            error.exception_type};
  }

  std::string name() const override { return api_->description; }
  bool accepts(const ir::Graph&, uint32_t) override { return true; }
  bool has_op(const char* name) override { return api_->has_op(runner_, name) != 0; }
  void on_idle() override { api_->on_idle(runner_); }

  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    const tr_load_options options{sizeof(options), request.tune, request.may_run.data()};
    tr_program* loaded = nullptr;
    tr_error error{};
    error.struct_size = sizeof(error);
    if (api_->load(runner_, request.bytes.data(), request.bytes.size(), &options, &loaded, &error) != 0) {
      return runner_error(error);
    }
    *program = std::make_unique<PluginProgram>(api_, runner_, loaded);
    return {};
  }

  std::function<bool(const tr_matmul&)> matmul() override {
    constexpr size_t kNeeded = offsetof(tr_runner_api, matmul) + sizeof(tr_runner_api::matmul);
    if (api_->struct_size < kNeeded || api_->matmul == nullptr) return nullptr;
    return [this](const tr_matmul& matmul) { return api_->matmul(runner_, &matmul) == 0; };
  }

  std::function<void(bool)> thread_notifier() override {
    constexpr size_t kNeeded = offsetof(tr_runner_api, notify_threads) + sizeof(tr_runner_api::notify_threads);
    if (api_->struct_size < kNeeded || api_->notify_threads == nullptr) return nullptr;
    return [this](bool heavy_run) { api_->notify_threads(runner_, heavy_run ? 1 : 0); };
  }

  ParallelFor threads() override {
    return [this](int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
      const auto call = [](void* function, int64_t begin, int64_t end) {
        (*static_cast<const std::function<void(int64_t, int64_t)>*>(function))(begin, end);
      };
      api_->parallel_for(runner_, count, grain, call, const_cast<void*>(static_cast<const void*>(&body)));
    };
  }

 private:
  static int allocate(void* self, uint64_t nbytes, tr_buffer* buffer) {
    return static_cast<PluginRunner*>(self)->options_.memory->allocate(nbytes, buffer) ? 0 : 1;
  }
  static tr_client_activity client_activity(void* self) {
    return static_cast<PluginRunner*>(self)->options_.client_activity();
  }

  static int matmul_algorithm(void* self, const tr_matmul* matmul) {
    return static_cast<PluginRunner*>(self)->options_.matmul_algorithm(*matmul);
  }

  const tr_runner_api* api_;
  const PluginOptions options_;
  tr_host host_{};
  tr_runner* runner_ = nullptr;
};

}  // namespace

Status runner_error(const tr_error& error) {
  const bool memory = std::string_view(error.exception_type) == "OutOfMemoryError";
  return {memory ? ErrorCode::kOutOfMemory : ErrorCode::kOpFailed, error.message, error.exception_type};
}

Status make_plugin_runner(const tr_runner_api* api, PluginOptions options, std::unique_ptr<Runner>* runner) {
  auto made = std::make_unique<PluginRunner>(api, std::move(options));
  Status status = made->create();
  if (status.ok()) *runner = std::move(made);
  return status;
}

}  // namespace torch_remote::worker

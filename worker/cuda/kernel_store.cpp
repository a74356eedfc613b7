#include "worker/cuda/kernel_store.h"

namespace torch_remote::worker::cuda {
namespace {

using codegen::gpu::Recipe;
using Name = codegen::gpu::Function;

std::vector<Name> functions_of(const Recipe& recipe) {
  std::vector<Name> functions;
  if (recipe.shape == codegen::gpu::Shape::kPoints) functions.push_back(Name::kPoints);
  if (recipe.shape == codegen::gpu::Shape::kRows && recipe.slots != 0) functions.push_back(Name::kHeld);
  if (recipe.shape == codegen::gpu::Shape::kRows) functions.push_back(Name::kLooped);
  if (recipe.finish_columns != 0) functions.push_back(Name::kFinish);
  return functions;
}

}  // namespace

KernelStore::~KernelStore() {
  if (gpu_->is_lost()) return;
  const Current current(*gpu_);
  for (const auto& [text, entry] : entries_) {
    if (entry->kernel.module != nullptr) (void)gpu_->driver().module_unload(entry->kernel.module);
  }
}

Status KernelStore::get(const codegen::Kernel& kernel, const LoadedKernel** loaded) {
  const std::string text = codegen::print(kernel);
  std::unique_ptr<Entry>& entry = entries_[text];
  const bool may_work_now = entry && !entry->status.ok() && entry->status.code() != ErrorCode::kUnsupported;
  if (!entry || may_work_now) {
    entry = std::make_unique<Entry>();
    entry->status = load(text, &entry->kernel);
  }
  *loaded = &entry->kernel;
  return entry->status;
}

Status KernelStore::load(const std::string& text, LoadedKernel* kernel) {
  CompiledKernel compiled;
  if (Status status = compile_(text, gpu_->sm(), &compiled); !status.ok()) return status;
  ++compiled_;
  const Driver& driver = gpu_->driver();
  const Current current(*gpu_);
  std::vector<char> log(4096);
  JitOption options[] = {JitOption::kErrorLog, JitOption::kErrorLogBytes};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver wants the size in a pointer's place
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  Status status =
      to_status(driver, driver.module_load_data_ex(&kernel->module, compiled.image.data(), 2, options, values),
                "cuModuleLoadDataEx");
  if (!status.ok()) return {status.code(), status.message() + " " + log.data()};
  for (const Name name : functions_of(compiled.recipe)) {
    status = to_status(driver,
                       driver.module_get_function(&kernel->functions[static_cast<size_t>(name)], kernel->module,
                                                  std::string(codegen::gpu::name(name)).c_str()),
                       "cuModuleGetFunction");
    if (!status.ok()) return status;
  }
  kernel->recipe = std::move(compiled.recipe);
  return {};
}

bool launch(Gpu& gpu, const LoadedKernel& kernel, const codegen::gpu::Call& call) {
  std::vector<codegen::gpu::Launch> launches;
  if (const Status status = codegen::gpu::make_launches(kernel.recipe, call, &launches); !status.ok()) {
    return gpu.check(Result::kInvalidValue, status.message().c_str());
  }
  std::vector<void*> parameters;
  for (codegen::gpu::Launch& launch : launches) {
    parameters.clear();
    for (uint64_t& parameter : launch.parameters) parameters.push_back(&parameter);
    const Result result = gpu.driver().launch_kernel(kernel.functions[static_cast<size_t>(launch.function)],
                                                     launch.grid, 1, 1, launch.block[0], launch.block[1], 1,
                                                     launch.shared_bytes, gpu.work(), parameters.data(), nullptr);
    if (!gpu.check(result, "cuLaunchKernel")) return false;
  }
  return true;
}

}  // namespace torch_remote::worker::cuda

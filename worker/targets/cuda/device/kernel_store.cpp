#include "worker/targets/cuda/device/kernel_store.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace torch_remote::worker::cuda {
namespace {

using codegen::gpu::Recipe;
using Name = codegen::gpu::Function;

std::vector<Name> functions_of(const Recipe& recipe) {
  std::vector<Name> functions;
  if (recipe.shape == codegen::gpu::Shape::kPoints) functions.push_back(Name::kPoints);
  if (recipe.shape == codegen::gpu::Shape::kRows && recipe.slots != 0) functions.push_back(Name::kRowsInRegisters);
  if (recipe.shape == codegen::gpu::Shape::kRows) functions.push_back(Name::kRowsReloaded);
  if (recipe.finish_columns != 0) functions.push_back(Name::kFinish);
  return functions;
}

// The cache folder is pruned after every 64 compiled kernels.
constexpr uint64_t kPruneEvery = 64;

// The file format of a kernel: the size of the recipe, the recipe, the image.
std::vector<uint8_t> encode(const CompiledKernel& kernel) {
  const std::vector<uint8_t> recipe = codegen::gpu::encode(kernel.recipe);
  const auto size = static_cast<uint32_t>(recipe.size());
  std::vector<uint8_t> bytes(sizeof(size));
  std::memcpy(bytes.data(), &size, sizeof(size));
  bytes.insert(bytes.end(), recipe.begin(), recipe.end());
  bytes.insert(bytes.end(), kernel.image.begin(), kernel.image.end());
  return bytes;
}

bool decode(std::span<const uint8_t> bytes, CompiledKernel* kernel) {
  uint32_t size = 0;
  if (bytes.size() < sizeof(size)) return false;
  std::memcpy(&size, bytes.data(), sizeof(size));
  bytes = bytes.subspan(sizeof(size));
  if (bytes.size() <= size || !codegen::gpu::decode(bytes.first(size), &kernel->recipe).ok()) return false;
  kernel->image.assign(bytes.begin() + size, bytes.end());
  return true;
}

}  // namespace

class KernelStore::Asked {
 public:
  enum class State : uint8_t { kQueued, kBegun, kDone };
  std::string text;
  State state = State::kQueued;
  // Valid in state kDone.
  CompiledKernel compiled;
  Status status;
  // Used only by the store's thread.
  LoadedKernel kernel;
  bool loaded = false;
};

KernelStore::KernelStore(std::shared_ptr<Gpu> gpu, KernelOptions options)
    : gpu_(std::move(gpu)),
      options_(std::move(options)),
      files_(options_.folder, options_.limit, "sm_" + std::to_string(gpu_->sm()) + "\n" + options_.version) {}

KernelStore::~KernelStore() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  if (gpu_->is_lost()) return;
  const Current current(*gpu_);
  gpu_->queue().clear();
  for (const auto& [text, asked] : all_) {
    if (asked->kernel.module != nullptr) (void)gpu_->driver().module_unload(asked->kernel.module);
  }
}

KernelStore::Asked* KernelStore::ask(const codegen::Kernel& kernel) {
  std::string text = codegen::print(kernel);
  std::unique_ptr<Asked>& asked = all_[text];
  if (!asked) {
    asked = std::make_unique<Asked>();
    asked->text = std::move(text);
  } else {
    const std::lock_guard lock(mutex_);
    const bool may_work_now =
        asked->state == Asked::State::kDone && !asked->status.ok() && asked->status.code() != ErrorCode::kUnsupported;
    if (!may_work_now) return asked.get();
    asked->state = Asked::State::kQueued;
  }
  std::vector<uint8_t> bytes;
  const bool found = files_.read(asked->text, &bytes) && decode(bytes, &asked->compiled);
  const std::lock_guard lock(mutex_);
  if (found) {
    asked->state = Asked::State::kDone;
    return asked.get();
  }
  queue_.push_back(asked.get());
  const uint32_t most =
      options_.threads != 0 ? options_.threads : std::max(1u, std::thread::hardware_concurrency() / 2);
  if (threads_.size() < std::min<size_t>(most, queue_.size())) threads_.emplace_back([this] { work(); });
  wake_.notify_one();
  return asked.get();
}

void KernelStore::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return ends_ || !queue_.empty(); });
    if (ends_) return;
    Asked& asked = *queue_.front();
    queue_.pop_front();
    asked.state = Asked::State::kBegun;
    lock.unlock();
    make(asked);
    lock.lock();
    asked.state = Asked::State::kDone;
    done_.notify_all();
  }
}

// Compiles the kernel and writes it to disk.
void KernelStore::make(Asked& asked) {
  asked.compiled = {};
  asked.status = options_.compile(asked.text, gpu_->sm(), &asked.compiled);
  if (!asked.status.ok()) return;
  files_.write(asked.text, encode(asked.compiled));
  if (compiled_.fetch_add(1, std::memory_order_relaxed) % kPruneEvery == 0) files_.prune();
}

Status KernelStore::get(Asked& asked, const LoadedKernel** loaded) {
  std::unique_lock lock(mutex_);
  if (asked.state == Asked::State::kQueued) {
    std::erase(queue_, &asked);
    asked.state = Asked::State::kBegun;
    lock.unlock();
    make(asked);
    lock.lock();
    asked.state = Asked::State::kDone;
  }
  done_.wait(lock, [&] { return asked.state == Asked::State::kDone; });
  lock.unlock();
  if (asked.status.ok() && !asked.loaded) {
    asked.status = load(asked, &asked.kernel);
    asked.loaded = asked.status.ok();
    asked.compiled.image = {};
  }
  *loaded = &asked.kernel;
  return asked.status;
}

Status KernelStore::load(const Asked& asked, LoadedKernel* kernel) const {
  const Driver& driver = gpu_->driver();
  const Current current(*gpu_);
  std::vector<char> log(4096);
  JitOption options[] = {JitOption::kErrorLog, JitOption::kErrorLogBytes};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver wants the size in a pointer's place
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  Status status =
      to_status(driver, driver.module_load_data_ex(&kernel->module, asked.compiled.image.data(), 2, options, values),
                "cuModuleLoadDataEx");
  if (!status.ok()) return {status.code(), status.message() + " " + log.data()};
  for (const Name name : functions_of(asked.compiled.recipe)) {
    status = to_status(driver,
                       driver.module_get_function(&kernel->functions[static_cast<size_t>(name)], kernel->module,
                                                  std::string(codegen::gpu::name(name)).c_str()),
                       "cuModuleGetFunction");
    if (!status.ok()) return status;
  }
  kernel->recipe = asked.compiled.recipe;
  using codegen::gpu::ParameterKind;
  for (size_t i = 0; i < kernel->recipe.parameters.size(); ++i) {
    const ParameterKind kind = kernel->recipe.parameters[i].kind;
    if (kind == ParameterKind::kScalarsAddress) kernel->numbers = i;
    if (kind == ParameterKind::kScalar) ++kernel->number_count;
    if (kind == ParameterKind::kFailure) kernel->failure = i;
  }
  return {};
}

bool launch(Gpu& gpu, const LoadedKernel& kernel, const codegen::gpu::Call& call) {
  std::vector<codegen::gpu::Launch> launches;
  if (const Status status = codegen::gpu::make_launches(kernel.recipe, call, &launches); !status.ok()) {
    return gpu.check(Result::kInvalidValue, status.message().c_str());
  }
  for (codegen::gpu::Launch& launch : launches) {
    gpu.queue().add({.function = kernel.functions[static_cast<size_t>(launch.function)],
                     .grid = launch.grid,
                     .block = {launch.block[0], launch.block[1]},
                     .shared_bytes = launch.shared_bytes,
                     .words = std::move(launch.parameters),
                     .numbers = kernel.numbers,
                     .number_count = kernel.number_count,
                     .failure = kernel.failure});
  }
  return !gpu.is_lost();
}

}  // namespace torch_remote::worker::cuda

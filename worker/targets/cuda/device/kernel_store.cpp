#include "worker/targets/cuda/device/kernel_store.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "worker/targets/cuda/device/load_module.h"

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

class KernelStore::Request {
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
  const ContextGuard current(*gpu_);
  gpu_->queue().clear();
  for (const auto& [text, request] : all_) {
    if (request->kernel.module != nullptr) (void)gpu_->driver().module_unload(request->kernel.module);
  }
}

KernelStore::Request* KernelStore::request(const codegen::Kernel& kernel) {
  std::string text = codegen::print(kernel);
  std::unique_ptr<Request>& request = all_[text];
  if (!request) {
    request = std::make_unique<Request>();
    request->text = std::move(text);
  } else {
    const std::lock_guard lock(mutex_);
    const bool may_work_now = request->state == Request::State::kDone && !request->status.ok() &&
                              request->status.code() != ErrorCode::kUnsupported;
    if (!may_work_now) return request.get();
    request->state = Request::State::kQueued;
    request->status = {};
  }
  std::vector<uint8_t> bytes;
  const bool found = files_.read(request->text, &bytes) && decode(bytes, &request->compiled);
  const std::lock_guard lock(mutex_);
  if (found) {
    request->state = Request::State::kDone;
    return request.get();
  }
  queue_.push_back(request.get());
  const uint32_t most =
      options_.threads != 0 ? options_.threads : std::max(1u, std::thread::hardware_concurrency() / 2);
  if (threads_.size() < std::min<size_t>(most, queue_.size() + compiling_)) threads_.emplace_back([this] { work(); });
  wake_.notify_one();
  return request.get();
}

void KernelStore::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return ends_ || !queue_.empty(); });
    if (ends_) return;
    Request& request = *queue_.front();
    queue_.pop_front();
    request.state = Request::State::kBegun;
    ++compiling_;
    lock.unlock();
    make(request);
    lock.lock();
    --compiling_;
    request.state = Request::State::kDone;
    done_.notify_all();
  }
}

// Compiles the kernel and writes it to disk.
void KernelStore::make(Request& request) {
  request.compiled = {};
  request.status = options_.compile(request.text, gpu_->sm(), &request.compiled);
  if (!request.status.ok()) return;
  files_.write(request.text, encode(request.compiled));
  if (compiled_.fetch_add(1, std::memory_order_relaxed) % kPruneEvery == 0) files_.prune();
}

Status KernelStore::get(Request& request, const LoadedKernel** loaded) {
  std::unique_lock lock(mutex_);
  if (request.state == Request::State::kQueued) {
    std::erase(queue_, &request);
    request.state = Request::State::kBegun;
    lock.unlock();
    make(request);
    lock.lock();
    request.state = Request::State::kDone;
  }
  done_.wait(lock, [&] { return request.state == Request::State::kDone; });
  lock.unlock();
  if (request.status.ok() && !request.loaded) {
    request.status = load(request, &request.kernel);
    request.loaded = request.status.ok();
    request.compiled.image = {};
    request.compiled.ptx = {};
  }
  *loaded = &request.kernel;
  return request.status;
}

// Loads the image. If the driver refuses the assembler's machine code, the driver translates the PTX instead, and the
// disk cache gets the PTX.
Status KernelStore::load_image(Request& request, Module* module) {
  bool refused = false;
  const Status status = load_module(gpu_->driver(), request.compiled.image.data(), module, &refused);
  if (!refused || !options_.assemble) return status;
  if (request.compiled.ptx.empty()) {  // The image is from the disk cache.
    make(request);
    if (!request.status.ok()) return std::exchange(request.status, {});
    if (request.compiled.ptx.empty())
      return load_module(gpu_->driver(), request.compiled.image.data(), module, &refused);
  }
  if (!warned_ && options_.warn) {
    options_.warn(status.message() + ". The driver therefore translates kernels itself; a later driver avoids this");
  }
  warned_ = true;
  request.compiled.image = std::exchange(request.compiled.ptx, {});
  files_.write(request.text, encode(request.compiled));
  return load_module(gpu_->driver(), request.compiled.image.data(), module, &refused);
}

Status KernelStore::load(Request& request, LoadedKernel* kernel) {
  const Driver& driver = gpu_->driver();
  const ContextGuard current(*gpu_);
  Status status = load_image(request, &kernel->module);
  if (!status.ok()) return status;
  for (const Name name : functions_of(request.compiled.recipe)) {
    status = to_status(driver,
                       driver.module_get_function(&kernel->functions[static_cast<size_t>(name)], kernel->module,
                                                  std::string(codegen::gpu::name(name)).c_str()),
                       "cuModuleGetFunction");
    if (!status.ok()) {
      (void)driver.module_unload(std::exchange(kernel->module, nullptr));
      return status;
    }
  }
  kernel->recipe = request.compiled.recipe;
  using codegen::gpu::ParameterKind;
  for (size_t i = 0; i < kernel->recipe.parameters.size(); ++i) {
    const ParameterKind kind = kernel->recipe.parameters[i].kind;
    if (kind == ParameterKind::kScalarsAddress) kernel->scalars_word = i;
    if (kind == ParameterKind::kScalar) ++kernel->scalar_count;
    if (kind == ParameterKind::kFailure) kernel->failure = i;
  }
  return {};
}

// The disk cache has the machine code under the text of the PTX.
Status KernelStore::assemble(std::string_view ptx, std::vector<uint8_t>* cubin) {
  if (!options_.assemble) return {ErrorCode::kUnsupported, "cuda: there is no nvJitLink"};
  const std::string text = "ptx\n" + std::string(ptx);
  if (files_.read(text, cubin)) return {};
  Status status = options_.assemble(ptx, gpu_->sm(), cubin);
  if (status.ok()) files_.write(text, *cubin);
  return status;
}

Status KernelStore::load(std::span<const uint8_t> code, std::span<const uint8_t> ptx, Module* module) {
  const Driver& driver = gpu_->driver();
  const ContextGuard current(*gpu_);
  bool refused = true;
  Status status;
  std::string attempts;
  const auto failed = [&](const char* what) {
    attempts += (attempts.empty() ? "" : "; ") + std::string(what) + ": " + status.message();
  };
  if (!code.empty()) {
    status = load_module(driver, code.data(), module, &refused);
    if (status.ok() || !refused) return status;
    failed("machine code");
  }
  if (!ptx.empty()) {
    std::vector<uint8_t> cubin;
    status = assemble({reinterpret_cast<const char*>(ptx.data()), ptx.size() - 1}, &cubin);
    if (status.ok()) status = load_module(driver, cubin.data(), module, &refused);
    if (status.ok() || !refused) return status;
    failed("machine code of nvJitLink");
    status = load_module(driver, ptx.data(), module, &refused);
    if (status.ok() || status.code() != ErrorCode::kInternal) return status;
    failed("PTX");
  }
  int version = 0;
  (void)driver.driver_get_version(&version);
  return {ErrorCode::kInternal, "remote: the driver (CUDA " + std::to_string(version / 1000) + "." +
                                    std::to_string(version % 1000 / 10) + ") loads no kernels of the worker for " +
                                    gpu_->name() + " (sm_" + std::to_string(gpu_->sm()) + ")" +
                                    (attempts.empty() ? "" : ": " + attempts) + "; install a later driver"};
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
                     .scalars_word = kernel.scalars_word,
                     .scalar_count = kernel.scalar_count,
                     .failure = kernel.failure});
  }
  return !gpu.is_lost();
}

}  // namespace torch_remote::worker::cuda

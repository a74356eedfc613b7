#include "worker/targets/cuda/ops/op_kernels.h"

#include <utility>

namespace torch_remote::worker::cuda {

OpKernels::~OpKernels() {
  if (gpu().is_lost()) return;
  const ContextGuard current(gpu());
  gpu().queue().clear();
  for (const Module module : modules_) {
    if (module != nullptr) (void)gpu().driver().module_unload(module);
  }
  if (count_ != nullptr) (void)gpu().driver().mem_free_host(count_);
}

Status OpKernels::load(KernelFile file, Module* module) {
  const KernelImages images = find_images(archive_, file, gpu().sm());
  return device_.kernels().load(images.code, images.ptx, module);
}

Status OpKernels::find(KernelFile file, const char* name, Function* function) {
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

Status OpKernels::launch(const OpLaunch& launch, const RunMemory& memory, uint64_t record,
                         std::span<const int64_t> values) {
  Function function = nullptr;
  if (Status status = find(launch.file, launch.kernel, &function); !status.ok()) return status;
  WorkItem work{.function = function, .grid = launch.grid, .block = {launch.block, 1}, .one_parameter = true};
  work.words = launch.words;
  for (const OpLaunch::Address& word : launch.addresses) work.words[word.word] = memory.address(word.location);
  for (const OpLaunch::Parameter& word : launch.parameters) {
    work.words[word.word] = static_cast<uint64_t>(values[word.symbol]);
  }
  work.scalars_word = launch.scalars_word.value_or(0);
  work.scalar_count = launch.parameters.size();
  work.failure = launch.failure;
  if (launch.failure) work.words[*launch.failure] = record;
  gpu().queue().add(std::move(work));
  return {};
}

Status OpKernels::read(DevicePointer from, int64_t* count) {
  const Driver& driver = gpu().driver();
  if (count_ == nullptr) {
    void* memory = nullptr;
    const Result result = driver.mem_host_alloc(&memory, sizeof(*count_), 0);
    if (result != Result::kSuccess) return to_status(driver, result, "cuMemHostAlloc");
    count_ = static_cast<int64_t*>(memory);
  }
  const bool good =
      gpu().check(driver.memcpy_dtoh_async(count_, from, sizeof(*count_), gpu().work_stream()), "cuMemcpyDtoHAsync") &&
      gpu().check(driver.stream_synchronize(gpu().work_stream()), "cuStreamSynchronize");
  *count = good ? *count_ : 0;
  return {};
}

}  // namespace torch_remote::worker::cuda

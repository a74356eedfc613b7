#include "worker/targets/cuda/device/gpu.h"

#include <utility>

#include "worker/targets/cuda/device/gpu_list.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr uint32_t kOldest = 75;  // sm_75: the oldest GPU for which kernels are compiled.

class GpuSource final : public SegmentSource {
 public:
  explicit GpuSource(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  Segment allocate(size_t size) override {
    if (gpu_->is_lost()) return {};
    const ContextGuard current(*gpu_);
    DevicePointer address = take(size);
    if (address % CachingAllocator::kPage != 0) {  // The driver guarantees a smaller alignment.
      give(*gpu_, address);
      address = take(size + CachingAllocator::kPage);
    }
    if (address == 0) return {};
    const DevicePointer begin =
        (address + CachingAllocator::kPage - 1) / CachingAllocator::kPage * CachingAllocator::kPage;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
    return {reinterpret_cast<std::byte*>(begin), size, std::shared_ptr<void>(nullptr, [gpu = gpu_, address](void*) {
              const ContextGuard current(*gpu);
              give(*gpu, address);
            })};
  }

 private:
  // Returns 0 if there is no memory, even after the pool has returned its unused memory to the driver.
  DevicePointer take(size_t size) {
    const Driver& driver = gpu_->driver();
    DevicePointer address = 0;
    const StreamMemory& memory = gpu_->memory();
    Result result = memory.allocate(&address, size);
    if (result == Result::kOutOfMemory && driver.stream_synchronize(gpu_->work_stream()) == Result::kSuccess &&
        memory.trim() == Result::kSuccess) {
      result = memory.allocate(&address, size);
    }
    if (result != Result::kSuccess && result != Result::kOutOfMemory) gpu_->check(result, memory.allocate_function());
    return result == Result::kSuccess ? address : 0;
  }
  static void give(Gpu& gpu, DevicePointer address) {
    if (address != 0 && !gpu.is_lost()) gpu.check(gpu.free(address), gpu.memory().free_function());
  }

  std::shared_ptr<Gpu> gpu_;
};

}  // namespace

Status Gpu::open(const Driver& driver, int ordinal, std::shared_ptr<Gpu>* opened) {
  std::shared_ptr<Gpu> gpu(new Gpu(driver));
  if (Status status = gpu->open_device(ordinal); !status.ok()) return status;
  const ContextGuard current(*gpu);
  if (Status status = gpu->open_context(); !status.ok()) return status;
  *opened = std::move(gpu);
  return {};
}

Status Gpu::open_device(int ordinal) {
  ordinal_ = ordinal;
  int count = 0, major = 0, minor = 0, multiprocessors = 0, pools = 0;
  Status status = to_status(driver_, driver_.device_get_count(&count), "cuDeviceGetCount");
  if (!status.ok()) return status;
  if (ordinal < 0 || ordinal >= count) {
    return {ErrorCode::kUnsupported, "cuda: there is no GPU " + std::to_string(ordinal) + ": the driver shows " +
                                         std::to_string(count) + hidden_gpus() +
                                         "; torch-remote-worker --list-devices prints their numbers"};
  }
  char name[256] = {};
  const auto attribute = [&](DeviceAttribute which, int* value) {
    if (status.ok())
      status = to_status(driver_, driver_.device_get_attribute(value, which, device_), "cuDeviceGetAttribute");
  };
  status = to_status(driver_, driver_.device_get(&device_, ordinal), "cuDeviceGet");
  if (status.ok()) status = to_status(driver_, driver_.device_get_name(name, sizeof(name), device_), "cuDeviceGetName");
  attribute(DeviceAttribute::kMajor, &major);
  attribute(DeviceAttribute::kMinor, &minor);
  attribute(DeviceAttribute::kMultiprocessors, &multiprocessors);
  attribute(DeviceAttribute::kMemoryPools, &pools);
  if (!status.ok()) return status;
  name_ = name;
  sm_ = static_cast<uint32_t>(10 * major + minor);
  multiprocessors_ = static_cast<uint32_t>(multiprocessors);
  has_pools_ = pools != 0;
  if (sm_ < kOldest) {
    return {ErrorCode::kUnsupported,
            "cuda: " + name_ + " (sm_" + std::to_string(sm_) + ") is too old; the worker needs sm_75 (T4) or later"};
  }
  return retain_context();
}

// In some compute modes the driver refuses the context.
Status Gpu::retain_context() {
  const Result result = driver_.primary_ctx_retain(&context_, device_);
  if (result == Result::kSuccess) return {};
  int value = 0;
  (void)driver_.device_get_attribute(&value, DeviceAttribute::kComputeMode, device_);
  const auto mode = static_cast<ComputeMode>(value);
  const std::string fix = "; allow several processes: nvidia-smi -i " + uuid_text(driver_, device_) + " -c DEFAULT";
  if (mode == ComputeMode::kProhibited) {
    return {ErrorCode::kUnsupported,
            "cuda: " + name_ + " is in compute mode PROHIBITED, so no process can use it" + fix};
  }
  if (mode == ComputeMode::kExclusiveProcess && result != Result::kOutOfMemory) {
    return {ErrorCode::kUnsupported,
            "cuda: " + name_ +
                " is in compute mode EXCLUSIVE_PROCESS, and another process uses it. Each session of a "
                "worker is a process" +
                fix + ", or serve one session: --max-sessions 1"};
  }
  return to_status(driver_, result, "cuDevicePrimaryCtxRetain");
}

Status Gpu::open_context() {
  MemoryPoolProperties properties;
  properties.location = device_;
  uint64_t keep = UINT64_MAX;  // Freed memory stays in the pool, for the next segment.
  size_t unused = 0, total = 0;
  Status status = to_status(driver_, driver_.mem_get_info(&unused, &total), "cuMemGetInfo");
  free_memory_ = unused;
  if (status.ok() && has_pools_) {
    status = to_status(driver_, driver_.mem_pool_create(&pool_, &properties), "cuMemPoolCreate");
  }
  if (status.ok() && has_pools_) {
    status = to_status(driver_, driver_.mem_pool_set_attribute(pool_, PoolAttribute::kReleaseThreshold, &keep),
                       "cuMemPoolSetAttribute");
  }
  for (Stream* stream : {&work_stream_, &copy_in_stream_, &copy_out_stream_}) {
    if (!status.ok()) return status;
    status = to_status(driver_, driver_.stream_create(stream, kStreamNonBlocking, 0), "cuStreamCreate");
  }
  memory_ = StreamMemory(driver_, pool_, work_stream_);
  queue_->set_stream(work_stream_, memory_);
  return status;
}

// The driver cannot free anything on a lost GPU except the context.
Gpu::~Gpu() {
  if (context_ == nullptr) return;
  {
    const ContextGuard current(*this);
    queue_->clear();
    for (Stream stream : {work_stream_, copy_in_stream_, copy_out_stream_}) {
      if (stream == nullptr) continue;
      (void)driver_.stream_synchronize(stream);
      (void)driver_.stream_destroy(stream);
    }
    if (pool_ != nullptr) (void)driver_.mem_pool_destroy(pool_);
  }
  (void)driver_.primary_ctx_release(device_);
}

Gpu::Gpu(const Driver& driver)
    : driver_(driver),
      queue_(std::make_unique<WorkQueue>(
          driver_, [this] { return is_lost(); }, [this](const Status& why) { mark_lost(why); })) {}

bool Gpu::check(Result result, const char* what) {
  if (result == Result::kSuccess) return true;
  mark_lost(to_status(driver_, result, what));
  return false;
}

void Gpu::mark_lost(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (status_.ok()) {
    status_ = {ErrorCode::kLost,
               "remote: " + name_ + " is lost" +
                   (current_op_.empty() ? "" : ", '" + std::string(current_op_) + "' was queued last") + ": " +
                   why.message()};
    lost_.store(true, std::memory_order_release);
  }
}

Status Gpu::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::unique_ptr<SegmentSource> make_segment_source(std::shared_ptr<Gpu> gpu) {
  return std::make_unique<GpuSource>(std::move(gpu));
}

}  // namespace torch_remote::worker::cuda

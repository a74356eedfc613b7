#include "tests/emulated_gpu/emulator/device.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "tests/emulated_gpu/emulator/faults.h"
#include "tests/emulated_gpu/emulator/permutation.h"

namespace torch_remote::codegen::emulator {
namespace {

constexpr uint32_t kMostBlocksX = 0x7FFFFFFF, kMostBlocksYZ = 0xFFFF;
constexpr uint32_t kMostThreadsZ = 64;
// Interval at which the request to stop is repeated.
constexpr auto kPatience = std::chrono::milliseconds(10);

Status check(const Launch& launch) {
  const KernelImage& kernel = *launch.kernel;
  const auto wrong = [&](const std::string& what) {
    return Status::invalid("emulator: kernel '" + kernel.name + "' cannot be launched: " + what);
  };
  const Dim3 &grid = launch.grid, &block = launch.block;
  if (grid.count() == 0 || grid.x > kMostBlocksX || grid.y > kMostBlocksYZ || grid.z > kMostBlocksYZ) {
    return wrong("a grid of " + text(grid) + " blocks");
  }
  if (block.count() == 0 || block.count() > kernel.attributes.max_threads || block.z > kMostThreadsZ) {
    return wrong("a block of " + text(block) + " threads; it takes " + std::to_string(kernel.attributes.max_threads));
  }
  if (kernel.attributes.shared_bytes + launch.dynamic_shared > kMaxShared) {
    return wrong(std::to_string(kernel.attributes.shared_bytes) + " + " + std::to_string(launch.dynamic_shared) +
                 " bytes of shared memory; there are " + std::to_string(kMaxShared));
  }
  return {};
}

// The host threads of a launch.
class Run {
 public:
  Run(Launch& launch, DeviceState& device, size_t threads) : launch_(launch), device_(device), running_(threads) {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this, i] { work(*device_.workers[i]); });
  }

  // Waits for all threads. After the launch's time limit, asks them to stop.
  void wait() {
    std::unique_lock lock(mutex_);
    const auto done = [this] { return running_ == 0; };
    if (!done_.wait_for(lock, std::chrono::duration<double>(launch_.options.seconds), done)) {
      launch_.timed_out = true;
      // Checked mode notices `timed_out` at the next loop iteration. A signal could interrupt code that must not be
      // abandoned.
      while (!done_.wait_for(lock, kPatience, done)) {
        if (launch_.options.checked) continue;
        for (std::thread& thread : threads_) interrupt(thread.native_handle());
      }
    }
    lock.unlock();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work(Worker& worker) {
    {
      const FaultGuard guard;
      const uint64_t blocks = launch_.grid.count();
      const Permutation order(blocks, launch_.options.seed);
      for (uint64_t i = next_++; i < blocks && !launch_.stop; i = next_++) {
        if (launch_.timed_out) {
          launch_.report("emulator: kernel '" + launch_.kernel->name + "' runs too long: " + std::to_string(i) +
                         " of " + std::to_string(blocks) + " blocks were begun");
          break;
        }
        worker.run(order(i));
      }
    }
    const std::lock_guard lock(mutex_);
    --running_;
    done_.notify_all();
  }

  Launch& launch_;
  DeviceState& device_;
  std::atomic<uint64_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable done_;
  size_t running_;
  std::vector<std::thread> threads_;
};

}  // namespace

Status run_launch(DeviceState& device, Launch& launch) {
  if (Status status = check(launch); !status) return status;
  const std::lock_guard lock(device.mutex);
  const bool checked = launch.options.checked;
  if (checked && !device.memory.tracked()) {
    return Status::invalid("emulator: launches on a device whose memory is not tracked cannot be checked");
  }
  const uint64_t most = checked ? 1 : std::max<uint32_t>(launch.options.host_threads, 1);
  const size_t threads = std::min(most, launch.grid.count());
  if (checked) {
    device.memory.assume_written();
  } else {
    device.memory.unchecked_launch();
  }
  while (device.workers.size() < threads) device.workers.push_back(std::make_unique<Worker>(device.memory));
  for (size_t i = 0; i < threads; ++i) {
    if (Status status = device.workers[i]->prepare(launch, checked ? &device.checker : nullptr); !status) return status;
  }
  if (checked) device.checker.begin_launch(launch);
  Run(launch, device, threads).wait();
  if (launch.finding().empty()) return {};
  return {ErrorCode::kOpFailed, launch.finding(), "RuntimeError"};
}

}  // namespace torch_remote::codegen::emulator

#include "tests/emulated_gpu/hand_written_kernels.h"
#include "tests/emulated_gpu/open.h"
#include "worker/process/main.h"
#include "worker/targets/cuda/cuda_target.h"

// For tests: the worker with emulated GPUs. Without --device it uses the first one.
int main(int argc, char** argv) {
  using namespace torch_remote::worker;
  cuda::emulated::report_calls_on_signal();
  std::vector<Target> targets = all_targets();
  targets.front().open = [](const std::string&) { return cuda::emulated::open_device; };
  for (Target& target : targets) {
    if (target.name != "cuda") continue;
    target = cuda_target(cuda::emulated::probe_source(), cuda::emulated::hand_written_kernels());
    target.open = cuda::emulated::device_opener;
  }
  return run_worker(argc, argv, targets);
}

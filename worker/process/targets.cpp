#include "worker/process/main.h"
#include "worker/targets/cpu/cpu_target.h"
#include "worker/targets/cuda/cuda_target.h"
#include "worker/targets/reference/reference_target.h"

namespace torch_remote::worker {

// A new target is one line here, one in BUILD.bazel, and a folder of its own.
std::vector<Target> all_targets() {
  std::vector<Target> targets;
  targets.push_back(cpu_target());
  targets.push_back(cuda_target());
  targets.push_back(reference_target());
  return targets;
}

}  // namespace torch_remote::worker

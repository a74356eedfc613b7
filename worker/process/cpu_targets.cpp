#include "worker/process/main.h"
#include "worker/targets/cpu/cpu_target.h"
#include "worker/targets/reference/reference_target.h"

namespace torch_remote::worker {
namespace {

Target missing_cuda_target() {
  Target target;
  target.name = "cuda";
  target.about = "not in this build of the worker";
  target.numbered = true;
  const Status refusal(ErrorCode::kUnsupported,
                       "remote: this worker was built for examples on a CPU and cannot use GPUs; install the wheel "
                       "(./bazelw build //:wheel) and run the script with its Python");
  target.load = [refusal](DeviceOptions*) { return refusal; };
  target.open = [refusal](const std::string&) -> DeviceOpener {
    return [refusal](remote::Transport&, const DeviceOptions&, const std::function<tr_client_activity()>&,
                     OpenDevice*) { return refusal; };
  };
  return target;
}

}  // namespace

// In place of targets.cpp.
std::vector<Target> all_targets() {
  std::vector<Target> targets;
  targets.push_back(cpu_target());
  targets.push_back(missing_cuda_target());
  targets.push_back(reference_target());
  return targets;
}

}  // namespace torch_remote::worker

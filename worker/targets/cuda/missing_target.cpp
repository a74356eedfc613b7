#include "worker/targets/cuda/cuda_target.h"

namespace torch_remote::worker {

// In place of cuda_target.cpp.
Target cuda_target() {
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

}  // namespace torch_remote::worker

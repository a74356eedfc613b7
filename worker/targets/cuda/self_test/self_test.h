#pragma once

#include <vector>

#include "worker/targets/cuda/kernels/kernel_images.h"
#include "worker/targets/self_test.h"
#include "worker/targets/target.h"

// The self-test of a GPU. It loads the image of each file of hand-written kernels. It then runs small programs through
// sessions, as a client's programs run, and compares the results with known numbers. Each row uses one runner, so that
// no other runner hides a failure.
namespace torch_remote::worker::cuda {

// Tests the first GPU, and NCCL if there are at least two. `open` opens a GPU by its number. `archive`: the images that
// the opened device's runners use. A failure does not stop later rows. If the GPU is lost, they are kNotRun.
std::vector<SelfTestRow> self_test(const std::function<DeviceOpener(const std::string& id)>& open,
                                   const DeviceOptions& options, KernelArchive archive, int gpus,
                                   const SelfTestReport& report);

}  // namespace torch_remote::worker::cuda

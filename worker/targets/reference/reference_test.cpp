#include "worker/device/host_device.h"
#include "worker/device/testing/conformance.h"
#include "worker/runner/testing/conformance.h"
#include "worker/targets/reference/loop_runner.h"

namespace torch_remote::worker::testing {
namespace {

std::unique_ptr<Device> make_device(uint64_t limit) {
  return std::make_unique<HostDevice>(HostDevice::Options{.limit = limit});
}

void make_runner(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  *device = make_device(limit);
  *runner = reference::make_loop_runner(**device);
}

constexpr const char* kFailingNode = R"(%5: f32[s0, 1]{1, 1} @b0
  %3: f32[s0, 1]{1, 1} @b3 = aten::embedding(%5, %1, padding_idx=-1, scale_grad_by_freq=false, sparse=false))";

INSTANTIATE_TEST_SUITE_P(Reference, DeviceConformance, ::testing::Values(DeviceUnderTest{make_device}));
INSTANTIATE_TEST_SUITE_P(Reference, RunnerConformance,
                         ::testing::Values(RunnerUnderTest{make_runner, kFailingNode, "IndexError",
                                                           /*has_host_results=*/false}));

}  // namespace
}  // namespace torch_remote::worker::testing

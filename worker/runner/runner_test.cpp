#include "worker/device/host_device.h"
#include "worker/runner/plugin_runner.h"
#include "worker/runner/testing/conformance.h"
#include "worker/runner/testing/delayed_runner.h"
#include "worker/runner/testing/fake_runner.h"

namespace torch_remote::worker::testing {
namespace {

constexpr const char* kFailingNode = "%3: f32[s0]{1} @b3 = aten::exp(%0)";

void make_host(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  *device = std::make_unique<HostDevice>(HostDevice::Options{.limit = limit});
  ASSERT_TRUE(make_plugin_runner(fake_runner(), {.memory = &(*device)->memory()}, runner).ok());
}

void make_delayed(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  ASSERT_TRUE(make_delayed_plugin(fake_runner(), 0, {.limit = limit}, device, runner).ok());
}

INSTANTIATE_TEST_SUITE_P(Plugin, RunnerConformance,
                         ::testing::Values(RunnerUnderTest{make_host, kFailingNode, "ValueError"}));
INSTANTIATE_TEST_SUITE_P(Delayed, RunnerConformance,
                         ::testing::Values(RunnerUnderTest{make_delayed, kFailingNode, "ValueError"}));

}  // namespace
}  // namespace torch_remote::worker::testing

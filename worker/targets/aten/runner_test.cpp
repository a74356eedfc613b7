#include "worker/device/host_device.h"
#include "worker/runner/plugin_runner.h"
#include "worker/runner/testing/conformance.h"
#include "worker/runner/testing/delayed_runner.h"

extern "C" const tr_runner_api* torch_remote_runner_api();

// The plugin passes the conformance suite of runners.
namespace torch_remote::worker::testing {
namespace {

constexpr const char* kFailingNode = "%3: f32[s0]{1} @b3 = aten::index_select(%0, 0, %1)";

void make_host(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  *device = std::make_unique<HostDevice>(HostDevice::Options{.limit = limit});
  ASSERT_TRUE(
      make_plugin_runner(torch_remote_runner_api(), {.threads = 1, .memory = &(*device)->memory()}, runner).ok());
}

void make_delayed(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  ASSERT_TRUE(make_delayed_plugin(torch_remote_runner_api(), 1, {.limit = limit}, device, runner).ok());
}

INSTANTIATE_TEST_SUITE_P(Aten, RunnerConformance,
                         ::testing::Values(RunnerUnderTest{make_host, kFailingNode, "IndexError"}));
INSTANTIATE_TEST_SUITE_P(AtenDelayed, RunnerConformance,
                         ::testing::Values(RunnerUnderTest{make_delayed, kFailingNode, "IndexError"}));

}  // namespace
}  // namespace torch_remote::worker::testing

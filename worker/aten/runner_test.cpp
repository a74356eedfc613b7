#include "worker/device/host_device.h"
#include "worker/device/testing/delayed_device.h"
#include "worker/runner/plugin_runner.h"
#include "worker/runner/testing/conformance.h"
#include "worker/runner/testing/delayed_runner.h"

extern "C" const tr_executor_api* torch_remote_executor_api();

// The plugin does what every runner must do.
namespace torch_remote::worker::testing {
namespace {

constexpr const char* kFailingNode = "%3: f32[s0]{1} @b3 = aten::index_select(%0, 0, %1)";

void make_host(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  *device = std::make_unique<HostDevice>(HostDevice::Options{.limit = limit});
  ASSERT_TRUE(
      make_plugin_runner(torch_remote_executor_api(), {.threads = 1, .memory = &(*device)->memory()}, runner).ok());
}

void make_delayed(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner) {
  auto delayed = std::make_unique<DelayedDevice>(DelayedDevice::Options{.limit = limit});
  std::unique_ptr<Runner> inner;
  ASSERT_TRUE(
      make_plugin_runner(torch_remote_executor_api(), {.threads = 1, .memory = &delayed->scratch()}, &inner).ok());
  *runner = make_delayed_runner(*delayed, std::move(inner));
  *device = std::move(delayed);
}

INSTANTIATE_TEST_SUITE_P(Aten, RunnerConformance,
                         ::testing::Values(RunnerUnderTest{make_host, kFailingNode, "IndexError"}));
INSTANTIATE_TEST_SUITE_P(AtenDelayed, RunnerConformance,
                         ::testing::Values(RunnerUnderTest{make_delayed, kFailingNode, "IndexError"}));

}  // namespace
}  // namespace torch_remote::worker::testing

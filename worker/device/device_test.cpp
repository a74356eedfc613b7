#include "worker/device/host_device.h"
#include "worker/device/testing/conformance.h"
#include "worker/device/testing/delayed_device.h"

namespace torch_remote::worker::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance, ::testing::Values(DeviceUnderTest{[](uint64_t limit) {
                           return std::make_unique<HostDevice>(HostDevice::Options{.limit = limit});
                         }}));

INSTANTIATE_TEST_SUITE_P(Delayed, DeviceConformance,
                         ::testing::Values(DeviceUnderTest{[](uint64_t limit) {
                                                             return std::make_unique<DelayedDevice>(
                                                                 DelayedDevice::Options{.limit = limit});
                                                           },
                                                           /*has_private_memory=*/true}));

}  // namespace
}  // namespace torch_remote::worker::testing

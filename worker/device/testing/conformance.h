#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "worker/device/device.h"

// The conformance suite of devices.
// INSTANTIATE_TEST_SUITE_P(Name, DeviceConformance, Values(DeviceUnderTest{...})) runs it.
namespace torch_remote::worker::testing {

struct DeviceUnderTest {
  std::function<std::unique_ptr<Device>(uint64_t limit)> make;  // limit: bytes of its memory
  // Only the device can access its memory: other accesses crash.
  bool has_private_memory = false;
};

class DeviceConformance : public ::testing::TestWithParam<DeviceUnderTest> {
 protected:
  std::unique_ptr<Device> device = GetParam().make(uint64_t{1} << 30);
};

}  // namespace torch_remote::worker::testing

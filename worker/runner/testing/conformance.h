#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "worker/device/device.h"
#include "worker/runner/runner.h"

// What every runner must do, on graphs in text form: no torch. INSTANTIATE_TEST_SUITE_P(Name, RunnerConformance,
// Values(RunnerUnderTest{...})) runs it.
namespace torch_remote::worker::testing {

struct RunnerUnderTest {
  // A device and a runner of it.
  std::function<void(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner)> make;
  // A node that fails by what its operands hold, as a line of text: %0 is f32[s0] and holds 1, 2, 3, ..., %1 is i64[s0]
  // and holds 1000, 1001, ...; it makes %3: f32[s0]{1} @b3.
  std::string failing_node;
  std::string failure_kind;
  // It has ops that tell the host something: aten::nonzero, aten::equal.
  bool tells_host = true;
};

class RunnerConformance : public ::testing::TestWithParam<RunnerUnderTest> {};

}  // namespace torch_remote::worker::testing

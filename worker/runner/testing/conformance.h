#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "worker/device/device.h"
#include "worker/runner/runner.h"

// The conformance suite of runners, on graphs in text form, without torch.
// INSTANTIATE_TEST_SUITE_P(Name, RunnerConformance, Values(RunnerUnderTest{...})) runs it.
namespace torch_remote::worker::testing {

struct RunnerUnderTest {
  // Makes a device and a runner of it.
  std::function<void(uint64_t limit, std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner)> make;
  // A node, as a line of a graph's text, that fails because of its operands' contents. %0 is f32[s0] with 1, 2, 3, ...;
  // %1 is i64[s0] with 1000, 1001, ...; the node makes %3: f32[s0]{1} @b3.
  std::string failing_node;
  std::string failure_exception_type;
  // The runner has ops with results for the host: aten::nonzero, aten::equal.
  bool has_host_results = true;
};

class RunnerConformance : public ::testing::TestWithParam<RunnerUnderTest> {};

}  // namespace torch_remote::worker::testing

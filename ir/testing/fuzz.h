#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

// What a test with random inputs reads from the environment.
namespace torch_remote::ir::testing {

struct FuzzOptions {
  uint64_t seed = 0;                         // of the first input: TORCH_REMOTE_TEST_SEED, or a random one
  std::optional<std::chrono::seconds> time;  // how long the test runs: FUZZ_SECONDS, or nothing
};

// Reads the variables, and prints the seed, so that even a crashed test can run again. Ends the process with a message
// if a variable is not a number.
FuzzOptions fuzz_options();

}  // namespace torch_remote::ir::testing

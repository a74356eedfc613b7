#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/simulator/network.h"

namespace torch_remote::simulator {

struct Outcome {
  bool failed = false;
  std::string why;
  uint64_t hash = 0;
  uint64_t runs = 0, reads = 0, resumed = 0, sessions_lost = 0, out_of_memory = 0;
  std::array<uint64_t, static_cast<size_t>(Fault::kCount)> faults{};
  double simulated_seconds = 0;
};

}  // namespace torch_remote::simulator

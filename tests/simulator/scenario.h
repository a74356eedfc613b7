#pragma once

#include <cstdint>

#include "tests/simulator/outcome.h"

namespace torch_remote::simulator {

// One run: a client, a listener and a session's process, and what the seed has go wrong. In a process that ends then.
// `finish` is called once, at the end.
[[noreturn]] void simulate(uint64_t seed, bool prints, void (*finish)(const Outcome& outcome, const World& world));

}  // namespace torch_remote::simulator

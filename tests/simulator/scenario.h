#pragma once

#include <cstdint>

#include "tests/simulator/outcome.h"

namespace torch_remote::simulator {

// One run: a client, a listener and a session process, with the faults that the seed selects. Ends the calling process.
// `finish` is called once, at the end.
[[noreturn]] void simulate(uint64_t seed, bool prints, void (*finish)(const Outcome& outcome, const World& world));

}  // namespace torch_remote::simulator

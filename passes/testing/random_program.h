#pragma once

#include <cstdint>
#include <random>

#include "ir/trace.h"

// Random programs with valid semantics, for property tests of passes.
namespace torch_remote::passes::testing {

using Rng = std::mt19937_64;

// The trace that a recorder would write for a random tensor program. The program has broadcasting, in-place ops, views,
// empty tensors that are filled later, lists, random numbers, and ops outside the table. Its sizes and strides are
// consistent; some storages have died.
ir::Trace random_program(Rng& rng, uint32_t ops);

// A training step of a small perceptron, repeated until there are about `ops` records. It has the shape of a real graph
// and is used for timing.
ir::Trace perceptron_program(uint32_t ops);

}  // namespace torch_remote::passes::testing

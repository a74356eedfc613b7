#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

// Nearly valid inputs for the readers of graphs. Everything is a function of the generator's state, so a seed
// identifies a failure.
namespace torch_remote::fuzz {

using Rng = std::mt19937_64;

// The text of a random graph with some damage. Tokens, lines and characters are removed, duplicated, swapped or taken
// from another graph; numbers are at the limits of their types. Sometimes it consists of words of the grammar in random
// order.
std::string damaged_text(Rng& rng);

// The bytes of a program, with similar damage.
std::vector<uint8_t> damaged_program(Rng& rng);

}  // namespace torch_remote::fuzz

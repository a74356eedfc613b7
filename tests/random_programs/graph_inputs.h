#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

// Inputs that are nearly right, for the readers of graphs. Everything is a function of the generator's state, so a
// failure is named by a seed.
namespace torch_remote::fuzz {

using Rng = std::mt19937_64;

// The text of a random graph with some damage: tokens, lines and characters that are left out, doubled, exchanged or
// taken from another graph; numbers at the edges of their types. Sometimes words of the grammar in no order.
std::string damaged_text(Rng& rng);

// Likewise the bytes of a program.
std::vector<uint8_t> damaged_program(Rng& rng);

}  // namespace torch_remote::fuzz

#pragma once

#include <cstdint>
#include <string>

// Properties of the readers of graphs for any input: no crash, and a graph that they accept is usable everywhere else.
namespace torch_remote::fuzz {

struct Tally {
  uint64_t inputs = 0;
  uint64_t read = 0;   // accepted by the reader
  uint64_t valid = 0;  // accepted by the verifier, too
};

// Checks one input, generated from the seed. Returns the violated property with the input, or an empty string. A graph
// that verifies must survive round trips through text and program. Each pass of the pipeline must leave a graph that
// verifies, and that a second run of the pass does not change.
std::string check_text(uint64_t seed, Tally* tally);
std::string check_program(uint64_t seed, Tally* tally);

}  // namespace torch_remote::fuzz

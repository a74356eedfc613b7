#pragma once

#include <cstdint>
#include <string>

// What must hold for the readers of graphs, whatever they are given: no crash, and a graph that they accept is one that
// everything else can work with.
namespace torch_remote::fuzz {

struct Tally {
  uint64_t inputs = 0;
  uint64_t read = 0;   // that the reader took
  uint64_t valid = 0;  // and the verifier, too
};

// One input, made from the seed. The result: what does not hold, with the input; empty if everything does. An input
// whose graph verifies must come back the same from its text and its program, and each pass of the pipeline must leave
// a graph that verifies and that it does not change again.
std::string check_text(uint64_t seed, Tally* tally);
std::string check_program(uint64_t seed, Tally* tally);

}  // namespace torch_remote::fuzz

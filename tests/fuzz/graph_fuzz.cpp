#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "tests/fuzz/graph_properties.h"

// graph_fuzz [MINUTES [FIRST_SEED]]: feeds the readers of graphs for so long, from a random seed; stops at the first
// property that does not hold. graph_fuzz 0 SEED does one seed.
namespace torch_remote::fuzz {
namespace {

bool holds(const std::string& wrong) {
  if (!wrong.empty()) std::printf("%s\n", wrong.c_str());
  return wrong.empty();
}

void print_tally(const char* name, const Tally& tally) {
  std::printf("%-8s %10llu inputs, %llu read, %llu valid\n", name, static_cast<unsigned long long>(tally.inputs),
              static_cast<unsigned long long>(tally.read), static_cast<unsigned long long>(tally.valid));
}

int run(double minutes, uint64_t seed) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double, std::ratio<60>>(minutes);
  std::printf("from seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);  // a crash must not take it along
  Tally text, program;
  do {
    if (!holds(check_text(seed, &text)) || !holds(check_program(seed, &program))) return 1;
    ++seed;
  } while (std::chrono::steady_clock::now() < end);
  print_tally("text", text);
  print_tally("program", program);
  return 0;
}

}  // namespace
}  // namespace torch_remote::fuzz

int main(int argc, char** argv) {
  const double minutes = argc > 1 ? std::strtod(argv[1], nullptr) : 10;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device()() * uint64_t{1} << 20;
  return torch_remote::fuzz::run(minutes, seed);
}

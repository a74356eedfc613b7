#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>

#include "tests/simulator/outcome.h"

// What the parts of a scenario share: what the seed decided, and what has happened. run.cpp decides, machine.cpp is the
// worker's machine and who else comes to it, script.cpp the client, scenario.cpp puts them together.
namespace torch_remote::simulator {

inline constexpr const char* kToken = "a token that only both ends know";

// What the seed decides.
struct Plan {
  bool keeps = true;   // the session must survive all of it
  bool intact = true;  // no allocation fails
  bool damages = false;
  std::chrono::milliseconds lease{600'000}, heartbeat{1'000};
  uint64_t threads = 1, steps = 20;
  size_t largest = 2000;  // elements
  Nanoseconds worker_dies = kNever, client_dies = kNever, outage = kNever, outage_ends = 0;
  bool outage_refuses = false;
  uint64_t strangers = 0;
  uint64_t memory_limit = 0;
  double slow_runs = 0;
};

struct Run {
  World world;
  Network network;
  Plan plan;
  Outcome outcome;
  uint32_t client = 0, worker = 0;
  bool client_done = false;
  std::map<uint32_t, uint64_t> executed;  // runs, by the session's process
  uint64_t admitted = 0, invited = 0;
  std::mutex profiling;
  void (*finish)(const Outcome&, const World&) = nullptr;

  explicit Run(uint64_t seed) : world(seed), network(world) {}
};
extern Run* g_run;

// Ends this process; not empty: as a failure.
[[noreturn]] void end(const std::string& why);
inline void require(bool holds, const std::string& why) {
  if (!holds) g_run->world.fail(why);
}
void sleep(Nanoseconds time);

template <class T>
T one_of(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.below(choices.size())];
}

// OpenSSL runs as it is; what it draws by chance comes from the seed, too.
void draw_tls_secrets_from_the_seed();
// Draws the plan and the weather.
void decide(Run& run);

// The worker's machine: listens, and has a session for each client that it lets in. Never returns.
[[noreturn]] void listen(Run& run);
// Somebody without a token.
void intrude(Run& run);

// The client, to its end.
void be_client(Run& run, uint64_t seed);

}  // namespace torch_remote::simulator

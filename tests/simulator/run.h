#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>

#include "tests/simulator/outcome.h"

// State that the parts of a scenario share: the choices of the seed, and what has happened. run.cpp makes the choices.
// machine.cpp is the worker's machine, and the strangers that connect to it. script.cpp is the client. scenario.cpp
// combines them.
namespace torch_remote::simulator {

inline constexpr const char* kToken = "a token that only both ends know";

// The choices of the seed.
struct Plan {
  bool session_must_survive = true;  // the session must survive everything
  bool no_allocation_fails = true;   // no allocation fails
  bool corrupts = false;
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
  std::map<uint32_t, uint64_t> executed;  // number of executed runs, by the session's process
  uint64_t admitted = 0, invited = 0;
  std::mutex profiling;
  void (*finish)(const Outcome&, const World&) = nullptr;

  explicit Run(uint64_t seed) : world(seed), network(world) {}
};
extern Run* g_run;

// Ends this process; with a failure if `why` is not empty.
[[noreturn]] void end(const std::string& why);
inline void require(bool holds, const std::string& why) {
  if (!holds) g_run->world.fail(why);
}
void sleep(Nanoseconds time);

template <class T>
T one_of(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.below(choices.size())];
}

// OpenSSL itself is not simulated. Its random numbers come from the seed, too.
void draw_tls_secrets_from_the_seed();
// Chooses the plan and the fault_model.
void make_plan(Run& run);

// The worker's machine. It listens, and starts a session for each client that it accepts. Never returns.
[[noreturn]] void run_listener(Run& run);
// A stranger without a token.
void run_stranger(Run& run);

// Runs the client until it is done.
void run_client(Run& run, uint64_t seed);

}  // namespace torch_remote::simulator

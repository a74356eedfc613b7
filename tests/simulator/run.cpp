#include "tests/simulator/run.h"

#define OPENSSL_SUPPRESS_DEPRECATED  // the replacement, an OpenSSL provider, would take 300 lines
#include <openssl/rand.h>
#include <sys/random.h>
#include <unistd.h>

namespace torch_remote::simulator {

extern double no_memory;

Run* g_run = nullptr;

[[noreturn]] void end(const std::string& why) {
  Run& run = *g_run;
  run.outcome.failed = !why.empty();
  run.outcome.why = why;
  run.outcome.hash = run.world.hash();
  run.outcome.faults = run.network.counts;
  run.outcome.simulated_seconds = static_cast<double>(run.world.now() - 1000 * kSecond) / kSecond;
  run.finish(run.outcome, run.world);
  _exit(0);
}

void sleep(Nanoseconds time) { g_run->world.sleep_until(g_run->world.now() + time); }

void draw_tls_secrets_from_the_seed() {
  static const auto draw = [](unsigned char* to, int size) {
    return static_cast<int>(getrandom(to, static_cast<size_t>(size), 0) == size);  // the one of interpose.cpp
  };
  static const RAND_METHOD method = {
      .seed = nullptr, .bytes = draw, .cleanup = nullptr, .add = nullptr, .pseudorand = draw, .status = [] {
        return 1;
      }};
  require(RAND_set_rand_method(&method) == 1, "OpenSSL takes no random numbers from the seed");
}

void make_plan(Run& run) {
  Random& random = run.world.random();
  FaultModel& fault_model = run.network.fault_model;
  Plan& plan = run.plan;
  run.world.preemption = one_of(random, {0.0, 0.02, 0.1, 0.3});
  fault_model.latency = one_of<Nanoseconds>(random, {10 * kMicrosecond, 200 * kMicrosecond, 20 * kMillisecond});
  if (random.chance(0.2)) {
    fault_model.latency = 300 * kMillisecond;
    fault_model.jitter = 200 * kMillisecond;
    run.network.count(Fault::kDelay);
  }
  if (random.chance(0.2)) {
    fault_model.bytes_per_ns = 1.25e-3;  // 10 Mbit/s
    run.network.count(Fault::kSlow);
  }
  fault_model.window = one_of<uint64_t>(random, {4 << 10, 64 << 10, 1 << 20});
  if (fault_model.jitter > 0) fault_model.window = 1 << 20;  // needed to use a link with a long delay
  fault_model.partial = one_of(random, {0.0, 0.1, 0.5});
  fault_model.break_within_bytes = one_of<uint64_t>(random, {400, 4'000, 60'000});
  if (random.chance(0.85)) {
    fault_model.break_probability = one_of(random, {0.4, 0.8, 1.0});
    fault_model.faults = random.between(1, 12);
    const uint64_t kinds = random.between(1, 3);
    for (uint64_t i = 0; i < kinds; ++i) {
      fault_model.break_kinds.push_back(one_of(
          random, {Fault::kCut, Fault::kReset, Fault::kHalfOpen, Fault::kOneWay, Fault::kLateCut, Fault::kStall}));
    }
  }
  plan.heartbeat = std::chrono::milliseconds(one_of(random, {200, 1'000, 5'000}));
  // Several round trips: a connection ends after three heartbeat intervals of silence.
  if (fault_model.jitter > 0) plan.heartbeat = std::chrono::milliseconds(5'000);
  fault_model.longest_stall =
      static_cast<Nanoseconds>(plan.heartbeat.count()) * kMillisecond * one_of<uint64_t>(random, {1, 5});
  plan.steps = random.between(5, 60);
  plan.threads = random.chance(0.3) ? 2 : 1;
  plan.largest = one_of<size_t>(random, {16, 2'000, 30'000});
  plan.slow_runs = one_of(random, {0.0, 0.1});
  plan.strangers = random.chance(0.3) ? random.between(1, 4) : 0;
  const Nanoseconds begin = run.world.now();
  const auto some_time = [&] {
    return begin + random.below(one_of<Nanoseconds>(random, {kSecond, 20 * kSecond, 200 * kSecond}));
  };
  plan.outage_refuses = random.chance(0.5);
  switch (random.below(12)) {
    case 0:
      plan.worker_dies = some_time();
      plan.session_must_survive = false;
      break;
    case 1:
      plan.client_dies = some_time();
      break;
    case 2:  // longer than the lease
      plan.lease = std::chrono::milliseconds(random.between(1'000, 20'000));
      plan.outage = some_time();
      plan.outage_ends = plan.outage + 3 * static_cast<Nanoseconds>(plan.lease.count()) * kMillisecond;
      plan.session_must_survive = false;
      break;
    case 3:  // shorter than the lease; may be longer than a handshake may take
      plan.outage = some_time();
      plan.outage_ends = plan.outage + random.below(25 * kSecond);
      if (random.chance(0.5)) {  // nearly as long as the lease, which includes the time to notice the outage
        plan.lease = std::chrono::milliseconds(100'000);
        plan.outage_ends = plan.outage + random.between(40 * kSecond, 60 * kSecond);
        // Each connection attempt that meets a fault waits 20 s for the handshake. The lease has time for one after the
        // outage.
        fault_model.faults = std::min<uint64_t>(fault_model.faults, 1);
      }
      break;
    case 4:
      plan.lease = std::chrono::milliseconds(random.between(1'000, 30'000));
      plan.session_must_survive = false;
      break;
    case 5:
      fault_model.break_kinds.assign(1, Fault::kCorrupt);
      plan.corrupts = true;
      plan.session_must_survive = false;
      break;
    case 6:
      no_memory = 0.2;
      plan.largest = 30'000;
      plan.no_allocation_fails = false;
      break;
    case 7:
      plan.memory_limit = 256 << 10;
      plan.largest = 30'000;
      plan.no_allocation_fails = false;
      break;
    default:
      break;
  }
  if (!plan.no_allocation_fails) plan.threads = 1;
  if (plan.client_dies != kNever) {
    plan.lease = std::chrono::milliseconds(random.between(1'000, 60'000));
    plan.session_must_survive = false;
  }
  run.world.limit = begin + 20'000 * kSecond;
}

}  // namespace torch_remote::simulator

// Runs seeds of the simulator (scenario.h), each in a process of its own.
//
//   simulator --seeds=0:500        runs these, and some of them twice: a seed must always give the same run
//   simulator --seed=17 --trace    runs one, and prints all events
//   simulator --seeds=0:60 --expect-failure   for a program with a bug: some seed must find it
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simulator/scenario.h"

namespace torch_remote::simulator {
namespace {

constexpr uint64_t kTwice = 16;            // every 16th seed is run again
constexpr int kRealTime = 120'000;         // ms without a result, after which the CPU time is checked
constexpr double kLeast = 1, kMost = 600;  // CPU seconds in each interval, and in total

struct Result {
  Outcome outcome;
  std::vector<std::string> recent;
};

int g_pipe = -1;

void put(const void* data, size_t size) {
  for (const char* p = static_cast<const char*>(data); size > 0;) {
    const ssize_t n = write(g_pipe, p, size);
    if (n <= 0) _exit(3);
    p += n;
    size -= static_cast<size_t>(n);
  }
}

void put(const std::string& text) {
  const auto size = static_cast<uint64_t>(text.size());
  put(&size, sizeof(size));
  put(text.data(), text.size());
}

void finish(const Outcome& outcome, const World& world) {
  put(outcome.why);
  put(&outcome.hash, sizeof(outcome.hash));
  const uint64_t counts[] = {outcome.failed,  outcome.runs,          outcome.reads,
                             outcome.resumed, outcome.sessions_lost, outcome.out_of_memory};
  put(counts, sizeof(counts));
  put(outcome.faults.data(), sizeof(outcome.faults));
  put(&outcome.simulated_seconds, sizeof(double));
  if (!outcome.failed) return;
  for (const std::string& line : world.recent()) put(line);
}

// CPU time of a process so far.
double processor_seconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;  // see proc(5)
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Result run(uint64_t seed, bool prints) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    g_pipe = ends[1];
    // Only one thread runs at a time; on a single core they switch faster.
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof(all), &all) == 0) {
      const int cores = CPU_COUNT(&all);
      int skip = static_cast<int>(getpid()) % (cores > 0 ? cores : 1);
      CPU_ZERO(&one);
      for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (CPU_ISSET(i, &all) && skip-- == 0) CPU_SET(i, &one);
      }
      (void)sched_setaffinity(0, sizeof(one), &one);
    }
    simulate(seed, prints, finish);
  }
  close(ends[1]);
  std::string bytes;
  bool stands = false;
  double computed = 0;
  for (char part[4096];;) {
    pollfd polled{ends[0], POLLIN, 0};
    if (poll(&polled, 1, kRealTime) == 0) {
      // On a busy machine a seed may take long, but a hanging one uses no CPU time.
      const double before = std::exchange(computed, processor_seconds(pid));
      if (computed > before + kLeast && computed < kMost) continue;
      stands = true;
      kill(pid, SIGKILL);
      break;
    }
    const ssize_t n = read(ends[0], part, sizeof(part));
    if (n <= 0) break;
    bytes.append(part, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  Result result;
  size_t at = 0;
  const auto take = [&](void* to, size_t size) {
    if (at + size > bytes.size()) return false;
    std::memcpy(to, bytes.data() + at, size);
    at += size;
    return true;
  };
  const auto take_text = [&](std::string* text) {
    uint64_t size = 0;
    if (!take(&size, sizeof(size)) || at + size > bytes.size()) return false;
    *text = bytes.substr(at, size);
    at += size;
    return true;
  };
  Outcome& outcome = result.outcome;
  uint64_t counts[6] = {};
  if (stands || !take_text(&outcome.why) || !take(&outcome.hash, sizeof(outcome.hash)) ||
      !take(counts, sizeof(counts)) || !take(outcome.faults.data(), sizeof(outcome.faults)) ||
      !take(&outcome.simulated_seconds, sizeof(double))) {
    outcome.failed = true;
    outcome.why = stands
                      ? "it stands still in real time"
                      : "the process ended: " + (WIFSIGNALED(status) ? std::string(strsignal(WTERMSIG(status)))
                                                                     : "exit " + std::to_string(WEXITSTATUS(status)));
    return result;
  }
  outcome.failed = counts[0] != 0;
  outcome.runs = counts[1];
  outcome.reads = counts[2];
  outcome.resumed = counts[3];
  outcome.sessions_lost = counts[4];
  outcome.out_of_memory = counts[5];
  for (std::string line; take_text(&line);) result.recent.push_back(line);
  return result;
}

struct Arguments {
  uint64_t first = 0, last = 500;
  bool trace = false, expects_failure = false;
};

int run_all(const Arguments& arguments, const char* program) {
  Outcome sum;
  uint64_t failed = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t seed = arguments.first; seed < arguments.last; ++seed) {
    Result result = run(seed, arguments.trace);
    Outcome& outcome = result.outcome;
    if (!outcome.failed && seed % kTwice == 0 && run(seed, false).outcome.hash != outcome.hash) {
      outcome.failed = true;
      outcome.why = "the same seed is another run";
    }
    if (outcome.failed) {
      ++failed;
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), outcome.why.c_str());
      if (arguments.expects_failure) return 0;
      if (failed <= 3) {
        for (const std::string& line : result.recent) std::printf("  %s\n", line.c_str());
      }
      std::fflush(stdout);
      std::printf("  again, with all of it: %s --seed=%llu --trace\n", program, static_cast<unsigned long long>(seed));
    }
    sum.runs += outcome.runs;
    sum.reads += outcome.reads;
    sum.sessions_lost += outcome.sessions_lost;
    sum.out_of_memory += outcome.out_of_memory;
    sum.simulated_seconds += outcome.simulated_seconds;
    for (size_t i = 0; i < sum.faults.size(); ++i) sum.faults[i] += outcome.faults[i];
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf(
      "%llu seeds, %llu failed; %llu runs, %llu reads; %llu sessions lost as they may be; %.0f s simulated in %.1f s\n",
      static_cast<unsigned long long>(arguments.last - arguments.first), static_cast<unsigned long long>(failed),
      static_cast<unsigned long long>(sum.runs), static_cast<unsigned long long>(sum.reads),
      static_cast<unsigned long long>(sum.sessions_lost), sum.simulated_seconds, took);
  for (size_t i = 0; i < sum.faults.size(); ++i) {
    std::printf("%s%s %llu", i ? ", " : "faults: ", name(static_cast<Fault>(i)),
                static_cast<unsigned long long>(sum.faults[i]));
  }
  std::printf("\nfailures of memory told: %llu\n", static_cast<unsigned long long>(sum.out_of_memory));
  if (arguments.expects_failure) {
    std::printf("no seed found the mistake\n");
    return 1;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace torch_remote::simulator

int main(int count, char** values) {
  torch_remote::simulator::Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = values[i];
    char* end = nullptr;
    if (argument.starts_with("--seeds=")) {
      arguments.first = std::strtoull(values[i] + 8, &end, 10);
      arguments.last = *end == ':' ? std::strtoull(end + 1, nullptr, 10) : arguments.first;
    } else if (argument.starts_with("--seed=")) {
      arguments.first = std::strtoull(values[i] + 7, nullptr, 10);
      arguments.last = arguments.first + 1;
    } else if (argument == "--trace") {
      arguments.trace = true;
    } else if (argument == "--expect-failure") {
      arguments.expects_failure = true;
    } else {
      std::fprintf(stderr, "unknown: %s; there are --seeds=FROM:TO, --seed=N, --trace, --expect-failure\n", values[i]);
      return 2;
    }
  }
  return torch_remote::simulator::run_all(arguments, values[0]);
}

#include "worker/device/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

namespace torch_remote::worker {
namespace {

uint64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// Polls for a while, until the answer is `busy`.
bool becomes(ProcessLoad& load, bool busy) {
  for (int i = 0; i < 200; ++i) {
    if (load.busy(now()) == busy) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

TEST(ProcessLoad, TellsWhoComputesFromWhoSleeps) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) {
      asm volatile("");
    }
  }
  ProcessLoad load(child);
  EXPECT_TRUE(load.known());
  EXPECT_TRUE(becomes(load, true));
  kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(load, false));
  load.assume_busy(now());
  EXPECT_TRUE(load.busy(now()));
  EXPECT_TRUE(becomes(load, false));
  kill(child, SIGCONT);
  EXPECT_TRUE(becomes(load, true));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(becomes(load, false));
}

TEST(ProcessLoad, AProcessElsewhereIsNeverBusy) {
  ProcessLoad load(0);
  EXPECT_FALSE(load.known());
  load.assume_busy(now());
  EXPECT_FALSE(load.busy(now()));
}

// The contents of /proc/stat for the first core that this process may run on, and for another one.
class Stat {
 public:
  Stat() : path_(::testing::TempDir() + "/stat" + std::to_string(getpid())) { write(); }
  ~Stat() { std::remove(path_.c_str()); }

  const std::string& path() const { return path_; }
  // All values are in ticks.
  void write(uint64_t user = 0, uint64_t nice = 0, uint64_t system = 0, uint64_t idle = 0, uint64_t elsewhere = 0) {
    cpu_set_t cores;
    ASSERT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
    int core = 0;
    while (!CPU_ISSET(core, &cores)) ++core;
    std::ofstream file(path_);
    file << "cpu  1000000 0 0 0 0 0 0 0 0 0\n";
    file << "cpu" << core << " " << user << " " << nice << " " << system << " " << idle << " 0 0 0 0 0 0\n";
    file << "cpu" << CPU_SETSIZE - 1 << " " << elsewhere << " 0 0 0 0 0 0 0 0 0\nintr 12 3 4\nctxt 5\n";
  }

 private:
  const std::string path_;
};

constexpr uint64_t kMillisecond = 1'000'000;

// Time that passes in steps of 50 ms, and the processor time used meanwhile, in ms.
class Passing {
 public:
  bool step(uint64_t others, uint64_t client = 0, uint64_t idle = 0, uint64_t nice = 0, uint64_t elsewhere = 0) {
    now_ += 50 * kMillisecond;
    others_ += others + client;
    client_ += client * kMillisecond;
    idle_ += idle * kMillisecond;
    nice_ += nice;
    elsewhere_ += elsewhere;
    const uint64_t tick = 1000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
    const uint64_t user = others_ / 2 / tick, system = others_ / tick - user;
    stat_.write(user, nice_ / tick, system, elsewhere_ / tick, elsewhere_ / tick);
    return load_.busy(now_, client_, idle_);
  }
  bool soon(uint64_t ns) { return load_.busy(now_ + ns, client_, idle_); }

 private:
  Stat stat_;
  OtherProcessLoad load_{stat_.path()};
  uint64_t now_ = 10'000 * kMillisecond, client_ = 0, idle_ = 0;
  uint64_t others_ = 1000, nice_ = 0, elsewhere_ = 0;
};

TEST(OtherLoad, TellsCoresThatOthersUse) {
  if (processor_cores() < 2) GTEST_SKIP() << "one core is not left to anybody";
  Passing time;
  EXPECT_FALSE(time.step(50));  // There is nothing to compare with.
  EXPECT_FALSE(time.step(50));  // Half of the time that a decision needs.
  EXPECT_TRUE(time.step(50));
  EXPECT_TRUE(time.step(0));
  EXPECT_TRUE(time.soon(kMillisecond));
  EXPECT_TRUE(time.step(40));  // Two fifths of 100 ms: less than half, but the state is busy.
  time.step(10);
  EXPECT_FALSE(time.step(10));
  time.step(20);
  EXPECT_FALSE(time.step(20));
}

TEST(OtherLoad, IsNeitherTheClientsNorWhatGivesWayNorElsewhere) {
  if (processor_cores() < 2) GTEST_SKIP() << "one core is not left to anybody";
  Passing time;
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(time.step(0, 50, 0, 50, 50));
  time.step(50, 0, 0, 50, 50);
  EXPECT_TRUE(time.step(50, 0, 0, 50, 50));  // Time that does not count hides nothing.
}

// Another worker that computes while this one waits is harmless.
TEST(OtherLoad, IsWhatTheyUseWhileSomethingIsToBeDone) {
  if (processor_cores() < 2) GTEST_SKIP() << "one core is not left to anybody";
  Passing time;
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(time.step(100, 0, 40));
    EXPECT_FALSE(time.step(0));
  }
  time.step(50, 0, 10);
  EXPECT_TRUE(time.step(50));
  for (int i = 0; i < 19; ++i) EXPECT_TRUE(time.step(50, 0, 50));  // There is no new information.
  time.step(50, 0, 50);
  EXPECT_FALSE(time.step(50, 0, 50));  // The old information has expired.
}

TEST(OtherLoad, NobodyKnowsWithoutAFile) {
  OtherProcessLoad others("/nowhere");
  EXPECT_FALSE(others.busy(10'000 * kMillisecond, 0, 0));
  EXPECT_FALSE(others.busy(20'000 * kMillisecond, 0, 0));
}

}  // namespace
}  // namespace torch_remote::worker

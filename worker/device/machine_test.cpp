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

// Asks now and then until the answer comes, for a while.
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

// What /proc/stat says of the first core that this process may run on, and of another one.
class Stat {
 public:
  Stat() : path_(::testing::TempDir() + "/stat" + std::to_string(getpid())) { write(); }
  ~Stat() { std::remove(path_.c_str()); }

  const std::string& path() const { return path_; }
  // Each in ticks.
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

constexpr uint64_t kSecond = 1'000'000'000;

TEST(OtherLoad, TellsCoresThatOthersUse) {
  if (processor_cores() < 2) GTEST_SKIP() << "one core is not left to anybody";
  const auto second = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  Stat stat;
  OtherLoad others(stat.path());
  EXPECT_FALSE(others.busy(10 * kSecond, 0));  // nothing to compare with
  stat.write(10 * second, 0, 10 * second, 0);
  EXPECT_FALSE(others.busy(10 * kSecond + kSecond / 100, 0));  // so soon it does not look
  EXPECT_TRUE(others.busy(30 * kSecond, 0));
  stat.write(10 * second + 4 * second, 0, 10 * second, 0);
  EXPECT_TRUE(others.busy(40 * kSecond, 0));  // two fifths: less than half, but it has been busy
  stat.write(10 * second + 8 * second, 0, 10 * second, 0);
  EXPECT_TRUE(others.busy(50 * kSecond, 0));
  EXPECT_FALSE(others.busy(60 * kSecond, 0));
  stat.write(10 * second + 12 * second, 0, 10 * second, 0);
  EXPECT_FALSE(others.busy(70 * kSecond, 0));
}

TEST(OtherLoad, IsNeitherTheClientsNorWhatGivesWayNorElsewhere) {
  if (processor_cores() < 2) GTEST_SKIP() << "one core is not left to anybody";
  const auto second = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  Stat stat;
  OtherLoad others(stat.path());
  EXPECT_FALSE(others.busy(10 * kSecond, 3 * kSecond));
  stat.write(10 * second, 10 * second, 0, 10 * second, 10 * second);
  EXPECT_FALSE(others.busy(20 * kSecond, 13 * kSecond));
  stat.write(20 * second, 10 * second, 0, 10 * second, 10 * second);
  EXPECT_TRUE(others.busy(30 * kSecond, 13 * kSecond));
}

TEST(OtherLoad, NobodyKnowsWithoutAFile) {
  OtherLoad others("/nowhere");
  EXPECT_FALSE(others.busy(10 * kSecond, 0));
  EXPECT_FALSE(others.busy(20 * kSecond, 0));
}

}  // namespace
}  // namespace torch_remote::worker
